//! Exports of volumes on TrueNAS: shares, targets and subsystems.
//!
//! They are found by what they point at: a directory, a zvol. The numbers that democratic-csi keeps in
//! properties are written, so that it can take a volume back, and repaired where they are wrong; they are
//! never trusted.

pub(crate) mod access;
pub(crate) mod iscsi;
mod iscsi_lists;
pub(crate) mod nvmeof;
mod nvmeof_hosts;
pub(crate) mod share;

use std::collections::BTreeMap;
use std::sync::Arc;

use csi_types::AccessMode;
use driver_core::template::Template;
use driver_core::{AccessRules, Call, Error};
use driver_zfs::export::{Act, Subject};
use driver_zfs::property::{Property, PropertyName, PropertyValue};
use serde::Serialize;

use crate::Dialect;
use crate::api::Enable;
use crate::backend::Nas;
use crate::command::{Answer, Change, Command, Look};
use crate::error::Error as ApiError;
use crate::failure::understood;

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

/// What templates of comments see.
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

/// What has to be remembered, unless it is.
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

/// What serves a row again, if it is disabled.
fn enabled(is_enabled: bool, row: Enable) -> Option<Act<Command>> {
    (!is_enabled).then_some(Act::Do(Command::Change(Change::Enable(row))))
}

/// The number that is remembered.
fn number(subject: &Subject<'_>, name: &PropertyName) -> Option<i64> {
    subject.remembered(name)?.parse().ok()
}

/// What was found wrong by [`Look::Needs`].
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
            Look::Nfs { path } => self.nfs_shares(call, path).await,
            Look::Smb { path, name } => self.smb_shares(call, dialect, path, name).await,
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
            } => self.nvme(call, name, zvol, *links, *nodes).await,
            Look::Needs(needs) => {
                let problems = self.check(call, dialect, needs).await;
                Ok(Answer::Problems(
                    problems.into_iter().map(Arc::new).collect(),
                ))
            }
        };
        seen.map_err(|error| understood(look.doing(), &error))
    }

    /// Makes something, and answers what a look would see.
    pub(crate) async fn make(
        &self,
        call: &Call,
        change: &Change,
    ) -> Result<Option<(Look, Answer)>, ApiError> {
        Ok(match change {
            Change::CreateNfs(share) => Some(self.make_nfs(call, share).await?),
            Change::CreateSmb(share) => Some(self.make_smb(call, share).await?),
            Change::EnsureIscsi(wish) => Some(self.make_iscsi(call, wish).await?),
            Change::EnsureNvme(wish) => Some(self.make_nvme(call, wish).await?),
            // What they did is read back.
            Change::AdmitNfs(update) => {
                self.write(call, update.as_ref()).await?;
                None
            }
            Change::AdmitIscsi(wish) => {
                self.target(call, wish).await?;
                None
            }
            Change::AdmitNvme(wish) => {
                self.admit_nvme(call, wish).await?;
                None
            }
            Change::Enable(row) => {
                self.write(call, row).await?;
                None
            }
            _ => None,
        })
    }

    /// Removes something. A target that is left may go together with its zvol: it is answered.
    pub(crate) async fn remove(
        &self,
        call: &Call,
        change: &Change,
    ) -> Result<Option<i64>, ApiError> {
        match change {
            Change::DeleteNfs(id) => self.remove_nfs(call, *id).await?,
            Change::DeleteSmb(id) => self.remove_smb(call, *id).await?,
            Change::RemoveIscsi {
                target,
                extents,
                lists,
            } => return self.remove_iscsi(call, *target, extents, lists).await,
            Change::RemoveSubsystem { id, hosts, names } => {
                self.remove_subsystem(call, *id, hosts.as_deref(), names)
                    .await?;
            }
            Change::RemoveNamespace(id) => self.remove_namespace(call, *id).await?,
            Change::CreateNfs(_)
            | Change::AdmitNfs(_)
            | Change::CreateSmb(_)
            | Change::EnsureIscsi(_)
            | Change::AdmitIscsi(_)
            | Change::EnsureNvme(_)
            | Change::AdmitNvme(_)
            | Change::Enable(_) => {}
        }
        Ok(None)
    }
}

/// What is gone already is removed.
fn gone<T>(outcome: Result<T, ApiError>) -> Result<(), ApiError> {
    match outcome {
        Err(error) if error.kind() != crate::error::Kind::NotFound => Err(error),
        _ => Ok(()),
    }
}
