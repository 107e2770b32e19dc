//! Making volumes: empty, of a snapshot, of another volume.

use std::collections::BTreeMap;

use csi_types::size::SizeError;
use driver_core::template::Template as Handlebars;
use driver_core::{
    Call, CreateVolume, Effect, Error, Kind, SizeRange, SnapshotId, Source, Volume, VolumeId,
};
use futures_util::future::try_join;
use serde::Serialize;
use serde_json::json;

use super::export::changed;
use super::snapshots::is_ours;
use super::{Luns, POLLS, Shown, lun_size, pause};
use crate::answer::Done;
use crate::api::{ListedLun, Lun, LunSnapshot};
use crate::config::TargetMode;
use crate::error::{Code, Failure};
use crate::lun_name::LunName;
use crate::snapshot_id::{LunRef, LunSnapshotId};
use crate::source::{Origin, noted};
use crate::template::Template;

/// What the template of a description sees. compat: "Synology".
#[derive(Serialize)]
struct DescriptionData<'a> {
    name: &'a str,
    parameters: &'a BTreeMap<String, String>,
    csi: BTreeMap<&'static str, &'a str>,
}

/// The source of a new LUN, and the least that it then needs.
enum Filling {
    Nothing,
    Lun {
        lun: Lun,
        size: u64,
    },
    Snapshot {
        lun: String,
        uuid: String,
        size: u64,
    },
}

/// The attributes of a thin LUN that is asked for by that word: giving space back, what hypervisors ask for, snapshots.
const THIN_ATTRIBUTES: [&str; 5] = [
    "emulate_tpws",
    "emulate_caw",
    "emulate_3pc",
    "emulate_tpu",
    "can_snapshot",
];

/// The decoded request, complete before anything is changed.
struct LunRequest {
    lun: Template,
    target: Template,
    description: String,
    size: Result<u64, SizeError>,
}

// === impl Filling ===

impl Filling {
    /// The least size that it needs.
    fn size(&self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Lun { size, .. } | Self::Snapshot { size, .. } => *size,
        }
    }
}

// === impl LunRequest ===

impl LunRequest {
    fn size(&self, doing: &str) -> Result<u64, Error> {
        self.size
            .map_err(|why| Error::new(Kind::OutOfRange, doing).because(why))
    }
}

// === impl Luns ===

impl Luns {
    pub(super) async fn create(
        &self,
        call: &Call,
        request: &CreateVolume,
        doing: &str,
    ) -> Result<Volume, Error> {
        let id = &request.id;
        let name = self.names.lun(id).ok_or_else(|| {
            let why = "it is not an id that this driver gives to a volume";
            Error::invalid(doing).because(why)
        })?;
        let wanted = self.lun_request(request, doing)?;
        call.check(doing)?;
        let failed = |failure: Failure| failure.while_doing(call, doing);
        let (found, filesystem) = try_join(
            async { self.lun_named(call, &name).await.map_err(failed) },
            self.filesystem(call, request, &wanted.lun, doing),
        )
        .await?;
        let mut targets = None;
        let mut lun = found;
        if let Some(found) = &lun {
            let likely = self.likely_targets(call, &name).await.map_err(failed)?;
            let all = self.targets_of(call, found, &name, likely).await;
            let all = all.map_err(failed)?;
            let is_whole = self.shown(found, &name, &all).is_some();
            same_request(found, request, is_whole, doing)?;
            // It may be in creation or in deletion.
            if found.is_action_locked && !is_whole {
                lun = self.settled(call, &name, doing).await?;
                // Another call may have made another one since.
                if let Some(settled) = &lun {
                    same_request(settled, request, false, doing)?;
                }
            }
            targets = Some(all);
        }
        let lun = if let Some(lun) = lun {
            lun
        } else {
            let filesystem = filesystem.as_deref();
            self.make(call, request, &name, &wanted, filesystem, doing)
                .await?
        };
        let lun = self.filled(call, request, lun, &wanted, doing).await?;
        let target = self
            .show(call, &lun, &name, &wanted.target, targets)
            .await?;
        let number = target.number_of(&lun.uuid);
        let shown = Shown {
            number: number.ok_or_else(|| changed(doing))?,
            target: &target,
        };
        self.volume(id.clone(), &lun, shown)
    }

