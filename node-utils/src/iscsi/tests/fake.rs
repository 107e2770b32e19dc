//! A target, its daemon, and the kernel between them and us: `iscsiadm` is answered by making what
//! the kernel would make, and what is written to sysfs is done as the kernel would do it.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use exec::testing::{OneByOne, RunOne};
use exec::{Argument, Command, HostAccess, Output, RunError, Runner, Status};

use crate::device::BlockDevice;
use crate::kernel::Kernel;
use crate::kernel::testing::Tree;
use crate::tools::Tools;
use csi_types::attachment::{Iqn, Iscsi, Listed, Lun};

/// The way a portal answers.
#[derive(Debug, Clone, Copy)]
pub(super) enum Login {
    Welcome,
    /// Only who has this password in the record.
    Password(&'static str),
    Denied,
    Refused,
    NoAnswer,
}

/// The target and whatever is between it and us.
#[derive(Debug)]
pub(super) struct Initiator {
    tree: Tree,
    /// Its own, because turns are taken by name and tests run beside each other.
    target: String,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    exported: BTreeMap<u64, String>,
    answers: BTreeMap<String, Login>,
    sessions: BTreeMap<u32, Shown>,
    commands: Vec<String>,
    arguments: Vec<String>,
    scans: Vec<String>,
    last_sid: u32,
    last_disk: u32,
}

#[derive(Debug)]
struct Shown {
    portal: String,
    disks: BTreeMap<u64, (String, u32)>,
}

// === impl Initiator ===

impl Initiator {
    pub(super) fn new(exported: &[(u64, &str)]) -> Arc<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let tree = Tree::new();
        std::fs::create_dir_all(tree.path("var/lib/iscsi/nodes")).expect("directory");
        let exported = exported.iter().map(|(lun, id)| (*lun, (*id).to_owned()));
        let fake = Arc::new(Self {
            tree,
            target: format!("iqn.2026-11.test:{}", COUNT.fetch_add(1, Ordering::Relaxed)),
            inner: Mutex::new(Inner {
                exported: exported.collect(),
                ..Inner::default()
            }),
        });
        let weak = Arc::downgrade(&fake);
        fake.tree.on_write(move |path, text| {
            let fake = weak.upgrade();
            if let Some(fake) = &fake {
                fake.obey(path, text);
            }
            fake.is_some()
        });
        fake
    }

    pub(super) fn target(&self) -> &str {
        &self.target
    }

    pub(super) fn kernel(&self) -> Kernel {
        self.tree.kernel()
    }

    pub(super) fn volume(&self, lun: u64, portals: &[&str]) -> Iscsi {
        Iscsi {
            iqn: Iqn::parse(&self.target).expect("name"),
            lun: Lun::parse(&lun.to_string()).expect("number"),
            portals: Listed::portals("", portals.iter().copied()).expect("portals"),
            interface: None,
            device_id: None,
        }
    }

    /// `iscsiadm` by way of `runner`, with its files in the tree.
    pub(super) fn runner(self: &Arc<Self>) -> Arc<dyn Runner> {
        Arc::new(OneByOne(Arc::clone(self)))
    }

    pub(super) fn tools(&self, runner: Arc<dyn Runner>) -> Tools {
        let root = self.tree.path("");
        Tools::all_through(runner).with_iscsi_access(HostAccess::Chroot { root })
    }

    pub(super) fn answer(&self, portal: &str, login: Login) {
        self.inner().answers.insert(portal.to_owned(), login);
    }

    /// Gives a number to a volume, or takes it away.
    pub(super) fn export(&self, lun: u64, identity: Option<&str>) {
        let mut inner = self.inner();
        match identity {
            Some(identity) => inner.exported.insert(lun, identity.to_owned()),
            None => inner.exported.remove(&lun),
        };
    }

    pub(super) fn commands(&self) -> Vec<String> {
        std::mem::take(&mut self.inner().commands)
    }

    pub(super) fn arguments(&self) -> Vec<String> {
        self.inner().arguments.clone()
    }

