//! Daemons that systemd starts on the machine this runs on, from a process namespace of its own as a container has it.
//!
//! It makes a unit and a mount, and leaves nothing behind. It needs root and systemd: it is run in the lab, by
//! `cargo test -p node-utils --test daemons_in_the_lab -- --ignored --test-threads 1`.
#![expect(
    clippy::disallowed_methods,
    reason = "the container around the script is no part of the product"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// A program that leaves a daemon, and one that fails.
const PROGRAM: &str = include_str!("daemons_in_the_lab/program.sh");

/// Starts the program with the script of the product, in a process namespace that ends with it.
fn start(folder: &Path, word: &str, seconds: &str) -> Output {
    let within = if word == "slow" { "3" } else { "60" };
    Command::new("timeout")
        .args([
            "-s",
            "KILL",
            within,
            "unshare",
            "--pid",
            "--fork",
            "--kill-child",
        ])
        .args([
            "sh",
            "-c",
            include_str!("../src/mounting/daemon.sh"),
            "sh",
            seconds,
        ])
        .arg(folder.join("program"))
        .arg(word)
        .arg(folder)
        .env("KEY", "a \"b'$(c)")
        .output()
        .expect("timeout")
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("program");
    fs::write(&program, PROGRAM).expect("a program");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a mode");
    folder
}

/// The units of this product, and its files.
fn left() -> String {
    let units = ["list-units", "--all", "--no-legend", "omnibus-csi-mount-*"];
    let units = Command::new("systemctl").args(units).output();
    let units = units.expect("systemctl").stdout;
    let files = fs::read_dir("/run").expect("a folder").flatten();
    let files = files.map(|file| file.file_name().to_string_lossy().into_owned());
    let files: Vec<_> = files
        .filter(|name| name.starts_with("omnibus-csi-mount"))
        .collect();
    format!("{}{}", String::from_utf8_lossy(&units), files.join("\n"))
}

fn until_nothing_is_left() {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !left().is_empty() {
        assert!(Instant::now() < deadline, "{}", left());
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
#[ignore = "starts units of systemd"]
fn a_daemon_lives_on_when_the_container_that_asked_for_it_ends() {
    let folder = folder();
    assert_eq!(left(), "");

    let started = start(folder.path(), "good", "30");
    assert!(started.status.success(), "{started:?}");
    let daemon = fs::read_to_string(folder.path().join("daemon")).expect("its number");
    let daemon = Path::new("/proc").join(daemon.trim());
    let group = fs::read_to_string(daemon.join("cgroup")).expect("it lives");
    assert!(group.contains("/omnibus-csi-mount-"), "{group}");
    let shown = Command::new("systemctl")
        .args(["show", "omnibus-csi-mount-*"])
        .output();
    let shown = String::from_utf8_lossy(&shown.expect("systemctl").stdout).into_owned();
    assert!(
        shown.contains("ExecStart") && !shown.contains("KEY"),
        "{shown}"
    );
    let again = start(folder.path(), "good", "30");
    assert!(
        !again.status.success(),
        "one at that place is enough: {again:?}"
    );
    let number = daemon.file_name().expect("a number");
    let killed = Command::new("kill").arg(number).status();
    assert!(killed.expect("kill").success());
    until_nothing_is_left();

    let word = start(folder.path(), "$x", "30");
    assert_eq!(word.status.code(), Some(64), "as it was given: {word:?}");
    until_nothing_is_left();

    let bad = start(folder.path(), "bad", "30");
    assert_eq!(bad.status.code(), Some(65), "{bad:?}");
    assert_eq!(
        String::from_utf8_lossy(&bad.stderr),
        "the passphrase is wrong\n"
    );
    until_nothing_is_left();
}

#[test]
#[ignore = "starts units of systemd"]
fn a_start_that_takes_too_long_leaves_nothing_although_its_container_is_gone() {
    let folder = folder();
    let slow = start(folder.path(), "slow", "2");
    assert!(!slow.status.success(), "{slow:?}");
    until_nothing_is_left();
}