    fn lun_request(&self, request: &CreateVolume, doing: &str) -> Result<LunRequest, Error> {
        let (scope, settings) = (self.scope(), &self.settings);
        let (parameters, secrets) = (&request.parameters, &request.secrets);
        let mut lun = settings
            .lun
            .over("lunTemplate", scope, parameters, secrets)?;
        let mut target = settings
            .target
            .over("targetTemplate", scope, parameters, secrets)?;
        if settings.mode == TargetMode::SharedTarget {
            if target != settings.target {
                return Err(Error::invalid(doing)
                    .because("with `mode: shared-target` a class has no targetTemplate of its own")
                    .advise("set it in the configuration: the targets belong to all classes"));
            }
            target.set("max_sessions", 0);
        }
        // One session is DSM's default: no second path, no second node, and a node that died keeps it.
        target.set_missing("max_sessions", 0);
        target.set_missing("auth_type", 0);
        target.make_texts(&["user", "password", "mutual_user", "mutual_password"]);
        let description = self.described(&lun, request, doing)?;
        lun.set("description", description.as_str());
        let size = lun_size(&request.size);
        Ok(LunRequest {
            lun,
            target,
            description,
            size,
        })
    }

    /// The description of the template, and the note about the source.
    fn described(
        &self,
        lun: &Template,
        request: &CreateVolume,
        doing: &str,
    ) -> Result<String, Error> {
        if let Some(Source::Elsewhere(_)) = request.source {
            return Err(Error::unsupported(
                "a volume of what another connection holds",
            ));
        }
        let Some(text) = lun.text("description") else {
            return Ok(noted("", request.source.as_ref()));
        };
        let refused = |why: String| {
            let error = Error::invalid(doing).because(why);
            error.advise("correct `description` in lunTemplate")
        };
        let compiled;
        let template = match &self.description {
            Some(template) if template.source() == text => template,
            _ => {
                compiled = Handlebars::compile(text).map_err(|why| refused(why.to_string()))?;
                &compiled
            }
        };
        let data = DescriptionData {
            name: request.name.as_str(),
            parameters: request.parameters.raw(),
            csi: BTreeMap::from([
                ("name", "org.democratic-csi"),
                ("version", env!("CARGO_PKG_VERSION")),
            ]),
        };
        let text = template
            .render(&data)
            .map_err(|why| refused(why.to_string()))?;
        if text.len() > 255 || text.contains(char::is_control) {
            return Err(refused(
                "it has control characters or more than 255 bytes".to_owned(),
            ));
        }
        Ok(noted(&text, request.source.as_ref()))
    }

    /// Makes the missing LUN.
    async fn make(
        &self,
        call: &Call,
        request: &CreateVolume,
        name: &LunName,
        wanted: &LunRequest,
        filesystem: Option<&str>,
        doing: &str,
    ) -> Result<Lun, Error> {
        let size = wanted.size(doing)?;
        let filling = self.filling(call, request.source.as_ref(), doing).await?;
        let (text, location) = (&wanted.description, &self.settings.location);
        let least = filling.size();
        if request.size.limit().is_some_and(|limit| least > limit) {
            let why = format!("the source has {least} bytes");
            return Err(Error::new(Kind::OutOfRange, doing).because(why));
        }
        call.check(doing)?;
        let untouched = call.effect() == Effect::None;
        let client = &self.client;
        let made = match filling {
            Filling::Nothing => {
                let template = self.typed(&wanted.lun, filesystem, doing)?;
                let made = client.create_lun(call, &template, name.as_str(), location, size);
                let made = made.await;
                // What it is of is known: DSM works on it a second longer, and that delays nothing.
                if let Ok(Done {
                    uuid: Some(uuid), ..
                }) = &made
                {
                    let (name, text) = (name.as_str(), text.as_str());
                    return Ok(Lun::made(uuid, name, size, text));
                }
                made
            }
            Filling::Lun { lun, .. } => {
                client
                    .clone_lun(call, &lun, name.as_str(), location, text)
                    .await
            }
            Filling::Snapshot { lun, uuid, .. } => {
                client
                    .clone_snapshot(call, &lun, &uuid, name.as_str(), text)
                    .await
            }
        };
        // A refusal proves nothing, and a copy has to be waited for.
        match (self.settled(call, name, doing).await?, made) {
            (Some(lun), Ok(_)) => Ok(lun),
            (Some(lun), Err(_)) => {
                same_request(&lun, request, false, doing)?;
                Ok(lun)
            }
            (None, Err(failure)) if failure.code() != Some(Code::LUN_EXISTS) => {
                if untouched && failure.code().is_some() {
                    call.undone();
                }
                Err(failure.while_doing(call, doing))
            }
            (None, _) => Err(changed(doing)),
        }
    }

