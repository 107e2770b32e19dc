//! The program: one CSI server process for many storage backends.
//!
//! - `cli`: the commands, `serve` among them.
//! - `routing`: from files to connections, and from a request to its connection.
//! - `csi`: the services, one `async fn` per call.
//! - `rpc`: what is the same for every call.
//! - `telemetry`: log, metrics, and the endpoint for operators.
//! - `calls`: the calls of the services, and what is known of one.
//! - `message`: the text of an error.
//! - `console`: the page for people, which changes nothing.
//!
//! `app` puts them together for one configuration file.
#![forbid(unsafe_code)]

// Tests name kinds of every family.
#[cfg(all(test, not(feature = "every-driver")))]
compile_error!("the tests of this crate need its default features");

pub mod app;
pub mod calls;
pub mod cli;
#[cfg(feature = "console")]
pub mod console;
pub mod csi;
pub(crate) mod message;
pub mod process;
pub mod routing;
pub mod rpc;
pub mod telemetry;
#[cfg(test)]
mod testing;
