//! Volumes that are shared folders, over NFS or SMB.
//!
//! A volume is a shared folder with a quota. It is made without one, opened to its clients, and gets its
//! quota last: a folder without a quota is unfinished. A copy may have the quota of its source at once; it
//! grows first and is opened last. The calls are those of Synology's CSI driver.

mod api;
mod health;
mod name;
mod snapshots;

use std::net::{IpAddr, Ipv4Addr};

use async_trait::async_trait;
use csi_types::attachment::{Attachment, NetworkShare, Server, Share as ShareName};
use driver_core::config::scalar::unless_falsy;
use driver_core::config::{CommonConfig, ConfigError, Document};
use driver_core::{
    AccessRules, BackendIdentity, Call, Capacity, CapacityQuery, CapacityReporter, CreateVolume,
    DeleteVolume, Driver, Effect, Error, ExpandVolume, Expanded, Expander, FindVolume, Found,
    Health, Kind, Lister, MadeFor, Page, PageRequest, Parameters, Snapshots, Source, Volume,
    VolumeId, VolumeName, missing, without_groups,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::SemaphorePermit;

use self::api::Share;
use self::name::{Note, ShareNames};
use crate::client::Client;
use crate::config::{Connection, location};
use crate::error::{Code, Failure};
use crate::iscsi::{POLLS, pause};
use crate::page::page;

/// Quotas are whole mebibytes.
const MIB: u64 = 1 << 20;

/// `nfs` and `smb`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ShareConfig {
    /// The NAS as nodes reach it.
    share_host: String,
    /// Before the ids of volumes in the names of shared folders.
    #[serde(default, deserialize_with = "unless_falsy")]
    name_prefix: Option<String>,
    /// `nfs`: addresses, networks or names that may mount.
    #[serde(default)]
    clients: Vec<String>,
    /// `nfs`: whether the NAS may answer before the data are on its disks.
    #[serde(default, rename = "async")]
    is_async: bool,
    /// `smb`: local users of the NAS that may read and write.
    #[serde(default)]
    users: Vec<String>,
}

/// Who may use a shared folder.
#[derive(Debug, Clone)]
enum Access {
    Nfs {
        clients: Vec<String>,
        is_async: bool,
    },
    Smb {
        users: Vec<String>,
    },
}

/// The shared folder of the name of a volume.
enum Named {
    Nothing,
    /// Its description is that of the volume.
    Ours(Share),
    /// Its description is that of another volume: it is a copy of that one, and not described yet.
    Copy(Share),
    /// It is something else.
    Foreign(Share),
}

/// The drivers `synology-nfs` and `synology-smb`.
#[derive(Debug)]
pub(crate) struct Shares {
    kind: String,
    client: Client,
    server: Server,
    location: String,
    access: Access,
    names: ShareNames,
}

// === impl Access ===

impl Access {
    fn read(kind: &str, config: ShareConfig) -> Result<Self, ConfigError> {
        let (key, entries) = match kind {
            "synology-nfs" => ("nfs.clients", config.clients),
            _ => ("smb.users", config.users),
        };
        let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | ',' | ';');
        let odd = |entry: &String| entry.is_empty() || !entry.chars().all(plain);
        if entries.is_empty() || entries.iter().any(odd) {
            let problem = "has to be a list of at least one, each a word";
            return Err(ConfigError::at(key, problem));
        }
        Ok(if kind == "synology-nfs" {
            Self::Nfs {
                clients: entries,
                is_async: config.is_async,
            }
        } else {
            Self::Smb { users: entries }
        })
    }
}

// === impl Shares ===

impl Shares {
    pub(crate) fn from_document(document: &Document) -> Result<Self, ConfigError> {
        let common: CommonConfig = document.common()?;
        let connection = Connection::read(document)?;
        let section = if common.driver == "synology-nfs" {
            "nfs"
        } else {
            "smb"
        };
        let config: ShareConfig = document.section(section)?;
        let server = Server::parse(&config.share_host)
            .map_err(|why| ConfigError::at(format!("{section}.shareHost"), why.to_string()))?;
        let prefix = config
            .name_prefix
            .clone()
            .unwrap_or_default()
            .to_lowercase();
        let names = ShareNames::new(prefix, &common)
            .map_err(|problem| ConfigError::at(format!("{section}.namePrefix"), problem))?;
        let access = Access::read(&common.driver, config)?;
        let client = Client::new(connection)
            .map_err(|failure| ConfigError::at("httpConnection", failure.to_string()))?;
        Ok(Self {
            kind: common.driver,
            client,
            server,
            location: location(document)?,
            access,
            names,
        })
    }

