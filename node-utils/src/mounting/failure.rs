//! The complaints of a program that mounts, and the remedies.
//!
//! The texts were captured from mount.nfs of nfs-utils 2.8 and mount.cifs of cifs-utils 7, or, where
//! no server gave them, read in their sources.

use exec::RunError;

use super::MountRequest;
use csi_types::attachment::Attachment;
use csi_types::error::{Error, Kind};

/// A piece of the complaint, what it means, and what to do.
type Reason = (&'static str, Kind, &'static str);

const NFS: &[Reason] = &[
    (
        "access denied by server",
        Kind::Denied,
        "the server does not export this path to this node, or not at all",
    ),
    (
        "No such file or directory",
        Kind::NotFound,
        "the server does not have this path",
    ),
    (
        "No route to host",
        Kind::Unreachable,
        "the server cannot be reached from this node",
    ),
    (
        "Connection refused",
        Kind::Unreachable,
        "nothing answers at the port of NFS on the server",
    ),
    ("timed out", Kind::Unreachable, "the server does not answer"),
    (
        "Failed to resolve server",
        Kind::Unreachable,
        "the name of the server has no address on this node",
    ),
    (
        "Protocol not supported",
        Kind::Invalid,
        "the server does not speak that version of NFS; see the option `nfsvers`",
    ),
    (
        "an incorrect mount option",
        Kind::Invalid,
        "one of the mount options is not known",
    ),
];

const SMB: &[Reason] = &[
    (
        "mount error(13)",
        Kind::Denied,
        "the server refuses the user or the password, or the share is not for this user",
    ),
    (
        "mount error(2)",
        Kind::NotFound,
        "the server has no such share, or no such directory in it",
    ),
    (
        "mount error(6)",
        Kind::NotFound,
        "the server has no such share",
    ),
    (
        "mount error(22)",
        Kind::Invalid,
        "one of the mount options is not known or not supported",
    ),
    (
        "mount error(95)",
        Kind::Invalid,
        "the server does not speak that version of SMB; see the option `vers`",
    ),
    (
        "mount error(111)",
        Kind::Unreachable,
        "nothing answers at the port of SMB on the server",
    ),
    (
        "mount error(112)",
        Kind::Unreachable,
        "the server is down, or does not speak that version of SMB",
    ),
    (
        "mount error(113)",
        Kind::Unreachable,
        "the server cannot be reached from this node",
    ),
    (
        "mount error(115)",
        Kind::Unreachable,
        "the server does not answer",
    ),
    (
        "could not resolve address",
        Kind::Unreachable,
        "the name of the server has no address on this node",
    ),
];

const OBJECTIVEFS: &[Reason] = &[(
    "passphrase",
    Kind::Denied,
    "the passphrase is missing or wrong",
)];

/// The reasons that are true of every kind.
const ANY: &[Reason] = &[
    (
        "unknown filesystem type",
        Kind::Internal,
        "the kernel of this node has no such filesystem; load its module",
    ),
    (
        "you might need a /sbin/mount",
        Kind::Internal,
        "the mount helper is missing where the node half runs",
    ),
    (
        "bad option; for several filesystems",
        Kind::Internal,
        "the mount helper is missing where the node half runs, or an option is not known",
    ),
];

/// A failed command as an error about the volume.
pub(super) fn to_error(request: &MountRequest<'_>, source: &str, error: RunError) -> Error {
    let doing = format!("mount `{}` at `{}`", source.escape_debug(), request.staging);
    let (own, package) = match request.attachment {
        Attachment::Nfs(_) => (NFS, "nfs-common"),
        Attachment::Smb(_) => (SMB, "cifs-utils"),
        Attachment::Objectivefs(_) => (OBJECTIVEFS, "objectivefs"),
        Attachment::Lustre(_) => (&[][..], "lustre-client-modules"),
        _ => (&[][..], "oneclient"),
    };
    let said = error.stderr().to_owned();
    let missing = matches!(error, RunError::NotFound { .. });
    let late = matches!(error, RunError::Deadline { .. });
    let of_daemon = match (request.attachment, error.exit_code()) {
        // Codes of mount.objectivefs, from its manual.
        (Attachment::Objectivefs(_), Some(64)) => {
            Some("the keys are not those of an administrator")
        }
        (Attachment::Objectivefs(_), Some(65)) => {
            Some("it cannot be decrypted: the passphrase is wrong")
        }
        (Attachment::Objectivefs(_), Some(78)) => Some("the passphrase is missing or invalid"),
        _ => None,
    };
    let mut reasons = own.iter().chain(ANY);
    let reason = reasons.find(|(text, ..)| said.contains(text));
    let (kind, advice) = match reason {
        Some((_, kind, advice)) => (*kind, (*advice).to_owned()),
        None if missing => {
            let advice = format!("install the package `{package}` where the node half runs");
            (Kind::Internal, advice)
        }
        None if late => (
            Kind::Timeout,
            "the server does not answer; see `MOUNT_DEFAULT_TIMEOUT`".to_owned(),
        ),
        None => {
            let Some(advice) = of_daemon else {
                return error.while_doing(Kind::Internal, doing);
            };
            (Kind::Denied, advice.to_owned())
        }
    };
    error.while_doing(kind, doing).advise(advice)
}
