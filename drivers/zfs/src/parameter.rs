//! The properties that classes may set: the allow-list of a connection, for classes of storage and for those of
//! attributes of volumes.
//!
//! A value becomes a property only by [`ClassProperty::parse`], which writes it as ZFS shows it. Nothing else of a class
//! reaches ZFS, but for the templates of the configuration.

use std::collections::BTreeMap;
use std::fmt;

use driver_core::parameters::Scope;
use driver_core::{Error, Parameters};

use crate::config::BlockSize;
use crate::id::Child;
use crate::observed::{Dataset, VolumeKind};
use crate::property::{Property, PropertyName, PropertyValue};

/// A property that a class may set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassProperty {
    /// Whether reading a file changes the time of its last access.
    Atime,
    /// Compression.
    Compression,
    /// The child of the parent of volumes that holds the volume.
    DatasetChild,
    /// The purpose of synchronous writes.
    Logbias,
    /// Whether the size of a filesystem is its quota.
    QuotaMode,
    /// The largest block of a file.
    Recordsize,
    /// Whether the size of a volume is reserved.
    ReservationMode,
    /// The options of its share, by the name of a choice.
    ShareOptions,
    /// The handling of synchronous writes.
    Sync,
    /// The size of the blocks of a zvol.
    Volblocksize,
}

/// The settings of a class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClassChoice {
    /// The size of the blocks of a zvol.
    pub block: Option<u64>,
    /// Whether the size of a filesystem is its quota.
    pub quota: Option<bool>,
    /// Whether the size of a volume is reserved.
    pub reservation: Option<bool>,
    /// The options of its share.
    pub share: Option<ShareChoice>,
    /// All others.
    pub settings: Vec<Setting>,
}

/// The choices that a connection offers for its shares, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShareChoices(BTreeMap<String, Vec<Property>>);

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareChoice {
    name: PropertyValue,
    options: Vec<Property>,
}

/// Why a choice has no such name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("has to be a word of at most {MAX_CHOICE} small letters, digits, dashes and underscores")]
pub struct ChoiceNameError;

/// The properties that classes may set at one connection.
#[derive(Debug, Clone, Default)]
pub struct ClassProperties {
    allowed: Vec<ClassProperty>,
    names: Vec<&'static str>,
    mutable: Vec<&'static str>,
    shares: ShareChoices,
    children: Vec<Child>,
}

/// A property with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    property: ClassProperty,
    value: PropertyValue,
}

/// Why a property cannot be among those that classes may set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAllowable {
    /// Nothing has this name.
    #[error("is none that a class may set: known are {}", names(&ClassProperty::ALL))]
    Unknown,
    /// Volumes of this connection do not have it.
    #[error("is no property of a {0}, which volumes of this driver are")]
    OtherKind(VolumeKind),
    /// Nothing can be chosen for its shares.
    #[error(
        "has nothing to choose from: shareStrategySetDatasetProperties.choices of zfs-generic-nfs and zfs-generic-smb, \
         and nfs.shareChoices of TrueNAS, offer options of shares"
    )]
    NoChoices,
    /// The parent of volumes has no children.
    #[error(
        "has nothing to choose from: zfs.datasetChildren lists the children of zfs.datasetParentName"
    )]
    NoChildren,
}

fn names(properties: &[ClassProperty]) -> String {
    let names: Vec<_> = properties.iter().map(|one| one.name()).collect();
    names.join(", ")
}

/// The word of a class for no quota, and for no reservation.
const NONE: &str = "none";
/// The longest name of a choice, in bytes.
const MAX_CHOICE: usize = 63;

fn is_choice(name: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_');
    !name.is_empty() && name.len() <= MAX_CHOICE && name.bytes().all(is_plain)
}

fn cannot_be(doing: &str, name: &str, text: &str, values: &str) -> Error {
    let shown: String = text.chars().take(64).flat_map(char::escape_debug).collect();
    Error::invalid(doing)
        .because(format!("`{name}` cannot be `{shown}`"))
        .advise(format!("it can be {values}"))
}

