//! Volumes that are iSCSI LUNs.
//!
//! A volume is a LUN of its name and a target that shows it. Every verb asks for these two by name, changes what
//! is missing, and believes a success. A refusal proves nothing: a refused creation may have made the LUN, so the
//! object is looked at again. A deletion continues after its answer.

mod create;
mod delete;
mod export;
mod health;
mod snapshots;

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use async_trait::async_trait;
use csi_types::AccessMode;
use csi_types::attachment::{Attachment, DeviceId, Iqn, Iscsi, Lun as LunNumber};
use csi_types::size::SizeError;
use driver_core::config::{CommonConfig, ConfigError, Document};
use driver_core::parameters::Scope;
use driver_core::template::Template as Handlebars;
use driver_core::{
    AccessRules, BackendIdentity, Backoff, Call, Capacity, CapacityQuery, CapacityReporter,
    CreateVolume, DeleteVolume, Driver, Error, ExpandVolume, Expanded, Expander, FindVolume, Found,
    Health, Kind, Lister, MadeFor, Page, PageRequest, Parameters, SizeRange, Snapshots, Volume,
    VolumeId, VolumeName, missing, without_groups,
};
use futures_util::future::try_join;
use tokio::sync::SemaphorePermit;

use crate::api::{ListedLun, Lun, Target};
use crate::client::Client;
use crate::config::{Connection, IscsiSettings, TargetMode};
use crate::error::Failure;
use crate::lun_name::{LunName, Names};
use crate::page::page;
use crate::source::Origin;

/// Sizes are multiples of a block.
const BLOCK: u64 = 512;
/// The least size of a LUN: by Synology's specification of its models, and some refuse less.
const LEAST: u64 = 1 << 30;
/// The filesystems that can be made on a LUN.
const FS_TYPES: &[&str] = &["btrfs", "ext3", "ext4", "ext4dev", "xfs"];
/// The numbers of shared targets: more than the configuration has now, as it may have had more.
const SHARED: RangeInclusive<u32> = 1..=256;
/// The pauses between two polls of a task of DSM. DSM makes a LUN in a tenth of a second and copies one for minutes.
pub(crate) const POLLS: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2));

/// The driver `synology-iscsi`.
#[derive(Debug)]
pub(crate) struct Luns {
    kind: String,
    instance: Option<String>,
    client: Client,
    settings: IscsiSettings,
    names: Names,
    /// `lunTemplate.description` of the configuration, which is a template.
    description: Option<Handlebars>,
}

/// The LUN of a volume and the targets that may show it, at one moment.
struct VolumeState {
    lun: Option<Lun>,
    targets: Vec<Target>,
}

/// The way a volume is shown.
#[derive(Debug, Clone, Copy)]
struct Shown<'a> {
    target: &'a Target,
    number: u64,
}

// === impl Luns ===

impl Luns {
    pub(crate) fn from_document(document: &Document) -> Result<Self, ConfigError> {
        let common: CommonConfig = document.common()?;
        let connection = Connection::read(document)?;
        let settings = IscsiSettings::read(document)?;
        let names = Names::new(&settings, &common)?;
        let description = settings.lun.text("description").map(Handlebars::compile);
        let description = description
            .transpose()
            .map_err(|error| ConfigError::at("iscsi.lunTemplate.description", error.to_string()))?;
        let client = Client::new(connection)
            .map_err(|failure| ConfigError::at("httpConnection", failure.to_string()))?;
        Ok(Self {
            kind: common.driver,
            instance: common.instance_id,
            client,
            settings,
            names,
            description,
        })
    }

