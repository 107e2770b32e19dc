//! `try` as a newcomer, a script and an impatient user run it: real children, real mounts.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// A user who may do nothing.
const NOBODY: u32 = 65534;

/// A folder for the temporary folders of trials, and for configurations beside it.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        // The user nobody has to be able to work in it.
        fs::set_permissions(place.0.path(), Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(place.tmp()).unwrap();
        fs::set_permissions(place.tmp(), Permissions::from_mode(0o1777)).unwrap();
        place
    }

    fn tmp(&self) -> PathBuf {
        self.0.path().join("tmp")
    }

    fn base(&self) -> PathBuf {
        self.0.path().join("base")
    }

    fn config(&self, more: &str) -> String {
        let (file, base) = (self.0.path().join("config.yaml"), self.base());
        let base = base.display();
        let text = format!(
            "driver: local-hostpath\nlocal-hostpath:\n  shareBasePath: {base}\n  \
             controllerBasePath: {base}\n{more}"
        );
        fs::write(&file, text).unwrap();
        format!("--driver-config-file={}", file.display())
    }

    fn command(&self, flags: &[&str]) -> Command {
        self.command_of(Path::new(env!("CARGO_BIN_EXE_omnibus-csi")), flags)
    }

    fn command_of(&self, program: &Path, flags: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .arg("try")
            .args(flags)
            .env_clear()
            .env("TMPDIR", self.tmp());
        command.current_dir(self.tmp()).stdin(Stdio::null());
        command
    }

    fn run(&self, flags: &[&str]) -> Output {
        self.command(flags).output().unwrap()
    }

    /// The program as the user nobody, whatever user runs the test.
    fn run_as_nobody(&self, flags: &[&str]) -> Output {
        // The one that cargo built may lie where that user may not look.
        let program = self.0.path().join("omnibus-csi");
        // By another process: a child that another test forks at that moment would inherit the file, open
        // for writing, and what is being written cannot be run.
        let mut copy = Command::new("cp");
        copy.arg(env!("CARGO_BIN_EXE_omnibus-csi")).arg(&program);
        assert!(copy.status().unwrap().success());
        let mut command = self.command_of(&program, flags);
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command.output().unwrap()
    }

    fn nothing_is_left(&self) {
        let left: Vec<_> = fs::read_dir(self.tmp())
            .unwrap()
            .map(|e| e.unwrap().path())
            .collect();
        assert!(left.is_empty(), "{left:?}");
        self.nothing_is_mounted();
    }

    fn nothing_is_mounted(&self) {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(
            !mounts.contains(self.0.path().to_str().unwrap()),
            "{mounts}"
        );
    }
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!(
            "{error}: {text}\n{}",
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

fn steps<'a>(report: &'a Value, result: &str) -> Vec<&'a str> {
    let steps = report["steps"].as_array().unwrap().iter();
    steps
        .filter(|step| step["result"] == result)
        .map(|step| step["step"].as_str().unwrap())
        .collect()
}

/// Whether trials can mount here. Says so if not, and fails where everything is required.
fn can_mount(output: &Output) -> bool {
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    let refused = words.contains("only root may mount") || words.contains("may not mount");
    if refused {
        assert_eq!(output.status.code(), Some(1), "{words}");
        node_utils::requirement::this_test_could_not_run(&words);
    }
    !refused
}

#[test]
fn a_volume_lives_its_whole_life_and_leaves_nothing() {
    let place = Place::new();
    let output = place.run(&["--json"]);
    if !can_mount(&output) {
        return;
    }
    let report = json(&output);
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    assert_eq!(report["schema"], "omnibus-csi/try/1");
    assert_eq!(report["result"], "ok");
    assert_eq!(report["failure"], Value::Null);
    assert_eq!(report["leftBehind"], Value::Array(Vec::new()));
    assert_eq!(steps(&report, "ok").len(), 33, "{report:#}");
    assert_eq!(steps(&report, "not-offered"), ["attach", "detach"]);
    let folder = Path::new(report["folder"].as_str().unwrap());
    assert_eq!(
        folder.parent().unwrap(),
        place.tmp().canonicalize().unwrap()
    );
    place.nothing_is_left();
}

#[test]
fn without_a_terminal_it_is_plain_text_of_100_columns() {
    let place = Place::new();
    let output = place.run(&[]);
    if !can_mount(&output) {
        return;
    }
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.is_ascii() && !text.contains('\u{1b}') && !text.contains('\r'),
        "{text:?}"
    );
    assert!(text.lines().all(|line| line.len() <= 100), "{text}");
    assert!(text.contains("A volume lived its whole life in "), "{text}");
    assert!(text.contains("ok      Take a snapshot"), "{text}");
    assert!(
        text.contains("-       Attach it to this node                not offered"),
        "{text}"
    );
}

