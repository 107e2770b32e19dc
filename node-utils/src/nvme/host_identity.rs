//! The identity of this machine for NVMe targets: a host NQN and a host id.
//!
//! Targets decide by the name who may connect, and keep reservations by the identifier, so both
//! have to be this machine's own and stay the same. The kernel insists that one name goes with one
//! identifier. Nothing is written anywhere: what the machine has is used, or derived from what it
//! has.

use std::fmt::Write as _;
use std::path::Path;

use sha2::{Digest as _, Sha256};

use super::controller::Controller;
use crate::device::unreadable;
use crate::kernel::{self, Kernel};
use crate::mount::MountTable;
use csi_types::attachment::Nqn;
use csi_types::error::{Error, Kind};

const PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// The identity that every image of democratic-csi carries: the same on all nodes of all clusters.
///
/// compat: "NVMe over fabrics".
const SHARED: [&str; 2] = [
    "941e4f03-2cd6-435e-86df-731b1c573d86",
    "83e7a026-2564-455b-ada6-ddbdaf0bc519",
];

/// A name and its identifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostIdentity {
    pub(super) nqn: String,
    pub(super) id: String,
}

// === impl HostIdentity ===

impl HostIdentity {
    /// Chooses for a connection to the subsystem `nqn`, first what comes first:
    ///
    /// 1. that of existing connections to the subsystem: paths of one host belong together,
    ///    also those that the predecessor of this process has made;
    /// 2. `/etc/nvme`, if it is the host's: mounted here, or seen below the host's root. That of an
    ///    image is the same on every node, so it is used only where there is no host around us;
    /// 3. a name derived from the machine's identifiers;
    /// 4. one derived from the current boot: it lives as long as any connection can.
    pub(super) fn choose(kernel: &Kernel, mounts: &MountTable, nqn: &Nqn) -> Result<Self, Error> {
        let of_subsystem = Controller::of(kernel, nqn)?;
        let known = of_subsystem.iter().find_map(Controller::host);
        if let Some((nqn, id)) = known {
            return Ok(Self {
                nqn: nqn.to_owned(),
                id: id.to_owned(),
            });
        }
        let mut chosen = Self::of_this_machine(kernel, mounts)?;
        // The file may have changed after another subsystem was connected.
        let all = Controller::all(kernel)?;
        let mut hosts = all.iter().filter_map(Controller::host);
        if let Some((_, id)) = hosts.find(|(nqn, _)| *nqn == chosen.nqn) {
            id.clone_into(&mut chosen.id);
        }
        Ok(chosen)
    }

    /// The identity for new connections: the last three of these.
    pub(super) fn of_this_machine(kernel: &Kernel, mounts: &MountTable) -> Result<Self, Error> {
        match Self::configured(kernel, mounts)? {
            Some(configured) => Ok(configured),
            None => Self::derived(kernel),
        }
    }

    fn configured(kernel: &Kernel, mounts: &MountTable) -> Result<Option<Self>, Error> {
        let own = kernel.file("etc/nvme");
        let in_image = has_host(kernel) && mounts.layers(&own).next().is_none();
        if !in_image && let Some(found) = Self::in_directory(&own)? {
            return Ok(Some(found));
        }
        Self::in_directory(&kernel.host_file("etc/nvme"))
    }

    fn in_directory(directory: &Path) -> Result<Option<Self>, Error> {
        let read = |name| {
            let path = directory.join(name);
            kernel::read(&path).map_err(|error| unreadable(&path, error))
        };
        let Some(nqn) = read("hostnqn")?.filter(|nqn| is_name(nqn)) else {
            return Ok(None);
        };
        let own = || nqn.strip_prefix(PREFIX).map(str::to_owned);
        let id = read("hostid")?.filter(|id| is_uuid(id)).or_else(own);
        let shared = |text: &str| SHARED.iter().any(|shared| text.contains(shared));
        Ok(id
            .filter(|id| is_uuid(id) && !shared(&nqn) && !shared(id))
            .map(|id| Self { nqn, id }))
    }

    fn derived(kernel: &Kernel) -> Result<Self, Error> {
        let machine_id = if has_host(kernel) {
            kernel.host_file("etc/machine-id")
        } else {
            kernel.file("etc/machine-id")
        };
        // Both together: one may be the same on cloned machines, the other on cheap boards.
        let lasting = [machine_id, kernel.sys("class/dmi/id/product_uuid")];
        let boot = [kernel.proc("sys/kernel/random/boot_id")];
        for sources in [&lasting[..], &boot[..]] {
            let mut hash = Sha256::new_with_prefix("omnibus-csi NVMe host 1");
            let mut is_empty = true;
            for path in sources {
                let text = kernel::read(path).map_err(|error| unreadable(path, error))?;
                let text = text.filter(|text| !text.is_empty() && text != "uninitialized");
                is_empty = is_empty && text.is_none();
                hash.update([0]);
                hash.update(text.unwrap_or_default());
            }
            if !is_empty {
                let id = uuid(&hash.finalize());
                return Ok(Self {
                    nqn: format!("{PREFIX}{id}"),
                    id,
                });
            }
        }
        Err(
            Error::new(Kind::Internal, "find an NVMe name for this machine")
                .advise("mount the host's `/etc/nvme`, or its root at `/host`"),
        )
    }
}

/// Whether we are in a container that can see its host.
fn has_host(kernel: &Kernel) -> bool {
    kernel.host_file("etc").is_dir()
}

fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b',';
    text.starts_with("nqn.") && text.len() <= 223 && text.bytes().all(plain)
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

