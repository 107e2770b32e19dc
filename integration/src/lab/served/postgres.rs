//! A database on two volumes: its data on one, its log on the other. A group of their snapshots, taken while it commits,
//! is one moment of it: the copies recover as after a loss of power, have each transaction that was acknowledged before
//! the call, and every index agrees with its table.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use csi_proto::v1 as csi;
use rustix::process::Signal;
use tempfile::TempDir;

use super::life::{delete, make, used};
use super::{Served, grouped, storage};
use crate::lab::beside::Beside;
use crate::lab::calls::Node;
use crate::lab::command::{attempt, run};
use crate::lab::fixture::{Fixture, SIZE};
use crate::lab::given;
use crate::lab::leftovers::Leftovers;
use crate::lab::life::step;
use crate::place::Place;
use crate::volume;
use crate::wait::until_within;

/// The rounds, unless the environment gives another number.
const ROUNDS: u64 = 3;
/// The time that a server may take to recover, or to write all that it has and end.
const READY: Duration = Duration::from_mins(5);
/// The transactions before the first group.
const FIRST: usize = 50;

const INITDB: &str = "/usr/lib/postgresql/17/bin/initdb";
const POSTGRES: &str = "/usr/lib/postgresql/17/bin/postgres";
const PG_ISREADY: &str = "/usr/lib/postgresql/17/bin/pg_isready";
const PSQL: &str = "/usr/lib/postgresql/17/bin/psql";
const PGBENCH: &str = "/usr/lib/postgresql/17/bin/pgbench";
const PG_AMCHECK: &str = "/usr/lib/postgresql/17/bin/pg_amcheck";

/// Every change of a balance is a row of the history, in the same transaction.
const SUMS: &str = "SELECT (SELECT sum(abalance) FROM pgbench_accounts), \
                    (SELECT sum(tbalance) FROM pgbench_tellers), \
                    (SELECT sum(bbalance) FROM pgbench_branches), \
                    (SELECT sum(delta) FROM pgbench_history)";
/// One row for each transaction. None is ever changed, so that its place is its name.
const HISTORY: &str = "SELECT ctid, tid, aid, delta, mtime FROM pgbench_history";

/// The number of rounds.
pub fn rounds() -> u64 {
    given::rounds().unwrap_or(ROUNDS)
}

/// Rounds of a group, the restore of both members, and the database on the copies.
///
/// # Panics
/// At whatever is wrong in it.
pub async fn is_restored_from_groups(served: Served) {
    let place = Place::new();
    let node = Node::start_with(served.start_on(&place)).await;
    // The user of the database comes through it to the volumes.
    let through = Permissions::from_mode(0o711);
    fs::set_permissions(node.place.path(), through).expect("a folder of the cell");
    let before = (Leftovers::read(), storage());

    step("a database on two volumes");
    let volumes = Volumes::make(&node, served, "original", [None, None]).await;
    volumes.initialize();
    let original = Database::start(&volumes.data(), "5501").await;
    run(&original.client(PGBENCH, &["--initialize", "--quiet", "postgres"]));
    let mut load = original.load();
    until_within(READY, "the first transactions", || {
        (original.transactions().len() > FIRST).then_some(())
    })
    .await;
    for number in 1..=rounds() {
        step(&format!("round {number} of {}", rounds()));
        round(&node, served, number, &volumes, &original).await;
        assert_eq!(load.status(), None, "the load ended: {}", load.log());
    }

    step("take away");
    load.end(Signal::KILL, READY).await;
    original.is_balanced();
    original.stop().await;
    volumes.remove(&node).await;
    Leftovers::back_to(&before.0, "the database").await;
    assert_eq!(storage(), before.1, "the storage is as before");
    node.end().await;
}

async fn round(node: &Node, served: Served, number: u64, volumes: &Volumes, original: &Database) {
    let acknowledged = original.transactions();
    let name = format!("groupsnapshot-0aa4ba5c-6ee9-4d3b-9cf3-{number:012x}");
    let group = grouped::taken(node, &name, &volumes.ids()).await;
    let source = |fixture: &Fixture| volume::from_snapshot(grouped::member(&group, fixture));
    let sources = volumes.fixtures.each_ref().map(source);
    let copies = Volumes::make(node, served, "copy", sources).await;
    copies.separate();

    let copy = Database::start(&copies.data(), "5502").await;
    let log = copy.server.log();
    assert!(log.contains("was not properly shut down"), "{log}");
    let found = copy.transactions();
    // By now the original shows also what it was just about to commit.
    let later = original.transactions();
    let lost: Vec<_> = acknowledged.difference(&found).collect();
    assert!(
        lost.is_empty(),
        "acknowledged and not in the copy: {lost:?}"
    );
    let unknown: Vec<_> = found.difference(&later).collect();
    assert!(unknown.is_empty(), "in the copy alone: {unknown:?}");
    assert!(later.len() > found.len(), "the load stood still");
    step(&format!(
        "MEASURED {} transactions acknowledged before the call, {} in the copy, {} later",
        acknowledged.len(),
        found.len(),
        later.len()
    ));
    copy.is_balanced();
    let checks = [
        "--all",
        "--install-missing",
        "--heapallindexed",
        "--parent-check",
    ];
    run(&copy.client(PG_AMCHECK, &checks));

    copy.stop().await;
    copies.remove(node).await;
    grouped::deleted(node, &group).await;
}

/// The volumes of a database with a pod each: for its data, and for its log.
struct Volumes {
    fixtures: [Fixture; 2],
    pods: [PathBuf; 2],
}

