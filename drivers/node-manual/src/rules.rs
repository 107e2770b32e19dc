//! The access modes and filesystems of a volume, by its attachment.
//!
//! compat: "node-manual". Any number of nodes can use a share or a directory at once. A disk has
//! one writer, except as a raw device, whose workload coordinates its own access.

use csi_types::{AccessMode, Attachment};
use driver_core::AccessRules;

const NONE: &[&str] = &[];
const NFS: &[&str] = &["nfs"];
const SMB: &[&str] = &["cifs"];
const LUSTRE: &[&str] = &["lustre"];
const OBJECTIVEFS: &[&str] = &["objectivefs", "fuse.objectivefs"];
const ONECLIENT: &[&str] = &["oneclient", "fuse.oneclient"];
const ON_DISK: &[&str] = &[
    "btrfs", "exfat", "ext3", "ext4", "ext4dev", "ntfs", "vfat", "xfs",
];
/// Whether it is a dataset or a zvol, only the node can see.
const ZFS: &[&str] = &[
    "zfs", "btrfs", "exfat", "ext3", "ext4", "ext4dev", "ntfs", "vfat", "xfs",
];
const ANY: &[&str] = &[
    "nfs",
    "cifs",
    "lustre",
    "objectivefs",
    "fuse.objectivefs",
    "oneclient",
    "fuse.oneclient",
    "zfs",
    "btrfs",
    "exfat",
    "ext3",
    "ext4",
    "ext4dev",
    "ntfs",
    "vfat",
    "xfs",
];

/// The rules for one kind of attachment.
pub(crate) fn of(attachment: &Attachment) -> AccessRules {
    match attachment {
        Attachment::Hostpath(_) => AccessRules::filesystem(NONE),
        Attachment::Nfs(_) => AccessRules::filesystem(NFS),
        Attachment::Smb(_) => AccessRules::filesystem(SMB),
        Attachment::Lustre(_) => AccessRules::filesystem(LUSTRE),
        Attachment::Objectivefs(_) => AccessRules::filesystem(OBJECTIVEFS),
        Attachment::Oneclient(_) => AccessRules::filesystem(ONECLIENT),
        Attachment::ZfsLocal(_) => any_mode(ZFS),
        Attachment::Iscsi(_) | Attachment::Nvmeof(_) => AccessRules {
            mount_modes: one_writer(),
            ..any_mode(ON_DISK)
        },
    }
}

/// The rules that some kind of attachment allows: for the calls that come without a volume context.
pub(crate) fn of_any() -> AccessRules {
    any_mode(ANY)
}

fn any_mode(fs_types: &'static [&'static str]) -> AccessRules {
    AccessRules {
        block: true,
        block_modes: AccessMode::ALL.to_vec(),
        ..AccessRules::filesystem(fs_types)
    }
}

/// A filesystem on a disk that two nodes write to is lost.
fn one_writer() -> Vec<AccessMode> {
    let mut modes = AccessMode::ALL.to_vec();
    modes.retain(|mode| *mode != AccessMode::MultiNodeMultiWriter);
    modes
}

#[cfg(test)]
mod tests {
    use csi_types::{Access, FsType, MountAccess, VolumeCapability};

    use super::*;

    /// One volume context of each kind, the filesystems that may be named for it, whether it can be
    /// a raw device, and whether several nodes may mount it and write.
    const TABLE: [(&str, &[&str], bool, bool); 9] = [
        ("hostpath path=/srv/a", NONE, false, true),
        ("nfs server=nas share=/a", NFS, false, true),
        ("smb server=nas share=a", SMB, false, true),
        ("lustre server=mgs@tcp share=/fs", LUSTRE, false, true),
        (
            "objectivefs filesystem=s3://pool/a",
            OBJECTIVEFS,
            false,
            true,
        ),
        ("oneclient server=provider", ONECLIENT, false, true),
        (
            "iscsi portal=10.0.0.1 iqn=iqn.2003-01.org.example:a lun=0",
            ON_DISK,
            true,
            false,
        ),
        (
            "nvmeof transport=tcp://10.0.0.1 nqn=nqn.2003-01.org.example:a nsid=1",
            ON_DISK,
            true,
            false,
        ),
        ("zfs-local zfs_asset_name=tank/a", ZFS, true, true),
    ];

    fn attachment(text: &str) -> Attachment {
        let (kind, keys) = text.split_once(' ').expect("a kind");
        let pairs = keys.split(' ').filter_map(|pair| pair.split_once('='));
        let context = pairs
            .chain([("node_attach_driver", kind)])
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        Attachment::parse(&context).expect(text)
    }

    fn mounted(fs_type: Option<&str>, mode: AccessMode) -> VolumeCapability {
        VolumeCapability {
            access: Access::Mount(MountAccess {
                fs_type: fs_type.map(|name| FsType::parse(name).expect("a name")),
                ..MountAccess::default()
            }),
            mode,
        }
    }

    #[test]
    fn each_kind_takes_the_filesystems_and_the_accesses_of_the_table() {
        let mut kinds: Vec<&str> = Vec::new();
        for (text, fs_types, block, _) in TABLE {
            let attachment = attachment(text);
            kinds.push(attachment.kind());
            let rules = of(&attachment);
            for name in ANY.iter().chain(&["zfs-of-another-world"]) {
                let asked = mounted(Some(name), AccessMode::SingleNodeWriter);
                let refused = rules.refusal(&asked);
                assert_eq!(refused.is_none(), fs_types.contains(name), "{text}: {name}");
            }
            let raw = VolumeCapability {
                access: Access::Block,
                mode: AccessMode::SingleNodeWriter,
            };
            assert_eq!(rules.refusal(&raw).is_none(), block, "{text}");
        }
        kinds.sort_unstable();
        let mut all = Attachment::KINDS;
        all.sort_unstable();
        assert_eq!(kinds, all, "every kind is in the table");
    }

    #[test]
    fn only_a_mounted_disk_has_a_mode_that_is_refused_and_naming_no_filesystem_is_always_right() {
        for (text, _, block, shared) in TABLE {
            let rules = of(&attachment(text));
            for mode in AccessMode::ALL {
                let allowed = shared || mode != AccessMode::MultiNodeMultiWriter;
                let refused = rules.refusal(&mounted(None, mode));
                assert_eq!(refused.is_none(), allowed, "{text}: mounted, {mode}");
                let raw = VolumeCapability {
                    access: Access::Block,
                    mode,
                };
                assert_eq!(rules.refusal(&raw).is_none(), block, "{text}: raw, {mode}");
            }
        }
    }

    #[test]
    fn without_a_context_whatever_some_kind_allows_is_allowed() {
        let rules = of_any();
        for (_, fs_types, ..) in TABLE {
            for name in fs_types {
                let asked = mounted(Some(name), AccessMode::MultiNodeMultiWriter);
                assert_eq!(rules.refusal(&asked), None, "{name}");
            }
        }
    }
}
