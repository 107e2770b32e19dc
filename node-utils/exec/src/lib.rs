//! Commands, shell quoting, and the runners that execute commands here or on the host.
//!
//! This crate does not know mounts, disks or CSI. The module that wraps a tool knows the tool's options and what
//! its output means. This is the only place in the workspace that starts child processes.
//!
//! Reference: execve(2), POSIX `sh`, chroot(1), nsenter(1).

mod command;
mod error;
mod host_runner;
mod local;
mod lock;
mod observed;
mod output;
mod quote;
mod runner;
pub mod script;
mod search;
pub mod stream;
mod sudo;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use command::{
    Accept, Argument, Command, CommandLine, Input, InvalidCommand, InvalidProgram, InvalidVariable,
    Program, Variable,
};
pub use csi_types::{Backoff, Effect};
pub use error::RunError;
pub use host_runner::{Host, HostAccess, HostRoot, HostSettings, InvalidHostSettings};
pub use local::Local;
pub use lock::{Lock, Locked};
pub use observed::{Observation, Observed, Observer, RunOutcome};
pub use output::{Output, Status};
pub use quote::{NulByte, quote};
pub use runner::{Batch, BatchError, Runner, Step, one_by_one};
pub use search::{DIRECTORIES, resolve};
pub use stream::{InputStream, OutputStream};
pub use sudo::Sudo;
