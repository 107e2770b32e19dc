//! Everything that needs no lab, as one program.
#![forbid(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;
mod connections;
#[path = "../common/log.rs"]
mod log;
mod logins;
mod openssh;
mod streams;