    fn scope(&self) -> Scope<'_> {
        Scope {
            driver: &self.kind,
            instance: self.instance.as_deref(),
        }
    }

    /// All LUNs and targets that may be of this connection. A LUN that cannot be read is one of it if its name says
    /// so, or if it is shown as a volume is.
    async fn observe_all(
        &self,
        call: &Call,
        doing: &str,
    ) -> Result<(Vec<Lun>, Vec<Target>), Error> {
        let look = async {
            let (client, names) = (&self.client, &self.names);
            let (luns, targets) = try_join(client.luns(call), client.targets(call)).await?;
            let named = luns.rows().iter().map(|lun| lun.name.as_str());
            let ours = self.iqns(named.filter(|name| names.id(name).is_some()));
            let targets = client.these(targets, |target| ours.contains(&target.iqn))?;
            let is_shown = |lun: &ListedLun| {
                let own = names.iqn(&lun.name).ok();
                let is_own =
                    |target: &Target| own.as_ref().is_some_and(|iqn| target.iqn == iqn.as_str());
                let shows = |target: &Target| target.number_of(&lun.uuid).is_some();
                targets.iter().any(|target| is_own(target) || shows(target))
            };
            let is_ours = |lun: &ListedLun| {
                names.id(&lun.name).is_some() && (names.tells_ours() || is_shown(lun))
            };
            let mut luns = client.readable(luns, is_ours)?;
            luns.retain(|lun| names.id(&lun.name).is_some());
            Ok((luns, targets))
        };
        look.await
            .map_err(|failure: Failure| failure.while_doing(call, doing))
    }

    /// The IQNs of the targets of these LUNs, and of those that are shared.
    fn iqns<'a>(&self, luns: impl Iterator<Item = &'a str>) -> HashSet<String> {
        let shared = SHARED.map(|number| self.names.shared(&self.settings.shared.name, number));
        let own = luns.map(str::to_owned);
        let iqns = own.chain(shared).map(|name| self.names.iqn(&name));
        iqns.flatten().map(|iqn| iqn.as_str().to_owned()).collect()
    }

    /// The targets that may show this LUN.
    async fn targets_for(&self, call: &Call, name: &LunName) -> Result<Vec<Target>, Failure> {
        let targets = self.client.targets(call).await?;
        let iqns = self.iqns([name.as_str()].into_iter());
        self.client
            .these(targets, |target| iqns.contains(&target.iqn))
    }

    /// The LUN of that name.
    async fn lun_named(&self, call: &Call, name: &LunName) -> Result<Option<Lun>, Failure> {
        let found = self.client.lun(call, name.as_str()).await?;
        Ok(found.filter(|lun| lun.name == name.as_str()))
    }

    /// The targets that show a LUN most likely: its own, or all that are shared.
    async fn likely_targets(&self, call: &Call, name: &LunName) -> Result<Vec<Target>, Failure> {
        if self.settings.mode == TargetMode::SharedTarget {
            return self.targets_for(call, name).await;
        }
        let found = self.client.target(call, name.as_str()).await?;
        let found: Vec<Target> = found.into_iter().collect();
        Ok(self.own(name, &found).cloned().into_iter().collect())
    }

    /// The targets that may show this LUN: all, unless its own one does. A LUN stays where it is shown when the
    /// mode of the configuration changes.
    async fn targets_of(
        &self,
        call: &Call,
        lun: &Lun,
        name: &LunName,
        likely: Vec<Target>,
    ) -> Result<Vec<Target>, Failure> {
        let is_shared = self.settings.mode == TargetMode::SharedTarget;
        if is_shared || self.shown(lun, name, &likely).is_some() {
            return Ok(likely);
        }
        self.targets_for(call, name).await
    }

    /// What there is of a volume.
    async fn observe(
        &self,
        call: &Call,
        name: &LunName,
        doing: &str,
    ) -> Result<VolumeState, Error> {
        let look = async {
            let both = try_join(self.lun_named(call, name), self.likely_targets(call, name));
            let (lun, mut targets) = both.await?;
            if let Some(lun) = &lun {
                targets = self.targets_of(call, lun, name, targets).await?;
            }
            Ok(VolumeState { lun, targets })
        };
        look.await
            .map_err(|failure: Failure| failure.while_doing(call, doing))
    }

    /// The turn of an operation that changes anything.
    async fn turn(&self, call: &Call, doing: &str) -> Result<SemaphorePermit<'_>, Error> {
        let turn = self.client.turn(call).await;
        turn.map_err(|failure| failure.while_doing(call, doing))
    }

    /// Fails if the volume of the NAS is not there: what is not found then may well exist.
    async fn check_nas(&self, call: &Call, doing: &str) -> Result<(), Error> {
        let location = &self.settings.location;
        let volume = self.client.existing_volume(call, location, doing).await;
        volume.map(drop)
    }

    /// The volume of a LUN that is shown.
    fn volume(&self, id: VolumeId, lun: &Lun, shown: Shown<'_>) -> Result<Volume, Error> {
        Ok(Volume {
            attachment: self.attachment(&id, &lun.uuid, &shown.target.iqn, shown.number)?,
            id,
            capacity: Some(lun.size),
            source: Origin::read(&lun.description).source(),
            topology: Vec::new(),
            made_for: MadeFor::default(),
            published_to: Vec::new(),
        })
    }

    fn attachment(
        &self,
        id: &VolumeId,
        uuid: &str,
        iqn: &str,
        number: u64,
    ) -> Result<Attachment, Error> {
        let odd = || Error::new(Kind::Internal, format!("say how volume `{id}` is reached"));
        let device_id = self.settings.verify_device.then(|| device_id(uuid));
        Ok(Attachment::Iscsi(Iscsi {
            iqn: Iqn::parse(iqn).map_err(|why| odd().because(why))?,
            lun: LunNumber::parse(&number.to_string()).map_err(|why| odd().because(why))?,
            portals: self.settings.portals.clone(),
            interface: self.settings.interface.clone(),
            device_id: device_id.transpose().map_err(|why| odd().because(why))?,
        }))
    }

    /// A volume that is there whole, by its id.
    async fn whole(&self, call: &Call, id: &VolumeId, doing: &str) -> Result<Volume, Error> {
        let found = self.shown_whole(call, id, doing).await;
        missing::confirmed(found, self.check_nas(call, doing)).await
    }

    async fn shown_whole(&self, call: &Call, id: &VolumeId, doing: &str) -> Result<Volume, Error> {
        let missing = || Error::not_found(doing).because(format!("there is no volume `{id}`"));
        let name = self.names.lun(id).ok_or_else(missing)?;
        let state = self.observe(call, &name, doing).await?;
        let lun = state.lun.as_ref().ok_or_else(missing)?;
        let shown = self.shown(lun, &name, &state.targets).ok_or_else(missing)?;
        self.volume(id.clone(), lun, shown)
    }

    /// The LUN of a volume that can be grown or copied. One that DSM works on is only that if it is shown: it is
    /// not a copy that is being made, nor one that is going.
    async fn usable(&self, call: &Call, id: &VolumeId, doing: &str) -> Result<Lun, Error> {
        let lun = missing::confirmed(
            self.lun_of(call, id, doing).await,
            self.check_nas(call, doing),
        );
        let lun = lun.await?;
        if lun.is_action_locked {
            self.whole(call, id, doing).await?;
        }
        Ok(lun)
    }

    async fn lun_of(&self, call: &Call, id: &VolumeId, doing: &str) -> Result<Lun, Error> {
        let missing = || Error::not_found(doing).because(format!("there is no volume `{id}`"));
        let name = self.names.lun(id).ok_or_else(missing)?;
        let found = self.lun_named(call, &name).await;
        let found = found.map_err(|failure| failure.while_doing(call, doing))?;
        found.ok_or_else(missing)
    }
}