fn refused(doing: &str, key: &str, allowed: &[&str]) -> Error {
    let allowed = match allowed {
        [] => "nothing".to_owned(),
        some => some.join(", "),
    };
    Error::invalid(doing)
        .because(format!("a class may not set `{}` here", key.escape_debug()))
        .advise(format!("zfs.volumeParameters allows {allowed}"))
}

// === impl ClassProperty ===

impl ClassProperty {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Atime,
        Self::Compression,
        Self::DatasetChild,
        Self::Logbias,
        Self::QuotaMode,
        Self::Recordsize,
        Self::ReservationMode,
        Self::ShareOptions,
        Self::Sync,
        Self::Volblocksize,
    ];

    /// The name of the parameter; but for modes, options and children also that of the property.
    pub fn name(self) -> &'static str {
        match self {
            Self::Atime => "atime",
            Self::Compression => "compression",
            Self::DatasetChild => "datasetChild",
            Self::Logbias => "logbias",
            Self::QuotaMode => "quotaMode",
            Self::Recordsize => "recordsize",
            Self::ReservationMode => "reservationMode",
            Self::ShareOptions => "shareOptions",
            Self::Sync => "sync",
            Self::Volblocksize => "volblocksize",
        }
    }

    /// The property.
    pub fn property(self) -> PropertyName {
        match self {
            Self::Atime => PropertyName::ATIME,
            Self::Compression => PropertyName::COMPRESSION,
            Self::DatasetChild => PropertyName::NAME,
            Self::Logbias => PropertyName::LOGBIAS,
            Self::QuotaMode => PropertyName::REFQUOTA,
            Self::Recordsize => PropertyName::RECORDSIZE,
            Self::ReservationMode => PropertyName::REFRESERVATION,
            Self::ShareOptions => PropertyName::SHARE_OPTIONS,
            Self::Sync => PropertyName::SYNC,
            Self::Volblocksize => PropertyName::VOLBLOCKSIZE,
        }
    }

    /// Whether such a volume has it.
    fn is_of(self, kind: VolumeKind) -> bool {
        match self {
            Self::Atime | Self::QuotaMode | Self::Recordsize | Self::ShareOptions => {
                kind == VolumeKind::Filesystem
            }
            Self::Volblocksize => kind == VolumeKind::Zvol,
            Self::Compression
            | Self::DatasetChild
            | Self::Logbias
            | Self::ReservationMode
            | Self::Sync => true,
        }
    }

    /// Why a volume that exists keeps it, if it does.
    fn fixed(self) -> Option<&'static str> {
        match self {
            Self::DatasetChild => Some("its id leads to its dataset"),
            Self::QuotaMode => Some("the size of a volume without a quota is recorded nowhere"),
            Self::Volblocksize => Some("ZFS never changes it"),
            Self::Atime
            | Self::Compression
            | Self::Logbias
            | Self::Recordsize
            | Self::ReservationMode
            | Self::ShareOptions
            | Self::Sync => None,
        }
    }

    /// The values that it may have, for errors.
    fn values(self) -> &'static str {
        match self {
            Self::Atime => "on, off",
            Self::Compression => {
                "on, off, lz4, lzjb, zle, gzip, gzip-1 to gzip-9, zstd, zstd-1 to zstd-19, zstd-fast, zstd-fast-1 to \
                 zstd-fast-10, then by tens to 100, 500, 1000"
            }
            Self::DatasetChild => "the name of a child",
            Self::Logbias => "latency, throughput",
            Self::QuotaMode => "refquota, none",
            Self::ReservationMode => "refreservation, none",
            Self::ShareOptions => "the name of a choice",
            Self::Recordsize | Self::Volblocksize => "powers of two from 512 to 16M, such as 128K",
            Self::Sync => "standard, always, disabled",
        }
    }

    /// Reads a value, in capitals or not; `None` if it can have no such value. Names of children are compared by
    /// [`ClassProperties::child`].
    pub fn parse(self, text: &str) -> Option<PropertyValue> {
        let text = text.trim().to_ascii_lowercase();
        let one_of = |words: &[&str]| words.contains(&text.as_str()).then(|| text.clone());
        let value = match self {
            Self::Atime => one_of(&["on", "off"])?,
            Self::Compression => compression(&text)?,
            Self::DatasetChild => return None,
            Self::Logbias => one_of(&["latency", "throughput"])?,
            Self::QuotaMode => one_of(&["refquota", NONE])?,
            Self::ReservationMode => one_of(&["refreservation", NONE])?,
            Self::ShareOptions => is_choice(&text).then(|| text.clone())?,
            Self::Recordsize | Self::Volblocksize => {
                BlockSize::parse(&text).ok()?.bytes().to_string()
            }
            Self::Sync => one_of(&["standard", "always", "disabled"])?,
        };
        PropertyValue::parse(value).ok()
    }
}

