//! Runs the steps of a sequence on the real code: files through the loader, calls through the
//! service.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use driver_core::Driver;
use driver_core::config::ConfigError;
use tokio::time::{sleep, timeout};
use tonic::Code;

use super::flaws::Flaw;
use super::requests::{self, Answer};
use super::steps::{BareIs, Call, Content, Ends, NAMES, STORAGES, Setup, Step};
use super::storage::{Held, Storage};
use super::workshop;
use crate::csi::controller::ControllerHandler;
use crate::csi::plugin::Modes;
use crate::routing::config_file::ConfigFileError;
use crate::routing::connections::{
    Bare, Blueprint, ConnectionName, Connections, LazyConnection, Names,
};
use crate::routing::folder::{Loader, States};
use crate::routing::plugin_name::PluginName;
use crate::rpc::{Deadlines, Runner};
use crate::telemetry::metrics::Metrics;

/// The deadline of a call that changes something.
const DEADLINE: Duration = Duration::from_mins(10);
/// How long a client waits before it leaves.
const IMPATIENCE: Duration = Duration::from_secs(1);
/// Longer than any wait: all runnable work has run by then.
const MOMENT: Duration = Duration::from_millis(1);

/// More moments than any work without a wait needs.
const MANY: u32 = 1_000;

/// The content of the folder.
#[derive(Debug, Clone, Copy)]
enum File {
    Good(Content),
    Bad,
}

/// The storages, the folder, and the process between them.
pub(super) struct Actor {
    setup: Setup,
    flaw: Option<Flaw>,
    storages: Vec<Arc<Storage>>,
    by_hand: Arc<Storage>,
    files: BTreeMap<&'static str, File>,
    process: Process,
}

/// The part that ends with a restart.
struct Process {
    service: ControllerHandler,
    loader: Loader,
    connections: Connections,
    states: States,
    metrics: Metrics,
    builds: Arc<AtomicBool>,
}

// === impl Actor ===

impl Actor {
    pub(super) fn new(setup: &Setup, room: u64, flaw: Option<Flaw>) -> Self {
        let storage = |at| Storage::new(at, room, flaw);
        Self {
            storages: (0..STORAGES).map(storage).collect(),
            by_hand: Storage::by_hand(),
            files: BTreeMap::new(),
            process: Process::new(setup, flaw),
            setup: setup.clone(),
            flaw,
        }
    }

    /// Does one step. `None` if it makes no call.
    pub(super) async fn step(&mut self, step: &Step) -> Option<Answer> {
        match step {
            Step::Good(name, content) => self.put(name, File::Good(*content)),
            Step::Bad(name) => self.put(name, File::Bad),
            Step::Found(name) => {
                let some = Content::default();
                self.files.entry(name).or_insert(File::Good(some));
                let name = parse(name);
                self.process
                    .connections
                    .are_being_read(std::iter::once(&name));
            }
            Step::Gone(name) => {
                self.files.remove(name);
                if self.flaw != Some(Flaw::ServesWhatIsGone) {
                    self.process.remove(&parse(name));
                }
            }
            Step::Unread(is) => {
                let why = is.then(|| "a folder cannot be read".to_owned());
                self.process.connections.set_incomplete(why);
            }
            Step::Unbuilt(is) => self.process.unbuilt(*is).await,
            Step::Storage(at, change) => self.storages[*at].change(*change),
            Step::Release => self.release().await,
            Step::Restart(ends) => {
                match ends {
                    Ends::Well => self.release().await,
                    Ends::Killed => self.storages.iter().for_each(|storage| storage.kill()),
                }
                self.begin_anew();
            }
            Step::Call {
                call,
                fault,
                leaves,
            } => {
                if self.flaw == Some(Flaw::ForgetsEverything) {
                    self.begin_anew();
                }
                if let Some((at, verb, fault)) = fault {
                    self.storages[*at].arm(Some((*verb, *fault)));
                }
                let answer = self.call(call, *leaves).await;
                for storage in &self.storages {
                    storage.arm(None);
                }
                return Some(answer);
            }
        }
        None
    }

    async fn call(&self, call: &Call, leaves: bool) -> Answer {
        let answer = requests::answer(&self.process.service, &self.setup, call);
        if leaves {
            return timeout(IMPATIENCE, answer).await.unwrap_or(Answer::Left);
        }
        match answer.await {
            Answer::Failed(Code::Unavailable) if self.flaw == Some(Flaw::SoundsFinal) => {
                Answer::Failed(Code::Internal)
            }
            answer => answer,
        }
    }

