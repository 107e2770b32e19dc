//! A client of TrueNAS's API: one typed interface over every generation from CORE 12 to 26.
//!
//! [`Settings`] say where the NAS is and how to log in. [`Client`] keeps one socket to it, finds out
//! which [`Generation`] answers, and sends [`Request`](api::Request)s in that generation's
//! [`Dialect`]. When the socket ends, the next call opens another one and asks again, so an appliance
//! that was upgraded in between is spoken to in its new dialect.
//!
//! Every [`Error`] says whether anything may have been done. A socket that ends in the middle of a
//! call leaves the outcome unknown: the caller reads the state again, nothing is repeated here.

#![forbid(unsafe_code)]

pub mod api;
mod backoff;
mod client;
mod connect;
mod error;
mod generation;
mod jobs;
mod login;
mod scram;
mod session;
mod settings;
mod tls;
mod wire;

pub use client::{Client, Clients, Timing};
pub use error::{Detail, Effect, Error, Kind};
pub use generation::{Dialect, Generation, Version};
pub use jobs::JobId;
pub use settings::{ApiKeyLogin, Fingerprint, HttpConnection, Protocol, Settings, TlsOptions};
pub use wire::Transport;
