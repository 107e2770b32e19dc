//! iSCSI: `iscsi.*`. A target has groups of portal, initiators and credentials; an extent is a zvol;
//! a target extent gives it a LUN.

use secrecy::SecretString;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Call, Done, Fields, Request, null_is_default, rows};
use crate::{Dialect, Error, Generation};

rows! {
    /// Finds targets.
    QueryTargets, "iscsi.target.query", Target, |_| Ok(())
}
rows! {
    /// Finds extents.
    QueryExtents, "iscsi.extent.query", Extent, |_| Ok(())
}
rows! {
    /// Finds LUNs: which extent is on which target.
    QueryTargetExtents, "iscsi.targetextent.query", TargetExtent, |_| Ok(())
}
rows! {
    /// Finds portals.
    QueryPortals, "iscsi.portal.query", Portal, |_| Ok(())
}
rows! {
    /// Finds lists of initiators.
    QueryInitiators, "iscsi.initiator.query", Initiators, |_| Ok(())
}
rows! {
    /// Finds credentials. Their secrets are not read.
    QueryAuths, "iscsi.auth.query", Auth, |_| Ok(())
}
rows! {
    /// Finds sessions: who is connected to which target.
    QuerySessions, "iscsi.global.sessions", IscsiSession, |_| Ok(())
}

/// The settings of the service.
#[derive(Debug, Clone, Copy)]
pub struct GetGlobal;

/// The settings of the service.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Global {
    /// The beginning of the names of targets.
    pub basename: String,
    /// The port, from 22.12 on.
    pub listen_port: Option<u16>,
}

/// A target.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Target {
    /// Its number.
    pub id: i64,
    /// Its name, without the base name unless it is a whole IQN.
    pub name: String,
    /// Another name.
    pub alias: Option<String>,
    /// The portals where it listens and the initiators that it admits.
    #[serde(default)]
    pub groups: Vec<TargetGroup>,
}

/// A portal where a target listens and the initiators that it admits there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct TargetGroup {
    /// The number of the portal.
    pub portal: i64,
    /// The number of the list of initiators; every initiator if `None`.
    pub initiator: Option<i64>,
    /// `NONE`, `CHAP` or `CHAP_MUTUAL`.
    #[serde(rename = "authmethod", default = "no_auth")]
    pub auth_method: String,
    /// The tag of the credentials, not their number.
    pub auth: Option<i64>,
}

/// Creates a target.
#[derive(Debug, Clone, Default)]
pub struct CreateTarget {
    /// Its name: lower-case letters, digits, `-`, `.`, `:`; at most 120.
    pub name: String,
    /// Another name, which no other target has.
    pub alias: Option<String>,
    /// The portals where it listens and the initiators that it admits.
    pub groups: Vec<TargetGroup>,
    /// The number of commands that a session may queue: 32 or 128. From 25.04 on.
    pub queued_commands: Option<u32>,
}

/// Changes where a target listens and which initiators it admits.
#[derive(Debug, Clone)]
pub struct UpdateTarget {
    /// Its number.
    pub id: i64,
    /// All groups, from now on.
    pub groups: Vec<TargetGroup>,
}

/// Deletes a target and its LUNs. Its extents stay.
#[derive(Debug, Clone, Copy)]
pub struct DeleteTarget {
    /// Its number.
    pub id: i64,
    /// Although initiators are connected.
    pub force: bool,
}

/// An extent.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Extent {
    /// Its number.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// `zvol/` and the path of the zvol.
    pub disk: Option<String>,
    /// Its serial number.
    pub serial: Option<String>,
    /// The identifier that initiators know it by; as long as the row lives.
    pub naa: Option<String>,
    /// The size of a logical block.
    #[serde(default)]
    pub blocksize: u32,
    /// Whether writing is refused.
    #[serde(default, rename = "ro")]
    pub read_only: bool,
    /// Whether it is served.
    #[serde(default = "super::is_enabled")]
    pub enabled: bool,
    /// A comment.
    #[serde(default, deserialize_with = "super::null_is_default")]
    pub comment: String,
    /// Whether its zvol is locked, where the NAS says so.
    pub locked: Option<bool>,
}

