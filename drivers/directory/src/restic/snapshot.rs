//! What restic says of its snapshots.

use std::time::{Duration, SystemTime};

use driver_core::civil;
use serde::Deserialize;

use crate::id::{NamePart, VolumeDir};

/// The tag of every snapshot of this program and of democratic-csi.
pub(super) const CREATED_BY: &str = "source=democratic-csi";
/// The keys of the other tags.
pub(super) const VOLUME: &str = "csi_volume_id";
pub(super) const INSTANCE: &str = "csi_instance_id";
pub(super) const NAME: &str = "csi_snapshot_name";
/// The name that a backup gets if it is whole. Only one that was cut still has this tag.
pub(super) const PENDING: &str = "omnibus_csi_pending";

/// A snapshot of a volume, whole and with a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Backup {
    pub(crate) id: String,
    pub(crate) volume: VolumeDir,
    pub(crate) name: String,
    pub(crate) time: SystemTime,
    /// The directory that it was made of.
    pub(crate) path: String,
}

/// The form in which restic prints it.
#[derive(Debug, Deserialize)]
struct Printed {
    id: String,
    time: String,
    #[serde(default)]
    paths: Vec<String>,
    #[serde(default)]
    tags: Option<Vec<String>>,
}

impl Backup {
    pub(crate) fn is_of(&self, volume: &VolumeDir, name: &NamePart) -> bool {
        self.volume == *volume && self.name == name.as_str()
    }

    /// Its place in the list.
    pub(crate) fn key(&self) -> String {
        let since = self.time.duration_since(SystemTime::UNIX_EPOCH);
        format!("{:032x}-{}", since.unwrap_or_default().as_nanos(), self.id)
    }

    fn of(printed: Printed, fits: impl Fn(Option<&str>) -> bool) -> Option<Self> {
        let tags = printed.tags.unwrap_or_default();
        let value = |key: &str| {
            let mut tags = tags.iter();
            tags.find_map(|tag| tag.strip_prefix(key)?.strip_prefix('='))
        };
        if !tags.iter().any(|tag| tag == CREATED_BY) {
            return None;
        }
        let volume = value(VOLUME)?;
        // compat: "restic": the instance may be glued to the volume.
        let glue = format!("{INSTANCE}=");
        let (volume, of) = match volume.split_once(&glue) {
            Some((volume, of)) => (volume, Some(of)),
            None => (volume, value(INSTANCE)),
        };
        if !fits(of) {
            return None;
        }
        Some(Self {
            volume: VolumeDir::new(volume)?,
            name: value(NAME)?.to_owned(),
            time: time(&printed.time)?,
            path: printed.paths.into_iter().next()?,
            id: printed.id,
        })
    }
}

/// The snapshots among those that are printed whose instance `fits`.
pub(super) fn read(
    text: &[u8],
    fits: impl Fn(Option<&str>) -> bool,
) -> Result<Vec<Backup>, serde_json::Error> {
    let printed = printed(text)?.into_iter();
    Ok(printed
        .filter_map(|printed| Backup::of(printed, &fits))
        .collect())
}

/// The ids of all that are printed.
pub(super) fn ids(text: &[u8]) -> Result<Vec<String>, serde_json::Error> {
    let printed = printed(text)?.into_iter();
    Ok(printed.map(|printed| printed.id).collect())
}

fn printed(text: &[u8]) -> Result<Vec<Printed>, serde_json::Error> {
    let printed: Option<Vec<Printed>> = serde_json::from_slice(text)?;
    Ok(printed.unwrap_or_default())
}

/// Reads a time as RFC 3339 writes it: `2026-11-25T23:22:51.291366555+01:00`.
pub(super) fn time(text: &str) -> Option<SystemTime> {
    let number = |range: std::ops::Range<usize>| {
        let digits = text.get(range)?;
        digits.bytes().all(|b| b.is_ascii_digit()).then_some(())?;
        digits.parse::<i64>().ok()
    };
    let date = [number(0..4)?, number(5..7)?, number(8..10)?];
    let clock = [number(11..13)?, number(14..16)?, number(17..19)?];
    let rest = text.get(19..)?;
    let zone = rest.find(['Z', '+', '-'])?;
    let (fraction, zone) = rest.split_at(zone);
    let mut nanos = fraction.trim_start_matches('.').to_owned();
    nanos.truncate(9);
    while nanos.len() < 9 {
        nanos.push('0');
    }
    let offset = match zone.split_at(1) {
        ("Z", _) => 0,
        (sign, of) => {
            let (hours, minutes) = of.split_once(':')?;
            let seconds = hours.parse::<i64>().ok()? * 3600 + minutes.parse::<i64>().ok()? * 60;
            if sign == "-" { -seconds } else { seconds }
        }
    };
    let since = Duration::new(civil::seconds(date, clock, offset)?, nanos.parse().ok()?);
    Some(SystemTime::UNIX_EPOCH + since)
}
