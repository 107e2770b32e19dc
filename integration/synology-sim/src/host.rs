//! The backend on real storage: ZFS, LIO, nfsd and samba of the machine it runs on.
//!
//! The model answers; after each call the machine is made as the model then is. A LUN is a zvol, a shared
//! folder a dataset, a snapshot one of ZFS. A copy is sent and received whole: on DSM a copy needs neither its
//! source nor its snapshot any more.

mod exports;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::thread;
use std::time::Duration;

use nas_host::command::{self, pipe, run};
use nas_host::configfs::Object;
use nas_host::usershares::Usershares;
use nas_host::{Answer, Failed};
use tokio::time::{Instant, sleep};

use crate::dsm::{Held, VolumeOptions};

/// Sizes of zvols are multiples of their blocks.
const BLOCK: u64 = 16 << 10;
/// The time that udev, or a server that has just stopped to export it, may keep a dataset busy.
const BUSY: Duration = Duration::from_secs(30);

/// The source of a new LUN or shared folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Nothing,
    /// By its uuid.
    Volume(String),
    Snapshot {
        volume: String,
        snapshot: String,
    },
}

/// A LUN or a shared folder that the machine has to have.
#[derive(Debug, Clone, Copy)]
struct Wanted<'a> {
    uuid: &'a str,
    /// Of the NAS, such as `/volume1`.
    location: &'a str,
    kind: Kind<'a>,
    /// In bytes. A folder of 0 has no limit.
    size: u64,
    origin: &'a Origin,
}

#[derive(Debug, Clone, Copy)]
enum Kind<'a> {
    Lun { thick: bool },
    Folder { name: &'a str },
}

/// The objects that were made of it.
#[derive(Debug)]
struct Made {
    dataset: String,
    size: u64,
    snapshots: BTreeSet<String>,
}

/// The storage of this machine.
#[derive(Debug)]
pub(crate) struct Host {
    root: String,
    made: BTreeMap<String, Made>,
    exported: Vec<Object>,
    usershares: Usershares,
}

/// Waits for work on a thread of its own: the caller may be a task, which must not wait for another runtime.
fn wait<T: Send>(work: impl Future<Output = Answer<T>> + Send) -> Answer<T> {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.map_err(|error| Failed(error.to_string()))?;
        runtime.block_on(work)
    };
    let ended = thread::scope(|scope| scope.spawn(run).join());
    ended.unwrap_or_else(|_| Err(Failed("the work on this machine panicked".to_owned())))
}

// === impl Held ===

impl Held {
    fn wanted(&self) -> Vec<Wanted<'_>> {
        let luns = self.luns.iter().filter(|lun| lun.is_there());
        let luns = luns.map(|lun| Wanted {
            uuid: &lun.uuid,
            location: &lun.location,
            kind: Kind::Lun {
                thick: lun.is_thick(),
            },
            size: lun.size,
            origin: &lun.origin,
        });
        let shares = self.shares.iter().map(|share| Wanted {
            uuid: &share.uuid,
            location: &share.path,
            kind: Kind::Folder { name: &share.name },
            size: share.quota << 20,
            origin: &share.origin,
        });
        luns.chain(shares).collect()
    }

    /// The snapshots of each LUN and folder.
    fn snapshots(&self) -> BTreeMap<&str, Vec<&str>> {
        let luns = self.luns.iter().map(|lun| {
            let all = lun.snapshots.iter().map(|one| one.uuid.as_str());
            (lun.uuid.as_str(), all.collect())
        });
        let shares = self.shares.iter().map(|share| {
            let all = share.snapshots.iter().map(|one| one.uuid.as_str());
            (share.uuid.as_str(), all.collect())
        });
        luns.chain(shares).collect()
    }
}

// === impl Host ===

impl Host {
    /// Takes a pool of this machine. The volumes of the NAS become as large as it.
    pub(crate) fn open(pool: &str, volumes: &mut [VolumeOptions]) -> Answer<Self> {
        let root = format!("{pool}/synology-sim");
        wait(async {
            run(&["zfs", "create", "-p", "-o", "mountpoint=none", &root]).await?;
            let free = run(&["zfs", "get", "-Hpo", "value", "available", &root]).await?;
            let free = free.trim().parse();
            let free = free.map_err(|_| Failed(format!("{root}: how much is free?")))?;
            for volume in volumes {
                let dataset = format!("{root}{}", volume.path);
                run(&["zfs", "create", "-p", &dataset]).await?;
                volume.size = free;
            }
            Ok(())
        })?;
        Ok(Self {
            root,
            made: BTreeMap::new(),
            exported: Vec::new(),
            usershares: Usershares::new(),
        })
    }

    /// Whether there is storage of a LUN or folder.
    pub(crate) fn has(&self, uuid: &str) -> bool {
        self.made.contains_key(uuid)
    }

    /// Makes the machine as the model is.
    pub(crate) fn follow(&mut self, held: &Held) -> Answer<()> {
        wait(async {
            let (wanted, snapshots) = (held.wanted(), held.snapshots());
            for one in &wanted {
                self.make(one).await?;
                let of_it = snapshots.get(one.uuid).into_iter().flatten();
                self.cut(one.uuid, of_it.copied()).await?;
            }
            self.export(held).await?;
            self.remove(&wanted, &snapshots).await
        })
    }

