//! Making volumes: empty, of a snapshot, of another volume.

use std::collections::BTreeMap;

use driver_core::template::Template as Handlebars;
use driver_core::{
    Call, CreateVolume, Effect, Error, Kind, SizeRange, SnapshotId, Source, Volume, VolumeId,
};
use serde::Serialize;

use super::export::changed;
use super::snapshots::is_ours;
use super::{BLOCK, Luns, POLL_PAUSES, pause};
use crate::api::{Lun, LunSnapshot};
use crate::config::TargetMode;
use crate::error::Failure;
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

/// What a new LUN is filled with, and the least that it then needs.
enum Filling {
    Nothing,
    Lun {
        uuid: String,
        size: u64,
    },
    Snapshot {
        lun: String,
        uuid: String,
        size: u64,
    },
}

/// The decoded request, complete before anything is changed.
struct LunRequest {
    lun: Template,
    target: Template,
    description: String,
    size: u64,
}

// === impl Luns ===

impl Luns {
    pub(super) async fn create(
        &self,
        call: &Call,
        request: &CreateVolume,
    ) -> Result<Volume, Error> {
        let id = &request.id;
        let doing = format!("create volume `{id}`");
        let refused = || Error::invalid(doing.clone());
        let name = self.names.lun(id).ok_or_else(|| {
            refused().because("it is not an id that this driver gives to a volume")
        })?;
        let wanted = self.lun_request(request, &doing)?;
        call.check(&doing)?;
        let state = self.observe(call, &doing).await?;
        let found = state.lun(&name).cloned();
        if let Some(lun) = &found {
            let is_whole = self.shown(lun, &name, &state.targets).is_some();
            same_request(lun, request, is_whole, &doing)?;
        }
        // It may be in creation or in deletion.
        let found = match found {
            Some(lun) if lun.is_action_locked => self.settled(call, &name, &doing).await?,
            found => found,
        };
        let lun = match found {
            Some(lun) => lun,
            None => self.make(call, request, &name, &wanted, &doing).await?,
        };
        let lun = self.filled(call, request, lun, &wanted, &doing).await?;
        let state = self.observe(call, &doing).await?;
        let state = self.show(call, &lun, &name, &wanted.target, state).await?;
        let lun = state.lun(&name).ok_or_else(|| changed(call, &doing))?;
        let shown = self.shown(lun, &name, &state.targets);
        self.volume(id.clone(), lun, shown.ok_or_else(|| changed(call, &doing))?)
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
            // One session is DSM's default, and every node needs one.
            target.set("max_sessions", 0);
        }
        let description = self.described(&lun, request, doing)?;
        lun.set("description", description.as_str());
        let size = request.size.choose(BLOCK);
        let size = size.map_err(|why| Error::new(Kind::OutOfRange, doing).because(why))?;
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
        doing: &str,
    ) -> Result<Lun, Error> {
        let filling = self.filling(call, request.source.as_ref(), doing).await?;
        let (text, location) = (&wanted.description, &self.settings.location);
        let least = match &filling {
            Filling::Nothing => 0,
            Filling::Lun { size, .. } | Filling::Snapshot { size, .. } => *size,
        };
        if request.size.limit().is_some_and(|limit| least > limit) {
            let why = format!("the source has {least} bytes");
            return Err(Error::new(Kind::OutOfRange, doing).because(why));
        }
        call.check(doing)?;
        let untouched = call.effect() == Effect::None;
        let client = &self.client;
        let made = match filling {
            Filling::Nothing => {
                let template = self.typed(call, &wanted.lun, doing).await?;
                client
                    .create_lun(call, &template, name.as_str(), location, wanted.size)
                    .await
            }
            Filling::Lun { uuid, .. } => {
                client
                    .clone_lun(call, &uuid, name.as_str(), location, text)
                    .await
            }
            Filling::Snapshot { lun, uuid, .. } => {
                client
                    .clone_snapshot(call, &lun, &uuid, name.as_str(), text)
                    .await
            }
        };
        // Whatever was answered, the observed state counts.
        match (self.settled(call, name, doing).await?, made) {
            (Some(lun), _) => Ok(lun),
            (None, Ok(())) => Err(changed(call, doing)),
            (None, Err(failure)) => {
                if untouched && failure.code().is_some() {
                    call.undone();
                }
                Err(failure.while_doing(call, doing))
            }
        }
    }

    /// The template with a type of LUN: `thin`, which is the default, and `thick` are what the filesystem
    /// of the volume has of that sort.
    async fn typed(
        &self,
        call: &Call,
        template: &Template,
        doing: &str,
    ) -> Result<Template, Error> {
        let thin = match template.text("type") {
            Some("thick") => false,
            None | Some("thin") => true,
            Some(_) => return Ok(template.clone()),
        };
        let location = &self.settings.location;
        let volume = self.client.volume(call, location).await;
        let volume = volume.map_err(|failure| failure.while_doing(call, doing))?;
        let refused = |why: String| Error::invalid(doing).because(why);
        let volume = volume.ok_or_else(|| {
            refused(format!("the NAS has no volume {location}")).advise("correct synology.volume")
        })?;
        let kind = match (volume.fs_type.as_str(), thin) {
            ("btrfs", true) => "BLUN",
            ("btrfs", false) => "BLUN_THICK",
            ("ext4", true) => "ADV",
            ("ext4", false) => "FILE",
            (other, _) => {
                let shown = other.escape_debug();
                let error = refused(format!("{location} has the unknown filesystem `{shown}`"));
                return Err(error.advise("name the type in lunTemplate.type"));
            }
        };
        let mut template = template.clone();
        template.set("type", kind);
        Ok(template)
    }

    /// The LUN once DSM does not work on it any more, or `None` if there is none.
    async fn settled(
        &self,
        call: &Call,
        name: &LunName,
        doing: &str,
    ) -> Result<Option<Lun>, Error> {
        let mut wait = POLL_PAUSES.0;
        loop {
            let luns = self.client.luns(call).await;
            let luns = luns.map_err(|failure| failure.while_doing(call, doing))?;
            let found = luns.into_iter().find(|lun| lun.name == name.as_str());
            match found {
                Some(lun) if lun.is_action_locked => pause(call, &mut wait).await,
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
        if Origin::read(&lun.description) == Origin::Unknown
            && lun.description != wanted.description
        {
            // Some DSM may drop the description of a copy. One that refuses it does so again: the note is
            // worth no failed volume.
            let (uuid, text) = (&lun.uuid, &wanted.description);
            if let Err(failure) = self.client.describe_lun(call, uuid, text).await {
                tracing::warn!(volume = %request.id, error = %failure, "the source is not noted at the LUN");
            }
        }
        if !request.size.holds(lun.size) && lun.size < wanted.size {
            lun.size = self.grow(call, &lun, wanted.size, doing).await?;
        }
        Ok(lun)
    }

    /// Grows a LUN and checks the result.
    pub(super) async fn grow(
        &self,
        call: &Call,
        lun: &Lun,
        size: u64,
        doing: &str,
    ) -> Result<u64, Error> {
        call.check(doing)?;
        let grown = self.client.resize_lun(call, &lun.uuid, size).await;
        let luns = self.client.luns(call).await;
        let luns = luns.map_err(|failure| failure.while_doing(call, doing))?;
        let now = luns.iter().find(|known| known.uuid == lun.uuid);
        match (now, grown) {
            (Some(now), _) if now.size >= size => Ok(now.size),
            (_, Err(failure)) => Err(failure.while_doing(call, doing)),
            (_, Ok(())) => Err(changed(call, doing)),
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
                let (lun, _) = self.whole(call, source, doing).await?;
                Filling::Lun {
                    uuid: lun.uuid,
                    size: lun.size,
                }
            }
            Some(Source::Snapshot(source)) => {
                let (lun, snapshot) = self.snapshot_source(call, source, doing).await?;
                Filling::Snapshot {
                    lun: lun.uuid,
                    uuid: snapshot.uuid,
                    size: snapshot.total_size,
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
    ) -> Result<(Lun, LunSnapshot), Error> {
        let missing = || Error::not_found(doing).because(format!("there is no snapshot `{id}`"));
        let failed = |failure: Failure| failure.while_doing(call, doing);
        let parts = LunSnapshotId::parse(id).ok_or_else(missing)?;
        let luns = self.client.luns(call).await.map_err(failed)?;
        let is_its = |lun: &Lun| match &parts.lun {
            LunRef::Uuid(uuid) => lun.uuid == *uuid,
            LunRef::Number(number) => lun.number == Some(*number),
        };
        let lun = luns.into_iter().find(is_its);
        let lun = lun.filter(|lun| self.names.id(&lun.name).is_some());
        let lun = lun.ok_or_else(missing)?;
        let snapshots = self.client.snapshots(call, &lun.uuid).await;
        let snapshots = snapshots.map_err(failed)?;
        let found = snapshots
            .into_iter()
            .find(|known| known.uuid == parts.snapshot && is_ours(known));
        found.map(|found| (lun, found)).ok_or_else(missing)
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
    conflict(format!("it exists with {} bytes", lun.size))
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
