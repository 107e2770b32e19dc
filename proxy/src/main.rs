//! The program. What it can be asked to do is in `args`; each thing is done elsewhere.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use omnibus_csi::cli::args::{self, Command, Invocation};
use omnibus_csi::cli::{
    adopt, attacher_finalizers, check, connections, explain, export_pvs, exports, liveness_probe,
    migrate_values, move_volume, orphans, serve, try_out, version,
};
use omnibus_csi::process;

fn main() -> ExitCode {
    process::forbid_core_dumps();
    let argv = std::env::args_os().collect();
    match args::parse(argv, &process::variable) {
        Ok(Invocation::Serve(flags)) => serve::run(&flags),
        Ok(Invocation::Command(Command::Check(flags))) => check::run(&flags),
        Ok(Invocation::Command(Command::Connections(flags))) => connections::run(&flags),
        Ok(Invocation::Command(Command::Orphans(flags))) => orphans::run(&flags),
        Ok(Invocation::Command(Command::Exports(flags))) => exports::run(&flags),
        Ok(Invocation::Command(Command::Explain(flags))) => explain::run(&flags),
        Ok(Invocation::Command(Command::ExportPvs(flags))) => export_pvs::run(&flags),
        Ok(Invocation::Command(Command::Adopt(flags))) => adopt::run(&flags),
        Ok(Invocation::Command(Command::Move(flags))) => move_volume::run(&flags),
        Ok(Invocation::Command(Command::Try(flags))) => try_out::run(&flags),
        Ok(Invocation::Command(Command::MigrateValues(flags))) => migrate_values::run(&flags),
        Ok(Invocation::Command(Command::AttacherFinalizers(flags))) => {
            attacher_finalizers::run(&flags)
        }
        Ok(Invocation::Command(Command::LivenessProbe(flags))) => liveness_probe::run(&flags),
        #[cfg(feature = "truenas")]
        Ok(Invocation::Command(Command::Truenas(command))) => {
            omnibus_csi::cli::truenas::run(&command)
        }
        Ok(Invocation::Command(Command::Version { environment })) => version::run(environment),
        Err(error) => {
            error.print();
            ExitCode::from(error.exit_code())
        }
    }
}
