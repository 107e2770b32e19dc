//! The appliance itself.

use serde::Deserialize;
use serde_json::Value;

use super::{Call, Request};
use crate::{Dialect, Error};

/// The version as text. Any login may ask.
#[derive(Debug, Clone, Copy)]
pub struct GetVersion;

/// The facts about the appliance. Asking needs a role from 24.04 on.
#[derive(Debug, Clone, Copy)]
pub struct GetInfo;

/// The roles of the login. From 24.04 on.
#[derive(Debug, Clone, Copy)]
pub struct GetRoles;

/// The roles of a login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roles(pub Vec<String>);

/// The facts about the appliance.
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

impl<'de> Deserialize<'de> for Roles {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let me = Value::deserialize(deserializer)?;
        let roles = &me["privilege"]["roles"];
        // A set of texts.
        let roles = roles.as_array().or_else(|| roles["$set"].as_array());
        let texts = roles.into_iter().flatten().filter_map(Value::as_str);
        Ok(Self(texts.map(str::to_owned).collect()))
    }
}

impl Request for GetRoles {
    type Answer = Roles;

    fn encode(&self, _: &Dialect) -> Result<Call, Error> {
        Ok(Call::new("auth.me", vec![]))
    }
}

impl Request for GetInfo {
    type Answer = SystemInfo;

    fn encode(&self, _: &Dialect) -> Result<Call, Error> {
        Ok(Call::new("system.info", vec![]))
    }
}
