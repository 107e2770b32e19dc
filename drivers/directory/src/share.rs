//! The share of the base, which this process mounts if the administrator did not.
//!
//! A base with a marker, or on a filesystem of its kind, is used as it is. Any other one is covered by the
//! share before a call looks at it; without it every call fails, as in [`crate::base`].

use std::fmt::Debug;
use std::path::Path;

use async_trait::async_trait;
use csi_types::attachment::Attachment;
use csi_types::{AbsolutePath, MountAccess, MountFlags, hex};
use driver_core::Error;
use driver_core::config::{ConfigError, Document, Finding, Severity};
use node_utils::Tools;
use node_utils::mount::MountEntry;
use node_utils::shares::ShareMount;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::kind::Location;

/// The place where a server mounts shares that no administrator has named a directory for. Nothing but this program
/// may remove what is in it: who removes a folder removes what is mounted in it as well.
const FOLDER: &str = "/run/omnibus-csi-shares";
/// The warning about options that keep locks from other machines.
pub(crate) const LOCKS_ADVICE: &str = "two controllers, as during an upgrade, would take each other's copies for \
    leftovers; NFS 4 needs no such option";
/// The options of SMB that say a password.
const PASSWORDS: [&str; 4] = ["password=", "pass=", "password2=", "pass2="];

/// Whether a share that is mounted with this option keeps its locks from other machines.
pub(crate) fn loses_locks(option: &str) -> bool {
    let local = option.strip_prefix("local_lock=");
    local.is_some_and(|which| which != "none" && which != "posix")
        || ["nolock", "nobrl", "localflock"].contains(&option)
}

/// The option of a mount that does so, if there is one.
pub(crate) fn option_that_loses_locks(mount: &MountEntry<'_>) -> Option<String> {
    let options = mount.filesystem_options();
    let mut options = options.split(',');
    options
        .find(|option| loses_locks(option))
        .map(str::to_owned)
}

/// Warns of options that the share is going to be mounted with.
pub(crate) fn warn_of_options(document: &Document, path: &str, flags: &MountFlags) {
    for flag in flags.iter().filter(|flag| loses_locks(flag)) {
        document.add(Finding {
            severity: Severity::Doubtful,
            path: path.to_owned(),
            message: format!("`{flag}` keeps the locks of this process from others"),
            advice: Some(LOCKS_ADVICE.to_owned()),
        });
    }
}

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
    // Two servers of one machine do not unmount what the other one uses.
    hash.update(records.map_or("", AbsolutePath::as_str));
    let name = hex(&hash.finalize()[..8]);
    let run = AbsolutePath::parse(FOLDER).expect("a path");
    if records.is_some_and(|records| is_writable(&run) && !lies_below(&run, records)) {
        return run.child(&name);
    }
    let temporary = std::env::temp_dir();
    let top = temporary
        .to_str()
        .and_then(|dir| AbsolutePath::parse(dir).ok());
    let top = top.unwrap_or_else(|| AbsolutePath::parse("/tmp").expect("a path"));
    match records {
        // By the same name as before: what a killed server left is used again.
        Some(_) => top.child(&format!("omnibus-csi-share-{name}")),
        // A command that tries something out: it keeps nothing.
        None => top.child(&format!("omnibus-csi-{}-{name}", std::process::id())),
    }
}

/// Whether this process can make something in the folder, or the folder itself.
fn is_writable(folder: &AbsolutePath) -> bool {
    let may = |path: &Path| {
        accessat(
            CWD,
            path,
            Access::WRITE_OK | Access::EXEC_OK,
            AtFlags::EACCESS,
        )
    };
    match may(folder.as_path()) {
        Err(Errno::NOENT) => folder
            .as_path()
            .parent()
            .is_some_and(|top| may(top).is_ok()),
        done => done.is_ok(),
    }
}

fn lies_below(path: &AbsolutePath, folder: &AbsolutePath) -> bool {
    path.as_path().starts_with(folder.as_path())
}

