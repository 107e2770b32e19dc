//! Commands on another machine, over SSH: one [`exec::Runner`] for one host.
//!
//! Connections are opened on first use, shared by all calls, kept alive and reopened after a loss;
//! whatever is asked for, the remote command is the constant [`exec::script::REMOTE_COMMAND`], and
//! the commands travel on its standard input. Nothing here knows what a command means, and nothing
//! is repeated once it was sent. The truth is in RFC 4251 to 4254 and in OpenSSH's `sshd_config(5)`.
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