/// A kind of compression as ZFS shows it: it leaves out a level that is the default.
fn compression(text: &str) -> Option<String> {
    let words = [
        "on",
        "off",
        "lz4",
        "lzjb",
        "zle",
        "gzip",
        "zstd",
        "zstd-fast",
    ];
    if words.contains(&text) {
        return Some(text.to_owned());
    }
    let (kind, level) = text.rsplit_once('-')?;
    let is_plain = !level.starts_with('0') && level.bytes().all(|b| b.is_ascii_digit());
    let level: u16 = level.parse().ok().filter(|_| is_plain)?;
    match (kind, level) {
        ("gzip", 6) | ("zstd-fast", 1) => Some(kind.to_owned()),
        ("gzip", 1..=9) | ("zstd", 1..=19) | ("zstd-fast", 2..=10 | 500 | 1000) => {
            Some(text.to_owned())
        }
        ("zstd-fast", 20..=100) if level.is_multiple_of(10) => Some(text.to_owned()),
        _ => None,
    }
}

// === impl ClassProperties ===

impl ClassProperties {
    /// Reads the names of a configuration, for volumes of this kind, whose shares offer these choices, and whose parent
    /// has these children.
    pub fn allow(
        names: &[String],
        kind: VolumeKind,
        shares: &ShareChoices,
        children: &[Child],
    ) -> Result<Self, (String, NotAllowable)> {
        let mut allowed = Vec::new();
        for name in names {
            let known = ClassProperty::ALL
                .into_iter()
                .find(|one| one.name() == name);
            let one = known.ok_or_else(|| (name.clone(), NotAllowable::Unknown))?;
            if !one.is_of(kind) {
                return Err((name.clone(), NotAllowable::OtherKind(kind)));
            }
            if one == ClassProperty::ShareOptions && shares.is_empty() {
                return Err((name.clone(), NotAllowable::NoChoices));
            }
            if one == ClassProperty::DatasetChild && children.is_empty() {
                return Err((name.clone(), NotAllowable::NoChildren));
            }
            if !allowed.contains(&one) {
                allowed.push(one);
            }
        }
        let mutable = allowed.iter().filter(|one| one.fixed().is_none());
        Ok(Self {
            names: allowed.iter().map(|one| one.name()).collect(),
            mutable: mutable.map(|one| one.name()).collect(),
            shares: shares.clone(),
            children: children.to_vec(),
            allowed,
        })
    }

    /// Whether a class may set it.
    pub fn has(&self, property: ClassProperty) -> bool {
        self.allowed.contains(&property)
    }

    /// The names of all that a class may set.
    pub fn names(&self) -> &[&'static str] {
        &self.names
    }

    /// The names of those that can be changed afterwards.
    pub fn mutable(&self) -> &[&'static str] {
        &self.mutable
    }

