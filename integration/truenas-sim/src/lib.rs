//! A simulator of the TrueNAS API: its protocols, its strictness, its limits and its faults.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! use truenas_sim::{Generation, Options, Simulator};
//!
//! let nas = Simulator::start(Options::new(Generation::V25_10)).await?;
//! println!("JSON-RPC on wss://{}/api/current with the key {}", nas.https(), nas.api_key());
//! nas.upgrade(Generation::V26Rc);
//! # Ok(())
//! # }
//! ```
//!
//! What it proves and what it cannot prove is in the README of the crate. Which release each method
//! and field was read from stands in the first line of its table (`tables/*.tsv`); texts that are in
//! the code say next to them whether they were recorded or read.

#![forbid(unsafe_code)]

mod accounts;
pub mod backend;
mod clock;
mod control;
mod counters;
pub mod exports;
mod failure;
mod faults;
mod generation;
mod host;
mod jobs;
mod jsonrpc;
mod legacy;
mod methods;
mod migrate;
mod model;
mod nas;
mod query;
mod random;
mod rest;
mod route;
pub mod rows;
mod scram;
mod server;
mod session;
mod simulator;
mod table;
mod tls;
mod validate;
mod websocket;

pub use accounts::{Allowed, ApiKey, User};
pub use clock::Clock;
pub use counters::{Cost, Counts};
pub use failure::{Failure, Invalid};
pub use faults::{Action, Faults, Rule, Settings};
pub use generation::Generation;
pub use model::Model;
pub use simulator::{Options, Simulator};
pub use table::{Field, Method, Presence, Table};
pub use validate::check;