#[test]
fn what_is_not_advertised_is_not_passed_off_as_tried() {
    let place = Place::new();
    let output = place.run(&["--json", "--csi-version=1.0.0"]);
    if !can_mount(&output) {
        return;
    }
    let report = json(&output);
    assert_eq!(report["result"], "ok", "{report:#}");
    assert_eq!(
        steps(&report, "not-offered"),
        ["attach", "expand", "health", "detach"]
    );
}

#[test]
fn what_cannot_be_tried_is_refused_before_anything_is_changed() {
    let place = Place::new();
    let broken = place.config("  dirPermissionsMode: \"999\"\n");
    let by_hand = place.0.path().join("by-hand.yaml");
    fs::write(&by_hand, "driver: node-manual\n").unwrap();
    let by_hand = format!("--driver-config-file={}", by_hand.display());
    for (config, said) in [
        (broken, "local-hostpath.dirPermissionsMode"),
        (by_hand, "makes no volumes"),
    ] {
        let output = place.run(&["--json", &config]);
        assert_eq!(output.status.code(), Some(64));
        let report = json(&output);
        assert_eq!(report["result"], "refused");
        let message = report["failure"]["message"].as_str().unwrap();
        assert!(message.contains(said), "{message}");
    }
    for wrong in [
        "--size=none",
        "--parameter=novalue",
        "--csi-version=0.3.0",
        "--timeout=0",
    ] {
        assert_eq!(place.run(&[wrong]).status.code(), Some(64), "{wrong}");
    }
    place.nothing_is_left();
    assert!(!place.base().exists());
}

#[test]
fn a_user_who_is_not_root_can_try_it_too() {
    let place = Place::new();
    let output = place.run_as_nobody(&["--json"]);
    if !can_mount(&output) {
        return;
    }
    let report = json(&output);
    assert_eq!(report["result"], "ok", "{report:#}");
    assert_eq!(report["seclusion"], "user-and-mounts");
    place.nothing_is_left();
}

#[test]
fn a_storage_that_may_not_be_written_fails_at_create_and_says_why() {
    let place = Place::new();
    fs::create_dir(place.base()).unwrap();
    fs::set_permissions(place.base(), Permissions::from_mode(0o555)).unwrap();
    let config = place.config("");
    let output = place.run_as_nobody(&["--json", &config]);
    if !can_mount(&output) {
        return;
    }
    let report = json(&output);
    assert_eq!(output.status.code(), Some(1), "{report:#}");
    assert_eq!(report["result"], "failed");
    assert_eq!(steps(&report, "failed"), ["create"]);
    let failure = &report["failure"];
    assert!(
        failure["message"]
            .as_str()
            .unwrap()
            .contains("Permission denied"),
        "{failure:#}"
    );
    assert!(
        failure["meaning"].as_str().unwrap().contains("Pending"),
        "{failure:#}"
    );
    assert!(
        failure["advice"].to_string().contains("writable"),
        "{failure:#}"
    );
    assert_eq!(report["leftBehind"], Value::Array(Vec::new()), "{report:#}");
    assert_eq!(fs::read_dir(place.base()).unwrap().count(), 0);
    place.nothing_is_left();

    let text = place.run_as_nobody(&[&config]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("FAILED  Create a volume"), "{text}");
    assert!(
        text.contains("what to do") && text.lines().all(|line| line.len() <= 100),
        "{text}"
    );
}

#[test]
fn volumes_of_others_are_left_alone() {
    let place = Place::new();
    let precious = place.base().join("v/precious");
    fs::create_dir_all(&precious).unwrap();
    fs::write(precious.join("file"), "precious").unwrap();
    let config = place.config("");
    let output = place.run(&["--json", &config]);
    if !can_mount(&output) {
        return;
    }
    assert_eq!(json(&output)["result"], "ok");
    assert_eq!(fs::read_dir(place.base().join("v")).unwrap().count(), 1);

    // A configuration under which every name leads to the same volume.
    let config = place.config("_private: {csi: {volume: {idTemplate: precious}}}\n");
    let report = json(&place.run(&["--json", &config]));
    assert_eq!(steps(&report, "failed"), ["create"], "{report:#}");
    assert_eq!(report["leftBehind"], Value::Array(Vec::new()), "{report:#}");
    assert_eq!(
        fs::read_to_string(precious.join("file")).unwrap(),
        "precious"
    );
    place.nothing_is_left();
}

