//! Whole-program tests: the real binary on a unix socket, driven as orchestrators drive it.
//!
//! The harness ([`server`], [`client`], [`place`]) starts, kills and restarts the program;
//! [`conformance`] is a suite over any driver. What is expected comes from the CSI specification
//! and from `docs/compatibility.md`, never from what the program happens to do.
#![forbid(unsafe_code)]

pub mod again;
pub mod appliance;
pub mod binary;
pub mod chromium;
pub mod conformance;
pub mod dashboard;
pub mod keys;
pub mod lab;
pub mod machine;
pub mod objects;
pub mod observe;
pub mod place;
pub mod process;
pub mod prometheus;
pub mod reads;
pub mod relay;
pub mod requirement;
pub mod sanity;
pub mod server;
pub mod sshd;
pub mod tools;
pub mod tree;
pub mod wait;

pub use csi_try::client;
pub use csi_try::requests as volume;
