//! The one algorithm of all ZFS families: observe, plan, apply.
//!
//! A verb observes all that it needs in one exchange, plans as a pure function of what is wanted
//! and what was observed, and applies the plan as one script, until nothing is left to be done. How
//! datasets are changed is a [`Backend`], how they are reached is an [`Export`]; this crate knows no
//! share and no gRPC. compat: "ZFS".

#![forbid(unsafe_code)]

pub mod backend;
pub mod blocks;
pub mod config;
pub mod context;
pub mod driver;
pub mod export;
pub mod fenced;
pub mod id;
pub mod name;
pub mod nodes;
pub mod observed;
pub mod parameter;
pub mod plan;
pub mod policy;
pub mod property;
pub mod published;
pub mod step;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use backend::Backend;
pub use config::ZfsConfig;
pub use driver::{Settings, ZfsDriver};
pub use export::Export;
