//! Volumes of TrueNAS: a driver, and the client of its API that it stands on.
//!
//! The driver is [`from_document`]: the ZFS algorithm over a `Backend` that is the API, with
//! exports that are the NAS's own shares, targets and subsystems. compat: "TrueNAS".
//!
//! The client is one typed interface over every generation from CORE 12 to 26.
//! [`Settings`] say where the NAS is and how to log in. [`Client`] keeps one socket to it, finds out
//! which [`Generation`] answers, and sends [`Request`](api::Request)s in that generation's
//! [`Dialect`]. When the socket ends, the next call opens another one and asks again, so an appliance
//! that was upgraded in between is spoken to in its new dialect.
//!
//! Every [`Error`] says whether anything may have been done. A socket that ends in the middle of a
//! call leaves the outcome unknown: the caller reads the state again, nothing is repeated here.

#![forbid(unsafe_code)]

mod acl;
pub mod api;
mod backend;
mod backoff;
mod check;
mod client;
mod command;
mod composed;
mod config;
mod connect;
mod error;
mod export;
mod factory;
mod failure;
mod generation;
mod jobs;
mod login;
mod metered;
mod round;
mod rows;
mod scram;
mod session;
mod settings;
pub mod setup;
mod tls;
mod wire;

pub use client::{Client, Clients, Timing};
pub use error::{Detail, Effect, Error, Kind};
pub use factory::{KINDS, factory, from_document};
pub use generation::{Dialect, Generation, Version};
pub use jobs::JobId;
pub use settings::{ApiKeyLogin, Fingerprint, HttpConnection, Protocol, Settings, TlsOptions};
pub use wire::Transport;
