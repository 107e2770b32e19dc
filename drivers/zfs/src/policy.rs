//! The policy of a connection for its volumes: the checked configuration.

use std::collections::BTreeMap;

use csi_types::size::SizeError;
use driver_core::template::Template;
use driver_core::{CreateVolume, Error, MadeFor, Parameters, SizeRange, Source};
use serde::Serialize;

use crate::observed::{Dataset, VolumeKind};
use crate::parameter::{ClassChoice, ClassProperties, ClassProperty};
use crate::plan::owner::Owner;
use crate::property::{Property, PropertyName, PropertyValue};
use crate::step::Permission;

/// The policy of a connection for its volumes.
#[derive(Debug, Clone)]
pub struct Policy {
    /// The value of `driver:`, recorded with every volume.
    pub provisioner: String,
    /// The `instance_id`, recorded with every volume.
    pub instance: Option<String>,
    /// Properties of new volumes.
    pub dataset_properties: Vec<(PropertyName, Template)>,
    /// Properties of new snapshots.
    pub snapshot_properties: Vec<(PropertyName, Template)>,
    /// Whether the size of a filesystem is a quota. Otherwise nothing limits it.
    pub quota: bool,
    /// Whether the size of a filesystem is reserved.
    pub reservation: bool,
    /// The smallest volume: some storage rejects smaller ones.
    pub smallest: u64,
    /// The size of the blocks of a zvol.
    pub block: u64,
    /// Whether a zvol has no reservation.
    pub thin: bool,
    /// Deduplication of a zvol.
    pub dedup: Option<PropertyValue>,
    /// Compression of a zvol.
    pub compression: Option<PropertyValue>,
    /// The permissions of the root of a filesystem.
    pub permissions: Vec<Permission>,
    /// The properties that classes may set.
    pub class: ClassProperties,
}

/// The variables of a template of properties.
#[derive(Serialize)]
struct PropertyData<'a> {
    parameters: &'a BTreeMap<String, String>,
}

/// Text of an orchestrator as a value: characters that could not be read back are escaped.
pub(crate) fn value_of(text: &str) -> PropertyValue {
    let plain = PropertyValue::parse(text);
    plain.unwrap_or_else(|_| {
        let escaped: String = text
            .chars()
            .take(1024)
            .flat_map(char::escape_debug)
            .collect();
        PropertyValue::parse(escaped).unwrap_or_else(|_| PropertyValue::yes())
    })
}

/// The claim and the persistent volume of a request, if the provisioner runs with `--extra-create-metadata`.
fn origin_of(parameters: &Parameters) -> impl Iterator<Item = Property> {
    let MadeFor {
        claim,
        persistent_volume,
    } = MadeFor::of(parameters);
    let claim = claim.map(|claim| (PropertyName::CLAIM, value_of(&claim.to_string())));
    let volume = persistent_volume.map(|name| {
        let value = value_of(name.as_str());
        (PropertyName::PERSISTENT_VOLUME, value)
    });
    let both = [claim, volume].into_iter().flatten();
    both.map(|(name, value)| Property::new(name, value))
}

/// Each name once, with its last value.
fn merged(properties: impl IntoIterator<Item = Property>) -> Vec<Property> {
    let mut all: Vec<Property> = Vec::new();
    for property in properties {
        all.retain(|other| other.name != property.name);
        all.push(property);
    }
    all
}

fn rendered(
    templates: &[(PropertyName, Template)],
    parameters: &Parameters,
) -> Result<Vec<Property>, Error> {
    let data = PropertyData {
        parameters: parameters.raw(),
    };
    let render = |(name, template): &(PropertyName, Template)| {
        let refused = || Error::invalid(format!("set property `{name}` of new objects"));
        let text = template
            .render(&data)
            .map_err(|error| refused().because(error))?;
        let value = PropertyValue::parse(text).map_err(|error| refused().because(error))?;
        Ok(Property::new(name.clone(), value))
    };
    templates.iter().map(render).collect()
}

// === impl Policy ===

impl Policy {
    /// The properties of a new volume from its first moment; those of its class come before those of the configuration.
    /// compat: "ZFS".
    pub fn of_volume(
        &self,
        kind: VolumeKind,
        request: &CreateVolume,
        class: &ClassChoice,
    ) -> Result<Vec<Property>, Error> {
        let mut all = rendered(&self.dataset_properties, &request.parameters)?;
        all.retain(|property| {
            let is_quota = property.name == PropertyName::REFQUOTA;
            let is_reservation = property.name == PropertyName::REFRESERVATION;
            !(is_quota && class.quota.is_some() || is_reservation && class.reservation.is_some())
        });
        if kind == VolumeKind::Zvol {
            // compat: "ZFS": the size is rounded to these blocks, so only they are set.
            all.retain(|property| property.name != PropertyName::VOLBLOCKSIZE);
            let given = |name, value: &Option<PropertyValue>| {
                value.clone().map(|value| Property::new(name, value))
            };
            all.extend(given(PropertyName::DEDUP, &self.dedup));
            all.extend(given(PropertyName::COMPRESSION, &self.compression));
            if !self.reserves(kind, class) {
                all.push(Property::new(PropertyName::REFRESERVATION, 0.into()));
            }
        }
        all.extend(class.properties());
        all.extend(self.contract(request));
        Ok(merged(all))
    }

