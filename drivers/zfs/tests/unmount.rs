//! What becomes of a filesystem that a login may not unmount, with a ZFS that does not say so.

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]

#[allow(dead_code, reason = "each test takes what it needs")]
mod common;
#[allow(dead_code, reason = "each test takes what it needs")]
#[path = "common/fake.rs"]
mod fake;

use async_trait::async_trait;
use driver_core::BackendIdentity;
use driver_zfs::Cli;
use driver_zfs::backend::Backend as _;
use driver_zfs::cli::ZfsTools;
use driver_zfs::observed::Question;
use driver_zfs::step::{Plan, Step};
use exec::{Batch, Command, Local, Output, RunError, Runner, Variable};
use fake::{call, dataset};

const PATH: Variable = Variable::constant("PATH");

/// A machine that finds the programs of a folder first.
#[derive(Debug)]
struct Found {
    inner: Local,
    path: String,
}

impl Found {
    fn first(&self, command: &Command) -> Command {
        command.clone().env(PATH, self.path.clone())
    }
}

#[async_trait]
impl Runner for Found {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        self.inner.run(&self.first(command)).await
    }

    async fn run_all(&self, commands: &[Command]) -> Batch {
        let commands: Vec<_> = commands.iter().map(|command| self.first(command)).collect();
        self.inner.run_all(&commands).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_zfs_that_does_not_say_why_it_cannot_unmount_is_tried_by_sudo_unless_it_is_root() {
    // As 2.0 says it of any reason, and 0.8 after what umount(8) has said.
    let umount = "umount: /tank/v/a: must be superuser to unmount.\ncannot unmount '/tank/v/a': umount failed";
    let unmount = "cannot unmount '/tank/v/a': unmount failed";
    let busy = "umount: /tank/v/a: target is busy.\ncannot unmount '/tank/v/a': umount failed";
    let withheld =
        "cannot unmount '/tank/v/a': unmount failed\ncannot destroy 'tank/v/a': permission denied";
    for (complaint, user, fine) in [
        (unmount, 1000, true),
        (umount, 1000, true),
        (unmount, 0, false),
        (busy, 1000, false),
        (withheld, 1000, false),
    ] {
        let zfs = format!("[ -n \"$RAISED\" ] || {{ echo \"{complaint}\" >&2; exit 1; }}");
        let folder = tempfile::tempdir().unwrap();
        let raised = "shift 2; RAISED=yes exec \"$@\"";
        fake::program(folder.path(), "sudo", raised);
        fake::program(folder.path(), "id", &format!("echo {user}"));
        let zfs = fake::program(folder.path(), "zfs", &zfs);
        let sudo = folder.path().join("sudo");
        let tools = ZfsTools::new(Some(&zfs), sudo.to_str(), false).unwrap();
        let runner = Found {
            inner: Local::new(),
            path: format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", folder.path().display()),
        };
        let cli = Cli::new(runner, tools, BackendIdentity("test".into()));
        let cli = cli.locking_in(folder.path().to_str().unwrap());
        let mut plan = Plan::about(dataset("tank/v/a"));
        plan.step(Step::DestroyDataset(dataset("tank/v/a")));
        let done = cli.apply(&call(), &plan, &Question::of([])).await;
        assert_eq!(done.is_ok(), fine, "{user}: {complaint}");
    }
}
