//! A host as democratic-csi left it: its pool in memory, all else of it a folder, and our
//! driver on it. The scripts of exports run for real.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use driver_core::config::{Document, Finding, NoEnvironment};
use driver_core::transfer::{Bookmark, Bytes};
use driver_core::{BackendIdentity, Call, Driver, Effect, Error, Kind};
use driver_zfs::backend::{
    Backend, Base, Incoming, Interrupted, ListQuery, Listed, Serves, Tried, lists_no_blocks,
    receives_nothing, sends_nothing, without_first_try,
};
use driver_zfs::export::Opaque;
use driver_zfs::name::{Since, SnapshotRef};
use driver_zfs::observed::{Observed, Request, VolumeKind};
use driver_zfs::step::{Failed, FirstTry, Plan, Step};
use driver_zfs::testing::MemoryPool;
use driver_zfs::{Export, ZfsConfig, ZfsDriver};
use driver_zfs_cli::ZfsTools;
use driver_zfs_cli::exec::{Command, Output};
use driver_zfs_generic::{Protocol, ShareExport, iscsi, nvmeof};

use crate::common::Host;

/// The file that nvmetcli saves.
const NVMET: &str = "nvmet.json";

/// A host with a pool in memory; all else of it is a folder.
#[derive(Clone)]
pub(crate) struct Half(Arc<Inner>);

struct Inner {
    pool: Mutex<MemoryPool>,
    host: Host,
}

impl fmt::Debug for Half {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Half")
    }
}

impl Half {
    pub(crate) fn new(pool: MemoryPool) -> Self {
        let (pool, host) = (Mutex::new(pool), Host::new());
        Self(Arc::new(Inner { pool, host }))
    }

    pub(crate) fn pool(&self) -> MutexGuard<'_, MemoryPool> {
        self.0.pool.lock().unwrap()
    }

    pub(crate) fn host(&self) -> &Host {
        &self.0.host
    }

    /// Makes the tree of a target stack, as `stack.txt` has it.
    pub(crate) fn has_stack(&self, text: &str) {
        for line in text.lines() {
            let (path, value) = line.split_once('\t').unwrap();
            let path = self.host().path(&format!("cfg/{path}"));
            if let Some(target) = value.strip_prefix("-> ") {
                let target = self.host().path(&format!("cfg/{target}"));
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::os::unix::fs::symlink(target, path).unwrap();
            } else if value == "/" {
                std::fs::create_dir_all(path).unwrap();
            } else {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, format!("{value}\n")).unwrap();
            }
        }
    }

    /// Its tool has saved this.
    pub(crate) fn has_saved(&self, text: &str) {
        let nvmet = text.contains("\"subsystems\"");
        let file = if nvmet { NVMET } else { "targetcli.json" };
        std::fs::write(self.host().path("etc").join(file), text).unwrap();
    }

    /// Our driver with a configuration that democratic-csi had, but for where its tool saves.
    pub(crate) fn driver(&self, text: &str) -> Arc<dyn Driver> {
        let saved = self.host().path("etc").join(NVMET);
        let section = "shareStrategyNvmetCli:\n";
        let key = format!("{section}    configPath: {}\n", saved.display());
        let text = text.replace(section, &key);
        let document = Document::parse(&text, &NoEnvironment).unwrap();
        let kind = document.common().unwrap().driver;
        let places = self.host().places();
        let tools = || ZfsTools::from_config(&ZfsConfig::read(&document).unwrap()).unwrap();
        let share = |protocol| ShareExport::from_document(&document, protocol, tools()).unwrap();
        let (disk, tree) = (VolumeKind::Zvol, VolumeKind::Filesystem);
        match kind.as_str() {
            "zfs-generic-nfs" => self.with(&document, tree, share(Protocol::Nfs)),
            "zfs-generic-smb" => self.with(&document, tree, share(Protocol::Smb)),
            "zfs-generic-iscsi" => {
                self.with(&document, disk, iscsi::export(&document, places).unwrap())
            }
            "zfs-generic-nvmeof" => {
                self.with(&document, disk, nvmeof::export(&document, places).unwrap())
            }
            other => panic!("{other}"),
        }
    }

    fn with<E>(&self, document: &Document, kind: VolumeKind, export: E) -> Arc<dyn Driver>
    where
        E: Export<Command = Command, Output = Output> + 'static,
    {
        let zfs = ZfsConfig::read(document).unwrap();
        let settings = zfs.settings(&document.common().unwrap(), kind, None);
        Arc::new(ZfsDriver::new(settings.unwrap(), self.clone(), export))
    }

    async fn observe(&self, question: &Request) -> Result<Observed, Error> {
        let mut export = Vec::new();
        for command in &question.export {
            export.push(Opaque::new(self.run(command.get()?).await?));
        }
        let pool = self.pool().show(&question.queries, &question.properties);
        let kept = None;
        Ok(Observed { pool, export, kept })
    }

    async fn run(&self, command: &Command) -> Result<Output, Error> {
        let ended = self.host().run(command).await;
        ended.map_err(|error| Error::new(Kind::Internal, "run a script").because(error))
    }

    async fn step(&self, step: &Step) -> Result<(), Failed> {
        let Step::Export(command) = step else {
            return self.pool().apply(step);
        };
        let command = command.get().map_err(reported)?;
        self.run(command).await.map(drop).map_err(reported)
    }
}