    /// The settings of the class of a new volume. Without a list a class sets nothing: its parameters are those of
    /// templates, but for the name of a child.
    pub fn of_new(
        &self,
        scope: Scope<'_>,
        parameters: &Parameters,
        doing: &str,
    ) -> Result<ClassChoice, Error> {
        let mut all = ClassChoice::default();
        if self.allowed.is_empty() {
            return self.child(scope, parameters, doing).map(|_| all);
        }
        for property in ClassProperty::ALL {
            if let Some(text) = parameters.get(scope, property.name()) {
                if !self.has(property) {
                    return Err(refused(doing, property.name(), &self.names));
                }
                self.read(property, text, &mut all, doing)?;
            }
        }
        Ok(all)
    }

    /// The child of the parent of volumes that the class of a new volume names. Where nothing is listed, neither children
    /// nor what classes may set, a class names none. A child that is closed is no reason to place the volume elsewhere.
    pub fn child(
        &self,
        scope: Scope<'_>,
        parameters: &Parameters,
        doing: &str,
    ) -> Result<Option<&Child>, Error> {
        let property = ClassProperty::DatasetChild;
        let named = parameters.get(scope, property.name());
        let is_listed = !self.allowed.is_empty() || !self.children.is_empty();
        match named.filter(|_| is_listed) {
            Some(_) if !self.has(property) => Err(refused(doing, property.name(), &self.names)),
            Some(text) => self.child_of(text, doing).map(Some),
            None => Ok(None),
        }
    }

    fn child_of(&self, text: &str, doing: &str) -> Result<&Child, Error> {
        let name = text.trim();
        let found = self.children.iter().find(|child| child.name() == name);
        found.ok_or_else(|| {
            let names: Vec<_> = self.children.iter().map(Child::name).collect();
            cannot_be(
                doing,
                ClassProperty::DatasetChild.name(),
                text,
                &names.join(", "),
            )
        })
    }

    /// The name of the choice that a class makes for a share.
    pub fn share_choice(&self, class: &ClassChoice) -> Option<&str> {
        let (name, _) = self
            .shares
            .0
            .get_key_value(class.share.as_ref()?.name.as_str())?;
        Some(name)
    }

    /// The settings of a change of a volume: each of these parameters, or nothing.
    pub fn of_change(&self, parameters: &Parameters, doing: &str) -> Result<ClassChoice, Error> {
        let mut all = ClassChoice::default();
        for (key, text) in parameters.raw() {
            let known = self.allowed.iter().find(|one| one.name() == key);
            let property = *known.ok_or_else(|| refused(doing, key, &self.mutable))?;
            if let Some(why) = property.fixed() {
                return Err(refused(doing, key, &self.mutable)
                    .because(format!("a volume that exists keeps its `{key}`: {why}")));
            }
            self.read(property, text, &mut all, doing)?;
        }
        Ok(all)
    }

    /// Adds the value that a class gives to one of them.
    fn read(
        &self,
        property: ClassProperty,
        text: &str,
        all: &mut ClassChoice,
        doing: &str,
    ) -> Result<(), Error> {
        match property {
            ClassProperty::ShareOptions => {}
            // The id of the volume says it.
            ClassProperty::DatasetChild => return self.child_of(text, doing).map(|_| ()),
            _ => {
                all.add(Setting::read(property, text, doing)?);
                return Ok(());
            }
        }
        let name = property.parse(text);
        let chosen = name.and_then(|name| self.shares.choice(name));
        let refused = || cannot_be(doing, property.name(), text, &self.shares.names());
        all.share = Some(chosen.ok_or_else(refused)?);
        Ok(())
    }
}

// === impl ShareChoices ===

