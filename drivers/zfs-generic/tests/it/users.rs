//! What else has a zvol or shares a dataset that is to be adopted, on a host that is a folder.
//!
//! The files in it were written by hand, in the form that the kernel, nfs-utils, OpenZFS and samba give them.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use driver_zfs::Export;
use driver_zfs_cli::exec::Command;

use crate::common::{Host, LIO, NVMET, SH, Volume};

const USERS: &str = include_str!("../../src/script/users.sh");
const SHARED: &str = include_str!("../../src/script/shared.sh");
/// The subsystem and the backstore of the connection.
const NQN: &str = "nqn.2003-01.org.example:pvc-1";
const BACKSTORE: &str = "pvc-1";

/// Runs a script as it is, but for where the host is.
async fn run(host: &Host, script: &str, arguments: &[&str]) -> String {
    let root = host.path("").display().to_string();
    let root = root.trim_end_matches('/');
    let mut text = script.to_owned();
    for place in ["sys", "proc", "etc", "var"] {
        text = text.replace(&format!("=/{place}/"), &format!("={root}/{place}/"));
    }
    assert_ne!(text, script);
    let text = format!("look() {{\n{text}\n}}\nlook \"$@\"\n");
    let command = Command::new(SH).arg("-s").args(arguments.to_vec());
    let command = command.stdin(text);
    host.run(&command).await.unwrap().text().trim().to_owned()
}

