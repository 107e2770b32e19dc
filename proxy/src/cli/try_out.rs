//! `try`: opens the storage and starts the server, which the crate `csi-try` then uses as a cluster does.
//!
//! Without a configuration the storage is a temporary folder.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use csi_try::{Place, Refusal, Storage};
use driver_core::NodeId;
use driver_core::config::{ConfigError, Document, NoEnvironment, Severity};
use node_utils::node::OrchestratorDirs;
use serde_json::json;

use crate::app::App;
use crate::cli::check;
use crate::csi::environment::Environment;
use crate::csi::node::programs::Programs;
use crate::csi::spec_version::CsiVersion;
use crate::process;
use crate::rpc::{Deadlines, Runner};
use crate::telemetry::log::{self, LogFormat, Verbosity};
use crate::telemetry::metrics::Metrics;

mod host;

use host::Host;

/// What to try, and how to serve it.
#[derive(Debug, Args)]
#[command(after_long_help = csi_try::AFTER)]
pub struct TryFlags {
    #[command(flatten)]
    trial: csi_try::Flags,
    /// The version of the CSI specification to pretend to (default: the newest)
    #[arg(long, value_name = "VERSION", default_value_t = CsiVersion::NEWEST, hide_default_value = true)]
    csi_version: CsiVersion,
    /// Write the server's log to standard error
    #[arg(long, value_name = "LEVEL", ignore_case = true)]
    log_level: Option<Verbosity>,
}

/// Tries, tells it on standard output, and returns the exit code. To be called while the process
/// has one thread: it may have to leave the mounts of the machine.
pub fn run(flags: &TryFlags) -> ExitCode {
    if let Some(level) = flags.log_level {
        log::start(Some(level), LogFormat::Auto);
        process::log_panics();
    } else {
        silence_panics();
    }
    let verdict = set_up(flags).and_then(|(place, storage, host)| {
        let runtime = match process::runtime() {
            Ok(runtime) => runtime,
            Err(error) => {
                place.remove();
                let problem = format!("the runtime cannot be started: {error}");
                return Err(Refusal::Cannot(problem));
            }
        };
        let calm = flags.log_level.is_some();
        let verdict = runtime.block_on(place.perform(host, &storage, &flags.trial, calm));
        // What a user does not wait for must not hold up the exit.
        runtime.shutdown_background();
        Ok(verdict)
    });
    verdict.unwrap_or_else(|refusal| refusal.pronounce(flags.trial.json))
}

/// The text of a panic may quote a secret.
fn silence_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let location = panic
            .location()
            .map(ToString::to_string)
            .unwrap_or_default();
        process::complain(&format!(
            "omnibus-csi: a defect at {location}: please report it"
        ));
    }));
}

/// Everything that can be found out before anything is changed. The server is not started yet.
fn set_up(flags: &TryFlags) -> Result<(Place, Storage, Host), Refusal> {
    let node_id = node_id().map_err(|problem| Refusal::Usage(vec![problem]))?;
    let programs = Programs::read(&process::variable).map_err(Refusal::Usage)?;
    let metrics = Metrics::new();
    let at = Environment {
        node: node_id,
        version: flags.csi_version,
        tools: programs.tools(&metrics),
        modes: None,
    };
    let wrong = |error: ConfigError| Refusal::Usage(vec![process::chain(&error)]);
    let own = flags.trial.driver_config_file.as_ref();
    let own = own.map(|path| App::of_file(path, &at));
    let own = own
        .transpose()
        .map_err(|error| Refusal::Usage(vec![process::chain(&error)]))?;
    if let Some((_, app)) = &own {
        has_volumes(app)?;
    }
    let place = Place::make(&flags.trial)?;
    let opened = own.map_or_else(|| demonstration(&place, &at), Ok);
    let (document, mut app) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            place.remove();
            return Err(wrong(error));
        }
    };
    // Without root the folder may keep no marks that say what is ours.
    app.node.use_dirs(OrchestratorDirs::with(place.folders()));
    let notes = document.findings().into_iter();
    let notes =
        notes.filter(|finding| !matches!(finding.severity, Severity::NoEffect | Severity::Remark));
    let storage = Storage {
        driver: app.kind.clone(),
        csi_version: flags.csi_version.to_string(),
        notes: notes.map(|finding| finding.to_string()).collect(),
    };
    let runner = Runner::new(Deadlines::for_programs(programs.timeouts()), metrics);
    let host = Host::new(app, runner);
    Ok((place, storage, host))
}

/// A trial begins with a new volume.
fn has_volumes(app: &App) -> Result<(), Refusal> {
    let kind = &app.kind;
    match app.connections.only() {
        Some(only) if only.can().volumes => Ok(()),
        Some(_) => Err(Refusal::Usage(vec![format!(
            "the driver `{kind}` makes no volumes, so none can live its life here; `check` looks at \
             its configuration"
        )])),
        None => Err(Refusal::Usage(vec![format!(
            "the driver `{kind}` stands for all connections of a folder: give the file of one of them"
        )])),
    }
}

fn node_id() -> Result<NodeId, String> {
    match process::variable("CSI_NODE_ID").filter(|id| !id.is_empty()) {
        Some(id) => NodeId::parse(&id).map_err(|error| format!("CSI_NODE_ID: {error}")),
        None => Ok(check::node()),
    }
}

/// Folders in the temporary folder as storage.
fn demonstration(place: &Place, at: &Environment) -> Result<(Arc<Document>, App), ConfigError> {
    let base = place.base().to_string();
    // JSON is YAML too, and quotes whatever the path may hold.
    let text = json!({
        "driver": "local-hostpath",
        "local-hostpath": { "shareBasePath": base, "controllerBasePath": base },
    });
    let document = Document::parse(&text.to_string(), &NoEnvironment)?;
    App::open(document, at).map_err(|refused| refused.error)
}
