//! A share that a controller mounts for itself, and what is left of that mount after a kill.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{PROGRAM, Place, Server};

/// A machine in which every mount is shared, as a container's are with what Nomad binds into it. Its `mount` binds the
/// folder `share`, since no kernel need have a share here.
const MACHINE: &str = include_str!("own_mounts/machine.sh");

/// The place where the folder `share` is mounted, as that process sees it.
fn mounts(process: u32, share: &Path) -> Vec<String> {
    let table = fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap();
    let fields = |line: &str| -> Vec<String> { line.split(' ').map(str::to_owned).collect() };
    let of_share = |fields: &Vec<String>| {
        fields[3].len() > 1 && share.ends_with(fields[3].trim_start_matches('/'))
    };
    let found = table.lines().map(fields).filter(of_share);
    found.map(|fields| fields[4].clone()).collect()
}

#[test]
fn what_nomad_removes_after_a_killed_controller_holds_nothing_of_its_share() {
    if !rustix::process::geteuid().is_root() {
        node_utils::requirement::this_test_could_not_run("it mounts, and needs root");
        return;
    }
    let place = Place::new();
    for name in ["share", "csi", "bin"] {
        fs::create_dir(place.path(name)).unwrap();
    }
    let (share, csi) = (place.path("share"), place.path("csi"));
    fs::write(share.join("precious"), "data").unwrap();
    let real = Command::new("sh").args(["-c", "command -v mount"]).output();
    let real = String::from_utf8(real.unwrap().stdout).unwrap();
    fs::copy(real.trim(), place.path("bin/real")).unwrap();
    let fake = format!(
        "#!/bin/sh\nfor target in \"$@\"; do :; done\nexec {} --bind {} \"$target\"\n",
        place.path("bin/real").display(),
        share.display()
    );
    fs::write(place.path("bin/mount"), fake).unwrap();
    fs::set_permissions(place.path("bin/mount"), fs::Permissions::from_mode(0o755)).unwrap();
    let config = "driver: nfs-client\nnfs: {shareHost: 127.0.0.1, shareBasePath: /export/csi}\n";
    fs::write(place.path("config.yaml"), config).unwrap();
    let program = place.command();
    let mut command = Command::new("unshare");
    command
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            MACHINE,
            "machine",
        ])
        .arg(program.get_program())
        .args(
            program
                .get_args()
                .filter(|arg| !arg.to_string_lossy().starts_with("--server-socket=")),
        )
        .arg(format!(
            "--server-socket={}",
            csi.join("csi.sock").display()
        ))
        .args(["--csi-mode=controller", "--log-level=info"])
        .env("CSI", &csi)
        .env("BIN", place.path("bin"))
        .stdin(Stdio::piped());
    let mut server = Server::of(&mut command);
    let machine = server.child.id();
    let pid = server.line("serving")["pid"].as_u64().unwrap();
    // What is bound is no NFS, so the program says that it cannot use it, and leaves it where it is.
    server.line("the storage of the connection cannot be used");
    let program = u32::try_from(pid).unwrap();
    let mounted = mounts(program, &share);
    assert_eq!(mounted.len(), 1, "{mounted:?}");
    assert!(!Path::new(&mounted[0]).starts_with(&csi), "{mounted:?}");
    kill_process(
        Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(),
        Signal::KILL,
    )
    .unwrap();
    while Path::new(&format!("/proc/{pid}/mountinfo")).exists()
        && fs::read_to_string(format!("/proc/{pid}/mountinfo")).is_ok_and(|text| !text.is_empty())
    {
        std::thread::yield_now();
    }
    let below = fs::read_to_string(format!("/proc/{machine}/mountinfo")).unwrap();
    let below = below
        .lines()
        .filter(|line| line.contains(&format!("{}/", csi.display())));
    assert_eq!(below.collect::<Vec<_>>(), [""; 0]);
    // As Nomad ends a plugin: with all that is mounted there.
    let remove = Command::new("nsenter")
        .arg(format!("--mount=/proc/{machine}/ns/mnt"))
        .args(["rm", "-rf", "--"])
        .arg(&csi)
        .stderr(Stdio::null())
        .status();
    remove.unwrap();
    assert!(!csi.join("csi.sock").exists());
    assert_eq!(fs::read(share.join("precious")).unwrap(), b"data");
}