    /// The filesystem of the volume of the NAS, if the type of a new LUN depends on it.
    async fn filesystem(
        &self,
        call: &Call,
        request: &CreateVolume,
        template: &Template,
        doing: &str,
    ) -> Result<Option<String>, Error> {
        let is_open = matches!(template.text("type"), None | Some("thin" | "thick"));
        if !is_open || request.source.is_some() {
            return Ok(None);
        }
        let location = &self.settings.location;
        let volume = self.client.existing_volume(call, location, doing).await?;
        Ok(Some(volume.fs_type))
    }

    /// The template with a type of LUN: `thin`, which is the default, and `thick` are what the filesystem
    /// of the volume has of that sort. The legacy type `ADV` of ext4 needs 10 GiB, and has no snapshots either.
    fn typed(
        &self,
        template: &Template,
        filesystem: Option<&str>,
        doing: &str,
    ) -> Result<Template, Error> {
        let Some(filesystem) = filesystem else {
            return Ok(template.clone());
        };
        let thin = template.text("type") != Some("thick");
        let kind = match (filesystem, thin) {
            ("btrfs", true) => "BLUN",
            ("btrfs", false) => "BLUN_THICK",
            ("ext4", true) => "THIN",
            ("ext4", false) => "FILE",
            (other, _) => {
                let (shown, location) = (other.escape_debug(), &self.settings.location);
                let why = format!("{location} has the unknown filesystem `{shown}`");
                let error = Error::invalid(doing).because(why);
                return Err(error.advise("name the type in lunTemplate.type"));
            }
        };
        let mut template = template.clone();
        template.set("type", kind);
        if kind == "BLUN" {
            // Without these a thin LUN gives no space back, and some have no snapshots.
            let on = THIN_ATTRIBUTES.map(|name| json!({"dev_attrib": name, "enable": 1}));
            template.set_missing("dev_attribs", on.to_vec());
        }
        Ok(template)
    }

    /// The LUN once DSM does not work on it any more, or `None` if there is none.
    pub(super) async fn settled(
        &self,
        call: &Call,
        name: &LunName,
        doing: &str,
    ) -> Result<Option<Lun>, Error> {
        let mut polls = POLLS;
        loop {
            let found = self.lun_named(call, name).await;
            let found = found.map_err(|failure| failure.while_doing(call, doing))?;
            match found {
                Some(lun) if lun.is_action_locked => pause(call, &mut polls).await,
                found => return Ok(found),
            }
            call.check(doing)?;
        }
    }

    /// Completes a copy: its size, and the note about its source.
    async fn filled(
        &self,
        call: &Call,
        request: &CreateVolume,
        mut lun: Lun,
        wanted: &LunRequest,
        doing: &str,
    ) -> Result<Lun, Error> {
        if request.source.is_none() {
            return Ok(lun);
        }
        let is_noted = Origin::read(&lun.description) == Origin::Known(request.source.clone());
        if !is_noted && lun.description != wanted.description {
            // Some DSM may drop the description of a copy, or give it that of its source. One that refuses it does
            // so again: the note is worth no failed volume.
            let text = &wanted.description;
            match self.client.describe_lun(call, &lun.uuid, text).await {
                Ok(()) => lun.description.clone_from(text),
                Err(failure) => {
                    tracing::warn!(volume = %request.id, error = %failure, "the source is not noted at the LUN");
                }
            }
        }
        let size = wanted.size(doing)?;
        if !request.size.holds(lun.size) && lun.size < size {
            lun.size = self.grow(call, &lun, size, doing).await?;
        }
        Ok(lun)
    }

    /// Grows a LUN. If DSM refuses, it may have grown all the same.
    pub(super) async fn grow(
        &self,
        call: &Call,
        lun: &Lun,
        size: u64,
        doing: &str,
    ) -> Result<u64, Error> {
        call.check(doing)?;
        let Err(failure) = self.client.resize_lun(call, &lun.uuid, size).await else {
            return Ok(size);
        };
        let now = self.client.lun(call, &lun.uuid).await;
        let now = now.map_err(|failure| failure.while_doing(call, doing))?;
        match now {
            Some(now) if now.size >= size => Ok(now.size),
            Some(_) => Err(failure.while_doing(call, doing)),
            None => Err(changed(doing)),
        }
    }