    pub(super) fn scans(&self) -> Vec<String> {
        std::mem::take(&mut self.inner().scans)
    }

    /// The numbers of the disks that are shown.
    pub(super) fn disks(&self) -> Vec<u64> {
        let inner = self.inner();
        inner
            .sessions
            .values()
            .flat_map(|session| session.disks.keys().copied())
            .collect()
    }

    pub(super) fn disk_names(&self) -> Vec<String> {
        let inner = self.inner();
        let disks = inner
            .sessions
            .values()
            .flat_map(|session| session.disks.values());
        disks.map(|(name, _)| name.clone()).collect()
    }

    /// Puts a holder on a disk that is not a map of the multipath daemon.
    pub(super) fn hold(&self, disk: &BlockDevice, held: bool) {
        let minor = disk.number().minor;
        let name = format!("dm-{minor}");
        if held {
            let number = format!("253:{minor}");
            self.tree.map(&name, &number, "LVM-x", &[disk.name()]);
        } else {
            self.tree
                .remove(&format!("sys/class/block/{}/holders/{name}", disk.name()))
                .remove(&format!("sys/class/block/{name}"))
                .remove(&format!("sys/dev/block/253:{minor}"))
                .remove(&format!("sys/devices/virtual/block/{name}"));
        }
    }

    pub(super) fn state(&self, sid: u32, state: &str) {
        let path = format!("sys/class/iscsi_session/session{sid}/state");
        self.tree.file(&path, &format!("{state}\n"));
    }

    /// As if the target had ended it.
    pub(super) fn end_session(&self, sid: u32) {
        self.log_out(&mut self.inner(), sid);
    }

    pub(super) fn remove_record(&self, portal: &str) {
        std::fs::remove_file(self.record(portal)).expect("record");
    }

    pub(super) fn record_mode(&self, portal: &str) -> u32 {
        let metadata = std::fs::metadata(self.record(portal)).expect("record");
        metadata.permissions().mode() & 0o777
    }

    pub(super) fn has_only_records(&self) -> bool {
        let names = crate::kernel::list(&self.tree.path("var/lib/iscsi")).expect("list");
        names == ["nodes"]
    }

    /// Whether neither sessions nor disks nor records are left.
    pub(super) fn is_empty(&self) -> bool {
        let kernel = self.kernel();
        let list = |path: PathBuf| crate::kernel::list(&path).expect("list");
        list(kernel.sys("class/iscsi_session")).is_empty()
            && list(kernel.sys("class/block")).is_empty()
            && list(self.tree.path("var/lib/iscsi/nodes")).is_empty()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("lock")
    }

    fn record(&self, portal: &str) -> PathBuf {
        let portal = portal.replace([':'], ",");
        self.tree
            .path(&format!("var/lib/iscsi/nodes/{}/{portal}", self.target))
    }

    // --- the kernel ---

    /// Does what was written to sysfs.
    fn obey(&self, path: &Path, text: &str) {
        let path = path.to_str().expect("text");
        let attribute = path.rsplit('/').next().expect("attribute");
        let mut inner = self.inner();
        if attribute == "scan" {
            let host = path.rsplit('/').nth(1).expect("host");
            inner.scans.push(format!("{host} {text}"));
            let sid = host
                .trim_start_matches("host")
                .parse::<u32>()
                .expect("number")
                - 10;
            let lun = text.rsplit(' ').next().expect("number").parse().ok();
            self.scan(&mut inner, sid, lun);
            return;
        }
        let name = path.rsplit('/').nth(2).expect("disk").to_owned();
        let found = inner.sessions.iter().find_map(|(sid, session)| {
            let mut disks = session.disks.iter();
            let (lun, (_, minor)) = disks.find(|(_, (known, _))| *known == name)?;
            Some((*sid, *lun, *minor))
        });
        let (sid, lun, minor) = found.expect("disk");
        match attribute {
            "rescan" => self.rescan(&inner, lun, &name),
            "delete" => {
                self.remove_disk(sid, lun, &name, minor);
                let session = inner.sessions.get_mut(&sid).expect("session");
                session.disks.remove(&lun);
            }
            "state" => {}
            other => panic!("unknown attribute {other}"),
        }
    }

