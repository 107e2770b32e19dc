//! The program. What it can be asked to do is in `args`; each thing is done elsewhere.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use omnibus_csi::args::{self, Command, Invocation};
use omnibus_csi::{census, check, exports, liveness, orphans, process, serving, try_out, version};

fn main() -> ExitCode {
    process::forbid_core_dumps();
    let argv = std::env::args_os().collect();
    match args::parse(argv, &process::variable) {
        Ok(Invocation::Serve(serve)) => serving::run(&serve),
        Ok(Invocation::Command(Command::Check(flags))) => check::run(&flags),
        Ok(Invocation::Command(Command::Connections(flags))) => census::run(&flags),
        Ok(Invocation::Command(Command::Orphans(flags))) => orphans::run(&flags),
        Ok(Invocation::Command(Command::Exports(flags))) => exports::run(&flags),
        Ok(Invocation::Command(Command::Try(flags))) => try_out::run(&flags),
        Ok(Invocation::Command(Command::LivenessProbe(flags))) => liveness::run(&flags),
        Ok(Invocation::Command(Command::Version { environment })) => version::run(environment),
        Err(error) => {
            error.print();
            ExitCode::from(error.exit_code())
        }
    }
}
