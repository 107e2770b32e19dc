//! Runs commands on another machine over SSH: one [`exec::Runner`] per host.
//!
//! Connections are opened on first use, shared by all calls, kept alive, and reopened after a loss. The remote
//! command is always the constant [`exec::script::REMOTE_COMMAND`]; the commands travel on its standard input. This
//! crate does not know what a command means, and it repeats nothing that was sent.
//!
//! Reference: RFC 4251 to 4254, OpenSSH `sshd_config(5)`.
#![forbid(unsafe_code)]

mod auth;
mod host_key;
mod key;
mod pool;
mod runner;
mod session;
mod settings;

pub use host_key::{HostKeys, InvalidHostKey};
pub use key::{InvalidKey, Key};
pub use runner::Ssh;
pub use session::ConnectError;
pub use settings::Settings;
