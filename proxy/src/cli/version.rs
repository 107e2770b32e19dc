//! `version`: what this is, and what its environment may say.

use std::process::ExitCode;

use crate::cli::args::{Effect, VARIABLES};
use crate::process::say;

/// Prints it.
pub fn run(environment: bool) -> ExitCode {
    if environment {
        for variable in VARIABLES {
            let what = match variable.effect {
                Effect::Flag(flag) => format!("stands for --{flag}"),
                Effect::Acts(what) => what.to_owned(),
                Effect::None(why) => format!("no effect: {why}"),
            };
            say(&format!("{:<50} {what}\n", variable.name));
        }
    } else {
        say(&format!(
            "omnibus-csi {} (CSI {})\n",
            env!("CARGO_PKG_VERSION"),
            csi_proto::SPEC_VERSION
        ));
    }
    ExitCode::SUCCESS
}