    async fn shares(&self, call: &Call, doing: &str) -> Result<Vec<Share>, Error> {
        let shares = self.client.shares(call).await;
        shares.map_err(|failure| failure.while_doing(call, doing))
    }

    /// The shared folder of the name of a volume.
    async fn named(&self, call: &Call, id: &VolumeId, doing: &str) -> Result<Named, Error> {
        let Some(name) = self.names.share(id) else {
            return Ok(Named::Nothing);
        };
        let found = self.client.share(call, &name).await;
        let found = found.map_err(|failure| failure.while_doing(call, doing))?;
        let Some(share) = found else {
            return Ok(Named::Nothing);
        };
        Ok(match Note::read(&share.desc) {
            Some(note) if note.id == *id => Named::Ours(share),
            // A copy has the description of its source on some DSM, until it gets its own.
            Some(note) if self.names.share(&note.id).is_some() => Named::Copy(share),
            _ => Named::Foreign(share),
        })
    }

    /// The shared folder of a volume, whole or not. One of that name that is not ours is a conflict.
    async fn find(&self, call: &Call, id: &VolumeId, doing: &str) -> Result<Option<Share>, Error> {
        match self.named(call, id, doing).await? {
            Named::Nothing => Ok(None),
            Named::Ours(share) => Ok(Some(share)),
            Named::Copy(share) | Named::Foreign(share) => {
                Err(Error::new(Kind::Conflict, doing).because(foreign(&share)))
            }
        }
    }

    /// Fails if the volume of the NAS is not there: what is not found then may well exist.
    async fn check_nas(&self, call: &Call, doing: &str) -> Result<(), Error> {
        let volume = self
            .client
            .existing_volume(call, &self.location, doing)
            .await;
        volume.map(drop)
    }

