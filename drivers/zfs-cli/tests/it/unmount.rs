//! What becomes of a filesystem that a login may not mount or unmount, also with a ZFS that does not say
//! so.

use crate::fake::{call, dataset};
use async_trait::async_trait;
use driver_core::transfer::Bytes;
use driver_core::{BackendIdentity, Error};
use driver_zfs::backend::{Backend as _, Incoming};
use driver_zfs::name::SnapshotRef;
use driver_zfs::observed::Request;
use driver_zfs::step::{Plan, Step};
use driver_zfs_cli::Cli;
use driver_zfs_cli::ZfsTools;
use exec::{Batch, Command, Local, Output, RunError, Runner, Variable};

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

    async fn stream_output(
        &self,
        command: &exec::Command,
    ) -> Result<Box<dyn exec::OutputStream>, exec::RunError> {
        self.inner.stream_output(&self.first(command)).await
    }

    async fn run_with_input(
        &self,
        command: &exec::Command,
        input: &mut dyn exec::InputStream,
    ) -> Result<exec::Output, exec::RunError> {
        self.inner.run_with_input(&self.first(command), input).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_zfs_that_says_not_why_it_cannot_mount_or_unmount_is_tried_by_sudo_but_for_root() {
    // Read in the sources: as 2.0 says it of any reason, and 0.8 after what umount(8), mount(8) of
    // util-linux or its own mount.zfs have said.
    let unmount = "cannot unmount '/tank/v/a': unmount failed";
    let umount = "umount: /tank/v/a: must be superuser to unmount.\ncannot unmount '/tank/v/a': umount failed";
    let umount_type =
        "umount: only root can use \"--types\" option\ncannot unmount '/tank/v/a': umount failed";
    let mount = "mount: only root can use \"--no-canonicalize\" option\ncannot mount 'tank/v/a': Invalid argument";
    let mount_zfs = "filesystem 'tank/v/a' can not be mounted: Operation not permitted\ncannot mount 'tank/v/a': Invalid argument";
    let no_folder = "cannot mount '/tank/v/a': failed to create mountpoint";
    let busy = "umount: /tank/v/a: target is busy.\ncannot unmount '/tank/v/a': umount failed";
    // What is only called so is not in use.
    let called_busy = "umount: /tank/v/busy: must be superuser to unmount.\ncannot unmount '/tank/v/busy': umount failed";
    let other = "mount: /tank/v/a: unknown filesystem type 'zfs'.\ncannot mount 'tank/v/a': No such device or address";
    let read_only = "cannot mount '/tank/v/a': failed to create mountpoint: Read-only file system";
    let withheld =
        "cannot unmount '/tank/v/a': unmount failed\ncannot destroy 'tank/v/a': permission denied";
    for (complaint, user, fine) in [
        (unmount, 1000, true),
        (umount, 1000, true),
        (umount_type, 1000, true),
        (mount, 1000, true),
        (mount_zfs, 1000, true),
        (no_folder, 1000, true),
        (called_busy, 1000, true),
        (unmount, 0, false),
        (mount_zfs, 0, false),
        (no_folder, 0, false),
        (busy, 1000, false),
        (other, 1000, false),
        (read_only, 1000, false),
        (withheld, 1000, false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let said = folder.path().join("said");
        std::fs::write(&said, format!("{complaint}\n")).unwrap();
        let zfs = format!(
            "[ -n \"$RAISED\" ] || {{ cat {} >&2; exit 1; }}",
            said.display()
        );
        let raised = "shift 2; RAISED=yes exec \"$@\"";
        crate::fake::program(folder.path(), "sudo", raised);
        crate::fake::program(folder.path(), "id", &format!("echo {user}"));
        let zfs = crate::fake::program(folder.path(), "zfs", &zfs);
        let sudo = folder.path().join("sudo");
        let tools = ZfsTools::new(Some(&zfs), sudo.to_str(), false).unwrap();
        let runner = Found {
            inner: Local::new(),
            path: format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", folder.path().display()),
        };
        let cli = Cli::new(runner, tools, BackendIdentity("test".into()));
        let cli = cli.locking_in(folder.path().to_str().unwrap());
        for step in [
            Step::Mount(dataset("tank/v/a")),
            Step::DestroyDataset(dataset("tank/v/a")),
        ] {
            let mut plan = Plan::about(dataset("tank/v/a"));
            plan.step(step);
            let done = cli.apply(&call(), &plan, &Request::of([])).await;
            assert_eq!(done.is_ok(), fine, "{user}: {complaint}");
        }
    }
}

/// A stream that ends at once.
#[derive(Debug)]
struct Nothing;

#[async_trait]
impl Bytes for Nothing {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        Ok(None)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_received_by_a_login_that_may_not_mount_is_mounted_by_a_step_of_its_own() {
    // As ZFS on Linux, read in its sources: all has arrived, and then it is not mounted.
    let zfs = "[ $1 = receive ] || exit 0; cat >/dev/null
case \" $* \" in *' -u '*) exit 0 ;; esac
echo \"cannot mount '/tank/v/b': Insufficient privileges\" >&2; exit 1";
    let folder = tempfile::tempdir().unwrap();
    let zfs = crate::fake::program(folder.path(), "zfs", zfs);
    let tools = ZfsTools::new(Some(&zfs), None, false).unwrap();
    let cli = Cli::new(Local::new(), tools, BackendIdentity("test".into()));
    let cli = cli.locking_in(folder.path().to_str().unwrap());
    let to = dataset("tank/v/b");
    let mut plan = Plan::about(to.clone());
    plan.step(Step::Copy {
        from: SnapshotRef::parse("tank/v/a@s").unwrap(),
        to,
        properties: Vec::new(),
    });
    let copied = cli.apply(&call(), &plan, &Request::of([])).await;
    assert!(copied.is_ok(), "{copied:?}");
    for goes_on in [false, true] {
        let incoming = Incoming {
            to: SnapshotRef::parse("tank/v/b@s").unwrap(),
            properties: Vec::new(),
            goes_on,
        };
        let received = cli.receive(&call(), &incoming, &mut Nothing).await;
        assert!(received.is_ok(), "{received:?}");
    }
}