    fn put(&mut self, name: &'static str, file: File) {
        self.files.insert(name, file);
        let alias = || ConfigError::new("its name means another connection");
        if let (File::Bad, Some(Flaw::DropsTheLastGood)) = (file, self.flaw) {
            self.process.remove(&parse(name));
        }
        let built = match file {
            File::Good(_) if !NAMES[..4].contains(&name) => Err(alias()),
            File::Good(content) => Ok(self.lazy(name, content)),
            File::Bad => Err(ConfigError::new("a mistake in it")),
        };
        self.process.install(&parse(name), built);
    }

    fn lazy(&self, name: &'static str, content: Content) -> LazyConnection {
        let storage = match name {
            "a" => &self.storages[0],
            "c" if self.setup.shared => &self.storages[0],
            "b" => &self.storages[1],
            "c" => &self.storages[2],
            _ => &self.by_hand,
        };
        let storage = storage.clone();
        let content = match self.flaw {
            Some(Flaw::KnowsNoZones) => Content {
                zone: None,
                ..content
            },
            Some(Flaw::ClosesNothing) => Content {
                closed: false,
                ..content
            },
            _ => content,
        };
        let builds = self.process.builds.clone();
        let made = move || {
            let driver: Arc<dyn Driver> = storage.clone();
            workshop::connection(parse(name), content, driver)
        };
        let first = made();
        let again = Blueprint::new(move || {
            if builds.load(Ordering::Relaxed) {
                return Ok(made());
            }
            Err(ConfigError::new("its key cannot be read"))
        });
        LazyConnection::new(first, again)
    }

    /// Hanging work continues and ends, in the order in which it began: two of one snapshot would have no certain outcome.
    async fn release(&self) {
        for storage in &self.storages {
            while storage.release() {
                // The clock advances when nothing else can run.
                sleep(MOMENT).await;
            }
        }
        sleep(MOMENT).await;
    }

    /// A new process, which only knows the files.
    fn begin_anew(&mut self) {
        self.process = Process::new(&self.setup, self.flaw);
        for (name, file) in self.files.clone() {
            self.put(name, file);
        }
    }

    /// The final content of the storages.
    pub(super) async fn held(&self) -> Vec<Held> {
        let mut all = Vec::new();
        for storage in &self.storages {
            all.push(storage.held().await);
        }
        all
    }

    pub(super) async fn end(&self) {
        self.release().await;
    }
}

// === impl Process ===

impl Process {
    fn new(setup: &Setup, flaw: Option<Flaw>) -> Self {
        let meant = if flaw == Some(Flaw::MeansAnother) {
            "b"
        } else {
            "a"
        };
        let names = Names {
            aliases: [(parse("old"), parse(meant))].into(),
            bare: match setup.bare {
                BareIs::Unsaid => Bare::Unsaid,
                BareIs::Nobodys => Bare::Nobodys,
                BareIs::Of => Bare::Of(parse("b")),
            },
            ..Names::default()
        };
        let (site, loader) = workshop::site(names);
        let connections = site.connections.clone();
        let metrics = Metrics::new();
        let deadlines = Deadlines {
            copying: DEADLINE,
            changing: DEADLINE,
            ..Deadlines::default()
        };
        let name = PluginName::parse("org.example.test").expect("a name");
        let modes = Modes {
            controller: true,
            node: false,
        };
        let runner = Runner::new(deadlines, metrics.clone());
        Self {
            service: ControllerHandler(Arc::new(site.plugin(name, modes, runner))),
            loader,
            connections,
            states: States::default(),
            metrics,
            builds: Arc::new(AtomicBool::new(true)),
        }
    }

    fn install(&self, name: &ConnectionName, built: Result<LazyConnection, ConfigError>) {
        let refused = |error| ConfigFileError::Config(PathBuf::from("/none"), error);
        let built = built.map_err(refused);
        self.loader
            .install(name, Some(built), &self.states, &self.metrics);
    }

    fn remove(&self, name: &ConnectionName) {
        if self.connections.has(name) {
            self.loader.remove(name, &self.states, &self.metrics);
        } else {
            self.connections.remove(name);
        }
    }

    async fn unbuilt(&self, is: bool) {
        self.builds.store(!is, Ordering::Relaxed);
        for lazy in self.connections.all().iter().filter(|_| is) {
            // The task that built it may still hold it.
            for _ in 0..MANY {
                lazy.let_go(Duration::ZERO);
                if lazy.peek().is_none() {
                    break;
                }
                sleep(MOMENT).await;
            }
            assert!(lazy.peek().is_none(), "an unused driver stays");
        }
    }
}

fn parse(name: &str) -> ConnectionName {
    ConnectionName::parse(name).expect("a name")
}
