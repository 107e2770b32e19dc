//! The verbs of the node on the real kernel, each test with mounts of its own.
//!
//! A `Bench` is a node with a few volumes as a driver makes them, and the paths that an
//! orchestrator would choose. States that a killed process leaves are prepared by hand.

mod block;
mod crash;
mod device;
mod group;
mod kata;
mod kubelet;
mod life;
mod loop_storage;
mod ownership;
mod publish;
mod share;
mod silent;
mod staged;
mod states;
mod stats;
mod trim;

use std::cell::OnceCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

pub(super) use crash::Stops;
use loop_storage::LoopStorage;

use super::*;
use crate::loops::Loop;
use crate::mount::{MountTable, is_mounted};
use crate::testing::{bind_plainly, with_own_mounts};
use csi_types::attachment::{Attachment, Hostpath};
use csi_types::capability::{Access, AccessMode, MountAccess, MountFlags, VolumeCapability};
use csi_types::error::Effect;
use csi_types::secrets::StageSecrets;

/// A node and what is around it.
struct Bench {
    base: PathBuf,
    node: Node,
    /// The same node, which does not see one of the devices any more.
    blind: OnceCell<Node>,
    storage: LoopStorage,
    /// The number of child processes so far.
    children: Arc<AtomicUsize>,
    runtime: tokio::runtime::Runtime,
}

/// Counts the child processes of a runner.
#[derive(Debug, Clone)]
struct Children(Arc<AtomicUsize>);

impl exec::Observer for Children {
    fn observe(&self, observation: &exec::Observation<'_>) {
        self.0
            .fetch_add(observation.commands.len(), Ordering::Relaxed);
    }
}

/// Runs programs here and counts them.
fn counted(children: &Arc<AtomicUsize>) -> Tools {
    let children = Children(Arc::clone(children));
    Tools::all_through(Arc::new(exec::Observed::new(exec::Local::new(), children)))
}

fn bench(test: impl FnOnce(&Bench) + Send + 'static) {
    bench_with(NodeConfig::default(), test);
}

fn bench_with(config: NodeConfig, test: impl FnOnce(&Bench) + Send + 'static) {
    with_own_mounts(|base| {
        for dir in ["v/one", "v/two", "k"] {
            fs::create_dir_all(base.join(dir)).expect("dir");
        }
        fs::write(base.join("v/one/name"), "one").expect("file");
        fs::write(base.join("v/two/name"), "two").expect("file");
        // Its blocking threads are made by this thread and so share its mounts.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("runtime");
        let storage = LoopStorage::at(&base.join("storage"));
        let children = Arc::<AtomicUsize>::default();
        let bench = Bench {
            base: base.to_owned(),
            node: node(config, &storage, &children),
            blind: OnceCell::new(),
            storage,
            children,
            runtime,
        };
        test(&bench);
    });
}

fn node(config: NodeConfig, storage: &LoopStorage, children: &Arc<AtomicUsize>) -> Node {
    let mut node = Node::with(
        config,
        counted(children),
        Kernel::here(),
        Box::new(storage.clone()),
    )
    .with_dirs(OrchestratorDirs::with([kubelet_dir(storage)]));
    let context = Arc::get_mut(&mut node.context).expect("it has one owner");
    context.guests = super::kata::Folders::below(&base(storage).join("run"));
    node
}

/// The folder `k` beside the storage.
fn kubelet_dir(storage: &LoopStorage) -> AbsolutePath {
    AbsolutePath::parse(base(storage).join("k").to_str().expect("text")).expect("path")
}

/// The folder of a test.
fn base(storage: &LoopStorage) -> PathBuf {
    let storage = storage.file("");
    storage.parent().expect("base").to_owned()
}