impl ShareChoices {
    /// Adds a choice, which sets these properties of a dataset.
    pub fn add(&mut self, name: &str, options: Vec<Property>) -> Result<(), ChoiceNameError> {
        if !is_choice(name) {
            return Err(ChoiceNameError);
        }
        self.0.insert(name.to_owned(), options);
        Ok(())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The properties of a choice.
    pub fn options(&self, name: &str) -> Option<&[Property]> {
        self.0.get(name).map(Vec::as_slice)
    }

    fn choice(&self, name: PropertyValue) -> Option<ShareChoice> {
        let options = self.0.get(name.as_str())?.clone();
        Some(ShareChoice { name, options })
    }

    fn names(&self) -> String {
        let names: Vec<_> = self.0.keys().map(String::as_str).collect();
        names.join(", ")
    }
}

// === impl ShareChoice ===

impl ShareChoice {
    /// The record of it on a dataset.
    pub fn mark(&self) -> Property {
        Property::new(PropertyName::SHARE_OPTIONS, self.name.clone())
    }

    /// The properties of the dataset: the options, and the record of the choice.
    pub fn properties(&self) -> impl Iterator<Item = Property> {
        self.options.iter().cloned().chain([self.mark()])
    }

    /// Whether a dataset has its record.
    pub fn is_of(&self, dataset: &Dataset) -> bool {
        dataset.properties.has(&self.mark())
    }

    /// Whether the dataset has nothing of it but the record: then the export makes the options of it.
    pub fn is_by_export(&self) -> bool {
        self.options.is_empty()
    }

    /// Whether it sets this property.
    pub fn sets(&self, name: &PropertyName) -> bool {
        self.options.iter().any(|option| option.name == *name)
    }
}

// === impl ClassChoice ===

impl ClassChoice {
    fn add(&mut self, setting: Setting) {
        let is_on = setting.value.as_str() != NONE;
        match setting.property {
            ClassProperty::Volblocksize => self.block = setting.value.as_str().parse().ok(),
            ClassProperty::QuotaMode => self.quota = Some(is_on),
            ClassProperty::ReservationMode => self.reservation = Some(is_on),
            ClassProperty::Atime
            | ClassProperty::Compression
            | ClassProperty::DatasetChild
            | ClassProperty::Logbias
            | ClassProperty::Recordsize
            | ClassProperty::ShareOptions
            | ClassProperty::Sync => self.settings.push(setting),
        }
    }

    /// The properties that it sets of a dataset, but for its size.
    pub fn properties(&self) -> impl Iterator<Item = Property> {
        let of_share = self.share.iter().flat_map(ShareChoice::properties);
        self.settings.iter().map(Setting::property).chain(of_share)
    }

    /// The first of them that a dataset does not have, or inherit, as a class says it.
    pub fn lacking(&self, dataset: &Dataset) -> Option<String> {
        let other = self.settings.iter().find(|one| !one.is_shown(dataset));
        let said = |on: bool, mode: ClassProperty| {
            let property = mode.property();
            let value = if on { property.as_str() } else { NONE };
            format!("{}={value}", mode.name())
        };
        let is_limited = dataset.size().is_some();
        let quota = self.quota.filter(|on| *on != is_limited);
        let is_reserved = dataset.reserved() > 0;
        let reservation = self.reservation.filter(|on| *on != is_reserved);
        let share = self.share.as_ref().filter(|share| !share.is_of(dataset));
        other
            .map(Setting::to_string)
            .or_else(|| share.map(|share| format!("shareOptions={}", share.name)))
            .or_else(|| quota.map(|on| said(on, ClassProperty::QuotaMode)))
            .or_else(|| reservation.map(|on| said(on, ClassProperty::ReservationMode)))
    }
}

// === impl Setting ===

impl Setting {
    fn read(property: ClassProperty, text: &str, doing: &str) -> Result<Self, Error> {
        let refused = || cannot_be(doing, property.name(), text, property.values());
        let value = property.parse(text).ok_or_else(refused)?;
        Ok(Self { property, value })
    }

    /// The property to set.
    pub fn property(&self) -> Property {
        Property::new(self.property.property(), self.value.clone())
    }

