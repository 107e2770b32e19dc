//! Mounting what only a program can mount: shares of servers, and FUSE daemons; and asking `zfs`.
//!
//! What is mounted is read from the kernel before and after; what a program prints only explains a
//! failure. No secret is an argument. The truth is in mount.nfs(8), mount.cifs(8) and the manuals of
//! the daemons. compat: "Shares and daemons".

mod command;
mod failure;
#[cfg(test)]
mod tests;
mod zfs;

use tokio::time::Instant;

pub(crate) use command::{LABELS, check};
pub use zfs::{Asset, asset, make_legacy};

use crate::device::look;
use crate::mount::{MountEntry, MountTable, as_listed};
use crate::tools::Tools;
use csi_types::attachment::{AbsolutePath, Attachment};
use csi_types::capability::MountAccess;
use csi_types::error::{Effect, Error, Kind};
use csi_types::secrets::StageSecrets;

/// The volume to mount, and where.
#[derive(Debug, Clone, Copy)]
pub struct MountRequest<'a> {
    /// The volume.
    pub attachment: &'a Attachment,
    /// How: the options of the request, of the operator and of the secret, in this order.
    pub access: &'a MountAccess,
    /// Further settings of the stage secret.
    pub secrets: &'a StageSecrets,
    /// Where. The directory exists.
    pub staging: &'a AbsolutePath,
}

/// Mounts, unless it is mounted already.
///
/// `Conflict`: something else is mounted there. `Unreachable`, `Denied`, `NotFound`: what the server
/// answered. After an error of unknown effect the kernel tells the next call what happened.
pub async fn mount(
    tools: &Tools,
    request: MountRequest<'_>,
    deadline: Instant,
) -> Result<(), Error> {
    match found(&request, deadline).await? {
        Found::Volume => return Ok(()),
        Found::Other(source) => return Err(conflict(&request, &source)),
        Found::Nothing => {}
    }
    let left = deadline.saturating_duration_since(Instant::now());
    let limit = left.min(tools.timeouts().mount);
    let plan = command::plan(tools, &request, limit)?;
    if let Err(error) = plan.perform(limit).await {
        let code = error.exit_code();
        let has_ended = code.is_some_and(|code| code != command::GOES_ON);
        let failure = failure::to_error(&request, &plan.source, error);
        // Only a program that ended itself is known to change nothing later.
        let nothing = has_ended && matches!(found(&request, deadline).await, Ok(Found::Nothing));
        return Err(if nothing {
            failure.with_effect(Effect::None)
        } else {
            failure
        });
    }
    match found(&request, deadline).await? {
        Found::Volume => Ok(()),
        Found::Other(source) => Err(conflict(&request, &source).with_effect(Effect::Possible)),
        Found::Nothing => {
            let doing = format!("mount `{}` at `{}`", plan.source, request.staging);
            Err(Error::new(Kind::Internal, doing)
                .advise("its program says that it did, the kernel says that it did not"))
        }
    }
}

/// Whether a mount is the one that `attachment` asks for.
pub fn is_mount_of(attachment: &Attachment, entry: &MountEntry<'_>) -> bool {
    let fs_type = entry.fs_type();
    let source = entry.source();
    let same = |request: &str| source.trim_end_matches('/') == request.trim_end_matches('/');
    match attachment {
        Attachment::Nfs(share) => fs_type.starts_with("nfs") && same(&share.colon_form()),
        Attachment::Lustre(share) => fs_type == "lustre" && same(&share.colon_form()),
        Attachment::Smb(share) => matches!(&*fs_type, "cifs" | "smb3") && same(&share.unc_form()),
        Attachment::ZfsLocal(zfs) => fs_type == "zfs" && source == zfs.asset.as_str(),
        Attachment::Objectivefs(objectivefs) => {
            let name = source.strip_suffix(objectivefs.filesystem.bare());
            fs_type.starts_with("fuse")
                && name.is_some_and(|store| matches!(store.as_bytes(), [] | [.., b'/']))
        }
        Attachment::Oneclient(_) => fs_type.starts_with("fuse") && source == "oneclient",
        Attachment::Hostpath(_) | Attachment::Iscsi(_) | Attachment::Nvmeof(_) => false,
    }
}

/// The content of the staging path.
enum Found {
    Nothing,
    Volume,
    /// Something else, from this source.
    Other(String),
}

/// Reads the mount table, which asks no server.
async fn found(request: &MountRequest<'_>, deadline: Instant) -> Result<Found, Error> {
    let (attachment, staging) = (request.attachment.clone(), request.staging.clone());
    let doing = format!("find what is mounted at `{staging}`");
    look(deadline, &doing.clone(), move || {
        let table =
            MountTable::read().map_err(|error| Error::new(Kind::Internal, doing).because(error))?;
        let point = as_listed(staging.as_path());
        let found = match table.layers(&point).last() {
            None => Found::Nothing,
            Some(entry) if is_mount_of(&attachment, &entry) => Found::Volume,
            Some(entry) => Found::Other(entry.source().into_owned()),
        };
        Ok(found)
    })
    .await
}

fn conflict(request: &MountRequest<'_>, source: &str) -> Error {
    let doing = format!("mount a volume at `{}`", request.staging);
    Error::new(Kind::Conflict, doing).advise(format!(
        "`{}` is mounted there; unstage it first",
        source.escape_debug()
    ))
}
