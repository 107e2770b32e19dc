//! A simulator of the parts of Synology's web API that a CSI driver needs: sessions, iSCSI LUNs, targets
//! and snapshots, shared folders, capacity. Strict: what a method does not know is refused.
//!
//! Synology documents only the login. Each method and each code here names the public source that it
//! was read from; what no source says is marked "no source". See `README.md` for what that proves.

#![forbid(unsafe_code)]

mod dsm;
mod failure;
mod faults;
mod host;
mod lun;
mod params;
mod server;
mod share;
mod snapshot;
mod target;
mod tls;
mod version;

pub use dsm::{Held, Options, VolumeOptions};
pub use faults::{Action, Fault, Loss};
pub use server::{Simulator, shape};
pub use version::Version;
