//! The command line and the environment, read once, into options that cannot be invalid.
//!
//! Without a subcommand the program is `bin/democratic-csi`: the same flags, the same environment,
//! and what it does not know it only warns about. Files and sockets are not touched here. compat:
//! "Command line".

use std::ffi::OsString;
use std::path::Path;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::cli::adopt::{self, AdoptFlags};
use crate::cli::attacher_finalizers::AttacherFinalizersFlags;
use crate::cli::export_pvs::{self, ExportPvsFlags};
use crate::cli::migrate_values::MigrateValuesFlags;
use crate::cli::move_volume::{self, MoveFlags};
use crate::cli::try_out::TryFlags;
use crate::process::{Lookup, complain};

mod cli;
mod env;
mod serve;
mod tolerant;

pub use cli::{
    CheckFlags, ConnectionsFlags, ExplainFlags, ExportsFlags, LivenessFlags, LogFlags,
    OrphansFlags, ServeFlags, SetupUserFlags,
};
pub use env::{Effect, VARIABLES, Variable, without_effect};
pub use serve::{LegacySockets, Serve};

/// The exit code of a wrong command line or configuration: `EX_USAGE`.
pub const EX_USAGE: u8 = 64;

/// The work that the program was asked to do.
#[derive(Debug)]
pub enum Invocation {
    /// Serve CSI.
    Serve(Box<Serve>),
    /// Run a subcommand.
    Command(Command),
}

/// The commands of the program besides serving.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Find mistakes in a configuration, without changing anything
    #[command(after_help = cli::AFTER_CHECK)]
    Check(CheckFlags),
    /// List the connections of a folder: health, free space and volumes of each
    #[command(after_help = cli::AFTER_CONNECTIONS)]
    Connections(ConnectionsFlags),
    /// List the orphans of a backend, what incomplete calls left behind, and remove them on request
    #[command(after_help = cli::AFTER_ORPHANS)]
    Orphans(OrphansFlags),
    /// See whether all volumes are still exported, and put back what is missing on request
    #[command(after_help = cli::AFTER_EXPORTS)]
    Exports(ExportsFlags),
    /// Follow a volume from its handle to its pods, and name the first broken link with its remedy
    #[command(after_help = cli::AFTER_EXPLAIN)]
    Explain(ExplainFlags),
    /// Write volumes and claims of Kubernetes for what is on the storage, for a cluster that has lost them
    #[command(after_help = export_pvs::AFTER)]
    ExportPvs(Box<ExportPvsFlags>),
    /// Make a volume of a dataset, zvol or directory that exists, and write its objects of Kubernetes
    #[command(after_help = adopt::AFTER)]
    Adopt(Box<AdoptFlags>),
    /// Move a volume to another connection while pods use it, and write its objects of Kubernetes at the end
    #[command(after_help = move_volume::AFTER)]
    Move(Box<MoveFlags>),
    /// Make one values file of our chart from those of democratic-csi's: each becomes a connection
    #[command(after_help = cli::AFTER_MIGRATE_VALUES)]
    MigrateValues(MigrateValuesFlags),
    /// Print the commands that remove what the external-attacher left, for a driver that does not attach any more
    #[command(after_help = cli::AFTER_ATTACHER_FINALIZERS)]
    AttacherFinalizers(AttacherFinalizersFlags),
    /// Let a volume live its whole life: on this machine, or on your own storage
    Try(TryFlags),
    /// Prepare a TrueNAS for a driver
    #[cfg(feature = "truenas")]
    #[command(subcommand)]
    Truenas(TruenasCommand),
    /// Ask a running server whether it is ready: exit 0 if it is
    LivenessProbe(LivenessFlags),
    /// Say which version this is
    Version {
        /// List every environment variable that is read, and those that are known and do nothing
        #[arg(long)]
        environment: bool,
    },
}

/// What is done on a TrueNAS.
#[derive(Debug, Subcommand)]
pub enum TruenasCommand {
    /// Make the login of a driver with an administrator's: user, privilege, API key, sudo rules for SSH
    #[command(after_help = cli::AFTER_SETUP_USER)]
    SetupUser(SetupUserFlags),
}

/// Why the command line is invalid, or the help or version that it asks for.
#[derive(Debug, thiserror::Error)]
pub enum ArgsError {
    /// `--help`, `--version`, or a flag that cannot be read: clap says it best.
    #[error("{0}")]
    Clap(#[from] clap::Error),
    /// Flags that can be read and cannot be meant.
    #[error("{}", .0.join("\n"))]
    Usage(Vec<String>),
}

#[derive(Debug, Parser)]
#[command(
    name = "omnibus-csi",
    version,
    about = "One CSI driver process for many storage backends; replaces democratic-csi",
    long_about = cli::ABOUT,
    after_help = cli::HINT,
    after_long_help = cli::AFTER,
    args_conflicts_with_subcommands = true,
    subcommand_help_heading = "Other things to do",
    disable_help_subcommand = true,
)]
struct Cli {
    #[command(flatten)]
    serve: ServeFlags,
    #[command(subcommand)]
    command: Option<Command>,
}

