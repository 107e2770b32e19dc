//! The whole program against a stand-in for the API server, which answers from `tests/world.json`.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]
#![expect(
    clippy::disallowed_methods,
    reason = "the program under test is a child of the test, which no runner of ours may be"
)]

mod api;
mod explain;
mod pages;
mod remote;
