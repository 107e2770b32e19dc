//! The target that needs nothing but a folder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::Target;
use super::optional::Optional;
use crate::place::Place;
use crate::server::Launch;
use crate::tree::Tree;

/// A directory of this machine.
#[derive(Debug)]
pub struct LocalHostpath;

impl Target for LocalHostpath {
    fn name(&self) -> &'static str {
        "local-hostpath"
    }

    fn launch(&self, place: &Place) -> Launch {
        Launch::local_hostpath(place)
    }

    fn backend(&self, place: &Place) -> Tree {
        // The folders that it keeps, and the mark of each living process, are no volumes; what lies
        // in `making` and `trash` is incomplete.
        let kept = ["", "v", "s", ".omnibus-csi", ".omnibus-csi-base"].map(Path::new);
        let workshop = ["making", "trash"].map(|name| Path::new(".omnibus-csi").join(name));
        let makers = Path::new(".omnibus-csi/makers");
        Tree::read(&place.base()).without(|path| {
            kept.contains(&path)
                || workshop.iter().any(|kept| kept == path)
                || path.starts_with(makers)
        })
    }

    fn group_parameters(&self) -> BTreeMap<String, String> {
        [("consistency".to_owned(), "none".to_owned())].into()
    }

    fn optional(&self) -> BTreeSet<Optional> {
        [Optional::Groups, Optional::Health].into()
    }

    fn elsewhere(&self) -> Option<BTreeMap<String, String>> {
        let key = "org.democratic-csi.topology/node".to_owned();
        Some(BTreeMap::from([(key, "another-node".to_owned())]))
    }

    fn steps(&self) -> &'static [&'static str] {
        &[
            "mkdir",
            "mkdirat",
            "rmdir",
            "unlink",
            "unlinkat",
            "rename",
            "renameat",
            "renameat2",
            "link",
            "linkat",
            "symlinkat",
            "mknodat",
            "fchmod",
            "fchmodat",
            "fchmodat2",
            "chmod",
            "fchown",
            "fchownat",
            "lchown",
            "utimensat",
            "fsetxattr",
            "setxattr",
            "lsetxattr",
            "ftruncate",
            "fallocate",
            "pwrite64",
            "copy_file_range",
            "sendfile",
            "fsync",
            "fdatasync",
            "syncfs",
            "mount",
            "umount2",
            "open_tree",
            "move_mount",
            "mount_setattr",
            "fsopen",
            "fsconfig",
            "fsmount",
        ]
    }
}