/// Creates an extent of a zvol.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "the fields of the API")]
pub struct CreateExtent {
    /// Its name, at most 64 characters.
    pub name: String,
    /// The path of the zvol, beginning with the pool.
    pub zvol: String,
    /// Its serial number, at most 20 characters; the NAS makes one if `None`.
    pub serial: Option<String>,
    /// A comment.
    pub comment: String,
    /// 512, 1024, 2048 or 4096.
    pub block_size: u32,
    /// Whether the size of the blocks of the zvol is hidden.
    pub hide_physical_block_size: bool,
    /// Whether other initiators may copy into it.
    pub insecure_tpc: bool,
    /// Whether it is compatible with old Xen.
    pub xen: bool,
    /// `SSD`, `UNKNOWN`, `5400`, `7200`, `10000` or `15000`.
    pub rpm: String,
    /// The part of the pool in per cent at which initiators are warned, 1 to 99.
    pub avail_threshold: Option<u8>,
    /// Whether writing is refused.
    pub read_only: bool,
}

/// Deletes an extent and its LUNs. Its zvol stays.
#[derive(Debug, Clone, Copy)]
pub struct DeleteExtent {
    /// Its number.
    pub id: i64,
    /// Although initiators are connected.
    pub force: bool,
}

/// An extent and the target that it is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct TargetExtent {
    /// Its number.
    pub id: i64,
    /// The number of the target.
    pub target: i64,
    /// The number of the extent.
    pub extent: i64,
    /// The LUN.
    pub lunid: Option<i64>,
}

/// Puts an extent on a target. Numbers that do not exist are no validation error, from 25.10 on, but
/// [`crate::Kind::Invalid`] with a text of the database.
#[derive(Debug, Clone, Copy)]
pub struct CreateTargetExtent {
    /// The number of the target.
    pub target: i64,
    /// The number of the extent.
    pub extent: i64,
    /// The LUN; the lowest free one if `None`.
    pub lun: Option<i64>,
}

/// Takes an extent off a target.
#[derive(Debug, Clone, Copy)]
pub struct DeleteTargetExtent {
    /// Its number.
    pub id: i64,
    /// Although initiators are connected.
    pub force: bool,
}

/// A portal.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Portal {
    /// Its number.
    pub id: i64,
    /// Its tag.
    pub tag: Option<i64>,
    /// The addresses where it listens.
    #[serde(default)]
    pub listen: Vec<Listen>,
    /// A comment.
    #[serde(default, deserialize_with = "super::null_is_default")]
    pub comment: String,
}

/// An address of a portal.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Listen {
    /// The address.
    pub ip: String,
    /// The port, up to 22.02.
    pub port: Option<u16>,
}

/// A list of initiators.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Initiators {
    /// Its number.
    pub id: i64,
    /// Their IQNs; every initiator if empty.
    #[serde(default)]
    pub initiators: Vec<String>,
    /// A comment.
    #[serde(default, deserialize_with = "super::null_is_default")]
    pub comment: String,
}

/// Creates a list of initiators.
#[derive(Debug, Clone)]
pub struct CreateInitiators {
    /// Their IQNs; every initiator if empty.
    pub initiators: Vec<String>,
    /// A comment.
    pub comment: String,
}

/// Changes a list of initiators.
#[derive(Debug, Clone)]
pub struct UpdateInitiators {
    /// Its number.
    pub id: i64,
    /// All IQNs, from now on; every initiator if empty.
    pub initiators: Vec<String>,
}

/// Deletes a list of initiators.
#[derive(Debug, Clone, Copy)]
pub struct DeleteInitiators {
    /// Its number.
    pub id: i64,
}

/// Credentials for CHAP.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Auth {
    /// Its number.
    pub id: i64,
    /// The tag that target groups name it by.
    pub tag: i64,
    /// The user.
    pub user: String,
    /// The user of the NAS, for mutual CHAP.
    #[serde(
        default,
        rename = "peeruser",
        deserialize_with = "super::null_is_default"
    )]
    pub peer_user: String,
}

/// Creates credentials for CHAP.
#[derive(Debug, Clone)]
pub struct CreateAuth {
    /// The tag that target groups name it by.
    pub tag: i64,
    /// The user.
    pub user: String,
    /// 12 to 16 characters.
    pub secret: SecretString,
    /// The user of the NAS and another secret, for mutual CHAP.
    pub peer: Option<(String, SecretString)>,
}

/// Deletes credentials.
#[derive(Debug, Clone, Copy)]
pub struct DeleteAuth {
    /// Its number.
    pub id: i64,
}

/// An initiator and the target to which it is connected.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct IscsiSession {
    /// The IQN of the initiator.
    pub initiator: String,
    /// Its address, if it is known.
    #[serde(default, deserialize_with = "null_is_default")]
    pub initiator_addr: String,
    /// The IQN of the target.
    pub target: String,
}