    /// The turn of an operation that changes anything.
    async fn turn(&self, call: &Call, doing: &str) -> Result<SemaphorePermit<'_>, Error> {
        let turn = self.client.turn(call).await;
        turn.map_err(|failure| failure.while_doing(call, doing))
    }

    /// The shared folder of a volume that is whole.
    async fn whole(&self, call: &Call, id: &VolumeId, doing: &str) -> Result<Share, Error> {
        let found = match self.find(call, id, doing).await {
            Err(error) if error.kind() == Kind::Conflict => None,
            found => found?,
        };
        let found = found
            .filter(Share::is_whole)
            .ok_or_else(|| Error::not_found(doing).because(format!("there is no volume `{id}`")));
        missing::confirmed(found, self.check_nas(call, doing)).await
    }

    fn volume(&self, id: VolumeId, share: &Share) -> Result<Volume, Error> {
        let path = match self.access {
            Access::Nfs { .. } => format!("{}/{}", share.vol_path, share.name),
            Access::Smb { .. } => share.name.clone(),
        };
        let odd = || Error::new(Kind::Internal, format!("say how volume `{id}` is reached"));
        Ok(Volume {
            capacity: Some(share.quota() * MIB),
            attachment: self.attachment(&path).map_err(|why| odd().because(why))?,
            id,
            // Its note has room for a digest only.
            source: None,
            topology: Vec::new(),
            made_for: MadeFor::default(),
            published_to: Vec::new(),
        })
    }

    fn attachment(&self, path: &str) -> Result<Attachment, csi_types::attachment::FieldError> {
        let share = NetworkShare {
            server: self.server.clone(),
            share: ShareName::parse(path)?,
        };
        Ok(match self.access {
            Access::Nfs { .. } => Attachment::Nfs(share),
            Access::Smb { .. } => Attachment::Smb(share),
        })
    }

    /// What a new shared folder is copied from: a folder, and the time of its snapshot.
    async fn source(
        &self,
        call: &Call,
        request: &CreateVolume,
        doing: &str,
    ) -> Result<Option<(Share, Option<String>)>, Error> {
        match &request.source {
            None => Ok(None),
            Some(Source::Volume(source)) => {
                Ok(Some((self.whole(call, source, doing).await?, None)))
            }
            Some(Source::Snapshot(source)) => {
                let (share, snapshot) = self.snapshot(call, source, doing).await?;
                Ok(Some((share, Some(snapshot.time))))
            }
            Some(Source::Elsewhere(_)) => Err(Error::unsupported(
                "a volume of what another connection holds",
            )),
        }
    }

    /// Makes the missing shared folder.
    async fn make(&self, call: &Call, request: &CreateVolume, doing: &str) -> Result<Share, Error> {
        let id = &request.id;
        let name = self.names.share(id).ok_or_else(|| {
            Error::invalid(doing).because("it is not an id that this driver gives to a volume")
        })?;
        let note = Note::write(id, request.source.as_ref());
        let source = self.source(call, request, doing).await?;
        if let Some((source, _)) = &source {
            let least = source.quota() * MIB;
            if request.size.limit().is_some_and(|limit| limit < least) {
                let why = format!("the source has {least} bytes");
                return Err(Error::new(Kind::OutOfRange, doing).because(why));
            }
        }
        call.check(doing)?;
        let untouched = call.effect() == Effect::None;
        let made = match &source {
            None => {
                let path = &self.location;
                let made = self.client.create_share(call, &name, path, &note).await;
                if made.is_ok() {
                    return Ok(Share::made(&name, path, &note));
                }
                made
            }
            Some((source, snapshot)) => {
                let time = snapshot.as_deref();
                self.client
                    .clone_share(call, source, time, &name, &note)
                    .await
            }
        };
        match (self.named(call, id, doing).await?, made) {
            (Named::Ours(share), _) => Ok(share),
            (Named::Copy(share), _) if source.is_some() => {
                self.describe(call, share, note, doing).await
            }
            (Named::Copy(share) | Named::Foreign(share), _) => {
                Err(Error::new(Kind::Conflict, doing).because(foreign(&share)))
            }
            (Named::Nothing, Ok(())) => Err(changed(doing)),
            (Named::Nothing, Err(failure)) => {
                if untouched && failure.code().is_some() {
                    call.undone();
                }
                if failure.code() == Some(Code::SHARE_FAILED) {
                    // Also the answer to a parameter that DSM does not take.
                    let gone = self.source(call, request, doing).await.err();
                    if let Some(error) = gone {
                        return call.outcome(Err(error));
                    }
                }
                Err(failure.while_doing(call, doing))
            }
        }
    }

    /// Gives a copy the note of its own.
    async fn describe(
        &self,
        call: &Call,
        mut share: Share,
        note: String,
        doing: &str,
    ) -> Result<Share, Error> {
        call.check(doing)?;
        let described = self.client.describe_share(call, &share, &note).await;
        described.map_err(|failure| lost(call, failure, doing))?;
        share.desc = note;
        Ok(share)
    }

    /// Whether the clients have access.
    async fn is_open(&self, call: &Call, share: &Share) -> Result<bool, Failure> {
        let (client, name) = (&self.client, share.name.as_str());
        Ok(match &self.access {
            Access::Nfs { clients, .. } => {
                let there = client.rules(call, name).await?;
                let is_in =
                    |one: &String| there.iter().any(|rule| is_same_client(&rule.client, one));
                clients.iter().all(is_in)
            }
            Access::Smb { users } => {
                let there = client.users(call, name).await?;
                let is_in = |one: &String| {
                    let mut entries = there.iter();
                    entries.any(|entry| entry.name == **one && entry.is_writable)
                };
                users.iter().all(is_in)
            }
        })
    }

    /// Gives the clients access.
    async fn open(&self, call: &Call, share: &Share, doing: &str) -> Result<(), Error> {
        call.check(doing)?;
        let (client, name) = (&self.client, share.name.as_str());
        let failed = |failure: Failure| lost(call, failure, doing);
        let _turn = match &self.access {
            Access::Nfs { .. } => Some(client.turn_for_rules(call).await.map_err(failed)?),
            Access::Smb { .. } => None,
        };
        let (set, advice) = match &self.access {
            Access::Nfs { clients, is_async } => {
                let rules: Vec<Value> = clients.iter().map(|one| rule(one, *is_async)).collect();
                (client.save_rules(call, name, rules).await, None)
            }
            Access::Smb { users } => {
                let advice = "smb.users has to name local users of the NAS";
                (client.set_users(call, name, users).await, Some(advice))
            }
        };
        if self.is_open(call, share).await.map_err(failed)? {
            return Ok(());
        }
        set.map_err(failed)?;
        // DSM may write a client in a form that is not known here. It has no rules for a folder but those that are set.
        if let Access::Nfs { clients, .. } = &self.access
            && client.rules(call, name).await.map_err(failed)?.len() >= clients.len()
        {
            return Ok(());
        }
        let error = changed(doing);
        Err(match advice {
            Some(advice) => error.advise(advice),
            None => error,
        })
    }

    /// Sets the quota of a shared folder, and checks the result.
    async fn limit(
        &self,
        call: &Call,
        id: &VolumeId,
        share: &Share,
        size: u64,
        doing: &str,
    ) -> Result<Share, Error> {
        call.check(doing)?;
        let set = self.client.set_quota(call, share, size / MIB).await;
        let now = self.find(call, id, doing).await?;
        match (now, set) {
            (Some(now), _) if now.quota() * MIB >= size => Ok(now),
            (_, Err(failure)) => Err(lost(call, failure, doing)),
            (_, Ok(())) => Err(changed(doing)),
        }
    }
}