/// Refuses to use a share below the folder of the socket. That folder belongs to an orchestrator: Nomad removes it with
/// all that is in it when a plugin stops, and would empty a share that is still mounted there.
pub(crate) fn refuse_below(
    records: Option<&AbsolutePath>,
    base: &AbsolutePath,
    key: String,
) -> Result<(), ConfigError> {
    match records {
        Some(records) if lies_below(base, records) => Err(ConfigError::at(
            key,
            format!("{base} lies below {records}, the folder of the socket"),
        )
        .advise(
            "an orchestrator may remove that folder with all that is in it, the files on a mounted share among it: \
             name a directory elsewhere, or leave the key out where /run can be written",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::DirectoryKind;
    use csi_types::attachment::Server;
    use driver_core::NodeId;
    use driver_core::config::NoEnvironment;
    use node_utils::mount::MountTable;

    #[test]
    fn options_that_keep_locks_from_others_are_named() {
        // Of nfs(5), mount.cifs(8) and mount.lustre(8), as the kernel shows them.
        for (options, wanted) in [
            (
                "rw,vers=3,nolock,proto=tcp,local_lock=all,addr=10.0.0.1",
                Some("nolock"),
            ),
            (
                "rw,vers=3,proto=tcp,local_lock=flock,addr=10.0.0.1",
                Some("local_lock=flock"),
            ),
            ("rw,vers=4.2,proto=tcp,local_lock=none,addr=10.0.0.1", None),
            ("rw,vers=3.1.1,cache=strict,nobrl", Some("nobrl")),
            ("rw,vers=3.1.1,cache=strict", None),
            ("rw,localflock,lazystatfs", Some("localflock")),
            ("rw,flock,lazystatfs", None),
        ] {
            let line = format!("36 35 0:60 / /storage rw - nfs nas:/csi {options}\n");
            let table = MountTable::from_text(line);
            let found = table
                .by_id(36)
                .and_then(|mount| option_that_loses_locks(&mount));
            assert_eq!(found.as_deref(), wanted, "{options}");
        }
    }

    #[test]
    fn the_configuration_is_warned_of_options_that_keep_locks_from_others() {
        let findings = |keys: &str| {
            let text =
                format!("driver: nfs-client\nnfs: {{shareHost: nas, shareBasePath: /s}}\n{keys}");
            let document = Document::parse(&text, &NoEnvironment).expect("document");
            let node = NodeId::parse("node-1").expect("node");
            crate::driver::from_document(&document, &node, None, None).expect("driver");
            let found = document.findings().into_iter();
            found.map(|found| found.path).collect::<Vec<_>>()
        };
        let nodes = "node: {mount: {mount_flags: 'nfsvers=3,nolock'}}\n";
        assert_eq!(findings(nodes), ["node.mount.mount_flags"]);
        assert_eq!(
            findings("node: {mount: {mount_flags: nfsvers=4.2}}\n"),
            [""; 0]
        );
    }

    #[test]
    fn a_share_is_mounted_below_the_folder_of_the_socket_by_no_way() {
        let refusal = |records: &str, base: &str| {
            let text =
                format!("driver: nfs-client\nnfs: {{shareHost: nas, shareBasePath: /s{base}}}\n");
            let document = Document::parse(&text, &NoEnvironment).expect("document");
            let node = NodeId::parse("node-1").expect("node");
            let records = AbsolutePath::parse(records).expect("path");
            crate::driver::from_document(&document, &node, Some(&records), None)
                .err()
                .map(|error| error.to_string())
        };
        // Below `/` are its own folders too: that of /run and that for temporary files.
        for (records, base) in [("/", ""), ("/csi", ", controllerBasePath: /csi/share")] {
            let said = refusal(records, base).expect("refused");
            assert!(said.contains("the folder of the socket"), "{said}");
        }
        assert_eq!(refusal("/csi", ", controllerBasePath: /mnt/share"), None);
    }

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
