//! The share of the base, which this process mounts if the administrator did not.
//!
//! A base with a marker, or on a filesystem of its kind, is used as it is. Any other one is covered by the
//! share before a call looks at it; without it every call fails, as in [`crate::base`].

use std::fmt::Debug;

use async_trait::async_trait;
use csi_types::attachment::Attachment;
use csi_types::{AbsolutePath, MountAccess, MountFlags};
use driver_core::Error;
use node_utils::Tools;
use node_utils::shares::ShareMount;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::base::hex;
use crate::kind::Location;

/// Where shares are mounted that no administrator has named a directory for, below the directory of records.
const FOLDER: &str = "shares";
/// The options of SMB that say a password.
const PASSWORDS: [&str; 4] = ["password=", "pass=", "password2=", "pass2="];

/// Mounts a share and keeps it mounted.
#[async_trait]
pub(crate) trait KeepMounted: Debug + Send + Sync {
    /// Whether only this process mounts there, or it has done so.
    fn is_kept(&self) -> bool;

    /// Returns once the share is mounted and answers.
    async fn ensure(&self, deadline: Instant) -> Result<(), Error>;
}

#[async_trait]
impl KeepMounted for ShareMount {
    fn is_kept(&self) -> bool {
        self.is_kept()
    }

    async fn ensure(&self, deadline: Instant) -> Result<(), Error> {
        self.ensure(deadline).await
    }
}

/// The share of a base, to be mounted at `point`.
pub(crate) fn keeper(
    location: &Location,
    flags: &MountFlags,
    tools: &Tools,
    point: &AbsolutePath,
    is_own_folder: bool,
) -> Option<ShareMount> {
    let share = location.share()?;
    // Another mount of the export, such as a pod's, must not be one filesystem with this one: a forced unmount
    // would end its calls.
    let is_said = flags.iter().any(|flag| flag.contains("sharecache"));
    let apart = matches!(share, Attachment::Nfs(_)) && !is_said;
    let apart = MountFlags::parse(apart.then_some("nosharecache")).ok()?;
    let access = MountAccess {
        flags: flags.followed_by(&apart),
        ..MountAccess::default()
    };
    let (tools, point) = (tools.clone(), point.clone());
    Some(ShareMount::new(tools, share, access, point, is_own_folder))
}

/// A folder for one share and one login. Its name stays the same when the password changes, and does not
/// tell it.
pub(crate) fn own_folder(
    records: Option<&AbsolutePath>,
    location: &Location,
    flags: &MountFlags,
) -> AbsolutePath {
    let mut hash = Sha256::new();
    hash.update(location.identity());
    for flag in flags.iter() {
        let lower = flag.to_ascii_lowercase();
        if PASSWORDS.iter().any(|head| lower.starts_with(head)) {
            continue;
        }
        let is_user = lower.starts_with("user=") || lower.starts_with("username=");
        let said = flag.split('%').next().filter(|_| is_user).unwrap_or(flag);
        hash.update("\0");
        hash.update(said);
    }
    let name = hex(&hash.finalize()[..8]);
    if let Some(records) = records {
        return records.child(FOLDER).child(&name);
    }
    // A command that tries something out: it keeps nothing.
    let temporary = std::env::temp_dir();
    let top = temporary
        .to_str()
        .and_then(|dir| AbsolutePath::parse(dir).ok());
    let top = top.unwrap_or_else(|| AbsolutePath::parse("/tmp").expect("a path"));
    top.child(&format!("omnibus-csi-{}-{name}", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::DirectoryKind;
    use csi_types::attachment::Server;

    #[test]
    fn each_login_has_a_folder_of_its_own_and_a_new_password_keeps_it() {
        let path = AbsolutePath::parse("/share").expect("path");
        let server = Server::parse("nas").expect("server");
        let smb = Location::new(DirectoryKind::SmbClient, Some(server), path).expect("location");
        let folder = |flags: &str| {
            let flags = MountFlags::parse([flags]).expect("flags");
            own_folder(None, &smb, &flags).to_string()
        };
        let one = folder("username=one,password=a");
        assert_eq!(one, folder("username=one,password=b"));
        assert_eq!(folder("user=one%a"), folder("user=one%b"));
        assert_ne!(one, folder("username=two,password=a"));
        assert_ne!(one, folder("username=one,vers=3.0"));
    }
}