fn foreign(share: &Share) -> String {
    format!(
        "the shared folder `{}` is not that of a volume of this name: its description says something else",
        share.name
    )
}

/// Whether a rule is for this client, however either is written: a network may have a mask or a prefix.
fn is_same_client(rule: &str, wanted: &str) -> bool {
    rule.eq_ignore_ascii_case(wanted)
        || network(rule).is_some_and(|network_of_rule| network(wanted) == Some(network_of_rule))
}

/// The part of an address that a network has, how long it is, and how long an address is.
fn network(text: &str) -> Option<(u128, u32, u32)> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let (number, bits) = match address.trim().parse().ok()? {
        IpAddr::V4(address) => (u128::from(u32::from(address)), 32),
        IpAddr::V6(address) => (u128::from(address), 128),
    };
    let length = match prefix.map(str::trim) {
        None => bits,
        Some(prefix) => match prefix.parse::<Ipv4Addr>() {
            Ok(mask) => {
                let mask = u32::from(mask);
                let length = mask.leading_ones();
                (length == mask.count_ones() && bits == 32).then_some(length)?
            }
            Err(_) => prefix.parse().ok().filter(|length| *length <= bits)?,
        },
    };
    let hosts = bits - length;
    let first = number.checked_shr(hosts).unwrap_or(0);
    Some((first, length, bits))
}

/// The fields are those that Synology's CSI driver writes; a node's root is root in the volume.
fn rule(client: &str, is_async: bool) -> Value {
    json!({
        "async": is_async,
        "client": client,
        "crossmnt": true,
        "insecure": true,
        "privilege": "rw",
        "root_squash": "root",
        "security_flavor": {
            "kerberos": false,
            "kerberos_integrity": false,
            "kerberos_privacy": false,
            "sys": true,
        },
    })
}

/// The error of a change to a folder that was just listed: if it is gone, another call has deleted it.
fn lost(call: &Call, failure: Failure, doing: &str) -> Error {
    match failure.code() {
        Some(Code::NO_SHARE) => changed(doing),
        _ => failure.while_doing(call, doing),
    }
}

fn changed(doing: &str) -> Error {
    Error::new(Kind::Pending, doing)
        .because("what was just changed is not as it should be: another call may have changed it")
}

#[async_trait]
impl Driver for Shares {
    fn kind(&self) -> &str {
        &self.kind
    }

    fn access_rules(&self) -> AccessRules {
        AccessRules::filesystem(match self.access {
            Access::Nfs { .. } => &["nfs"],
            Access::Smb { .. } => &["cifs"],
        })
    }

