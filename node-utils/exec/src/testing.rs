//! Fakes for the tests of those who run commands.
//!
//! They are kept honest by running the same tests against a real runner where one can be had. A
//! test of what a tool *does* belongs to the lab, not here.

mod flaky;
pub mod requirement;
mod scripted;

pub use flaky::{Fault, Flaky};
pub use scripted::{Reply, Scripted};
