//! Commands, the one quoting function, and the runners that execute commands here or on the host.
//!
//! This crate knows nothing of mounts, disks or CSI: a tool's options and the meaning of its
//! answers belong to the module that wraps the tool. It is the only place of the workspace that
//! starts child processes. The truth is in execve(2), POSIX `sh`, chroot(1) and nsenter(1).

mod command;
mod error;
mod host;
mod limited;
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
pub use error::{Effect, RunError};
pub use host::{Host, HostSettings, InvalidHostSettings, Way};
pub use limited::Limited;
pub use local::Local;
pub use lock::{Lock, Locked};
pub use observed::{Ending, Observation, Observed, Observer};
pub use output::{Output, Status};
pub use quote::{NulByte, quote};
pub use runner::{Batch, BatchError, Runner, Step};
pub use search::{DIRECTORIES, resolve};
pub use stream::{Feed, Flow};
pub use sudo::Sudo;