/// Reads the command line. `argv` begins with the name of the program.
pub fn parse(argv: Vec<OsString>, env: Lookup<'_>) -> Result<Invocation, ArgsError> {
    let mut argv = argv.into_iter();
    let program = argv.next().unwrap_or_default();
    let mut rest: Vec<OsString> = argv.collect();
    // compat: "Command line": the image has links by these names.
    let name = Path::new(&program)
        .file_name()
        .and_then(|name| name.to_str());
    if name == Some("liveness-probe") {
        rest.insert(0, "liveness-probe".into());
    }
    let mut warnings = Vec::new();
    if !is_subcommand(rest.first()) {
        let tolerant = tolerant::known_only(rest, &serve_flags());
        warnings = tolerant.warnings;
        rest = tolerant.known;
        env::add_flags(&mut rest, "DEMOCRATIC_CSI_", &serve_flags(), env);
        env::add_flags(&mut rest, "OMNIBUS_CSI_", &cli::OURS, env);
    } else if rest.first().is_some_and(|first| first == "liveness-probe") {
        let tolerant = tolerant::known_only(rest.split_off(1), &cli::LIVENESS);
        warnings = tolerant.warnings;
        rest.extend(tolerant.known);
        env::add_flags(
            &mut rest,
            "DEMOCRATIC_CSI_LIVENESS_PROBE_",
            &cli::LIVENESS,
            env,
        );
    }
    name_the_file(&mut rest);
    rest.insert(0, "omnibus-csi".into());
    let matches = Cli::command().try_get_matches_from(rest)?;
    let cli = Cli::from_arg_matches(&matches)?;
    match cli.command {
        Some(Command::LivenessProbe(mut flags)) => {
            flags.warnings = warnings;
            Ok(Invocation::Command(Command::LivenessProbe(flags)))
        }
        Some(command) => Ok(Invocation::Command(command)),
        None => Serve::from_flags(cli.serve, env, warnings)
            .map(|serve| Invocation::Serve(Box::new(serve)))
            .map_err(ArgsError::Usage),
    }
}

/// Whether the first argument names a subcommand, or tries to: no flag has ever been a bare word.
fn is_subcommand(first: Option<&OsString>) -> bool {
    first
        .and_then(|first| first.to_str())
        .is_some_and(|first| !first.starts_with('-'))
}

/// Lets `check FILE` stand for `check --driver-config-file FILE`, and so for the other commands.
fn name_the_file(rest: &mut Vec<OsString>) {
    const FLAG: &str = "--driver-config-file";
    // Flags without a value, which may stand before the file.
    const SWITCHES: [&str; 6] = [
        "--offline",
        "--json",
        "--remove",
        "--repair",
        "--print",
        "--new-key",
    ];
    const COMMANDS: [&str; 6] = [
        "check",
        "connections",
        "orphans",
        "exports",
        "try",
        "setup-user",
    ];
    let text = |index: usize| rest.get(index).and_then(|text: &OsString| text.to_str());
    // `truenas` is followed by what is done there.
    let command = usize::from(text(0) == Some("truenas"));
    let is_switch = |at: &usize| text(*at).is_some_and(|arg| SWITCHES.contains(&arg));
    let at = (command + 1..rest.len()).find(|at| !is_switch(at));
    let (Some(command), Some((at, file))) =
        (text(command), at.and_then(|at| Some((at, text(at)?))))
    else {
        return;
    };
    let is_named = (1..rest.len()).any(|at| text(at).is_some_and(|arg| arg.starts_with(FLAG)));
    if COMMANDS.contains(&command) && !file.starts_with('-') && !is_named {
        rest.insert(at, FLAG.into());
    }
}

fn serve_flags() -> Vec<&'static str> {
    cli::DEMOCRATIC.iter().chain(&cli::OURS).copied().collect()
}

// === impl ArgsError ===

impl ArgsError {
    /// The exit code: asking for help is no error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Clap(error) if is_question(error) => 0,
            _ => EX_USAGE,
        }
    }

    /// Says it, to standard output if it was asked for.
    pub fn print(&self) {
        match self {
            // A failure is ignored: without a terminal there is no place to report it.
            Self::Clap(error) => drop(error.print()),
            Self::Usage(problems) => {
                for problem in problems {
                    complain(&format!("omnibus-csi: {problem}"));
                }
                complain("omnibus-csi: `omnibus-csi --help` explains every flag");
            }
        }
    }
}

fn is_question(error: &clap::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    )
}

#[cfg(test)]
mod tests;
