//! A disk of an iSCSI target.

use std::fmt;

use super::field::{check, plain, word};
use super::{ContextError, DeviceId, FieldError, Keys, Listed, Portal};

/// A disk of an iSCSI target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Iscsi {
    /// The name of the target.
    pub iqn: Iqn,
    /// The number of the disk.
    pub lun: Lun,
    /// The place where the target answers.
    pub portals: Listed<Portal>,
    /// The interface of its own that a node should use. It is carried and not used: a node reaches a
    /// portal by its routes.
    pub interface: Option<Interface>,
    /// The identity of the disk; `None` is anything.
    pub device_id: Option<DeviceId>,
}

/// The name of a target: `iqn.…`, `eui.…` or `naa.…`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Iqn(String);

/// The name of an interface of `iscsiadm`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Interface(String);

/// The number of a disk of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lun(u16);

word!(Iqn);
word!(Interface);

// === impl Iscsi ===

impl Iscsi {
    pub(super) fn read(keys: Keys<'_>) -> Result<Self, ContextError> {
        Ok(Self {
            iqn: keys.word("iqn", Iqn::parse)?,
            lun: keys.word("lun", Lun::parse)?,
            portals: Listed::read(keys, "portal", "portals", |text| {
                Portal::parse(text, Portal::ISCSI)
            })?,
            // An interface is only used if it is valid; a wrong one is ignored.
            interface: keys
                .optional("interface")
                .and_then(|text| Interface::parse(text).ok()),
            device_id: device_id(keys)?,
        })
    }

    pub(super) fn write(&self, put: &mut impl FnMut(&str, String)) {
        put("iqn", self.iqn.0.clone());
        put("lun", self.lun.to_string());
        self.portals.write("portal", "portals", put);
        let interface = self.interface.as_ref().map(Interface::as_str);
        put("interface", interface.unwrap_or_default().to_owned());
        if let Some(id) = &self.device_id {
            put("device_id", id.as_str().to_owned());
        }
    }
}

/// The identity that the disk must have, if the context names one.
pub(super) fn device_id(keys: Keys<'_>) -> Result<Option<DeviceId>, ContextError> {
    let text = keys.optional("device_id");
    text.map(DeviceId::parse)
        .transpose()
        .map_err(|reason| ContextError::Word {
            key: "device_id",
            reason,
        })
}

// === impl Listed ===

impl Listed<Portal> {
    /// Checks what is to stand in `portal`, which may be empty, and in `portals`.
    pub fn portals<'a>(
        one: &'a str,
        many: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, FieldError> {
        Self::checked(one, many, |text| Portal::parse(text, Portal::ISCSI))
    }
}

// === impl Interface ===

impl Interface {
    /// Checks a name.
    pub fn parse(text: &str) -> Result<Self, FieldError> {
        check(text, 64, |c| plain(c) && c != '/')?;
        Ok(Self(text.to_owned()))
    }
}

// === impl Iqn ===

impl Iqn {
    /// Checks a name. Its letters are kept as they are: some targets are particular about them.
    pub fn parse(text: &str) -> Result<Self, FieldError> {
        check(text, 223, |c| plain(c) && c != '/')?;
        let known = ["iqn.", "eui.", "naa."].iter().any(|form| {
            let (head, rest) = text.split_at_checked(form.len()).unwrap_or(("", ""));
            head.eq_ignore_ascii_case(form) && !rest.is_empty()
        });
        if known {
            Ok(Self(text.to_owned()))
        } else {
            Err(FieldError::Form("the name of a target (iqn., eui., naa.)"))
        }
    }
}

// === impl Lun ===

impl Lun {
    /// Reads a number.
    pub fn parse(text: &str) -> Result<Self, FieldError> {
        // 14 bits are all that a flat LUN has.
        let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(number) if plain && number < 1 << 14 => Ok(Self(number)),
            _ => Err(FieldError::Form("a LUN, 0 to 16383")),
        }
    }

    /// The number.
    pub fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for Lun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