    fn home(sid: u32) -> String {
        format!("platform/host{}/session{sid}", 10 + sid)
    }

    fn scan(&self, inner: &mut Inner, sid: u32, only: Option<u64>) {
        for (lun, identity) in inner.exported.clone() {
            let session = inner.sessions.get_mut(&sid).expect("session");
            if only.is_some_and(|only| only != lun) || session.disks.contains_key(&lun) {
                continue;
            }
            inner.last_disk += 1;
            let minor = 16 * inner.last_disk;
            let name = format!("sdx{}", inner.last_disk);
            let host = 10 + sid;
            let home = format!("{}/target{host}:0:0/{host}:0:0:{lun}", Self::home(sid));
            self.tree.disk(&home, &name, &format!("8:{minor}"), 2048);
            for (attribute, text) in [
                ("wwid", &*identity),
                ("state", "running"),
                ("vpd_pg83", &*identity),
                ("rescan", ""),
                ("delete", ""),
            ] {
                self.tree
                    .file(&format!("sys/devices/{home}/{attribute}"), text);
            }
            let back = format!("sys/devices/{home}/block/{name}/device");
            self.tree.link(&back, &format!("../../../{host}:0:0:{lun}"));
            session.disks.insert(lun, (name, minor));
        }
    }

    /// As was seen: what is given to another volume shows it, what is taken away has no size.
    fn rescan(&self, inner: &Inner, lun: u64, name: &str) {
        let device = format!("sys/class/block/{name}/device");
        if let Some(identity) = inner.exported.get(&lun) {
            for attribute in ["wwid", "vpd_pg83"] {
                self.tree.file(&format!("{device}/{attribute}"), identity);
            }
        } else {
            self.tree
                .file(&format!("sys/class/block/{name}/size"), "0\n");
        }
    }

    fn remove_disk(&self, sid: u32, lun: u64, name: &str, minor: u32) {
        let host = 10 + sid;
        let home = format!("{}/target{host}:0:0/{host}:0:0:{lun}", Self::home(sid));
        self.tree
            .remove(&format!("sys/class/block/{name}"))
            .remove(&format!("sys/dev/block/8:{minor}"))
            .remove(&format!("dev/{name}"))
            .remove(&format!("sys/devices/{home}"));
    }

    // --- the daemon ---

    fn log_in(&self, inner: &mut Inner, portal: &str) {
        inner.last_sid += 1;
        let sid = inner.last_sid;
        let home = format!("sys/devices/{}", Self::home(sid));
        let class = format!("iscsi_session/session{sid}");
        let (host, port) = portal.rsplit_once(':').expect("portal");
        let connection = format!("{home}/connection{sid}:0/iscsi_connection/connection{sid}:0");
        for (path, text) in [
            (format!("{home}/{class}/targetname"), &*self.target),
            (format!("{home}/{class}/state"), "LOGGED_IN"),
            (format!("{home}/{class}/target_id"), "0"),
            (format!("{connection}/persistent_address"), host),
            (format!("{connection}/persistent_port"), port),
            (format!("{connection}/address"), host),
            (format!("{connection}/port"), port),
        ] {
            self.tree.file(&path, &format!("{text}\n"));
        }
        self.tree
            .file(&format!("sys/class/scsi_host/host{}/scan", 10 + sid), "")
            .link(
                &format!("{home}/{class}/device"),
                &format!("../../../session{sid}"),
            )
            .link(
                &format!("sys/class/{class}"),
                &format!("../../devices/{}/{class}", Self::home(sid)),
            );
        let portal = portal.to_owned();
        let disks = BTreeMap::new();
        inner.sessions.insert(sid, Shown { portal, disks });
        self.scan(inner, sid, None);
    }