impl Request for GetGlobal {
    type Answer = Global;

    fn encode(&self, _: &Dialect) -> Result<Call, Error> {
        Ok(Call::new("iscsi.global.config", vec![]))
    }
}

impl Request for CreateTarget {
    type Answer = Target;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        let parameters = self
            .queued_commands
            .map(|queued| json!({"QueuedCommands": queued}));
        Fields::new(dialect)
            .put("name", self.name.as_str())
            .put("alias", json!(self.alias))
            .put("mode", "ISCSI")
            .put("groups", groups(&self.groups))
            .since(Generation::V25_04, "iscsi_parameters", parameters.as_ref())
            .call("iscsi.target.create")
    }
}

impl Request for UpdateTarget {
    type Answer = Target;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        Fields::new(dialect)
            .put("groups", groups(&self.groups))
            .call_after("iscsi.target.update", vec![json!(self.id)])
    }
}

impl Request for DeleteTarget {
    type Answer = Done;

    fn encode(&self, _: &Dialect) -> Result<Call, Error> {
        Ok(Call::new(
            "iscsi.target.delete",
            vec![json!(self.id), json!(self.force)],
        ))
    }
}

impl Request for CreateExtent {
    type Answer = Extent;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        Fields::new(dialect)
            .put("type", "DISK")
            .put("name", self.name.as_str())
            .put("disk", format!("zvol/{}", self.zvol))
            .opt("serial", self.serial.as_ref())
            .put("comment", self.comment.as_str())
            .put("blocksize", self.block_size)
            .put("pblocksize", self.hide_physical_block_size)
            .put("insecure_tpc", self.insecure_tpc)
            .put("xen", self.xen)
            .put("rpm", self.rpm.as_str())
            .put("avail_threshold", json!(self.avail_threshold))
            .put("ro", self.read_only)
            .call("iscsi.extent.create")
    }
}

impl Request for DeleteExtent {
    type Answer = Done;

    fn encode(&self, _: &Dialect) -> Result<Call, Error> {
        let params = vec![json!(self.id), json!(false), json!(self.force)];
        Ok(Call::new("iscsi.extent.delete", params))
    }
}

impl Request for CreateTargetExtent {
    type Answer = TargetExtent;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        Fields::new(dialect)
            .put("target", self.target)
            .put("extent", self.extent)
            .put("lunid", json!(self.lun))
            .call("iscsi.targetextent.create")
    }
}

impl Request for DeleteTargetExtent {
    type Answer = Done;

    fn encode(&self, _: &Dialect) -> Result<Call, Error> {
        Ok(Call::new(
            "iscsi.targetextent.delete",
            vec![json!(self.id), json!(self.force)],
        ))
    }
}

impl Request for CreateInitiators {
    type Answer = Initiators;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        Fields::new(dialect)
            .put("initiators", json!(self.initiators))
            .put("comment", self.comment.as_str())
            .call("iscsi.initiator.create")
    }
}

impl Request for UpdateInitiators {
    type Answer = Initiators;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        Fields::new(dialect)
            .put("initiators", json!(self.initiators))
            .call_after("iscsi.initiator.update", vec![json!(self.id)])
    }
}

impl Request for DeleteInitiators {
    type Answer = Done;

    fn encode(&self, _: &Dialect) -> Result<Call, Error> {
        Ok(Call::new("iscsi.initiator.delete", vec![json!(self.id)]))
    }
}

impl Request for CreateAuth {
    type Answer = Auth;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        let peer = self.peer.as_ref();
        Fields::new(dialect)
            .put("tag", self.tag)
            .put("user", self.user.as_str())
            .secret("secret", Some(&self.secret))
            .opt("peeruser", peer.map(|(user, _)| user))
            .secret("peersecret", peer.map(|(_, secret)| secret))
            .call("iscsi.auth.create")
    }
}

impl Request for DeleteAuth {
    type Answer = Done;

    fn encode(&self, _: &Dialect) -> Result<Call, Error> {
        Ok(Call::new("iscsi.auth.delete", vec![json!(self.id)]))
    }
}

fn groups(groups: &[TargetGroup]) -> Value {
    let group = |group: &TargetGroup| {
        json!({
            "portal": group.portal,
            "initiator": group.initiator,
            "authmethod": group.auth_method,
            "auth": group.auth,
        })
    };
    groups.iter().map(group).collect()
}

fn no_auth() -> String {
    "NONE".to_owned()
}