    async fn filling(
        &self,
        call: &Call,
        source: Option<&Source>,
        doing: &str,
    ) -> Result<Filling, Error> {
        Ok(match source {
            None | Some(Source::Elsewhere(_)) => Filling::Nothing,
            Some(Source::Volume(source)) => {
                let lun = self.usable(call, source, doing).await?;
                Filling::Lun {
                    size: lun.size,
                    lun,
                }
            }
            Some(Source::Snapshot(source)) => {
                let (lun, snapshot) = self.snapshot_source(call, source, doing).await?;
                let missing = || {
                    let why = format!("there is no snapshot `{source}`");
                    Error::not_found(doing).because(why)
                };
                Filling::Snapshot {
                    lun: lun.ok_or_else(missing)?.uuid,
                    size: snapshot.as_ref().map_or(0, LunSnapshot::size),
                    uuid: snapshot.ok_or_else(missing)?.uuid,
                }
            }
        })
    }

    /// The LUN of a snapshot, and the snapshot, by its id: those of CSI, of volumes of this connection.
    pub(super) async fn snapshot_source(
        &self,
        call: &Call,
        id: &SnapshotId,
        doing: &str,
    ) -> Result<(Option<Lun>, Option<LunSnapshot>), Error> {
        let failed = |failure: Failure| failure.while_doing(call, doing);
        let Some(parts) = LunSnapshotId::parse(id) else {
            return Ok((None, None));
        };
        let is_a_volume = |lun: &Lun| self.names.id(&lun.name).is_some();
        let (lun, snapshots) = match &parts.lun {
            LunRef::Uuid(uuid) => {
                let both = try_join(
                    self.client.lun(call, uuid),
                    self.client.snapshots(call, uuid),
                );
                let (lun, snapshots) = both.await.map_err(failed)?;
                (lun.filter(is_a_volume), snapshots)
            }
            LunRef::Number(number) => {
                let luns = self.client.luns(call).await.map_err(failed)?;
                let is_it = |lun: &ListedLun| {
                    lun.lun_id == Some(*number) && self.names.id(&lun.name).is_some()
                };
                let luns = self.client.readable(luns, is_it).map_err(failed)?;
                let mut luns = luns.into_iter().filter(is_a_volume);
                let lun = luns.find(|lun| lun.number == Some(*number));
                let snapshots = match &lun {
                    Some(lun) => self.client.snapshots(call, &lun.uuid).await,
                    None => Ok(Vec::new()),
                };
                (lun, snapshots.map_err(failed)?)
            }
        };
        let mut snapshots = snapshots.into_iter().filter(|_| lun.is_some());
        let found = snapshots.find(|known| known.uuid == parts.snapshot && is_ours(known));
        Ok((lun, found))
    }
}

/// Refuses a request that does not match the existing volume. An unfinished copy may still have the size
/// of its source.
fn same_request(
    lun: &Lun,
    request: &CreateVolume,
    is_whole: bool,
    doing: &str,
) -> Result<(), Error> {
    let conflict = |why: String| Err(Error::new(Kind::Conflict, doing).because(why));
    match Origin::read(&lun.description) {
        Origin::Known(source) if source != request.source => {
            return conflict(format!("it exists, made {}", made_of(source.as_ref())));
        }
        _ => {}
    }
    let may_grow = !is_whole && request.source.is_some() && !above(&request.size, lun.size);
    if request.size.holds(lun.size) || may_grow {
        return Ok(());
    }
    conflict(format!(
        "it exists with {} bytes, and {} are asked for",
        lun.size, request.size
    ))
}

fn above(size: &SizeRange, bytes: u64) -> bool {
    size.limit().is_some_and(|limit| bytes > limit)
}

fn made_of(source: Option<&Source>) -> String {
    let id = |id: &VolumeId| format!("of volume `{id}`");
    match source {
        Some(Source::Volume(source)) => id(source),
        Some(Source::Snapshot(source)) => format!("of snapshot `{source}`"),
        Some(Source::Elsewhere(source)) => format!("of {source}"),
        None => "empty".to_owned(),
    }
}
