//! Fake runners for the tests of the crates that run commands.
//!
//! Where a real runner is available, the same tests run against it. What a tool *does* is tested in the lab.

mod cutter;
mod flaky;
pub mod host;
mod one_by_one;
mod program;
pub mod requirement;
mod scripted;

pub use cutter::{CutMoment, Cutter};
pub use flaky::{Fault, Flaky};
pub use one_by_one::{OneByOne, RunOne};
pub use program::write_program;
pub use scripted::{Reply, Scripted};
