//! The appliance itself.

use serde::Deserialize;
use serde_json::Value;

use super::{Call, Request};
use crate::{Dialect, Error};

/// The version as text. Any login may ask.
#[derive(Debug, Clone, Copy)]
pub struct GetVersion;

/// What the appliance is. Asking needs a role from 24.04 on.
#[derive(Debug, Clone, Copy)]
pub struct GetInfo;

/// What the appliance is.
#[derive(Debug, Clone, Deserialize)]
pub struct SystemInfo {
    /// The version as text.
    pub version: String,
    /// The name of the host.
    pub hostname: String,
    /// The time zone and other things, which no driver needs.
    #[serde(flatten)]
    pub rest: serde_json::Map<String, Value>,
}

impl Request for GetVersion {
    type Answer = String;

    fn encode(&self, _: &Dialect) -> Result<Call, Error> {
        Ok(Call::new("system.version", vec![]))
    }
}

impl Request for GetInfo {
    type Answer = SystemInfo;

    fn encode(&self, _: &Dialect) -> Result<Call, Error> {
        Ok(Call::new("system.info", vec![]))
    }
}