impl Drop for Bench {
    /// Loop devices belong to the machine, and must not outlive a test that failed.
    fn drop(&mut self) {
        let devices = self.storage.attached();
        for (_, device) in &devices {
            for face in Loop::all_over(&Kernel::here(), device).unwrap_or_default() {
                let _ = face.remove(&Kernel::here());
            }
        }
        for (_, device) in devices {
            self.storage.clear(&device);
        }
    }
}

fn soon() -> Limits {
    Limits::until(Instant::now() + Duration::from_mins(1))
}

fn capability(mode: AccessMode, flags: &str) -> VolumeCapability {
    VolumeCapability {
        access: Access::Mount(MountAccess {
            flags: MountFlags::parse([flags]).expect("flags"),
            ..MountAccess::default()
        }),
        mode,
    }
}

impl Bench {
    fn path(&self, relative: &str) -> PathBuf {
        self.base.join(relative)
    }

    fn text(&self, relative: &str) -> String {
        self.path(relative).to_str().expect("text").to_owned()
    }

    fn attachment(&self, volume: &str) -> Attachment {
        let path = AbsolutePath::parse(&self.text(&format!("v/{volume}"))).expect("path");
        Attachment::Hostpath(Hostpath { path })
    }

    fn staging(&self, name: &str) -> StagingPath {
        StagingPath::parse(&self.text(&format!("k/{name}"))).expect("path")
    }

    fn target(&self, name: &str) -> TargetPath {
        TargetPath::parse(&self.text(&format!("k/{name}"))).expect("path")
    }

    fn stage(&self, volume: &str, staging: &str) -> Result<(), Error> {
        let request = StageRequest {
            staging: self.staging(staging),
            attachment: self.attachment(volume),
            capability: capability(AccessMode::SingleNodeMultiWriter, ""),
            secrets: StageSecrets::default(),
        };
        self.runtime.block_on(self.node.stage(soon(), request))
    }

    fn unstage(&self, staging: &str) -> Result<(), Error> {
        let path = self.staging(staging);
        self.runtime.block_on(self.node.unstage(soon(), path))
    }

    /// A publication of volume `one`, staged at `s`, that any mode of several writers allows.
    fn request(&self, target: &str) -> PublishRequest {
        PublishRequest {
            staging: self.staging("s"),
            target: self.target(target),
            attachment: self.attachment("one"),
            capability: capability(AccessMode::SingleNodeMultiWriter, ""),
            readonly: false,
        }
    }

    fn publish(&self, request: PublishRequest) -> Result<(), Error> {
        self.runtime.block_on(self.node.publish(soon(), request))
    }

    fn unpublish(&self, target: &str) -> Result<(), Error> {
        let path = self.target(target);
        self.runtime.block_on(self.node.unpublish(soon(), path))
    }

    fn stats(&self, relative: &str) -> Result<VolumeStats, Error> {
        let path = AbsolutePath::parse(&self.text(relative)).expect("path");
        self.runtime.block_on(self.node.stats(soon(), path))
    }

    fn bind(&self, from: &str, to: &str) {
        fs::create_dir_all(self.path(to)).expect("dir");
        bind_plainly(&self.path(from), &self.path(to));
    }

    fn layers(&self, relative: &str) -> usize {
        let table = MountTable::read().expect("table");
        table.layers(&self.path(relative)).count()
    }

    /// The number of mounts here. Elsewhere on the machine, other programs mount and unmount, and a mount
    /// whose directory is removed in another namespace leaves this one too.
    fn mounts(&self) -> usize {
        let table = MountTable::read().expect("table");
        let here = table
            .entries()
            .filter(|entry| entry.point().starts_with(&self.base));
        here.count()
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Error>, kind: Kind) -> Error {
    let error = result.expect_err("must be refused");
    assert_eq!(error.kind(), kind, "{}", error.chain());
    error
}

#[track_caller]
fn is_read_only(dir: &Path) -> bool {
    match fs::write(dir.join("probe"), "") {
        Ok(()) => {
            fs::remove_file(dir.join("probe")).expect("remove");
            false
        }
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
            true
        }
    }
}