    /// Whether a dataset has it of its own.
    pub fn is_at(&self, dataset: &Dataset) -> bool {
        self.is(dataset.properties.own(&self.property.property()))
    }

    /// Whether it counts for a dataset, which may inherit it.
    pub fn is_shown(&self, dataset: &Dataset) -> bool {
        self.is(dataset.properties.get(&self.property.property()))
    }

    fn is(&self, text: Option<&str>) -> bool {
        text.and_then(|text| self.property.parse(text)).as_ref() == Some(&self.value)
    }
}

/// For errors: the property and its value.
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.property.name(), self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(property: ClassProperty, text: &str) -> Option<String> {
        property.parse(text).map(|value| value.to_string())
    }

    #[test]
    fn values_are_written_as_zfs_shows_them() {
        for (property, text, expected) in [
            (ClassProperty::Compression, "LZ4", "lz4"),
            (ClassProperty::Compression, "gzip-6", "gzip"),
            (ClassProperty::Compression, "gzip-9", "gzip-9"),
            (ClassProperty::Compression, "zstd-3", "zstd-3"),
            (ClassProperty::Compression, "zstd-fast-1", "zstd-fast"),
            (ClassProperty::Compression, "zstd-fast-90", "zstd-fast-90"),
            (
                ClassProperty::Compression,
                "zstd-fast-1000",
                "zstd-fast-1000",
            ),
            (ClassProperty::Recordsize, "128K", "131072"),
            (ClassProperty::Recordsize, "16M", "16777216"),
            (ClassProperty::Volblocksize, "512", "512"),
            (ClassProperty::Sync, "always", "always"),
            (ClassProperty::Atime, "Off", "off"),
            (ClassProperty::Logbias, "throughput", "throughput"),
            (ClassProperty::QuotaMode, "RefQuota", "refquota"),
            (ClassProperty::ReservationMode, "none", "none"),
        ] {
            assert_eq!(shown(property, text).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn values_that_zfs_does_not_know_are_none() {
        for (property, text) in [
            (ClassProperty::Compression, ""),
            (ClassProperty::Compression, "zstd-0"),
            (ClassProperty::Compression, "zstd-20"),
            (ClassProperty::Compression, "zstd-03"),
            (ClassProperty::Compression, "zstd-+3"),
            (ClassProperty::Compression, "zstd-fast-11"),
            (ClassProperty::Compression, "gzip-0"),
            (ClassProperty::Compression, "lz4 sync=disabled"),
            (ClassProperty::Recordsize, "100K"),
            (ClassProperty::Recordsize, "256"),
            (ClassProperty::Recordsize, "32M"),
            (ClassProperty::Sync, "on"),
            (ClassProperty::Atime, "true"),
            (ClassProperty::Logbias, "-o"),
            (ClassProperty::QuotaMode, "1G"),
            (ClassProperty::ReservationMode, "auto"),
        ] {
            assert_eq!(shown(property, text), None, "{text}");
        }
    }

    #[test]
    fn a_list_holds_what_volumes_of_its_kind_have_and_says_what_can_be_changed() {
        let allow = |names: &[&str], kind| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            ClassProperties::allow(&names, kind, &ShareChoices::default(), &[])
        };
        let zvols = allow(&["volblocksize", "sync", "sync"], VolumeKind::Zvol).unwrap();
        assert_eq!(zvols.names(), ["volblocksize", "sync"]);
        assert_eq!(zvols.mutable(), ["sync"]);
        let modes = ["quotaMode", "reservationMode"];
        let files = allow(&modes, VolumeKind::Filesystem).unwrap();
        assert_eq!(files.names(), modes);
        assert_eq!(files.mutable(), ["reservationMode"]);
        for (name, kind) in [
            ("recordsize", VolumeKind::Zvol),
            ("atime", VolumeKind::Zvol),
            ("quotaMode", VolumeKind::Zvol),
            ("volblocksize", VolumeKind::Filesystem),
        ] {
            let (_, why) = allow(&[name], kind).unwrap_err();
            assert_eq!(why, NotAllowable::OtherKind(kind), "{name}");
        }
        for name in ["mountpoint", "sharenfs", "Sync", ""] {
            let (_, why) = allow(&[name], VolumeKind::Zvol).unwrap_err();
            assert_eq!(why, NotAllowable::Unknown, "{name}");
        }
        let (_, why) = allow(&["shareOptions"], VolumeKind::Filesystem).unwrap_err();
        assert_eq!(why, NotAllowable::NoChoices);
        let (_, why) = allow(&["datasetChild"], VolumeKind::Zvol).unwrap_err();
        assert_eq!(why, NotAllowable::NoChildren);
    }

    #[test]
    fn a_class_names_a_child_as_it_is_written_and_only_where_it_is_allowed() {
        let parent = crate::name::DatasetName::parse("tank/v").unwrap();
        let children = ["fast", "Bulk"].map(|name| Child::of(&parent, name).unwrap());
        let scope = Scope {
            driver: "d",
            instance: None,
        };
        let named = |allowed: &[&str], text: &str| {
            let allowed: Vec<_> = allowed.iter().map(|name| (*name).to_owned()).collect();
            let shares = ShareChoices::default();
            let all = ClassProperties::allow(&allowed, VolumeKind::Zvol, &shares, &children);
            let all = all.unwrap();
            let class = BTreeMap::from([("datasetChild".to_owned(), text.to_owned())]);
            let class = Parameters::new(class);
            let child = all.child(scope, &class, "create");
            let child = child.map(|child| child.map(|child| child.dataset().to_string()));
            // Both read it alike.
            let of_new = all.of_new(scope, &class, "create");
            assert_eq!(child.is_ok(), of_new.is_ok(), "{text}");
            (child, all.of_change(&class, "modify").unwrap_err())
        };
        for (text, dataset) in [("fast", "tank/v/fast"), (" Bulk ", "tank/v/Bulk")] {
            let (child, change) = named(&["sync", "datasetChild"], text);
            assert_eq!(child.unwrap().as_deref(), Some(dataset));
            assert!(
                change.chain().contains("keeps its `datasetChild`"),
                "{}",
                change.chain()
            );
        }
        for text in ["bulk", "", ".", "fast/x", "../w"] {
            let (child, _) = named(&["datasetChild"], text);
            let error = child.unwrap_err();
            assert_eq!(error.kind(), driver_core::Kind::Invalid, "{text}");
            assert_eq!(error.advice(), Some("it can be fast, Bulk"), "{text}");
        }
        for allowed in [&["sync"][..], &[]] {
            let (child, _) = named(allowed, "fast");
            let error = child.unwrap_err();
            assert!(
                error.chain().contains("may not set `datasetChild`"),
                "{allowed:?}: {}",
                error.chain()
            );
        }
        // Without any list the key is that of a template.
        let none = ClassProperties::allow(&[], VolumeKind::Zvol, &ShareChoices::default(), &[]);
        let none = none.unwrap();
        let class = BTreeMap::from([("datasetChild".to_owned(), "fast".to_owned())]);
        let class = Parameters::new(class);
        assert_eq!(none.child(scope, &class, "create").unwrap(), None);
        assert!(none.of_new(scope, &class, "create").is_ok());
    }

    #[test]
    fn a_choice_has_a_name_that_is_one_plain_word() {
        let mut choices = ShareChoices::default();
        let long = "a".repeat(64);
        for name in ["", "Read", "a b", "a/b", "a=b", "-o\n", long.as_str()] {
            assert_eq!(
                choices.add(name, Vec::new()),
                Err(ChoiceNameError),
                "{name}"
            );
        }
        assert!(choices.is_empty());
        choices.add("read-only_2", Vec::new()).unwrap();
        assert_eq!(choices.options("read-only_2"), Some(&[][..]));
    }
}
