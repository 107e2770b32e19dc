//! `try`: a volume lives its whole life on a storage, driven through the real server as a cluster
//! drives it, and nothing is left behind.
//!
//! Without a configuration the storage is a temporary folder. Only what a trial has made itself is
//! ever changed; after a failure or a signal that is undone as far as possible, and what is left is
//! named.

use std::process::ExitCode;
use std::sync::Arc;

use driver_core::NodeId;
use driver_core::config::{Document, NoEnvironment, Severity};
use node_utils::node::OrchestratorDirs;
use serde_json::json;

use crate::app::{App, Environment};
use crate::cli::args::EX_USAGE;
use crate::csi::node::programs::Programs;
use crate::process;
use crate::routing::config_file;
use crate::rpc::{Deadlines, Runner};
use crate::telemetry::log::{self, LogFormat};
use crate::telemetry::metrics::Metrics;

mod content;
mod ending;
mod flags;
mod folder;
mod host;
mod journal;
mod life;
mod made;
mod making;
mod offers;
mod orchestrator;
mod report;
mod screen;
mod seclusion;
mod step;
mod story;
mod trial;
mod trouble;

pub use flags::{AccessFlag, TryFlags};

use folder::Folder;
use host::Host;
use orchestrator::Orchestrator;
use report::{Introduction, Verdict};
use screen::Screen;
use seclusion::Seclusion;
use step::Step;
use story::{Stop, Story};
use trial::Trial;

/// Why a trial does not begin.
#[derive(Debug)]
enum Refusal {
    /// The command line or the configuration is wrong.
    Usage(Vec<String>),
    /// This machine, or this user, cannot do it.
    Cannot(String),
}

/// What is tried, and where.
#[derive(Debug)]
struct Stage {
    trial: Arc<Trial>,
    folder: Folder,
    app: App,
    runner: Runner,
    introduction: Introduction,
}

/// Tries, tells it on standard output, and returns the exit code. To be called while the process
/// has one thread: it may have to leave the mounts of the machine.
pub fn run(flags: &TryFlags) -> ExitCode {
    let screen = Screen::new(flags.json, flags.log_level.is_some());
    if let Some(level) = flags.log_level {
        log::start(Some(level), LogFormat::Auto);
        process::log_panics();
    } else {
        silence_panics();
    }
    let verdict = set_up(flags).and_then(|stage| {
        let runtime = match process::runtime() {
            Ok(runtime) => runtime,
            Err(error) => {
                let left = stage.folder.remove().err();
                let left = left.map(|left| format!("; {left}")).unwrap_or_default();
                return Err(Refusal::Cannot(format!(
                    "the runtime cannot be started: {error}{left}"
                )));
            }
        };
        let verdict = runtime.block_on(perform(stage, screen));
        // What a user does not wait for must not hold up the exit.
        runtime.shutdown_background();
        verdict
    });
    match verdict {
        Ok(verdict) => verdict.pronounce(flags.json),
        Err(refusal) => refusal.pronounce(flags.json),
    }
}

/// The text of a panic may quote what nobody should read.
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

