//! The program: one CSI server process for many storage backends.
//!
//! The half that runs (`args` to `check`) reads the command line, serves, reports and stops; the
//! half that answers decodes each RPC once, finds its connection and asks a driver.
#![forbid(unsafe_code)]

pub mod admin;
pub mod advertise;
pub mod args;
mod aside;
mod backends;
pub mod census;
pub mod check;
pub mod config_file;
pub mod connection;
pub mod connections;
mod controller;
pub mod csi_version;
pub mod decode;
mod encode;
pub mod exports;
pub mod folder;
pub mod identity;
mod inflight;
mod initiators;
pub mod liveness;
pub mod metrics;
mod node;
pub mod node_half;
mod node_identity;
pub mod node_info;
pub mod orphans;
mod places;
pub mod process;
pub mod programs;
pub mod rpc;
mod scope;
pub mod server;
pub mod service;
pub mod serving;
pub mod site;
pub mod status;
pub mod telemetry;
#[cfg(test)]
mod testing;
pub mod try_out;
pub mod version;
mod zones;