    fn log_out(&self, inner: &mut Inner, sid: u32) -> bool {
        let Some(session) = inner.sessions.remove(&sid) else {
            return false;
        };
        for (lun, (name, minor)) in session.disks {
            self.remove_disk(sid, lun, &name, minor);
        }
        self.tree
            .remove(&format!("sys/class/iscsi_session/session{sid}"))
            .remove(&format!("sys/class/scsi_host/host{}", 10 + sid))
            .remove(&format!("sys/devices/{}", Self::home(sid)));
        true
    }

    /// What `iscsiadm` does and how it ends, as open-iscsi 2.1.11 was seen to.
    fn iscsiadm(&self, words: &[&str]) -> (i32, String, u64) {
        let mut inner = self.inner();
        if let ["-m", "session", "-r", sid, "-u"] = words {
            let gone = !self.log_out(&mut inner, sid.parse().expect("number"));
            return (if gone { 22 } else { 0 }, String::new(), 0);
        }
        let ["-m", "node", "-T", target, "-p", portal, operation @ ..] = words else {
            panic!("unknown words {words:?}");
        };
        assert_eq!(*target, self.target);
        let record = self.record(portal);
        let has_session = inner
            .sessions
            .values()
            .any(|session| session.portal == *portal);
        if *operation != ["-o", "new"] && !record.exists() {
            return (21, String::new(), 0);
        }
        match operation {
            ["-o", "new"] => {
                std::fs::create_dir_all(record.parent().expect("directory")).expect("directory");
                let text = "# BEGIN RECORD 2.1.11\nnode.name = x\nnode.startup = automatic\n\
                            node.session.cmds_max = 128\nnode.session.auth.authmethod = None\n\
                            # END RECORD\n";
                std::fs::write(&record, text).expect("write");
                (0, String::new(), 0)
            }
            ["-o", "update", ..] => (0, String::new(), 0),
            ["-o", "delete"] | ["-l"] if has_session => (15, String::new(), 0),
            ["-o", "delete"] => {
                std::fs::remove_file(&record).expect("remove");
                let _ = std::fs::remove_dir(record.parent().expect("directory"));
                (0, String::new(), 0)
            }
            [] => (0, shown(&std::fs::read_to_string(record).expect("read")), 0),
            ["-l"] => {
                let answer = inner
                    .answers
                    .get(*portal)
                    .copied()
                    .unwrap_or(Login::Welcome);
                let text = std::fs::read_to_string(record).expect("read");
                match answer {
                    Login::NoAnswer => (8, String::new(), 17),
                    Login::Refused => (19, String::new(), 0),
                    Login::Denied => (24, String::new(), 0),
                    Login::Password(password) if !text.contains(password) => (24, String::new(), 0),
                    Login::Welcome | Login::Password(_) => {
                        self.log_in(&mut inner, portal);
                        (0, String::new(), 0)
                    }
                }
            }
            other => panic!("unknown operation {other:?}"),
        }
    }
}

/// As the tool shows a record: without passwords, and a value that cannot be as its default.
fn shown(record: &str) -> String {
    let line = |line: &str| match line.split_once(" = ") {
        Some((name, _)) if name.contains("password") => format!("{name} = ********\n"),
        Some((name @ "node.session.cmds_max", value)) if value.parse::<u32>().is_err() => {
            format!("{name} = 128\n")
        }
        Some((name, value)) if value.starts_with('0') && value.len() > 1 => {
            format!("{name} = {}\n", value.trim_start_matches('0'))
        }
        _ => format!("{line}\n"),
    };
    record.lines().map(line).collect()
}

#[async_trait]
impl RunOne for Initiator {
    async fn run_one(&self, command: &Command) -> Result<Output, RunError> {
        let words: Vec<&str> = command.arguments().iter().map(Argument::expose).collect();
        {
            let mut inner = self.inner();
            inner.commands.push(command.to_string());
            inner
                .arguments
                .extend(words.iter().map(|word| (*word).to_owned()));
        }
        assert_eq!(command.program().name(), "iscsiadm");
        tokio::time::sleep(Duration::from_millis(50)).await;
        let (code, stdout, seconds) = self.iscsiadm(&words);
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        Ok(Output {
            status: Status::Exit(code),
            stdout: stdout.into(),
            stderr: Vec::new(),
        })
    }
}