fn write(host: &Host, path: &str, text: &str) {
    let path = host.path(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn link(host: &Host, path: &str, to: &str) {
    let path = host.path(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    symlink(to, path).unwrap();
}

/// A disk of the kernel, with its node.
fn disk(host: &Host, folder: &str, name: &str, number: &str) {
    write(host, &format!("{folder}/dev"), &format!("{number}\n"));
    write(host, &format!("dev/{name}"), name);
}

/// A host with the zvol `tank/v/pvc-1`, which has a partition, beside another one.
fn host() -> Host {
    let host = Host::new();
    disk(&host, "sys/class/block/zd16", "zd16", "230:16");
    disk(&host, "sys/class/block/zd16/zd16p1", "zd16p1", "230:17");
    link(&host, "sys/class/block/zd16p1", "zd16/zd16p1");
    disk(&host, "sys/class/block/zd160", "zd160", "230:160");
    link(&host, "dev/zvol/tank/v/pvc-1", "../../../zd16");
    let mounts = "24 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n\
                  25 24 230:160 / /other rw shared:2 - ext4 /dev/zd160 rw\n\
                  26 24 0:5 /zd160 /pods/disk rw shared:3 - devtmpfs devtmpfs rw\n";
    write(&host, "proc/self/mountinfo", mounts);
    let header = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
    write(&host, "proc/swaps", header);
    host
}

fn device(host: &Host, path: &str) -> String {
    host.path(&format!("dev/{path}")).display().to_string()
}

async fn users(host: &Host) -> String {
    let (config, disk) = (host.path("cfg"), device(host, "zvol/tank/v/pvc-1"));
    let config = config.display().to_string();
    let arguments = [config.as_str(), disk.as_str(), NQN, BACKSTORE];
    run(host, USERS, &arguments).await
}

/// A namespace of nvmet.
fn namespace(host: &Host, nqn: &str, device: &str) {
    let path = format!("cfg/nvmet/subsystems/{nqn}/namespaces/1/device_path");
    write(host, &path, &format!("{device}\n"));
}

/// A backstore of LIO.
fn backstore(host: &Host, name: &str, device: &str) {
    let path = format!("cfg/target/core/iblock_0/{name}/udev_path");
    write(host, &path, &format!("{device}\n"));
}

fn add(host: &Host, path: &str, line: &str) {
    let text = format!("{}{line}\n", host.text(path));
    std::fs::write(host.path(path), text).unwrap();
}

#[tokio::test]
async fn a_disk_that_nothing_has_but_the_connection_itself_is_free() {
    let host = host();
    assert_eq!(users(&host).await, "");
    let link = device(&host, "zvol/tank/v/pvc-1");
    namespace(&host, NQN, &link);
    backstore(&host, BACKSTORE, &link);
    // These have another disk, or none.
    namespace(&host, "nqn.other", &device(&host, "zd160"));
    namespace(&host, "nqn.empty", "(null)");
    backstore(&host, "other", &device(&host, "zd160"));
    backstore(&host, "empty", "");
    assert_eq!(users(&host).await, "");
}

#[tokio::test]
async fn each_user_of_a_disk_is_named_by_whatever_path_it_has_it() {
    for path in ["zvol/tank/v/pvc-1", "zd16", "zd16p1", "by-id/scsi-1"] {
        let host = host();
        link(&host, "dev/by-id/scsi-1", "../zd16");
        let path = device(&host, path);
        namespace(&host, "nqn.theirs", &path);
        backstore(&host, "theirs", &path);
        let loops = "sys/class/block/loop3/loop/backing_file";
        write(&host, loops, &format!("{path}\n"));
        add(&host, "proc/swaps", &format!("{path} partition 8 0 -2"));
        let said = [
            "used the subsystem nqn.theirs of nvmet".to_owned(),
            "used the backstore theirs of LIO".to_owned(),
            "used the device loop3 on top of it".to_owned(),
            format!("used the swap on {path}"),
        ];
        assert_eq!(users(&host).await, said.join("\n"), "{path}");
    }
}

#[tokio::test]
async fn a_mount_of_a_disk_or_of_its_partition_is_named() {
    for (line, point) in [
        ("27 24 230:16 / /a\\040b rw - ext4 /dev/zd16 rw", "/a\\040b"),
        (
            "27 24 230:17 / /mnt rw shared:9 - xfs /dev/zd16p1 rw",
            "/mnt",
        ),
        ("27 24 0:5 /zd16 /pods/a rw - devtmpfs dev rw", "/pods/a"),
    ] {
        let host = host();
        add(&host, "proc/self/mountinfo", line);
        assert_eq!(users(&host).await, format!("used the mount at {point}"));
    }
    let host = host();
    let node = device(&host, "zd16");
    let line = format!("27 24 0:99 /@ /b rw shared:9 - btrfs {node} rw");
    add(&host, "proc/self/mountinfo", &line);
    assert_eq!(users(&host).await, "used the mount at /b");
}

#[tokio::test]
async fn a_device_on_top_of_a_disk_or_of_its_partition_is_named() {
    for below in ["zd16", "zd16/zd16p1"] {
        let host = host();
        let holder = format!("sys/class/block/{below}/holders/dm-0");
        link(&host, &holder, "../../dm-0");
        assert_eq!(users(&host).await, "used the device dm-0 on top of it");
    }
}

/// As an adoption asks it: the export of the connection is there, and so is one of others.
#[tokio::test]
async fn an_export_of_others_is_seen_beside_the_own_one() {
    for (text, path) in [
        (
            NVMET,
            "cfg/nvmet/subsystems/nqn.old/namespaces/1/device_path",
        ),
        (NVMET, "cfg/target/core/iblock_7/old/udev_path"),
        (LIO, "cfg/target/core/iblock_7/old/udev_path"),
        (LIO, "cfg/nvmet/subsystems/nqn.old/namespaces/1/device_path"),
    ] {
        let host = Host::new();
        let (export, volume) = (host.export(text), Volume::new("tank/v", "pvc-1", 7));
        let subject = volume.subject();
        let name = export.export_name(&subject).unwrap();
        let facts = async || {
            let mut answers = Vec::new();
            for command in export.observe_to_adopt(&subject, &name) {
                answers.push(host.run(&command).await.unwrap());
            }
            export.facts(&subject, &name, &answers).unwrap()
        };
        host.ensure(&export, &volume).await.unwrap().unwrap();
        let free = facts().await;
        assert_eq!(free, host.facts(&export, &volume).await);
        assert_eq!(export.other_users(&free), [""; 0]);
        write(&host, path, "/dev/zvol/tank/v/pvc-1\n");
        let users = export.other_users(&facts().await);
        assert_eq!(users.len(), 1, "{users:?}");
        assert!(users[0].contains("old"), "{users:?}");
    }
}

/// A host whose `zfs` answers these values of `mountpoint`, `sharenfs` and `sharesmb`.
fn sharing(values: [&str; 3]) -> Host {
    let host = Host::new();
    let lines = values.map(|value| format!("{value}\n")).concat();
    let asked = "get -H -o value mountpoint,sharenfs,sharesmb tank/v/pvc-1";
    let program = format!("#!/bin/sh\n[ \"$*\" = '{asked}' ] || exit 9\ncat <<'END'\n{lines}END\n");
    host.program("zfs", &program);
    host
}

async fn sharers(host: &Host, protocol: &str) -> String {
    let arguments = [protocol, "tank/v/pvc-1", "tank_V_pvc_1", "zfs"];
    let root = host.path("").display().to_string();
    let said = run(host, SHARED, &arguments).await;
    said.replace(root.trim_end_matches('/'), "")
}

const PATH: &str = "/tank/v/pvc-1";

#[tokio::test]
async fn zfs_shares_by_the_other_protocol() {
    for (protocol, values, said) in [
        ("nfs", ["off", "off"], ""),
        ("smb", ["off", "off"], ""),
        ("nfs", ["rw=@192.0.2.0/24", "off"], ""),
        ("smb", ["off", "on"], ""),
        ("nfs", ["on", "on"], "used the share by sharesmb=on"),
        ("smb", ["rw", "on"], "used the share by sharenfs=rw"),
    ] {
        let [nfs, smb] = values;
        let host = sharing([PATH, nfs, smb]);
        assert_eq!(
            sharers(&host, protocol).await,
            said,
            "{protocol} {values:?}"
        );
    }
}

#[tokio::test]
async fn an_export_that_is_not_of_zfs_is_named_with_its_file() {
    for (file, line) in [
        ("etc/exports", "/tank/v/pvc-1 192.0.2.7(rw)"),
        ("etc/exports", "\"/tank/v/pvc-1\"\t*(rw)"),
        ("etc/exports.d/by-hand.exports", "/tank/v/pvc-1 *(rw)"),
        ("var/lib/nfs/etab", "/tank/v/pvc-1\t*(rw,sync,wdelay)"),
    ] {
        for protocol in ["nfs", "smb"] {
            let host = sharing([PATH, "off", "off"]);
            write(&host, file, "/tank/v/pvc-10 *(rw)\n# /tank/v/pvc-1\n");
            assert_eq!(sharers(&host, protocol).await, "", "{file}");
            add(&host, file, line);
            let said = format!("used the export of {PATH} in /{file}");
            assert_eq!(sharers(&host, protocol).await, said, "{line}");
        }
    }
    // What ZFS itself exports.
    let host = sharing([PATH, "on", "off"]);
    for file in ["etc/exports.d/zfs.exports", "var/lib/nfs/etab"] {
        write(&host, file, "/tank/v/pvc-1 *(rw)\n");
    }
    assert_eq!(sharers(&host, "nfs").await, "");
}

#[tokio::test]
async fn a_share_of_samba_that_is_not_of_zfs_is_named() {
    let usershare = |path: &str| format!("#VERSION 2\npath={path}\ncomment=\nguest_ok=n\n");
    for protocol in ["nfs", "smb"] {
        let host = sharing([PATH, "off", "off"]);
        write(
            &host,
            "var/lib/samba/usershares/other",
            &usershare("/tank/v/pvc-10"),
        );
        let smb = "[global]\n  path = /x\n# path = /tank/v/pvc-1\n[homes]\n path=/tank/v/pvc-10\n";
        write(&host, "etc/samba/smb.conf", smb);
        assert_eq!(sharers(&host, protocol).await, "");
        write(&host, "var/lib/samba/usershares/photos", &usershare(PATH));
        add(
            &host,
            "etc/samba/smb.conf",
            "[my photos]\n\tPath = \"/tank/v/pvc-1/\"",
        );
        let said = "used the share photos of samba\nused the share my photos of samba";
        assert_eq!(sharers(&host, protocol).await, said);
    }
    // That of ZFS, in small letters, and one of its name that ZFS does not have.
    for (smb, said) in [("on", ""), ("off", "used the share tank_v_pvc_1 of samba")] {
        let host = sharing([PATH, "off", smb]);
        write(
            &host,
            "var/lib/samba/usershares/tank_v_pvc_1",
            &usershare(PATH),
        );
        assert_eq!(sharers(&host, "smb").await, said);
    }
}

#[tokio::test]
async fn a_dataset_that_is_mounted_nowhere_is_shared_by_none() {
    for path in ["none", "legacy", "/"] {
        let host = sharing([path, "off", "off"]);
        write(&host, "etc/exports", "none *(rw)\nlegacy *(rw)\n/ *(rw)\n");
        assert_eq!(sharers(&host, "nfs").await, "", "{path}");
    }
}

/// Nothing can be read there, not even by root: a socket cannot be opened as a file.
fn unreadable(host: &Host, path: &str) {
    let (socket, path) = (host.path("socket"), host.path(path));
    drop(UnixListener::bind(&socket).unwrap());
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::rename(socket, path).unwrap();
}

#[tokio::test]
async fn what_the_login_may_not_read_is_unseen() {
    for protocol in ["nfs", "smb"] {
        let host = sharing([PATH, "off", "off"]);
        for path in ["etc/exports", "var/lib/nfs/etab", "etc/samba/smb.conf"] {
            unreadable(&host, path);
        }
        // As it ends that may not read the folder, or a file in it.
        write(&host, "var/lib/samba/usershares/other", "path=/other\n");
        host.program(
            "grep",
            "#!/bin/sh\n[ \"$1\" != -rlxF ] || exit 2\nexec /bin/grep \"$@\"\n",
        );
        let said = [
            "unseen the login may not read /etc/exports",
            "unseen the login may not read /var/lib/nfs/etab",
            "unseen the login may not read all of /var/lib/samba/usershares",
            "unseen the login may not read /etc/samba/smb.conf",
        ];
        assert_eq!(sharers(&host, protocol).await, said.join("\n"));
    }
}

#[tokio::test]
async fn a_mountpoint_that_each_file_writes_in_another_way_is_not_looked_for() {
    let host = sharing(["/a b", "off", "off"]);
    write(&host, "etc/exports", "/a *(rw)\n");
    for protocol in ["nfs", "smb"] {
        let said = sharers(&host, protocol).await;
        assert!(said.starts_with("unseen its mountpoint has "), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}
