//! `version`: what this is, and what its environment may say.
#![expect(clippy::print_stdout, reason = "this is the answer to the question")]

use std::process::ExitCode;

use crate::args::{Effect, VARIABLES};

/// Prints it.
pub fn run(environment: bool) -> ExitCode {
    if environment {
        for variable in VARIABLES {
            let what = match variable.effect {
                Effect::Flag(flag) => format!("stands for --{flag}"),
                Effect::Acts(what) => what.to_owned(),
                Effect::None(why) => format!("no effect: {why}"),
            };
            println!("{:<50} {what}", variable.name);
        }
    } else {
        println!(
            "omnibus-csi {} (CSI {})",
            env!("CARGO_PKG_VERSION"),
            csi_proto::SPEC_VERSION
        );
    }
    ExitCode::SUCCESS
}
