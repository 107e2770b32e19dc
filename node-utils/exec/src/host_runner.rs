//! Runs a command on the host instead of in the container.
//!
//! Some tools must be the host's: their daemon and database live there (iscsiadm, multipath), or their version must
//! match the host's kernel module (zfs). The program is looked up first, so that a missing program is an error of
//! its own and not an exit code of `chroot`.
//!
//! Reference: chroot(1), nsenter(1), `docs/compatibility.md`.

mod find_daemon;
mod settings;

use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
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

/// The way the host is entered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostAccess {
    /// `chroot` into the host's root filesystem, mounted here.
    Chroot {
        /// The path where it is mounted; `/host` in the image.
        root: PathBuf,
    },
    /// `nsenter` into the mount and network namespaces of a daemon's oldest process, for hosts
    /// that keep the daemon in a container of its own (Talos). It needs `hostPID`. A process of that name in a pod,
    /// or without all rights, is not the daemon.
    Daemon {
        /// The daemon's name as the kernel has it, such as `iscsid`.
        name: String,
        /// The path where proc(5) is mounted here.
        proc: PathBuf,
    },
    /// `nsenter` into the mount namespace of the host's first process. It needs `hostPID`.
    Init {
        /// The path where proc(5) is mounted here.
        proc: PathBuf,
    },
}

/// Runs commands on the host, through an inner runner that starts `chroot` or `nsenter`.
#[derive(Debug, Clone)]
pub struct Host<R> {
    inner: R,
    way: HostAccess,
}

/// The root filesystem of the host, for as long as this is kept.
#[derive(Debug)]
pub struct HostRoot {
    path: PathBuf,
    /// The path as an operator knows it.
    shown: PathBuf,
    /// What the path leads by, so that it never becomes that of another process.
    _held: Option<OwnedFd>,
}

/// A program found on the host, and how to enter.
struct Entry {
    wrapper: Program,
    prefix: Vec<String>,
    /// The program as it is called once inside.
    program: String,
    /// The namespaces that `prefix` names, to be kept open until the wrapper has entered them.
    held: Vec<File>,
}

/// A command that enters the host.
struct Inside {
    command: Command,
    held: Vec<File>,
}

/// The output of a command, with what it entered by.
#[derive(Debug)]
struct HeldStream {
    stream: Box<dyn OutputStream>,
    _held: Vec<File>,
}

// === impl Host ===

impl<R: Runner> Host<R> {
    /// Enters the host by `way`; `inner` runs here.
    pub fn new(inner: R, way: HostAccess) -> Self {
        Self { inner, way }
    }

    async fn enter(&self, command: &Command) -> Result<Inside, RunError> {
        let way = self.way.clone();
        let program = command.program().clone();
        // The host's filesystem may be slow or stuck, and these calls block.
        let entry = tokio::task::spawn_blocking(move || way.open(&program)).await;
        let entry = entry.unwrap_or(None).ok_or_else(|| RunError::NotFound {
            program: command.program().clone(),
            place: self.way.place(),
        })?;
        let held = entry.held;
        let mut inside = command.wrapped(entry.wrapper, entry.prefix, entry.program);
        // Tools of the host start others by name, so they get the same search path.
        if !command.environment().iter().any(|(name, _)| *name == PATH) {
            inside = inside.env(PATH, search::path_variable(&DIRECTORIES));
        }
        let command = inside;
        Ok(Inside { command, held })
    }
}

#[async_trait]
impl<R: Runner> Runner for Host<R> {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        let inside = self.enter(command).await?;
        self.inner.run(&inside.command).await
    }

    async fn run_all(&self, commands: &[Command]) -> Batch {
        // A program that a later step names is missing now: better nothing than half a list.
        let mut inside = Vec::with_capacity(commands.len());
        let mut held = Vec::new();
        for command in commands {
            match self.enter(command).await {
                Ok(entered) => {
                    inside.push(entered.command);
                    held.extend(entered.held);
                }
                Err(error) => return Batch::not_started(commands, error),
            }
        }
        self.inner.run_all(&inside).await
    }

    async fn stream_output(&self, command: &Command) -> Result<Box<dyn OutputStream>, RunError> {
        let inside = self.enter(command).await?;
        Ok(Box::new(HeldStream {
            stream: self.inner.stream_output(&inside.command).await?,
            _held: inside.held,
        }))
    }

    async fn run_with_input(
        &self,
        command: &Command,
        input: &mut dyn InputStream,
    ) -> Result<Output, RunError> {
        let inside = self.enter(command).await?;
        self.inner.run_with_input(&inside.command, input).await
    }
}

