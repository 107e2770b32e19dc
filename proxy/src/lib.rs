//! The program: one CSI server process for many storage backends.
//!
//! The half that runs (`args` to `check`) reads the command line, serves, reports and stops; the
//! half that answers decodes each RPC once, finds its connection and asks a driver.
#![forbid(unsafe_code)]

pub mod csi_version;
pub mod identity;
pub(crate) mod inflight;
pub mod metrics;
pub mod rpc;
pub mod server;
pub mod service;
pub(crate) mod status;
