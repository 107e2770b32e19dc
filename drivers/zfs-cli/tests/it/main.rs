//! Everything that needs no lab, as one program.
#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]

#[path = "../common/bare.rs"]
mod bare;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/fake.rs"]
mod fake;
mod first_try;
mod processes;
mod queries;
mod scripts;
mod unmount;