#[async_trait]
impl OutputStream for HeldStream {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, RunError> {
        self.stream.next().await
    }
}

// === impl HostRoot ===

impl HostRoot {
    /// A root that is always at this path.
    pub fn at(path: PathBuf) -> Self {
        Self {
            shown: path.clone(),
            path,
            _held: None,
        }
    }

    /// The same for messages.
    pub fn shown(&self) -> &Path {
        &self.shown
    }

    /// Where it is for this process. Resolve links below it with [`crate::resolve`].
    pub fn path(&self) -> &Path {
        &self.path
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

    /// The root filesystem of the host; `None` if the daemon does not run.
    pub fn root(&self) -> Option<HostRoot> {
        match self {
            Self::Chroot { root } => Some(HostRoot::at(root.clone())),
            Self::Daemon { name, proc } => {
                let daemon = find_daemon::oldest(proc, name)?;
                let held = daemon.root(proc, name)?;
                Some(HostRoot {
                    path: PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd())),
                    shown: proc.join(daemon.pid.to_string()).join("root"),
                    _held: Some(held),
                })
            }
            // The number of process 1 is never another's.
            Self::Init { proc } => Some(HostRoot::at(proc.join("1/root"))),
        }
    }

    /// Finds the program inside and how to get there; `None` if it is not there.
    fn open(&self, program: &Program) -> Option<Entry> {
        match self {
            Self::Chroot { root } => Some(Entry {
                program: search::find(root, program, &DIRECTORIES)?,
                wrapper: CHROOT,
                prefix: vec![root.to_str()?.to_owned()],
                held: Vec::new(),
            }),
            Self::Daemon { name, proc } => daemon(proc, name, program),
            // The number of process 1 is never another's.
            Self::Init { proc } => Some(Entry {
                program: search::find(&proc.join("1/root"), program, &DIRECTORIES)?,
                wrapper: NSENTER,
                prefix: vec![
                    format!("--mount={}", proc.join("1/ns/mnt").to_str()?),
                    "--".to_owned(),
                ],
                held: Vec::new(),
            }),
        }
    }

    fn place(&self) -> String {
        let folders = search::path_variable(&DIRECTORIES);
        match self {
            Self::Chroot { root } => format!("{folders} below {}", root.display()),
            Self::Daemon { name, .. } => {
                format!("{folders} of the daemon {name}, if it runs with all rights and in no pod")
            }
            Self::Init { .. } => format!("{folders} of process 1"),
        }
    }
}

/// Enters by namespaces that were opened while the number of the process was surely the daemon's.
fn daemon(proc: &Path, name: &str, program: &Program) -> Option<Entry> {
    let daemon = find_daemon::oldest(proc, name)?;
    let process = proc.join(daemon.pid.to_string());
    let (mut prefix, mut held) = (Vec::new(), Vec::new());
    for (option, kind) in [("mount", "mnt"), ("net", "net")] {
        let namespace = File::open(process.join("ns").join(kind)).ok()?;
        let (ours, number) = (std::process::id(), namespace.as_raw_fd());
        prefix.push(format!("--{option}=/proc/{ours}/fd/{number}"));
        held.push(namespace);
    }
    prefix.push("--".to_owned());
    let found = search::find(&process.join("root"), program, &DIRECTORIES)?;
    daemon.is_still_there(proc, name).then_some(Entry {
        wrapper: NSENTER,
        prefix,
        program: found,
        held,
    })
}
