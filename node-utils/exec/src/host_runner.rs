//! Runs a command on the host instead of in the container.
//!
//! Some tools must be the host's: their daemon and database live there (iscsiadm, multipath), or their version must
//! match the host's kernel module (zfs). The program is looked up first, so that a missing program is an error of
//! its own and not an exit code of `chroot`.
//!
//! Reference: chroot(1), nsenter(1), `docs/compatibility.md`.

mod find_daemon;
mod settings;

use std::path::{Path, PathBuf};

use async_trait::async_trait;

use crate::command::{Command, Program, Variable};
use crate::error::RunError;
use crate::output::Output;
use crate::runner::{Batch, Runner};
use crate::search::{self, DIRECTORIES};
use crate::stream::{InputStream, OutputStream};

pub use settings::{HostSettings, InvalidHostSettings};

const CHROOT: Program = Program::constant("chroot");
const NSENTER: Program = Program::constant("nsenter");
const PATH: Variable = Variable::constant("PATH");

/// How the host is entered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostAccess {
    /// `chroot` into the host's root filesystem, mounted here.
    Chroot {
        /// Where it is mounted; `/host` in the image.
        root: PathBuf,
    },
    /// `nsenter` into the mount and network namespaces of a daemon's oldest process, for hosts
    /// that keep the daemon in a container of its own (Talos). It needs `hostPID`.
    Daemon {
        /// The daemon's name as the kernel has it, such as `iscsid`.
        name: String,
        /// Where proc(5) is mounted here.
        proc: PathBuf,
    },
    /// `nsenter` into the mount namespace of the host's first process. It needs `hostPID`.
    Init {
        /// Where proc(5) is mounted here.
        proc: PathBuf,
    },
}

/// Runs commands on the host, through an inner runner that starts `chroot` or `nsenter`.
#[derive(Debug, Clone)]
pub struct Host<R> {
    inner: R,
    way: HostAccess,
}

/// A program found on the host, and how to enter.
struct Entry {
    wrapper: Program,
    prefix: Vec<String>,
    /// The program as it is called once inside.
    program: String,
}

// === impl Host ===

impl<R: Runner> Host<R> {
    /// Enters the host by `way`; `inner` runs here.
    pub fn new(inner: R, way: HostAccess) -> Self {
        Self { inner, way }
    }

    async fn enter(&self, command: &Command) -> Result<Command, RunError> {
        let way = self.way.clone();
        let program = command.program().clone();
        // The host's filesystem may be slow or stuck, and these calls block.
        let entry = tokio::task::spawn_blocking(move || way.open(&program)).await;
        let entry = entry.unwrap_or(None).ok_or_else(|| RunError::NotFound {
            program: command.program().clone(),
            place: self.way.place(),
        })?;
        let mut inside = command.wrapped(entry.wrapper, entry.prefix, entry.program);
        // Tools of the host start others by name, so they get the same search path.
        if !command.environment().iter().any(|(name, _)| *name == PATH) {
            inside = inside.env(PATH, search::path_variable(&DIRECTORIES));
        }
        Ok(inside)
    }
}

#[async_trait]
impl<R: Runner> Runner for Host<R> {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        self.inner.run(&self.enter(command).await?).await
    }

    async fn run_all(&self, commands: &[Command]) -> Batch {
        // A program that a later step names is missing now: better nothing than half a list.
        let mut inside = Vec::with_capacity(commands.len());
        for command in commands {
            match self.enter(command).await {
                Ok(entered) => inside.push(entered),
                Err(error) => return Batch::not_started(commands, error),
            }
        }
        self.inner.run_all(&inside).await
    }

    async fn stream_output(&self, command: &Command) -> Result<Box<dyn OutputStream>, RunError> {
        self.inner.stream_output(&self.enter(command).await?).await
    }

    async fn run_with_input(
        &self,
        command: &Command,
        input: &mut dyn InputStream,
    ) -> Result<Output, RunError> {
        self.inner
            .run_with_input(&self.enter(command).await?, input)
            .await
    }
}

// === impl HostAccess ===

impl HostAccess {
    /// By the host's root filesystem at `/host`.
    pub fn chroot() -> Self {
        Self::Chroot {
            root: PathBuf::from("/host"),
        }
    }

    /// By the namespaces of the daemon `name`.
    pub fn daemon(name: impl Into<String>) -> Self {
        Self::Daemon {
            name: name.into(),
            proc: PathBuf::from("/proc"),
        }
    }

    /// By the mount namespace of the host's first process.
    pub fn init() -> Self {
        Self::Init {
            proc: PathBuf::from("/proc"),
        }
    }

    /// The root filesystem of the host as a path of this process; `None` if the daemon does not run. Resolve links
    /// below it with [`crate::resolve`].
    pub fn root(&self) -> Option<PathBuf> {
        match self {
            Self::Chroot { root } => Some(root.clone()),
            Self::Daemon { name, proc } => {
                let pid = find_daemon::oldest(proc, name)?;
                Some(proc.join(pid.to_string()).join("root"))
            }
            Self::Init { proc } => Some(proc.join("1/root")),
        }
    }

    /// Finds the program inside and how to get there; `None` if it is not there.
    fn open(&self, program: &Program) -> Option<Entry> {
        match self {
            Self::Chroot { root } => Some(Entry {
                program: search::find(root, program, &DIRECTORIES)?,
                wrapper: CHROOT,
                prefix: vec![root.to_str()?.to_owned()],
            }),
            Self::Daemon { name, proc } => {
                let pid = find_daemon::oldest(proc, name)?;
                namespaces(proc, pid, &["mnt", "net"], program)
            }
            Self::Init { proc } => namespaces(proc, 1, &["mnt"], program),
        }
    }

    fn place(&self) -> String {
        let folders = search::path_variable(&DIRECTORIES);
        match self {
            Self::Chroot { root } => format!("{folders} below {}", root.display()),
            Self::Daemon { name, .. } => format!("{folders} of the daemon {name}, if it runs"),
            Self::Init { .. } => format!("{folders} of process 1"),
        }
    }
}

fn namespaces(proc: &Path, pid: u32, kinds: &[&str], program: &Program) -> Option<Entry> {
    let process = proc.join(pid.to_string());
    let found = search::find(&process.join("root"), program, &DIRECTORIES)?;
    let option = |kind: &&str| {
        let long = if *kind == "mnt" { "mount" } else { kind };
        Some(format!(
            "--{long}={}",
            process.join("ns").join(kind).to_str()?
        ))
    };
    let mut prefix = kinds.iter().map(option).collect::<Option<Vec<String>>>()?;
    prefix.push("--".to_owned());
    Some(Entry {
        wrapper: NSENTER,
        prefix,
        program: found,
    })
}
