//! Everything that needs no lab, as one program.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod bootstrap;
mod redaction;
mod services;
mod wire;
