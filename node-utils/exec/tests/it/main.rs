//! Everything that needs no lab, as one program.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, its helpers too"
)]

mod decorators;
mod host_runner;
mod lists;
mod local;
mod quoting;