    fn backend_identity(&self) -> BackendIdentity {
        let address = self.client.address();
        BackendIdentity(format!("{}:{address}:{}", self.kind, self.names.prefix()))
    }

    fn name_volume(&self, name: &VolumeName, parameters: &Parameters) -> Result<VolumeId, Error> {
        self.names.volume_id(name, parameters)
    }

    async fn probe(&self, call: &Call) -> Vec<Error> {
        let doing = "look at the NAS";
        let at = &self.location;
        let wrong = |why: String| {
            let error = Error::new(Kind::Invalid, doing).because(why);
            vec![error.advise("correct synology.volume")]
        };
        match self.client.volume(call, at).await {
            Err(failure) => vec![failure.while_doing(call, doing)],
            Ok(None) => wrong(format!("it has no volume {at}")),
            // Quotas and snapshots of shared folders need Btrfs.
            Ok(Some(volume)) if volume.fs_type != "btrfs" => wrong(format!("{at} is not on Btrfs")),
            Ok(Some(_)) => self.shares(call, doing).await.err().into_iter().collect(),
        }
    }

    async fn create_volume(&self, call: &Call, request: &CreateVolume) -> Result<Volume, Error> {
        let id = &request.id;
        let doing = format!("create volume `{id}`");
        let size = request.size.choose(MIB);
        let size = size.map_err(|why| Error::new(Kind::OutOfRange, doing.clone()).because(why))?;
        let _turn = self.turn(call, &doing).await?;
        call.check(&doing)?;
        let share = match self.named(call, id, &doing).await? {
            Named::Ours(share) => share,
            Named::Nothing => self.make(call, request, &doing).await?,
            Named::Copy(share) if request.source.is_some() => {
                let note = Note::write(id, request.source.as_ref());
                self.describe(call, share, note, &doing).await?
            }
            Named::Copy(share) | Named::Foreign(share) => {
                return Err(Error::new(Kind::Conflict, doing).because(foreign(&share)));
            }
        };
        let conflict = |why: String| Error::new(Kind::Conflict, doing.clone()).because(why);
        if !Note::read(&share.desc).is_some_and(|note| note.is_of(request.source.as_ref())) {
            return Err(conflict("it exists, made of something else".to_owned()));
        }
        let (is_copy, bytes) = (request.source.is_some(), share.quota() * MIB);
        let fits = request.size.holds(bytes);
        if !share.is_whole() {
            self.open(call, &share, &doing).await?;
            let share = self.limit(call, id, &share, size, &doing).await?;
            return self.volume(id.clone(), &share);
        }
        if !fits && (!is_copy || bytes > size) {
            return Err(conflict(format!(
                "it exists with {bytes} bytes, and {} are asked for",
                request.size
            )));
        }
        if !is_copy {
            return self.volume(id.clone(), &share);
        }
        // It may have the quota of its source, and the call may have ended before it grew or was opened.
        let share = if fits {
            share
        } else {
            self.limit(call, id, &share, size, &doing).await?
        };
        let is_open = self.is_open(call, &share).await;
        if !is_open.map_err(|failure| lost(call, failure, &doing))? {
            self.open(call, &share, &doing).await?;
        }
        self.volume(id.clone(), &share)
    }

    async fn delete_volume(&self, call: &Call, request: DeleteVolume<'_>) -> Result<(), Error> {
        let id = request.id;
        let doing = format!("delete volume `{id}`");
        let _turn = self.turn(call, &doing).await?;
        call.check(&doing)?;
        let share = match self.named(call, id, &doing).await? {
            Named::Nothing => return self.check_nas(call, &doing).await,
            Named::Ours(share) | Named::Copy(share) => share,
            Named::Foreign(share) => {
                let error = Error::new(Kind::Busy, doing).because(foreign(&share));
                return Err(error.advise(
                    "if it is the volume, delete it in DSM, or write the description back; if not, rename it",
                ));
            }
        };
        self.refuse_snapshots(call, &share, &doing).await?;
        call.check(&doing)?;
        let deleted = self.client.delete_share(call, &share.name).await;
        let mut polls = POLLS;
        while !matches!(self.named(call, id, &doing).await?, Named::Nothing) {
            if let Err(failure) = deleted {
                return Err(failure.while_doing(call, doing));
            }
            pause(call, &mut polls).await;
            call.check(&doing)?;
        }
        Ok(())
    }

