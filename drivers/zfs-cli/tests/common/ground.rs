//! Real datasets, and drivers whose volumes they are.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use driver_core::BackendIdentity;
use driver_zfs::ZfsDriver;
use driver_zfs::observed::VolumeKind;
use driver_zfs_cli::Cli;
use driver_zfs_cli::ZfsTools;
use exec::Local;

use crate::bare::{Bare, settings};
use crate::common::Counting;

const ROOT: &str = "tank/driver-zfs-test";

/// Datasets of a test, for as long as it lives.
pub(crate) struct Ground {
    pub(crate) root: String,
}

pub(crate) type RealDriver = ZfsDriver;

pub(crate) fn zfs(arguments: &[&str]) -> String {
    let output = Command::new("zfs").args(arguments).output().unwrap();
    assert!(output.status.success(), "zfs {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A driver whose volumes and snapshots are below this dataset, with another program in place of `zfs` if one is given.
pub(crate) fn driver_below(
    root: &str,
    program: Option<&str>,
    kind: VolumeKind,
    section: &str,
) -> RealDriver {
    let (volumes, detached) = (format!("{root}/v"), format!("{root}/s"));
    let settings = settings(kind, &volumes, &detached, section);
    let tools = ZfsTools::new(program, None, false).unwrap();
    let identity = BackendIdentity("lab".into());
    let cli = Cli::new(Counting::new(Local::new()), tools, identity);
    ZfsDriver::new(settings, cli, Bare { kind })
}

impl Ground {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let root = format!(
            "{ROOT}/{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let _ = Command::new("zfs").args(["destroy", "-R", &root]).output();
        zfs(&["create", "-p", &root]);
        Self { root }
    }

    pub(crate) fn driver(&self, kind: VolumeKind, section: &str) -> RealDriver {
        self.driver_with(None, kind, section)
    }

    /// The same, with another program in place of `zfs`.
    pub(crate) fn driver_with(
        &self,
        program: Option<&str>,
        kind: VolumeKind,
        section: &str,
    ) -> RealDriver {
        driver_below(&self.root, program, kind, section)
    }

    pub(crate) fn list(&self) -> String {
        let columns = "name,origin,defer_destroy";
        zfs(&["list", "-H", "-r", "-t", "all", "-o", columns, &self.root])
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        for destroy in [vec!["destroy", "-R", &self.root], vec!["destroy", ROOT]] {
            let _ = Command::new("zfs").args(destroy).output();
        }
    }
}
