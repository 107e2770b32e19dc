//! The lab itself: every kind of volume attached with the bare commands and no program of ours.
//!
//! If this fails, the storage side or the readings of the kernel are wrong, not the program. It
//! also proves that [`Leftovers`] sees what an unstage could leave behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::command::run;
use super::content;
use super::fixture::{Access, Export, ExportKind, Fixture};
use super::leftovers::Leftovers;
use super::life;
use super::storage::configfs::names;

/// The time that udev and multipathd may take. Minutes, not seconds: on an emulated machine that others slow
/// down each of udev's workers takes seconds, and what is waited for is the test's own preparation.
const PREPARATION: Duration = Duration::from_mins(2);
/// The same, for `udevadm`.
const UDEV: &str = "--timeout=120";

/// Attaches, writes, detaches and reads back on the storage side, for each kind in turn.
///
/// # Panics
/// If one of them does not work as the other cells expect it to.
pub async fn every_way(volumes: impl IntoIterator<Item = (&'static str, ExportKind, Access)>) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, export_kind, access) in volumes {
        life::step(name);
        let fixture = export_kind.fixture(name, access);
        let before = Leftovers::read();
        let pod = attach(&fixture, folder.path());
        life::write(&fixture, &pod, &content::bytes(7, life::LENGTH));
        let left = Leftovers::read().beyond(&before);
        assert!(
            !left.is_empty() || access == Access::Block,
            "{name}: nothing is seen of it"
        );
        for word in seen_of(&fixture) {
            assert!(
                left.iter().any(|line| line.starts_with(word)),
                "{name}: no {word} in {left:#?}"
            );
        }
        detach(&fixture, &pod);
        Leftovers::back_to(&before, name).await;
        fixture.remove();
        content::same(
            &content::bytes(7, life::LENGTH),
            &life::stored(&fixture),
            name,
        );
    }
}

/// With which words [`Leftovers`] has to speak of an attached volume.
fn seen_of(fixture: &Fixture) -> &'static [&'static str] {
    match fixture.export {
        Export::None => &[],
        Export::Nfs(_) => &["mount", "nfs server", "nfs volume"],
        Export::Smb(_) => &["mount", "smb"],
        Export::Iscsi(..) => &[
            "iscsi_session",
            "iscsi_connection",
            "iscsi_host",
            "scsi_disk",
            "disk sd",
            "record",
        ],
        Export::Nvmeof(..) => &["nvme ", "nvme-subsystem", "disk nvme"],
    }
}

/// Attaches with the bare commands; where a pod would use it.
pub(super) fn attach(fixture: &Fixture, folder: &Path) -> PathBuf {
    let context = &fixture.volume.volume_context;
    let get = |key: &str| context.get(key).cloned().unwrap_or_default();
    let device = match (&fixture.export, get("node_attach_driver").as_str()) {
        (Export::Iscsi(target, lun), _) => {
            for portal in &target.portals {
                log_in(fixture, &target.iqn, portal);
            }
            let (address, port) = target.portals[0].rsplit_once(':').expect("a port");
            let address = address.trim_matches(['[', ']']);
            format!(
                "/dev/disk/by-path/ip-{address}:{port}-iscsi-{}-lun-{lun}",
                target.iqn
            )
        }
        (Export::Nvmeof(subsystem, _), _) => {
            for (address, service) in &subsystem.ports {
                let (nqn, service) = (&subsystem.nqn, service.to_string());
                run(&[
                    "nvme", "connect", "-t", "tcp", "-a", address, "-s", &service, "-n", nqn,
                ]);
            }
            "/dev/disk/by-id/nvme-uuid.".to_owned() + &namespace_uuid(&subsystem.nqn)
        }
        (_, "hostpath") => get("path"),
        (_, "nfs") => format!("{}:{}", get("server"), get("share")),
        (_, "smb") => format!("//{}/{}", get("server"), get("share")),
        _ if fixture.is_device() => fixture.zvol().device().display().to_string(),
        _ => get("zfs_asset_name"),
    };
    if device.starts_with("/dev/") {
        run(&["udevadm", "wait", UDEV, &device]);
    }
    let Access::Mount(kind) = fixture.access else {
        return PathBuf::from(device);
    };
    let pod = folder.join(&fixture.volume.volume_id);
    fs::create_dir(&pod).expect("a folder in a new folder");
    let point = pod.display().to_string();
    let several = matches!(&fixture.export, Export::Iscsi(target, _) if target.portals.len() > 1);
    // A disk that a map is over is the map's.
    let device = if several { map_over(&device) } else { device };
    if fixture.is_device() {
        run(&[&format!("mkfs.{kind}"), "-q", &device]);
    }
    match get("node_attach_driver").as_str() {
        "hostpath" => run(&["mount", "--bind", &device, &point]),
        "smb" => {
            let flags = fixture.secrets.get("mount_flags");
            let flags = flags.map_or("guest", String::as_str);
            run(&["mount", "-t", "cifs", "-o", flags, &device, &point])
        }
        "zfs-local" if !fixture.is_device() => {
            run(&["zfs", "set", "mountpoint=legacy", &device]);
            run(&["mount", "-t", "zfs", &device, &point])
        }
        _ => run(&["mount", "-t", kind, &device, &point]),
    };
    pod
}

fn log_in(fixture: &Fixture, iqn: &str, portal: &str) {
    let node = ["iscsiadm", "-m", "node", "-T", iqn, "-p", portal];
    let with = |rest: &[&str]| {
        let words: Vec<_> = node.iter().copied().chain(rest.iter().copied()).collect();
        run(&words);
    };
    with(&["-o", "new"]);
    for (key, value) in &fixture.secrets {
        let setting = key.trim_start_matches("node-db.");
        with(&["-o", "update", "--name", setting, "--value", value]);
    }
    with(&["--login"]);
}

/// Detaches with the bare commands.
pub(super) fn detach(fixture: &Fixture, pod: &Path) {
    if matches!(fixture.access, Access::Mount(_)) {
        run(&["umount", &pod.display().to_string()]);
    }
    match &fixture.export {
        Export::Iscsi(target, _) => {
            if target.portals.len() > 1 {
                run(&["multipath", "-F"]);
            }
            for operation in [&["--logout"][..], &["-o", "delete"]] {
                let mut words = vec!["iscsiadm", "-m", "node", "-T", &target.iqn];
                words.extend(operation);
                run(&words);
            }
        }
        Export::Nvmeof(subsystem, _) => {
            run(&["nvme", "disconnect", "-n", &subsystem.nqn]);
        }
        _ => {}
    }
}

/// The multipath map over the disk of a path.
fn map_over(path: &str) -> String {
    let disk = fs::canonicalize(path).expect("a path leads to a disk");
    let disk = disk
        .file_name()
        .expect("a disk has a name")
        .to_string_lossy()
        .into_owned();
    let deadline = Instant::now() + PREPARATION;
    loop {
        let holders = names(&Path::new("/sys/block").join(&disk).join("holders"));
        if let [map] = &holders[..] {
            let device = format!("/dev/{map}");
            run(&["udevadm", "wait", UDEV, &device]);
            return device;
        }
        assert!(Instant::now() < deadline, "no map comes over {disk}");
        run(&["udevadm", "settle", UDEV]);
    }
}

fn namespace_uuid(nqn: &str) -> String {
    let root = Path::new("/sys/kernel/config/nvmet/subsystems").join(nqn);
    let uuid = fs::read_to_string(root.join("namespaces/1/device_uuid"));
    uuid.expect("a namespace has an identity").trim().to_owned()
}