/// Everything that can be found out before anything is begun.
fn set_up(flags: &TryFlags) -> Result<Stage, Refusal> {
    let trial = Trial::from_flags(flags).map_err(Refusal::Usage)?;
    let node_id = node_id().map_err(|problem| Refusal::Usage(vec![problem]))?;
    let programs = Programs::read(&process::variable).map_err(Refusal::Usage)?;
    let metrics = Metrics::new();
    let tools = programs.tools(&metrics);
    let config_error =
        |error: &(dyn std::error::Error + 'static)| Refusal::Usage(vec![process::chain(error)]);
    let at = Environment {
        node: node_id,
        version: trial.version,
        tools,
        modes: None,
    };
    let own = match &trial.config {
        None => None,
        Some(path) => {
            let opened = config_file::open(path, &at);
            Some(opened.map_err(|e| config_error(&e))?)
        }
    };
    if let Some((_, app)) = &own {
        has_volumes(app)?;
    }
    let seclusion = Seclusion::enter(trial.keep).map_err(Refusal::Cannot)?;
    let folder = Folder::make(&trial.name).map_err(|problem| {
        Refusal::Cannot(format!("no temporary folder can be made: {problem}"))
    })?;
    let opened = match own {
        Some(own) => Ok(own),
        None => demonstration(&folder, &at).map_err(|e| config_error(&e)),
    };
    let (document, mut app) = opened.inspect_err(|_| drop(folder.remove()))?;
    // Without root the folder may keep no marks that say what is ours.
    app.node
        .use_dirs(OrchestratorDirs::with([folder.path().clone()]));
    let notes = document.findings().into_iter();
    let notes = notes.filter(|finding| finding.severity != Severity::NoEffect);
    let introduction = Introduction {
        driver: app.kind.clone(),
        seclusion,
        notes: notes.map(|finding| finding.to_string()).collect(),
    };
    Ok(Stage {
        trial: Arc::new(trial),
        folder,
        app,
        runner: Runner::new(Deadlines::for_programs(programs.timeouts()), metrics),
        introduction,
    })
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
    let host = || {
        rustix::system::uname()
            .nodename()
            .to_str()
            .ok()
            .map(str::to_owned)
    };
    let given = process::variable("CSI_NODE_ID").filter(|id| !id.is_empty());
    let id = given.or_else(host).unwrap_or_default();
    NodeId::parse(&id).map_err(|error| format!("CSI_NODE_ID: {error}"))
}

/// Folders in the temporary folder as storage.
fn demonstration(
    folder: &Folder,
    at: &Environment,
) -> Result<(Arc<Document>, App), driver_core::config::ConfigError> {
    let base = folder.base().to_string();
    // JSON is YAML too, and quotes whatever the path may hold.
    let text = json!({
        "driver": "local-hostpath",
        "local-hostpath": { "shareBasePath": base, "controllerBasePath": base },
    });
    let document = Document::parse(&text.to_string(), &NoEnvironment)?;
    App::open(document, at).map_err(|refused| refused.error)
}

/// Tells the whole story, with its end if it fails.
async fn perform(stage: Stage, screen: Screen) -> Result<Verdict, Refusal> {
    let Stage {
        trial,
        folder,
        app,
        runner,
        introduction,
    } = stage;
    introduction.say(&screen, &trial, &folder);
    let story = Story::begin(screen);
    let mut story = story.map_err(|error| {
        drop(folder.remove());
        Refusal::Cannot(format!("signals cannot be heard: {error}"))
    })?;
    let serving = async {
        let socket = folder.socket();
        let host = Host::start(app, runner, &socket)?;
        let cluster = Orchestrator::connect(&socket, trial.clone()).await?;
        Ok(((host, cluster), "csi.sock".to_owned()))
    };
    let (stopped, left) = match story.step(Step::Serve, serving).await {
        Ok((host, mut cluster)) => {
            let lived = life::live(&mut story, &mut cluster, &folder).await;
            wind_up(&mut story, lived, cluster, host, &folder).await
        }
        Err(stop) => (Some(stop), folder.remove().err().into_iter().collect()),
    };
    Ok(Verdict {
        introduction,
        trial,
        folder,
        story,
        stopped,
        left,
    })
}

/// The end of the server and the folder; before that, after a failure, of what was made.
async fn wind_up(
    story: &mut Story,
    lived: Result<(), Stop>,
    mut cluster: Orchestrator,
    host: Host,
    folder: &Folder,
) -> (Option<Stop>, Vec<String>) {
    let mut left = Vec::new();
    let stopped = match lived {
        Ok(()) if cluster.trial.keep => return (None, cluster.made.remains()),
        Ok(()) => {
            let remove = async {
                end(cluster, host, folder)
                    .await
                    .map(|()| ((), String::new()))
            };
            let stopped = story.step(Step::Stop, remove).await.err();
            // A signal that comes when everything is over changes nothing any more.
            let stopped = stopped.filter(|_| !story.journal.is_ok(Step::Stop));
            if stopped.is_some() {
                left.push(format!("the folder {}", folder.path()));
            }
            return (stopped, left);
        }
        Err(stop) => stop,
    };
    let abandoned = matches!(stopped, Stop::Abandoned(_));
    if cluster.trial.keep || abandoned {
        left.extend(cluster.made.remains());
        left.push(format!("the folder {}", folder.path()));
        return (Some(stopped), left);
    }
    story.screen.say("");
    story.screen.heading(screen::Style::Dim, "Cleaning up ...");
    let cleaned = story.watch(cluster.clean_up()).await;
    left.extend(cluster.made.remains());
    match cleaned {
        Ok(reasons) => left.extend(
            reasons
                .into_iter()
                .map(|reason| format!("because {reason}")),
        ),
        Err(abandoned) => {
            left.push(format!("the folder {}", folder.path()));
            return (Some(abandoned), left);
        }
    }
    left.extend(folder.unmount_all());
    match story.watch(end(cluster, host, folder)).await {
        Ok(Ok(())) => {}
        Ok(Err(trouble)) => left.push(format!("the folder {}: {}", folder.path(), trouble.what)),
        Err(_) => left.push(format!("the folder {}", folder.path())),
    }
    (Some(stopped), left)
}

async fn end(cluster: Orchestrator, host: Host, folder: &Folder) -> Result<(), trouble::Trouble> {
    // The server waits for its clients to leave.
    drop(cluster);
    host.stop().await?;
    folder.remove().map_err(trouble::Trouble::seen)
}

// === impl Refusal ===

impl Refusal {
    fn pronounce(&self, as_json: bool) -> ExitCode {
        let (problems, code) = match self {
            Self::Usage(problems) => (problems.clone(), EX_USAGE),
            Self::Cannot(problem) => (vec![problem.clone()], 1),
        };
        for problem in &problems {
            process::complain(&format!("omnibus-csi try: {problem}"));
        }
        if as_json {
            process::say(&format!("{}\n", report::refused(&problems)));
        } else if matches!(self, Self::Usage(_)) {
            process::complain(
                "omnibus-csi try: nothing was begun; `omnibus-csi try --help` explains",
            );
        }
        ExitCode::from(code)
    }
}
