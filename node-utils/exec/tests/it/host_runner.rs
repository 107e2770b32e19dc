//! The host runner: what it starts, and that what it starts works.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use exec::{
    Command, DIRECTORIES, Effect, Host, HostAccess, Local, Program, RunError, Runner, Step,
    Variable,
};

const ISCSIADM: Program = Program::constant("iscsiadm");

fn install(root: &Path, path: &str, text: &str) {
    let file = root.join(path.trim_start_matches('/'));
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A `chroot` and an `nsenter` that say how they were called instead of doing it.
async fn talking_wrappers() -> (tempfile::TempDir, Local) {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"#!/bin/sh
printf '%s\n' "${0##*/}" "$@" "PATH=$PATH" "IN=$(/bin/cat)"
"#;
    // Written by a child: a file that this process had open for writing may still be open in the
    // child of another test when it is to be executed here ("text file busy").
    let write = r#"cd "$1" && tee chroot >nsenter && chmod 755 chroot nsenter"#;
    let path = folder.path().to_str().unwrap();
    let sh = Command::new(Program::constant("sh"))
        .args(["-c", write, "sh", path])
        .stdin(script);
    Local::new().perform(&sh).await.unwrap();
    let local = Local::searching([path]);
    (folder, local)
}

async fn lines(runner: &impl Runner, command: &Command) -> Vec<String> {
    let output = runner.run_checked(command).await.unwrap();
    output.text().lines().map(str::to_owned).collect()
}

fn login() -> Command {
    Command::new(ISCSIADM)
        .arg("--login")
        .secret_stdin("s3cret")
        .secret_arg("shh".into())
}

#[tokio::test]
async fn chroot_is_given_the_absolute_path_the_arguments_the_input_and_the_hosts_path() {
    let (_folder, local) = talking_wrappers().await;
    let host = tempfile::tempdir().unwrap();
    install(host.path(), "/usr/sbin/iscsiadm", "");
    let runner = Host::new(
        local,
        HostAccess::Chroot {
            root: host.path().to_owned(),
        },
    );
    let root = host.path().to_str().unwrap();
    let path = format!("PATH={}", DIRECTORIES.join(":"));
    let called = lines(&runner, &login()).await;
    assert_eq!(
        called,
        [
            "chroot",
            root,
            "/usr/sbin/iscsiadm",
            "--login",
            "shh",
            &path,
            "IN=s3cret"
        ]
    );
}

/// A `/proc` with one process, a daemon `iscsid` of the host with the namespaces in `ns`.
fn proc_with_daemon(ns: &Path) -> tempfile::TempDir {
    let proc = tempfile::tempdir().unwrap();
    for folder in ["self/ns", "1", "77"] {
        fs::create_dir_all(proc.path().join(folder)).unwrap();
    }
    symlink(ns, proc.path().join("77/ns")).unwrap();
    let user = fs::read_link(ns.join("user")).unwrap();
    symlink(user, proc.path().join("self/ns/user")).unwrap();
    for (file, text) in [
        (
            "77/stat",
            &*format!("77 (iscsid) S {}9 0\n", "0 ".repeat(18)),
        ),
        ("77/status", "CapEff:\t000001ffffffffff\n"),
        ("77/cgroup", "0::/a\n"),
        ("1/cgroup", "0::/b\n"),
    ] {
        fs::write(proc.path().join(file), text).unwrap();
    }
    proc
}

fn iscsid(proc: &Path) -> HostAccess {
    HostAccess::Daemon {
        name: "iscsid".into(),
        proc: proc.to_owned(),
    }
}

#[tokio::test]
async fn nsenter_enters_the_daemons_namespaces_and_finds_the_program_there() {
    let (_folder, local) = talking_wrappers().await;
    let proc = proc_with_daemon(Path::new("/proc/self/ns"));
    install(&proc.path().join("77/root"), "/usr/local/sbin/iscsiadm", "");
    let called = lines(&Host::new(local, iscsid(proc.path())), &login()).await;
    // Descriptors of this process, so that the number of the daemon does not matter any more.
    let ours = format!("/proc/{}/fd/", std::process::id());
    assert!(
        called[1].starts_with(&format!("--mount={ours}")),
        "{called:?}"
    );
    assert!(
        called[2].starts_with(&format!("--net={ours}")),
        "{called:?}"
    );
    assert_eq!(called[3..6], ["--", "/usr/local/sbin/iscsiadm", "--login"]);
}

/// setns(2) needs root; as any other user the real tool must refuse, and say so.
#[tokio::test]
async fn the_real_nsenter_enters_by_the_descriptors() {
    let id = Command::new(Program::constant("id")).arg("-u");
    let root = Local::new().run_checked(&id).await.unwrap().text().trim() == "0";
    let proc = proc_with_daemon(Path::new("/proc/self/ns"));
    symlink("/", proc.path().join("77/root")).unwrap();
    let runner = Host::new(Local::new(), iscsid(proc.path()));
    let ended = runner.run_checked(&id).await;
    if root {
        assert_eq!(ended.unwrap().text(), "0\n");
        let mut stream = runner.stream_output(&id).await.unwrap();
        assert_eq!(stream.next().await.unwrap().unwrap(), b"0\n");
    } else {
        assert!(ended.unwrap_err().stderr().contains("nsenter"));
    }
}

#[tokio::test]
async fn a_program_or_a_host_that_is_missing_is_an_error_without_effect() {
    let nowhere = PathBuf::from("/no/such/host");
    let ways = [
        HostAccess::Chroot {
            root: nowhere.clone(),
        },
        HostAccess::Daemon {
            name: "no-such-daemon".into(),
            proc: PathBuf::from("/proc"),
        },
        HostAccess::Init { proc: nowhere },
    ];
    for way in ways {
        let runner = Host::new(Local::new(), way);
        let error = runner.run(&Command::new(ISCSIADM)).await.unwrap_err();
        assert!(matches!(error, RunError::NotFound { .. }), "{error:?}");
        assert_eq!(error.effect(), Effect::None);
    }
}

#[tokio::test]
async fn a_list_with_a_missing_program_starts_nothing_of_the_list() {
    let (_folder, local) = talking_wrappers().await;
    let host = tempfile::tempdir().unwrap();
    install(host.path(), "/usr/bin/there", "");
    let runner = Host::new(
        local,
        HostAccess::Chroot {
            root: host.path().to_owned(),
        },
    );
    let commands = [
        Command::new(Program::constant("there")),
        Command::new(Program::constant("missing")),
    ];
    let batch = runner.run_all(&commands).await;
    assert!(
        matches!(batch.steps(), [Step::Failed(_), Step::NotStarted]),
        "{batch:?}"
    );
    assert_eq!(batch.effect(), Effect::None);
}

#[tokio::test]
async fn a_command_may_bring_its_own_path() {
    let (_folder, local) = talking_wrappers().await;
    let host = tempfile::tempdir().unwrap();
    install(host.path(), "/bin/zfs", "");
    let runner = Host::new(
        local,
        HostAccess::Chroot {
            root: host.path().to_owned(),
        },
    );
    let command =
        Command::new(Program::constant("zfs")).env(Variable::constant("PATH"), "/opt/bin");
    assert!(
        lines(&runner, &command)
            .await
            .contains(&"PATH=/opt/bin".to_owned())
    );
}

/// chroot(2) and setns(2) need root; as any other user the real tools must refuse, and say so.
#[tokio::test]
async fn the_real_chroot_runs_the_program_or_says_that_it_may_not() {
    let id = Command::new(Program::constant("id")).arg("-u");
    let root = Local::new().run_checked(&id).await.unwrap().text().trim() == "0";
    let runner = Host::new(
        Local::new(),
        HostAccess::Chroot {
            root: PathBuf::from("/"),
        },
    );
    let ended = runner.run_checked(&id).await;
    if root {
        assert_eq!(ended.unwrap().text(), "0\n");
    } else {
        assert!(ended.unwrap_err().stderr().contains("chroot"));
    }
}