/// The size of a new LUN.
fn lun_size(range: &SizeRange) -> Result<u64, SizeError> {
    let size = range.choose(BLOCK)?.max(LEAST);
    match range.limit() {
        Some(limit) if size > limit => Err(SizeError::Unmeetable {
            smallest: size,
            limit,
        }),
        _ => Ok(size),
    }
}

/// The identifier of the disk on a node. The rule is not documented; it was measured on DSM 7.1
/// (jasoncheng7115/jt-pve-storage-synology, docs/TESTING.md): the identifier of Linux-IO, then the uuid
/// with `d` for each dash, 25 characters of it.
fn device_id(uuid: &str) -> Result<DeviceId, csi_types::attachment::FieldError> {
    let digits: String = uuid.replace('-', "d").chars().take(25).collect();
    DeviceId::parse(&format!("naa.6001405{}", digits.to_ascii_lowercase()))
}

/// Waits before the next poll. The pause grows, and ends at the deadline of the call.
pub(crate) async fn pause(call: &Call, polls: &mut Backoff) {
    let until = (tokio::time::Instant::now() + polls.pause()).min(call.deadline());
    tokio::time::sleep_until(until).await;
}

#[async_trait]
impl Driver for Luns {
    fn kind(&self) -> &str {
        &self.kind
    }

    fn access_rules(&self) -> AccessRules {
        let all = AccessMode::ALL.into_iter();
        let one_writer = all.filter(|mode| *mode != AccessMode::MultiNodeMultiWriter);
        AccessRules {
            block: true,
            mount: true,
            fs_types: FS_TYPES,
            mount_modes: one_writer.collect(),
            block_modes: AccessMode::ALL.to_vec(),
        }
    }

    fn backend_identity(&self) -> BackendIdentity {
        let IscsiSettings {
            base,
            prefix,
            suffix,
            ..
        } = &self.settings;
        let address = self.client.address();
        BackendIdentity(format!("{}:{address}:{base}{prefix}*{suffix}", self.kind))
    }