    /// Whether the size of a new filesystem is its quota. Otherwise nothing limits it.
    pub fn limits(&self, class: &ClassChoice) -> bool {
        class.quota.unwrap_or(self.quota)
    }

    /// Whether volumes show their size: a filesystem has none where neither the configuration nor a class gives it a
    /// quota.
    pub fn shows_size(&self, kind: VolumeKind) -> bool {
        let has_mode = self.class.has(ClassProperty::QuotaMode);
        kind == VolumeKind::Zvol || self.quota || has_mode
    }

    /// Whether the size of a new volume is reserved.
    pub fn reserves(&self, kind: VolumeKind, class: &ClassChoice) -> bool {
        let configured = match kind {
            VolumeKind::Filesystem => self.reservation,
            VolumeKind::Zvol => !self.thin,
        };
        class.reservation.unwrap_or(configured)
    }

    /// Whether the reservation of a filesystem grows with it. Where classes decide, one that has none gets none.
    pub fn reserves_growth(&self, dataset: &Dataset) -> bool {
        if self.class.has(ClassProperty::ReservationMode) {
            dataset.reserved() > 0
        } else {
            self.reservation
        }
    }

    /// Whether a volume of that kind may have a reservation that grows by this driver: that of a zvol grows by ZFS.
    pub fn may_reserve_growth(&self, kind: VolumeKind) -> bool {
        let has_mode = self.class.has(ClassProperty::ReservationMode);
        kind == VolumeKind::Filesystem && (self.reservation || has_mode)
    }

    /// The reservation of a copy or a clone of a zvol, as a new one has it: ZFS sets it only for
    /// zvols that are created empty. compat: "ZFS".
    pub fn reservation_of_copy(&self, class: &ClassChoice) -> Option<Property> {
        let name = PropertyName::REFRESERVATION;
        let given = self.dataset_properties.iter().any(|(key, _)| *key == name);
        let given = given && class.reservation.is_none();
        let reserves = self.reserves(VolumeKind::Zvol, class);
        (reserves && !given).then(|| Property::new(name, PropertyValue::auto()))
    }

    /// The marks of a volume: that it is ours, and which request created it.
    pub fn contract(&self, request: &CreateVolume) -> Vec<Property> {
        let text = |name, text: &str| Property::new(name, value_of(text));
        let mut all = vec![
            text(PropertyName::VOLUME_NAME, request.name.as_str()),
            Property::new(PropertyName::MANAGED, PropertyValue::yes()),
        ];
        all.extend(self.owner().marks());
        all.extend(origin_of(&request.parameters));
        let (kind, id) = match &request.source {
            None => return all,
            Some(Source::Snapshot(id)) => ("snapshot", id.as_str()),
            Some(Source::Volume(id)) => ("volume", id.as_str()),
            Some(Source::Elsewhere(source)) => source.record(),
        };
        all.push(text(PropertyName::SOURCE_KIND, kind));
        all.push(text(PropertyName::SOURCE_ID, id));
        all
    }

    /// The marks that distinguish this connection from others with the same parents.
    pub fn owner(&self) -> Owner<'_> {
        Owner {
            provisioner: &self.provisioner,
            instance: self.instance.as_deref(),
        }
    }

    /// The properties of a new snapshot from its first moment, including `contract`.
    pub fn of_snapshot(
        &self,
        parameters: &Parameters,
        contract: Vec<Property>,
    ) -> Result<Vec<Property>, Error> {
        let mut all = rendered(&self.snapshot_properties, parameters)?;
        all.extend(contract);
        Ok(merged(all))
    }

    /// The size to make: what is asked for, at least `least` and what the storage takes, in whole steps. What
    /// passes the limit by that is refused.
    pub fn choose(&self, asked: SizeRange, step: u64, least: u64) -> Result<u64, SizeError> {
        let step = step.max(1);
        let wanted = asked.choose(step)?.max(least).max(self.smallest);
        let size = wanted.checked_next_multiple_of(step).unwrap_or(u64::MAX);
        match asked.limit() {
            Some(limit) if size > limit => Err(SizeError::Unmeetable {
                smallest: size,
                limit,
            }),
            _ => Ok(size),
        }
    }

    /// The properties that are the size of a filesystem.
    pub fn size_of_filesystem(&self, size: u64, class: &ClassChoice) -> Vec<Property> {
        let quota = self.limits(class).then_some(PropertyName::REFQUOTA);
        let reserves = self.reserves(VolumeKind::Filesystem, class);
        let reservation = reserves.then_some(PropertyName::REFRESERVATION);
        let properties = quota.into_iter().chain(reservation);
        properties
            .map(|name| Property::new(name, size.into()))
            .collect()
    }
}
