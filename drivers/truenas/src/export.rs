//! Exports of volumes on TrueNAS: shares, targets and subsystems.
//!
//! They are found by what they point at: a directory, a zvol. The numbers that democratic-csi keeps in
//! properties are written, so that it can take a volume back, and repaired where they are wrong; they are
//! never trusted.

pub(crate) mod access;
pub(crate) mod choices;
mod connected;
pub(crate) mod iscsi;
mod iscsi_change;
mod iscsi_lists;
#[cfg(test)]
mod killed;
mod many;
pub(crate) mod nvmeof;
mod nvmeof_change;
mod nvmeof_hosts;
pub(crate) mod share;
mod share_change;
pub(crate) mod users;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use csi_types::AccessMode;
use driver_core::template::Template;
use driver_core::{AccessRules, Call, Error};
use driver_zfs::export::{Act, Subject};
use driver_zfs::property::{Property, PropertyName, PropertyValue};
use serde::Serialize;

use crate::Dialect;
use crate::api::Enable;
use crate::backend::Nas;
use crate::command::{Answer, Change, Command, Id, Look, Made, act};
use crate::error::Error as ApiError;
use crate::failure::understood;

pub(crate) use many::Many;

/// The filesystems that a disk can be asked to hold.
const FS_TYPES: &[&str] = &[
    "btrfs", "exfat", "ext3", "ext4", "ext4dev", "ntfs", "vfat", "xfs",
];

/// The ways in which disks can be used.
fn rules_of_disks() -> AccessRules {
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

/// The data that templates of comments see.
#[derive(Serialize)]
struct CommentData<'a> {
    name: &'a str,
    parameters: &'a BTreeMap<String, String>,
    csi: BTreeMap<&'static str, &'static str>,
    zfs: BTreeMap<&'static str, &'a str>,
}

/// The comment of an export, as the template says.
fn comment(template: &Template, subject: &Subject<'_>) -> Result<String, Error> {
    let none = BTreeMap::new();
    let asked = subject.request;
    let data = CommentData {
        name: asked.map_or_else(
            || {
                let known = subject.remembered(&PropertyName::VOLUME_NAME);
                known.unwrap_or(subject.id.as_str())
            },
            |asked| asked.name.as_str(),
        ),
        parameters: asked.map_or(&none, |asked| asked.parameters.raw()),
        csi: BTreeMap::from([
            ("name", "omnibus-csi"),
            ("version", env!("CARGO_PKG_VERSION")),
        ]),
        zfs: BTreeMap::from([("datasetName", subject.dataset.as_str())]),
    };
    template.render(&data).map_err(|error| {
        Error::invalid(format!("write the comment of volume `{}`", subject.id)).because(error)
    })
}

/// The act that remembers a value, unless it is remembered.
fn remember(
    subject: &Subject<'_>,
    name: &PropertyName,
    value: &str,
) -> Result<Option<Act<Command>>, Error> {
    if subject.remembered(name) == Some(value) {
        return Ok(None);
    }
    let value = PropertyValue::parse(value)
        .map_err(|error| Error::invalid("remember an export").because(error))?;
    Ok(Some(Act::Remember(Property::new(name.clone(), value))))
}

/// The act that remembers the number of a row: one that is known, unless it is remembered, or one that is made.
fn remember_id(
    subject: &Subject<'_>,
    name: PropertyName,
    id: &Id,
) -> Result<Option<Act<Command>>, Error> {
    match id {
        Id::Known(id) => remember(subject, &name, &id.to_string()),
        Id::Of(step) => Ok(Some(Act::Record(name, step.clone()))),
    }
}

/// The act that serves a row again, if it is disabled.
fn enabled(is_enabled: bool, row: Enable) -> Option<Act<Command>> {
    (!is_enabled).then(|| act(row))
}

#[async_trait]
impl Change for Enable {
    fn doing(&self) -> String {
        format!("enable {self}")
    }

    fn removes(&self) -> bool {
        false
    }

    async fn run(&self, nas: &Nas, call: &Call, _: &Made) -> Result<Option<i64>, ApiError> {
        nas.write(call, self).await.map(|_| None)
    }
}

/// The number that is remembered.
fn number(subject: &Subject<'_>, name: &PropertyName) -> Option<i64> {
    subject.remembered(name)?.parse().ok()
}

/// The problems that [`Look::Needs`] found.
fn problems(answers: &[Answer]) -> Vec<Error> {
    let all = answers.iter().filter_map(|answer| match answer {
        Answer::Problems(problems) => Some(problems),
        _ => None,
    });
    let copied = |error: &Arc<Error>| {
        let copied = Error::new(error.kind(), error.to_string());
        let cause = std::error::Error::source(error.as_ref()).map(ToString::to_string);
        let copied = match cause {
            Some(cause) => copied.because(cause),
            None => copied,
        };
        match error.advice() {
            Some(advice) => copied.advise(advice),
            None => copied,
        }
    };
    all.flatten().map(copied).collect()
}

fn unread() -> Error {
    Error::new(
        driver_core::Kind::Internal,
        "read what TrueNAS says of an export",
    )
}

impl Nas {
    /// Looks at the exports of a volume.
    pub(crate) async fn look(
        &self,
        call: &Call,
        dialect: &Dialect,
        look: &Look,
    ) -> Result<Answer, Error> {
        let seen = match look {
            Look::Nfs { path, users } => self.nfs_shares(call, path, *users).await,
            Look::Smb { path, name, users } => {
                let wanted = (path.as_str(), name.as_str());
                self.smb_shares(call, dialect, wanted, *users).await
            }
            Look::Iscsi {
                name,
                zvol,
                links,
                nodes,
            } => self.iscsi(call, name, zvol, *links, *nodes).await,
            Look::Nvme {
                name,
                zvol,
                links,
                nodes,
                keyed,
                is_new,
            } => {
                let of = (*links, *nodes, *is_new);
                self.nvme(call, (name, zvol), keyed, of).await
            }
            Look::Needs(needs) => {
                let problems = self.check(call, dialect, needs).await;
                Ok(Answer::Problems(
                    problems.into_iter().map(Arc::new).collect(),
                ))
            }
        };
        seen.map_err(|error| understood(look.doing(), &error))
    }
}

/// A row that is gone already counts as removed.
fn gone<T>(outcome: Result<T, ApiError>) -> Result<Option<i64>, ApiError> {
    match outcome {
        Err(error) if error.kind() != crate::error::Kind::NotFound => Err(error),
        _ => Ok(None),
    }
}