    fn name_volume(&self, name: &VolumeName, parameters: &Parameters) -> Result<VolumeId, Error> {
        self.names.volume_id(name, parameters)
    }

    async fn probe(&self, call: &Call) -> Vec<Error> {
        let doing = "look at the NAS";
        let location = &self.settings.location;
        match self.client.volume(call, location).await {
            Err(failure) => return vec![failure.while_doing(call, doing)],
            Ok(None) => {
                let why = format!("it has no volume {location}");
                let error = Error::new(Kind::Invalid, doing).because(why);
                return vec![error.advise("correct synology.volume")];
            }
            Ok(Some(_)) => {}
        }
        // Whether SAN Manager answers.
        let observed = self.observe_all(call, doing).await;
        observed.err().into_iter().collect()
    }

    async fn create_volume(&self, call: &Call, request: &CreateVolume) -> Result<Volume, Error> {
        let doing = format!("create volume `{}`", request.id);
        let _turn = self.turn(call, &doing).await?;
        self.create(call, request, &doing).await
    }

    async fn delete_volume(&self, call: &Call, request: DeleteVolume<'_>) -> Result<(), Error> {
        let id = request.id;
        let doing = format!("delete volume `{id}`");
        self.delete(call, id, &doing).await
    }

    async fn find_volume(&self, call: &Call, request: FindVolume<'_>) -> Result<Found, Error> {
        let id = request.id;
        let doing = format!("find volume `{id}`");
        let missing = || Error::not_found(doing.clone());
        let name = self.names.lun(id).ok_or_else(missing)?;
        let state = self.observe(call, &name, &doing).await?;
        let lun = state.lun.as_ref().ok_or_else(missing)?;
        Ok(match self.shown(lun, &name, &state.targets) {
            Some(_) => Found::Whole,
            None => Found::Begun,
        })
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
            "no call of DSM takes snapshots of several LUNs at one moment",
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
        let id = VolumeId::parse("a").ok()?;
        let iqn = format!("iqn.{}", "a".repeat(219));
        let uuid = "f".repeat(36);
        self.attachment(&id, &uuid, &iqn, 16_383).ok()
    }
}

#[async_trait]
impl Lister for Luns {
    async fn get_volume(&self, call: &Call, id: &VolumeId) -> Result<Volume, Error> {
        let doing = format!("get volume `{id}`");
        self.whole(call, id, &doing).await
    }

    async fn list_volumes(
        &self,
        call: &Call,
        request: &PageRequest,
    ) -> Result<Page<Volume>, Error> {
        let (luns, targets) = self.observe_all(call, "list volumes").await?;
        if luns.is_empty() {
            self.check_nas(call, "list volumes").await?;
        }
        let mut volumes = Vec::new();
        for lun in &luns {
            let Some(id) = self.names.id(&lun.name) else {
                continue;
            };
            let Some(name) = self.names.lun(&id) else {
                continue;
            };
            if let Some(shown) = self.shown(lun, &name, &targets) {
                volumes.push(self.volume(id, lun, shown)?);
            }
        }
        page(volumes, |volume| volume.id.as_str(), 'v', request)
    }
}

#[async_trait]
impl Expander for Luns {
    fn node_expands(&self) -> bool {
        true
    }

    async fn expand_volume(
        &self,
        call: &Call,
        request: ExpandVolume<'_>,
    ) -> Result<Expanded, Error> {
        let ExpandVolume { id, size, .. } = request;
        let doing = format!("expand volume `{id}`");
        let _turn = self.turn(call, &doing).await?;
        let lun = self.usable(call, id, &doing).await?;
        let refused = || Error::new(Kind::OutOfRange, doing.clone());
        let wanted = size.choose(BLOCK).map_err(|why| refused().because(why))?;
        // A limit alone asks for no growth.
        let capacity = if lun.size >= wanted {
            if size.limit().is_some_and(|limit| lun.size > limit) {
                return Err(refused().because(format!("it has {} bytes already", lun.size)));
            }
            lun.size
        } else {
            self.grow(call, &lun, wanted, &doing).await?
        };
        Ok(Expanded {
            capacity,
            node_expansion_required: true,
        })
    }
}

#[async_trait]
impl CapacityReporter for Luns {
    async fn capacity(&self, call: &Call, _: &CapacityQuery) -> Result<Capacity, Error> {
        self.client.free(call, &self.settings.location).await
    }
}