/// The first bytes as a UUID of version 8, the one for whatever its maker decides.
fn uuid(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in bytes.iter().take(16).enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let byte = match at {
            6 => byte & 0x0f | 0x80,
            8 => byte & 0x3f | 0x80,
            _ => *byte,
        };
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::testing::Tree;

    const NQN: &str = "nqn.2026-11.lab:dev-a";
    const OWN: &str = "nqn.2014-08.org.nvmexpress:uuid:4b498d8b-bd6b-4fc6-9d8c-e78171b2337e";
    const ID: &str = "4e1d4fd6-6073-4bc2-b839-131989983264";

    fn choose(tree: &Tree, mounts: &str) -> HostIdentity {
        let mounts = MountTable::from_text(mounts);
        HostIdentity::choose(&tree.kernel(), &mounts, &Nqn::parse(NQN).expect("nqn"))
            .expect("identity")
    }

    fn nvme(tree: &Tree, directory: &str, nqn: &str, id: &str) {
        tree.file(&format!("{directory}/hostnqn"), &format!("{nqn}\n"))
            .file(&format!("{directory}/hostid"), &format!("{id}\n"));
    }

    fn controller(tree: &Tree, subsystem: &str, nqn: &str, id: &str) {
        let at = "sys/class/nvme/nvme7";
        tree.file(&format!("{at}/subsysnqn"), subsystem)
            .file(&format!("{at}/transport"), "tcp\n")
            .file(&format!("{at}/state"), "live\n");
        nvme(tree, at, nqn, id);
    }

    #[test]
    fn the_files_of_a_machine_are_its_identity() {
        let tree = Tree::new();
        nvme(&tree, "etc/nvme", OWN, ID);
        let chosen = choose(&tree, "");
        assert_eq!((chosen.nqn.as_str(), chosen.id.as_str()), (OWN, ID));
        // Without the second file the name says it, if it can.
        tree.remove("etc/nvme/hostid");
        assert_eq!(choose(&tree, "").id, OWN[PREFIX.len()..]);
    }

    #[test]
    fn the_files_of_an_image_are_not_used_but_those_of_its_host_are() {
        let tree = Tree::new();
        nvme(&tree, "etc/nvme", OWN, ID);
        tree.file("host/etc/machine-id", "e0938eea3e4f460191627613050bea33\n");
        assert_ne!(choose(&tree, "").nqn, OWN);
        let mounted = format!(
            "30 1 8:1 /etc/nvme {} rw - ext4 /dev/sda1 rw",
            tree.path("etc/nvme").display()
        );
        assert_eq!(choose(&tree, &mounted).nqn, OWN);
        let hosts = OWN.replace("4b49", "4b50");
        nvme(&tree, "host/etc/nvme", &hosts, ID);
        assert_eq!(choose(&tree, "").nqn, hosts);
    }

    #[test]
    fn the_identity_that_all_nodes_share_is_kept_for_old_connections_only() {
        let tree = Tree::new();
        let shared = format!("{PREFIX}{}", SHARED[0]);
        nvme(&tree, "etc/nvme", &shared, SHARED[1]);
        tree.file("etc/machine-id", "e0938eea3e4f460191627613050bea33\n");
        let derived = choose(&tree, "");
        assert!(!derived.nqn.contains(SHARED[0]) && derived.id != SHARED[1]);
        controller(&tree, "nqn.2026-11.lab:other", &shared, SHARED[1]);
        assert_eq!(choose(&tree, ""), derived);
        controller(&tree, NQN, &shared, SHARED[1]);
        let identity = HostIdentity::of_this_machine(&tree.kernel(), &MountTable::from_text(""));
        assert_eq!(
            identity.expect("identity"),
            derived,
            "as others will know it"
        );
        let kept = choose(&tree, "");
        assert_eq!((kept.nqn, kept.id), (shared, SHARED[1].to_owned()));
    }

    #[test]
    fn a_derived_identity_is_lawful_lasting_and_different_on_each_machine() {
        let tree = Tree::new();
        tree.file("etc/machine-id", "e0938eea3e4f460191627613050bea33\n");
        let first = choose(&tree, "");
        assert_eq!(first, choose(&tree, ""));
        assert!(is_uuid(&first.id) && is_name(&first.nqn), "{first:?}");
        assert_eq!(first.nqn, format!("{PREFIX}{}", first.id));
        assert_eq!(&first.id[14..15], "8");
        assert!(
            !first.id.contains("e0938eea"),
            "the machine id is not disclosed"
        );
        tree.file(
            "sys/class/dmi/id/product_uuid",
            "03000200-0400-0500-0006-000700080009\n",
        );
        assert_ne!(first, choose(&tree, ""));
    }

    #[test]
    fn a_machine_without_any_identifier_is_known_by_its_boot_or_not_at_all() {
        let tree = Tree::new();
        let nothing = MountTable::from_text("");
        assert!(
            HostIdentity::choose(&tree.kernel(), &nothing, &Nqn::parse(NQN).expect("nqn")).is_err()
        );
        tree.file(
            "proc/sys/kernel/random/boot_id",
            "9b6b8d70-0a3f-4d6e-bd0f-3d8e7f1b2c4d\n",
        );
        tree.file("etc/machine-id", "uninitialized\n");
        assert!(is_uuid(&choose(&tree, "").id));
    }

    #[test]
    fn one_name_keeps_the_identifier_that_the_kernel_knows_it_by() {
        let tree = Tree::new();
        nvme(&tree, "etc/nvme", OWN, ID);
        let old = ID.replace("4e1d", "0000");
        controller(&tree, "nqn.2026-11.lab:other", OWN, &old);
        assert_eq!(choose(&tree, "").id, old);
    }
}