/// Runs a program where every `mount` is this one.
const WITHOUT_MOUNT: &str = r#"
/bin/mount --bind "$FAKE" "$(command -v mount)" || exit 99
exec "$@"
"#;

#[test]
fn a_check_whose_share_cannot_be_mounted_leaves_no_folder() {
    if !rustix::process::geteuid().is_root() {
        node_utils::requirement::this_test_could_not_run("it mounts, and needs root");
        return;
    }
    let place = Place::new();
    let (fake, tried) = (place.path("mount"), place.path("tried"));
    let text = format!(
        "#!/bin/sh\necho \"$@\" >>{}\necho 'mount.nfs: no server' >&2\nexit 32\n",
        tried.display()
    );
    fs::write(&fake, text).unwrap();
    fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).unwrap();
    let share = place.path("new/share");
    for (driver, section) in [("nfs-client", "nfs"), ("smb-client", "smb")] {
        let config = format!(
            "driver: {driver}\n{section}: {{shareHost: 127.0.0.1, shareBasePath: /export/csi, controllerBasePath: {}}}\n",
            share.display()
        );
        fs::write(place.path("config.yaml"), config).unwrap();
        let output = Command::new("unshare")
            .args([
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                WITHOUT_MOUNT,
                "machine",
            ])
            .args([PROGRAM, "check", "--driver-config-file"])
            .arg(place.path("config.yaml"))
            .env("FAKE", &fake)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(said.contains("no server"), "{said}");
        let tried = fs::read_to_string(&tried).unwrap();
        assert!(
            tried.trim_end().ends_with(share.to_str().unwrap()),
            "{tried}"
        );
        assert!(
            !place.path("new").exists(),
            "{driver}: a check makes nothing"
        );
    }
}

/// A container, whose root filesystem is a layer over that of the machine.
const CONTAINER: &str = include_str!("own_mounts/container.sh");

#[test]
fn a_new_base_in_the_layer_of_a_container_is_refused_unless_the_configuration_says_that_it_may_be_lost()
 {
    if !rustix::process::geteuid().is_root() {
        node_utils::requirement::this_test_could_not_run("it mounts, and needs root");
        return;
    }
    let place = Place::new();
    for name in ["layers", "files"] {
        fs::create_dir(place.path(name)).unwrap();
    }
    let config = place.path("files").join("config.yaml");
    let check = |base: &str, more: &str| {
        let text = format!(
            "driver: local-hostpath\nlocal-hostpath: {{shareBasePath: {base}, controllerBasePath: {base}{more}}}\n"
        );
        fs::write(&config, text).unwrap();
        let output = Command::new("unshare")
            .args([
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                CONTAINER,
                "container",
                PROGRAM,
            ])
            .arg("check")
            .arg(format!("--driver-config-file={}", config.display()))
            .env("LAYERS", place.path("layers"))
            .env("FILES", place.path("files"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), format!("{text}{said}"))
    };
    let (code, said) = check("/var/lib/omnibus-csi-test-base", "");
    if code == Some(99) {
        node_utils::requirement::this_test_could_not_run("it mounts an overlay");
        return;
    }
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("overlayfs")
            && said.contains("only if it may be lost, set `createBase: true`"),
        "{said}"
    );
    // Nor is it advised where the administrator makes the base: a directory in the layer goes with it, too.
    let (code, said) = check("/var/lib/omnibus-csi-test-base", ", createBase: false");
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("goes with this container") && !said.contains("make the directory"),
        "{said}"
    );
    // A directory of the image is in the layer, too.
    let (code, said) = check("/var/lib", "");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("overlayfs"), "{said}");
    // One that may be lost.
    let (code, said) = check("/var/lib/omnibus-csi-test-base", ", createBase: true");
    assert_eq!(code, Some(0), "{said}");
}