    async fn find_volume(&self, call: &Call, request: FindVolume<'_>) -> Result<Found, Error> {
        let id = request.id;
        let doing = format!("find volume `{id}`");
        let found = match self.find(call, id, &doing).await {
            Err(error) if error.kind() == Kind::Conflict => None,
            found => found?,
        };
        match found {
            None => Err(Error::not_found(doing)),
            Some(share) if !share.is_whole() => Ok(Found::Begun),
            // The quota of a copy may be that of its source: it is opened last.
            Some(share) if Note::read(&share.desc).is_some_and(|note| note.is_copy()) => {
                let is_open = self.is_open(call, &share).await;
                let is_open = is_open.map_err(|failure| lost(call, failure, &doing))?;
                Ok(if is_open { Found::Whole } else { Found::Begun })
            }
            Some(_) => Ok(Found::Whole),
        }
    }

    fn health(&self) -> Option<&dyn Health> {
        Some(self)
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        Some(self)
    }

    fn unsupported(&self, verb: &'static str) -> Error {
        without_groups(
            verb,
            "no call of DSM takes snapshots of several shared folders at one moment",
        )
    }

    fn clones_volumes(&self) -> bool {
        true
    }

    fn lister(&self) -> Option<&dyn Lister> {
        Some(self)
    }

    fn expander(&self) -> Option<&dyn Expander> {
        Some(self)
    }

    fn capacity_reporter(&self) -> Option<&dyn CapacityReporter> {
        Some(self)
    }

    fn longest_attachment(&self) -> Option<Attachment> {
        let path = format!("{}/{}", self.location, "a".repeat(name::LONGEST));
        self.attachment(&path).ok()
    }
}

#[async_trait]
impl Lister for Shares {
    async fn get_volume(&self, call: &Call, id: &VolumeId) -> Result<Volume, Error> {
        let share = self.whole(call, id, &format!("get volume `{id}`")).await?;
        self.volume(id.clone(), &share)
    }

    async fn list_volumes(
        &self,
        call: &Call,
        request: &PageRequest,
    ) -> Result<Page<Volume>, Error> {
        let shares = self.shares(call, "list volumes").await?;
        if shares.iter().all(|share| self.names.id(share).is_none()) {
            self.check_nas(call, "list volumes").await?;
        }
        let mut volumes = Vec::new();
        for share in shares.iter().filter(|share| share.is_whole()) {
            if let Some(id) = self.names.id(share) {
                volumes.push(self.volume(id, share)?);
            }
        }
        page(volumes, |volume| volume.id.as_str(), 'v', request)
    }
}

#[async_trait]
impl Expander for Shares {
    fn node_expands(&self) -> bool {
        false
    }

    async fn expand_volume(
        &self,
        call: &Call,
        request: ExpandVolume<'_>,
    ) -> Result<Expanded, Error> {
        let ExpandVolume { id, size, .. } = request;
        let doing = format!("expand volume `{id}`");
        let _turn = self.turn(call, &doing).await?;
        let share = self.whole(call, id, &doing).await?;
        let refused = || Error::new(Kind::OutOfRange, doing.clone());
        let wanted = size.choose(MIB).map_err(|why| refused().because(why))?;
        let bytes = share.quota() * MIB;
        let capacity = if bytes >= wanted {
            if size.limit().is_some_and(|limit| bytes > limit) {
                return Err(refused().because(format!("it has {bytes} bytes already")));
            }
            bytes
        } else {
            let grown = self.limit(call, id, &share, wanted, &doing).await?;
            grown.quota() * MIB
        };
        Ok(Expanded {
            capacity,
            node_expansion_required: false,
        })
    }
}

#[async_trait]
impl CapacityReporter for Shares {
    async fn capacity(&self, call: &Call, _: &CapacityQuery) -> Result<Capacity, Error> {
        self.client.free(call, &self.location).await
    }
}