#[test]
fn secrets_are_in_no_output() {
    let place = Place::new();
    let secrets = place.0.path().join("secrets");
    fs::write(&secrets, "password=canary-7731\nmount_flags=noatime\n").unwrap();
    let secrets = format!("--secrets-file={}", secrets.display());
    let output = place.run(&["--json", "--log-level=silly", &secrets]);
    if !can_mount(&output) {
        return;
    }
    assert_eq!(json(&output)["result"], "ok");
    for text in [&output.stdout, &output.stderr] {
        assert!(!String::from_utf8_lossy(text).contains("canary-7731"));
    }
    assert!(!output.stderr.is_empty(), "there is a log");
}

/// Starts a trial and stops it right after it has shown this step; `None` if it cannot mount.
fn held_after(place: &Place, flags: &[&str], step: &str) -> Option<(Child, impl Read + use<>)> {
    let mut command = place.command(flags);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains(step) {
        line.clear();
        if lines.read_line(&mut line).unwrap() == 0 {
            assert!(
                !can_mount(&child.wait_with_output().unwrap()),
                "it ended before: {step}"
            );
            return None;
        }
    }
    signal(&child, Signal::STOP);
    Some((child, lines))
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

#[test]
fn an_interrupted_trial_cleans_up() {
    for (sent, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let place = Place::new();
        let Some((mut child, mut rest)) = held_after(&place, &[], "Write to it as a pod would")
        else {
            return;
        };
        signal(&child, sent);
        signal(&child, Signal::CONT);
        let mut text = String::new();
        rest.read_to_string(&mut text).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{text}");
        assert!(text.contains("It was interrupted."), "{text}");
        assert!(
            text.contains("nothing: everything that was made is gone"),
            "{text}"
        );
        place.nothing_is_left();
    }
}

#[test]
fn a_killed_trial_leaves_no_mount_and_the_next_one_cleans_up_after_it() {
    let place = Place::new();
    let config = place.config("");
    let volumes = || fs::read_dir(place.base().join("v")).unwrap().count();
    for flags in [&[config.as_str()][..], &[]] {
        let Some((mut child, _rest)) = held_after(&place, flags, "Publish the restored volume")
        else {
            return;
        };
        place.nothing_is_mounted();
        signal(&child, Signal::KILL);
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
        place.nothing_is_mounted();
    }
    assert_eq!(volumes(), 2, "the original and its copy");
    assert_eq!(fs::read_dir(place.tmp()).unwrap().count(), 2);
    // Another storage: only what was in the temporary folder goes.
    assert_eq!(json(&place.run(&["--json"]))["result"], "ok");
    assert_eq!(volumes(), 2);
    let report = json(&place.run(&["--json", &config]));
    assert_eq!(report["result"], "ok", "{report:#}");
    let steps = report["steps"].as_array().unwrap();
    let recovered = steps.iter().find(|step| step["step"] == "recover").unwrap();
    assert_eq!(recovered["detail"], "1 run");
    assert_eq!(volumes(), 0);
    place.nothing_is_left();
}

#[test]
fn a_nas_that_does_not_answer_is_said_to_be_out_of_reach_and_no_run_to_have_been_killed() {
    let place = Place::new();
    // It takes connections, and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let file = place.0.path().join("nas.yaml");
    let flag = format!("--driver-config-file={}", file.display());
    for config in [
        format!(
            "driver: zfs-generic-nfs\nsshConnection: {{host: 127.0.0.1, port: {port}, username: root, password: secret}}\n\
             zfs: {{datasetParentName: tank/v, detachedSnapshotsDatasetParentName: tank/s}}\n\
             nfs: {{shareHost: 127.0.0.1, shareStrategy: setDatasetProperties}}\n"
        ),
        format!(
            "driver: freenas-api-nfs\nhttpConnection: {{protocol: http, host: 127.0.0.1, port: {port}, apiKey: 1-key, allowInsecure: true}}\n\
             zfs: {{datasetParentName: tank/v, detachedSnapshotsDatasetParentName: tank/s}}\n\
             nfs: {{shareHost: 127.0.0.1}}\n"
        ),
    ] {
        fs::write(&file, &config).unwrap();
        let output = place.run(&["--json", "--timeout=3", &flag]);
        let report = json(&output);
        assert_eq!(steps(&report, "failed"), ["reach"], "{report:#}");
        let text = report["failure"].to_string();
        assert!(text.contains("The storage cannot be reached"), "{text}");
        assert!(!text.contains("killed"), "{text}");
        place.nothing_is_mounted();
    }
}

/// A kernel without NFS can try the half of the controller, and what is cleaned up after a node that cannot mount.
#[test]
fn a_share_that_the_node_cannot_mount_fails_where_it_is_staged_and_leaves_nothing() {
    if !rustix::process::geteuid().is_root() {
        node_utils::requirement::could_not_run("a trial over nfs-client", "only root may mount");
        return;
    }
    let place = Place::new();
    let file = place.0.path().join("share.yaml");
    let base = place.base();
    let text = format!(
        "driver: nfs-client\nnfs: {{shareHost: nas.example, shareBasePath: {base}, controllerBasePath: {base}, \
         createBase: true}}\n",
        base = base.display()
    );
    fs::write(&file, text).unwrap();
    let programs = place.0.path().join("programs");
    fs::create_dir(&programs).unwrap();
    let refuses = "#!/bin/sh\ncase $* in '-t nfs '*) echo \"mount.nfs: no route to $5\" >&2; exit 32 ;; esac\n\
                   exec /usr/bin/mount \"$@\"\n";
    let mount = programs.join("mount");
    fs::write(&mount, refuses).unwrap();
    fs::set_permissions(&mount, Permissions::from_mode(0o755)).unwrap();
    // The programs of that folder come first, for this trial alone.
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-c"])
        .arg("mount --bind \"$1\" /usr/local/sbin && shift && exec \"$@\"")
        .arg("sh")
        .arg(&programs)
        .arg(env!("CARGO_BIN_EXE_omnibus-csi"))
        .args(["try", "--json"])
        .arg(format!("--driver-config-file={}", file.display()))
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("TMPDIR", place.tmp())
        .current_dir(place.tmp())
        .stdin(Stdio::null());
    let output = command.output().unwrap();
    if !can_mount(&output) {
        return;
    }
    let report = json(&output);
    assert_eq!(output.status.code(), Some(1), "{report:#}");
    assert_eq!(steps(&report, "failed"), ["stage"], "{report:#}");
    let well = steps(&report, "ok");
    for step in ["create", "attach"] {
        assert!(well.contains(&step), "{step}: {report:#}");
    }
    let failure = report["failure"].to_string();
    assert!(
        failure.contains("no route to nas.example:")
            && failure.contains("this node cannot mount it"),
        "{failure}"
    );
    assert_eq!(report["leftBehind"], Value::Array(Vec::new()), "{report:#}");
    assert_eq!(fs::read_dir(base.join("v")).unwrap().count(), 0);
    place.nothing_is_left();
}

#[test]
fn a_fresh_repository_of_restic_is_made_by_the_first_snapshot_of_a_trial() {
    if !Path::new("/usr/bin/restic").exists() {
        node_utils::requirement::could_not_run("a trial with a fresh repository", "no restic");
        return;
    }
    let place = Place::new();
    let repository = place.0.path().join("repository");
    let config = place.config(&format!(
        "  snapshots:\n    default_driver: restic\n    restic: {{env: {{RESTIC_REPOSITORY: {}, RESTIC_PASSWORD: x, \
         RESTIC_CACHE_DIR: {}}}}}\ninstance_id: here\n",
        repository.display(),
        place.0.path().join("cache").display()
    ));
    let output = place.run(&["--json", &config]);
    if !can_mount(&output) {
        return;
    }
    let report = json(&output);
    assert_eq!(report["result"], "ok", "{report:#}");
    let text = report.to_string();
    assert!(!text.contains("run that was killed"), "{text}");
    assert!(repository.join("config").exists());
    place.nothing_is_left();
}

#[test]
fn what_is_kept_stays_for_a_look() {
    let place = Place::new();
    // As nobody: root's mounts would stay as well, in the mounts of the machine.
    let output = place.run_as_nobody(&["--json", "--keep"]);
    if !can_mount(&output) {
        return;
    }
    let report = json(&output);
    assert_eq!(report["result"], "ok", "{report:#}");
    assert_eq!(steps(&report, "kept").first(), Some(&"unpublish"));
    let volumes = Path::new(report["folder"].as_str().unwrap()).join("storage/v");
    assert_eq!(fs::read_dir(volumes).unwrap().count(), 3);
    place.nothing_is_mounted();
}
