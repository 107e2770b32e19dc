//! SMB shares: `sharing.smb.*`. One flat list of options up to 25.04; from 25.10 on a purpose with
//! options of its own.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Call, Done, Fields, Filter, Request, rows};
use crate::metered::LARGEST_ANSWER;
use crate::{Dialect, Error};

rows! {
    /// Finds SMB shares.
    QuerySmbShares, "sharing.smb.query", SmbShare, |_| Ok(())
}

/// Finds the shares of a directory.
#[derive(Debug, Clone)]
pub struct FindSmbShares {
    /// The directory.
    pub path: String,
}

/// An SMB share.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct SmbShare {
    /// Its number.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// Its directory.
    pub path: String,
    /// Its purpose.
    #[serde(default, deserialize_with = "super::null_is_default")]
    pub purpose: String,
    /// A comment.
    #[serde(default, deserialize_with = "super::null_is_default")]
    pub comment: String,
    /// Whether it is served.
    #[serde(default = "super::is_enabled")]
    pub enabled: bool,
    /// Whether writing is refused.
    #[serde(alias = "ro", default)]
    pub readonly: bool,
    /// Whether its dataset is locked, where the NAS says so.
    pub locked: Option<bool>,
}

/// The options of an SMB share. What is `None` keeps the default of the NAS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SmbOptions {
    /// A comment.
    pub comment: Option<String>,
    /// Whether writing is refused.
    pub read_only: Option<bool>,
    /// Whether it is shown in listings.
    pub browsable: Option<bool>,
    /// Whether users see only what they may read.
    pub access_based_enumeration: Option<bool>,
    /// Whether it is served.
    pub enabled: Option<bool>,
    /// Whether it is a home of users.
    pub home: Option<bool>,
    /// The hosts that may connect.
    pub hosts_allow: Option<Vec<String>>,
    /// The hosts that may not.
    pub hosts_deny: Option<Vec<String>>,
    /// Whether guests may connect.
    pub guest_ok: Option<bool>,
    /// Whether deleted files are kept in a bin.
    pub recycle_bin: Option<bool>,
    /// Whether it serves Time Machine.
    pub time_machine: Option<bool>,
    /// Whether Windows ACLs are supported.
    pub acl: Option<bool>,
    /// Whether snapshots are shown as previous versions.
    pub shadow_copy: Option<bool>,
    /// Whether alternate data streams are supported.
    pub streams: Option<bool>,
    /// Whether handles survive a lost connection.
    pub durable_handles: Option<bool>,
    /// The text that is appended to the path for each user.
    pub path_suffix: Option<String>,
    /// More lines of the share in `smb.conf`.
    pub auxiliary: Option<String>,
}

/// Creates an SMB share. From 25.10 on it is a `LEGACY_SHARE`: the only purpose that has all these
/// options.
#[derive(Debug, Clone)]
pub struct CreateSmbShare {
    /// Its name, at most 80 characters.
    pub name: String,
    /// The directory.
    pub path: String,
    /// Its options.
    pub options: SmbOptions,
}

/// Changes options of an SMB share. From 25.10 on the options of a purpose are replaced as a whole, so
/// all that shall stay must be given.
#[derive(Debug, Clone)]
pub struct UpdateSmbShare {
    /// Its number.
    pub id: i64,
    /// Its options.
    pub options: SmbOptions,
}

/// Deletes an SMB share.
#[derive(Debug, Clone, Copy)]
pub struct DeleteSmbShare {
    /// Its number.
    pub id: i64,
}

/// Finds the connections to SMB shares. From 22.12 on, but not on 25.10, which keeps the method for itself.
#[derive(Debug, Clone, Copy)]
pub struct FindSmbConnections;

/// A connection to an SMB share.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct SmbConnection {
    /// The name of the share.
    pub service: String,
    /// The address of the client.
    pub machine: String,
}

impl Request for FindSmbConnections {
    type Answer = Vec<SmbConnection>;

    fn largest(&self) -> usize {
        LARGEST_ANSWER
    }

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        if !dialect.tells_smb_connections() {
            return Err(dialect.lacks("public list of connections to SMB shares"));
        }
        let options = json!({"select": ["service", "machine"]});
        let params = vec![json!("SHARES"), json!([]), options];
        Ok(Call::new("smb.status", params))
    }
}

impl Request for FindSmbShares {
    type Answer = Vec<SmbShare>;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        QuerySmbShares(vec![Filter::eq("path", self.path.as_str())]).encode(dialect)
    }
}

impl Request for CreateSmbShare {
    type Answer = SmbShare;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        let fields = Fields::new(dialect)
            .put("name", self.name.as_str())
            .put("path", self.path.as_str());
        options(fields, dialect, &self.options)?.call("sharing.smb.create")
    }
}

impl Request for UpdateSmbShare {
    type Answer = SmbShare;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        let fields = Fields::new(dialect);
        options(fields, dialect, &self.options)?
            .call_after("sharing.smb.update", vec![json!(self.id)])
    }
}

impl Request for DeleteSmbShare {
    type Answer = Done;

    fn encode(&self, _: &Dialect) -> Result<Call, Error> {
        Ok(Call::new("sharing.smb.delete", vec![json!(self.id)]))
    }
}

fn options<'a>(
    fields: Fields<'a>,
    dialect: &'a Dialect,
    options: &SmbOptions,
) -> Result<Fields<'a>, Error> {
    let fields = fields
        .opt("comment", options.comment.as_ref())
        .opt("browsable", options.browsable.as_ref())
        .opt("enabled", options.enabled.as_ref());
    if !dialect.has_smb_purposes() {
        let fields = fields
            .opt("ro", options.read_only.as_ref())
            .opt("abe", options.access_based_enumeration.as_ref());
        return Ok(legacy(fields, options));
    }
    let legacy = legacy(Fields::new(dialect), options).object()?;
    let fields = fields.opt("readonly", options.read_only.as_ref()).opt(
        "access_based_share_enumeration",
        options.access_based_enumeration.as_ref(),
    );
    if legacy.is_empty() {
        return Ok(fields.put("purpose", "LEGACY_SHARE"));
    }
    let mut purpose = Map::from_iter([("purpose".to_owned(), Value::from("LEGACY_SHARE"))]);
    purpose.extend(legacy);
    Ok(fields
        .put("purpose", "LEGACY_SHARE")
        .put("options", purpose))
}

/// The options that stand in the share itself up to 25.04 and in those of its purpose after.
fn legacy<'a>(fields: Fields<'a>, options: &SmbOptions) -> Fields<'a> {
    fields
        .opt("home", options.home.as_ref())
        .opt("hostsallow", options.hosts_allow.as_ref())
        .opt("hostsdeny", options.hosts_deny.as_ref())
        .opt("guestok", options.guest_ok.as_ref())
        .opt("recyclebin", options.recycle_bin.as_ref())
        .opt("timemachine", options.time_machine.as_ref())
        .opt("acl", options.acl.as_ref())
        .opt("shadowcopy", options.shadow_copy.as_ref())
        .opt("streams", options.streams.as_ref())
        .opt("durablehandle", options.durable_handles.as_ref())
        .opt("path_suffix", options.path_suffix.as_ref())
        .opt("auxsmbconf", options.auxiliary.as_ref())
}