    /// Makes what is missing, and gives it its size.
    async fn make(&mut self, wanted: &Wanted<'_>) -> Answer<()> {
        if !self.has(wanted.uuid) {
            let made = self.create(wanted).await?;
            self.made.insert(wanted.uuid.to_owned(), made);
        }
        let Some(made) = self.made.get_mut(wanted.uuid) else {
            return Ok(());
        };
        if made.size != wanted.size {
            let property = match wanted.kind {
                Kind::Lun { .. } => format!("volsize={}", rounded(wanted.size)),
                Kind::Folder { .. } if wanted.size == 0 => "refquota=none".to_owned(),
                Kind::Folder { .. } => format!("refquota={}", wanted.size),
            };
            run(&["zfs", "set", &property, &made.dataset]).await?;
            made.size = wanted.size;
        }
        Ok(())
    }

    async fn create(&self, wanted: &Wanted<'_>) -> Answer<Made> {
        let dataset = format!("{}{}/{}", self.root, wanted.location, wanted.uuid);
        let path = wanted.path()?;
        let mount = path.as_ref().map(|path| format!("mountpoint={path}"));
        let options: Vec<&str> = mount.iter().flat_map(|mount| ["-o", mount]).collect();
        match (wanted.origin, wanted.kind) {
            (Origin::Nothing, Kind::Lun { thick }) => {
                let size = rounded(wanted.size).to_string();
                let sparse: &[&str] = if thick { &[] } else { &["-s"] };
                run(&[&["zfs", "create"], sparse, &["-V", &size, &dataset]].concat()).await?;
            }
            (Origin::Nothing, Kind::Folder { .. }) => {
                run(&[&["zfs", "create"], &options[..], &[&dataset]].concat()).await?;
            }
            (Origin::Volume(volume), _) => {
                let snapshot = format!("{}@copied", self.dataset(volume)?);
                run(&["zfs", "snapshot", &snapshot]).await?;
                let copied = copy(&snapshot, &dataset, &options).await;
                destroy(&snapshot).await?;
                copied?;
            }
            (Origin::Snapshot { volume, snapshot }, _) => {
                let snapshot = format!("{}@{snapshot}", self.dataset(volume)?);
                copy(&snapshot, &dataset, &options).await?;
            }
        }
        let size = match path {
            None => {
                command::device(&dataset).await?;
                wanted.size
            }
            // Who may write is decided by what it is exported with.
            Some(path) => {
                let opened = fs::set_permissions(&path, Permissions::from_mode(0o777));
                opened.map_err(|error| Failed(format!("{path}: {error}")))?;
                0
            }
        };
        Ok(Made {
            dataset,
            size,
            snapshots: BTreeSet::new(),
        })
    }

    fn dataset(&self, uuid: &str) -> Answer<&str> {
        let made = self.made.get(uuid).map(|made| made.dataset.as_str());
        made.ok_or_else(|| Failed(format!("there is no storage of {uuid}")))
    }

    /// Takes the snapshots that are missing.
    async fn cut<'a>(
        &mut self,
        uuid: &str,
        snapshots: impl Iterator<Item = &'a str> + Send,
    ) -> Answer<()> {
        let Some(made) = self.made.get_mut(uuid) else {
            return Ok(());
        };
        for snapshot in snapshots {
            if !made.snapshots.contains(snapshot) {
                run(&["zfs", "snapshot", &format!("{}@{snapshot}", made.dataset)]).await?;
                made.snapshots.insert(snapshot.to_owned());
            }
        }
        Ok(())
    }

    /// Destroys what is not wanted.
    async fn remove(
        &mut self,
        wanted: &[Wanted<'_>],
        snapshots: &BTreeMap<&str, Vec<&str>>,
    ) -> Answer<()> {
        let uuids: Vec<String> = self.made.keys().cloned().collect();
        for uuid in uuids {
            let Some(made) = self.made.get_mut(&uuid) else {
                continue;
            };
            if wanted.iter().all(|one| one.uuid != uuid) {
                destroy(&made.dataset).await?;
                self.made.remove(&uuid);
                continue;
            }
            let kept = snapshots.get(uuid.as_str());
            let is_kept = |one: &String| kept.is_some_and(|kept| kept.contains(&one.as_str()));
            let gone: Vec<_> = made.snapshots.iter().filter(|one| !is_kept(one)).collect();
            for snapshot in gone.into_iter().cloned().collect::<Vec<_>>() {
                destroy(&format!("{}@{snapshot}", made.dataset)).await?;
                made.snapshots.remove(&snapshot);
            }
        }
        Ok(())
    }
}

// === impl Wanted ===

impl Wanted<'_> {
    /// The place where a folder is.
    fn path(&self) -> Answer<Option<String>> {
        let Kind::Folder { name } = self.kind else {
            return Ok(None);
        };
        if name.starts_with('.') || name.contains(['/', '"']) {
            return Err(Failed(format!("a shared folder is not called {name} here")));
        }
        Ok(Some(format!("{}/{name}", self.location)))
    }
}

fn rounded(size: u64) -> u64 {
    size.next_multiple_of(BLOCK)
}

/// Copies a snapshot into a new dataset, which needs it no more.
async fn copy(snapshot: &str, target: &str, options: &[&str]) -> Answer<()> {
    let receive = [&["zfs", "receive"], options, &[target]].concat();
    let printed = pipe(&["zfs", "send", snapshot], &receive).await?;
    if !printed.success {
        return Err(Failed(printed.errors));
    }
    let leaf = snapshot.split('@').nth(1).unwrap_or_default();
    destroy(&format!("{target}@{leaf}")).await
}

async fn destroy(name: &str) -> Answer<()> {
    let (end, mut pause) = (Instant::now() + BUSY, Duration::from_secs(1));
    loop {
        match run(&["zfs", "destroy", "-r", name]).await {
            // Each attempt delays the moment from which nfsd lets it go.
            Err(failed) if failed.0.contains("busy") && Instant::now() < end => {
                sleep(pause).await;
                pause *= 2;
            }
            ended => return ended.map(drop),
        }
    }
}