// === impl Volumes ===

impl Volumes {
    /// Both, staged and published.
    async fn make(
        node: &Node,
        served: Served,
        name: &str,
        sources: [Option<csi::VolumeContentSource>; 2],
    ) -> Self {
        let [of_data, of_wal] = sources;
        let data = make(node, served, &format!("{name}-data"), SIZE, of_data).await;
        let wal = make(node, served, &format!("{name}-wal"), SIZE, of_wal).await;
        let pods = [used(node, &data).await, used(node, &wal).await];
        Self {
            fixtures: [data, wal],
            pods,
        }
    }

    fn ids(&self) -> Vec<String> {
        let ids = self.fixtures.iter().map(|one| one.volume.volume_id.clone());
        ids.collect()
    }

    fn data(&self) -> PathBuf {
        self.pods[0].join("data")
    }

    fn wal(&self) -> PathBuf {
        self.pods[1].join("wal")
    }

    /// A new cluster, whose pages have checksums.
    fn initialize(&self) {
        let (data, wal) = (
            self.data().display().to_string(),
            self.wal().display().to_string(),
        );
        let owner = [
            "install", "-d", "-m", "0700", "-o", "postgres", "-g", "postgres",
        ];
        run(&[&owner[..], &[data.as_str(), wal.as_str()]].concat());
        let (data, wal) = (format!("--pgdata={data}"), format!("--waldir={wal}"));
        let words = [
            data.as_str(),
            wal.as_str(),
            "--username=postgres",
            "--auth-local=trust",
            "--auth-host=reject",
            "--no-locale",
            "--encoding=UTF8",
            "--data-checksums",
        ];
        run(&as_postgres(INITDB, &words));
    }

    /// Makes a copy a cluster of its own: with the copied log, and without the lock of the original, whose process
    /// still lives.
    fn separate(&self) {
        let link = self.data().join("pg_wal");
        fs::remove_file(&link).expect("a link to the log of the original");
        symlink(self.wal(), &link).expect("a link to the copied log");
        let lock = self.data().join("postmaster.pid");
        fs::remove_file(lock).expect("the lock of a running server");
    }

    async fn remove(self, node: &Node) {
        for (fixture, pod) in self.fixtures.iter().zip(&self.pods) {
            node.take_away(fixture, &[pod]).await;
            delete(node, fixture).await;
        }
    }
}

/// A command by the user of the database: its server refuses root.
fn as_postgres<'a>(program: &'a str, words: &[&'a str]) -> Vec<&'a str> {
    let user = [
        "setpriv",
        "--reuid=postgres",
        "--regid=postgres",
        "--clear-groups",
        program,
    ];
    [&user[..], words].concat()
}

/// A running server.
struct Database {
    server: Beside,
    /// The folder of its socket, which is its own.
    socket: String,
    port: &'static str,
}

// === impl Database ===

impl Database {
    /// Starts the server of a cluster, and waits until it has recovered. Its cache is small and its checkpoints are
    /// frequent, so that data reach the storage all the time.
    async fn start(data: &Path, port: &'static str) -> Self {
        let folder = TempDir::with_prefix("postgres-").expect("a temporary folder");
        let (data, socket) = (
            data.display().to_string(),
            folder.path().display().to_string(),
        );
        run(&["chown", "postgres:postgres", &socket]);
        let mut words = vec!["-D", data.as_str(), "-p", port, "-k", &socket];
        for setting in [
            "listen_addresses=",
            "shared_buffers=16MB",
            "checkpoint_timeout=30s",
            "min_wal_size=32MB",
            "max_wal_size=64MB",
        ] {
            words.extend(["-c", setting]);
        }
        let mut server = Beside::start(folder, &as_postgres(POSTGRES, &words));
        let asked = as_postgres(PG_ISREADY, &["-h", &socket, "-p", port]);
        until_within(READY, "the database to recover", || {
            assert_eq!(server.status(), None, "it ended: {}", server.log());
            attempt(&asked).ok()
        })
        .await;
        Self {
            server,
            socket,
            port,
        }
    }

    /// A command that connects to it.
    fn client<'a>(&'a self, program: &'a str, words: &[&'a str]) -> Vec<&'a str> {
        let server = [
            "-h",
            self.socket.as_str(),
            "-p",
            self.port,
            "-U",
            "postgres",
        ];
        as_postgres(program, &[&server[..], words].concat())
    }

    fn ask(&self, sql: &str) -> String {
        run(&self.client(PSQL, &["-XqAt", "-d", "postgres", "-c", sql]))
    }

    /// Transactions without end, from several clients.
    fn load(&self) -> Beside {
        let folder = TempDir::with_prefix("pgbench-").expect("a temporary folder");
        let words = ["--no-vacuum", "--client=4", "--time=1000000", "postgres"];
        Beside::start(folder, &self.client(PGBENCH, &words))
    }

    /// All that are committed.
    fn transactions(&self) -> BTreeSet<String> {
        self.ask(HISTORY).lines().map(str::to_owned).collect()
    }

    /// Each transaction is there as a whole.
    fn is_balanced(&self) {
        let sums = self.ask(SUMS);
        let different: BTreeSet<_> = sums.trim_end().split('|').collect();
        assert_eq!(different.len(), 1, "sums of the same changes: {sums}");
    }

    async fn stop(self) {
        let status = self.server.end(Signal::INT, READY).await;
        assert!(status.success(), "the database ended with {status}");
    }
}
