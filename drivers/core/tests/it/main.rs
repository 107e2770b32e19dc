//! Everything that needs no lab, as one program.

mod config;
mod templates;
