//! The storage side: what a storage host makes and exports, by its own tools and configfs.
//!
//! LIO and nvmet are set up through configfs, because a call of their tools costs seconds on an
//! emulated processor. Nothing here is cleaned up: the machine goes back to its saved state.

pub mod configfs;
pub mod cut;
pub mod fabric;
pub mod lio;
pub mod nvmet;
pub mod shares;
pub mod zfs;
