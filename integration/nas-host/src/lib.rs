//! The storage of the machine it runs on, for the simulators of appliances: commands, objects of configfs,
//! targets of LIO, exports of nfsd and shares of samba. What an appliance means by them, its simulator says.

#![forbid(unsafe_code)]

pub mod command;
pub mod configfs;
pub mod exports;
pub mod lio;
pub mod usershares;

use std::fmt;

/// The refusal of this machine, in its own words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed(pub String);

/// The result of a change of this machine.
pub type Answer<T> = Result<T, Failed>;

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failed {}
