//! Listening.

pub mod authority;
pub mod hpack;