fn reported(error: Error) -> Failed {
    Failed::terminal(error.with_effect(Effect::Possible))
}

impl Serves for Half {
    type Command = Command;
    type Output = Output;
}

#[async_trait]
impl Backend for Half {
    fn identity(&self) -> BackendIdentity {
        BackendIdentity("half".into())
    }

    async fn describe(&self, _call: &Call, _kind: VolumeKind) -> Vec<Finding> {
        Vec::new()
    }

    async fn observe(&self, _call: &Call, question: &Request) -> Result<Observed, Error> {
        self.observe(question).await
    }

    async fn apply(&self, call: &Call, plan: &Plan, then: &Request) -> Result<Observed, Failed> {
        call.changing();
        for guard in &plan.guards {
            assert!(
                self.pool().passes(guard),
                "a guard fails, although no other process changes this host: {guard}"
            );
        }
        for node in &plan.steps {
            self.step(&node.step).await?;
        }
        self.observe(then).await.map_err(reported)
    }

    async fn try_first(
        &self,
        call: &Call,
        request: &Request,
        _first: &FirstTry,
    ) -> Result<Tried, Failed> {
        without_first_try(self, call, request).await
    }

    fn asks_one_by_one(&self) -> bool {
        false
    }

    fn reserves_by_size(&self) -> bool {
        false
    }

    fn refuses_groups(&self) -> Option<&'static str> {
        None
    }

    fn streams(&self) -> bool {
        false
    }

    async fn send(
        &self,
        _call: &Call,
        _of: &SnapshotRef,
        _since: Option<&Base>,
        _resume: Option<&Bookmark>,
    ) -> Result<Box<dyn Bytes>, Error> {
        Err(sends_nothing())
    }

    fn lists_blocks(&self) -> bool {
        false
    }

    async fn send_records(
        &self,
        _call: &Call,
        _of: &SnapshotRef,
        _since: Option<&Since>,
    ) -> Result<Box<dyn Bytes>, Error> {
        Err(lists_no_blocks())
    }

    async fn freed_since(
        &self,
        _call: &Call,
        _of: &SnapshotRef,
        _txg: u64,
        _block: u64,
    ) -> Result<Vec<Range<u64>>, Error> {
        Err(lists_no_blocks())
    }

    async fn receive(
        &self,
        _call: &Call,
        _incoming: &Incoming,
        _stream: &mut dyn Bytes,
    ) -> Result<(), Interrupted> {
        Err(receives_nothing())
    }

    async fn list(&self, _call: &Call, query: &ListQuery) -> Result<Listed, Error> {
        Ok(self.pool().list(query))
    }
}
