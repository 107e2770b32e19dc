//! The conformance suite over local-hostpath.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::Path;

use integration::conformance::Target;
use integration::conformance::proxied::Proxied;
use integration::place::Place;
use integration::server::Launch;
use integration::suite;
use integration::tree::Tree;

struct LocalHostpath;

impl Target for LocalHostpath {
    fn name(&self) -> &'static str {
        "local-hostpath"
    }

    fn launch(&self, place: &Place) -> Launch {
        Launch::local_hostpath(place)
    }

    fn backend(&self, place: &Place) -> Tree {
        // The folders that it keeps, and the mark of each living process, are no volumes; what lies
        // in `making` and `trash` was begun and not ended.
        let kept = ["", "v", "s", ".omnibus-csi"].map(Path::new);
        let workshop = ["making", "trash"].map(|name| Path::new(".omnibus-csi").join(name));
        let makers = Path::new(".omnibus-csi/makers");
        Tree::read(&place.base()).without(|path| {
            kept.contains(&path)
                || workshop.iter().any(|kept| kept == path)
                || path.starts_with(makers)
        })
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

suite!(LocalHostpath);

/// The same as one of two connections.
mod behind_the_proxy {
    use super::*;

    suite!(Proxied::beside_folders(LocalHostpath));
}
