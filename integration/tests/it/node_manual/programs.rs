//! The programs that run, where, with which options, and within which time.

use std::collections::BTreeMap;
use std::time::Duration;

use integration::machine::Machine;
use integration::observe::{free_port, get};
use integration::wait;
use tonic::Code;

use super::Bench;

const WHAT: &str = "which programs a node runs for a volume made by hand";

/// A volume context, and what the node runs for it on recorders that do nothing.
const TABLE: [(&str, &[&str]); 7] = [
    (
        "nfs server=nas share=/a",
        &["here: mount -t nfs -o noatime,defaults nas:/a /node/staging"],
    ),
    (
        "nfs server=fd00::1 share=/a",
        &["here: mount -t nfs -o noatime,defaults [fd00::1]:/a /node/staging"],
    ),
    (
        "smb server=nas share=/a/b",
        &["here: mount -t cifs -o noatime,defaults,guest //nas/a/b /node/staging"],
    ),
    (
        "lustre server=10.0.0.1@tcp share=/fs/a",
        &["host: mount -t lustre -o noatime,defaults 10.0.0.1@tcp:/fs/a /node/staging"],
    ),
    (
        "objectivefs filesystem=s3://pool/a env.ACCESS_KEY=k",
        &[
            "host: busctl",
            "host: mount.objectivefs -o noatime pool/a /node/staging",
        ],
    ),
    (
        "oneclient server=provider space_names=a,b space_ids=7 token=t",
        &[
            "host: busctl",
            "host: oneclient -H provider noatime --space a --space b --space-id 7 /node/staging",
        ],
    ),
    (
        "zfs-local zfs_asset_name=omnibus-csi-test/a",
        &[
            "host: zfs get -Hp -o property,value,source type,mountpoint,readonly,atime,devices,exec,\
             setuid,context,fscontext,defcontext,rootcontext omnibus-csi-test/a",
        ],
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_of_volume_runs_its_program_where_that_belongs() {
    let flags = "node: {mount: {mount_flags: noatime}}";
    let Some(bench) = Bench::new(WHAT, flags, &[]).await else {
        return;
    };
    for (text, lines) in TABLE {
        let staged = bench.stage(text).await;
        assert_eq!(staged.lines, lines, "{text}: {:?}", staged.answer);
        assert!(staged.answer.is_err(), "{text}: nothing was mounted");
        bench.unstage().await;
    }
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_runs_here_only_where_the_host_does_not_have_it() {
    for (has_program, line) in [
        (
            false,
            "here: mount.objectivefs -o noatime pool/a /node/staging",
        ),
        (
            true,
            "host: mount.objectivefs -o noatime pool/a /node/staging",
        ),
    ] {
        let Some(machine) = Machine::new(WHAT) else {
            return;
        };
        if has_program {
            machine.boot_without_systemd();
        } else {
            machine.remove_from_host("mount.objectivefs");
        }
        let flags = "node: {mount: {mount_flags: noatime}}";
        let Some(bench) = Bench::of(machine, flags, &[]).await else {
            return;
        };
        let staged = bench.stage("objectivefs filesystem=s3://pool/a").await;
        assert_eq!(staged.lines, [line], "{:?}", staged.answer);
        bench.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_environment_says_whose_programs_run() {
    const NFS: &str = "nfs server=nas share=/a";
    const LUSTRE: &str = "lustre server=mgs share=/a";
    const ISCSI: &str = "iscsi portal=127.0.0.1 iqn=iqn.2003-01.org.example:a lun=0";
    for (variable, value, text, first) in [
        ("USE_HOST_MOUNT_TOOLS", "", NFS, "here: mount"),
        ("USE_HOST_MOUNT_TOOLS", "1", NFS, "host: mount"),
        ("USE_HOST_MOUNT_TOOLS", "", LUSTRE, "host: mount"),
        ("USE_HOST_MOUNT_TOOLS", "0", LUSTRE, "here: mount"),
        ("ISCSIADM_HOST_PATH", "", ISCSI, "host: iscsiadm"),
        (
            "ISCSIADM_HOST_PATH",
            "/usr/local/sbin/other-iscsiadm",
            ISCSI,
            "host: other-iscsiadm",
        ),
        ("ISCSIADM_HOST_STRATEGY", "chroot", ISCSI, "host: iscsiadm"),
    ] {
        let Some(bench) = Bench::new(WHAT, "", &[(variable, value)]).await else {
            return;
        };
        let staged = bench.stage(text).await;
        let ran = staged.lines.first().map(String::as_str).unwrap_or_default();
        assert!(ran.starts_with(first), "{variable}={value:?}: {staged:?}");
        bench.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_hangs_is_ended_when_the_environment_says_so() {
    // What hangs does so for ten minutes, and no other limit is as short.
    const SHORT: Duration = Duration::from_mins(2);
    // A program has to begin within it, on a busy machine too; looking at the disk comes before.
    const LIMIT: &str = "5000";
    let config = "node: {format: {ext4: {customOptions: [-L, slow]}}}";
    for (variable, text) in [
        ("MOUNT_DEFAULT_TIMEOUT", "nfs server=nas share=/slow"),
        (
            "FILESYSTEM_DEFAULT_TIMEOUT",
            "zfs-local zfs_asset_name=tank/disk",
        ),
    ] {
        let Some(mut machine) = Machine::new(WHAT) else {
            return;
        };
        machine.add_zvol("tank/disk");
        let Some(bench) = Bench::of(machine, config, &[(variable, LIMIT)]).await else {
            return;
        };
        let staged = bench.stage(text).await;
        assert!(staged.took < SHORT, "{variable}: {:?}", staged.took);
        let slow = staged.lines.iter().any(|line| line.contains("slow"));
        assert!(slow, "{variable}: {staged:?}");
        let status = staged.answer.expect_err("it hangs");
        let codes = [Code::DeadlineExceeded, Code::Unavailable, Code::Internal];
        assert!(codes.contains(&status.code()), "{variable}: {status:?}");
        wait::until("the end of what hung", || {
            let children = bench.server.process().children();
            children.is_empty().then_some(())
        })
        .await;
        bench.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_iscsiadm_that_hangs_is_ended_and_tried_again() {
    let Some(mut bench) = Bench::new(WHAT, "", &[("ISCSI_DEFAULT_TIMEOUT", "2000")]).await else {
        return;
    };
    let slow = "iscsi portal=127.0.0.1 iqn=iqn.2003-01.org.example:slow lun=0";
    let request = bench.stage_request(slow);
    let mut node = bench.server.client().node;
    // It is tried for a minute; that it is tried a second time shows that the first was ended.
    let staging = tokio::spawn(async move { node.node_stage_volume(request).await });
    wait::until("a second attempt", || {
        (bench.machine.ran().len() > 1).then_some(())
    })
    .await;
    bench.server.kill().await;
    let answer = staging.await.expect("it is answered");
    assert!(answer.is_err(), "nothing was attached: {answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blank_disk_is_formatted_and_a_used_one_checked_with_the_configured_options() {
    let Some(mut machine) = Machine::new(WHAT) else {
        return;
    };
    machine.add_zvol("tank/disk");
    let admin = free_port();
    let config = "
node:
  format: {ext4: {customOptions: [-L, mine]}}
  mount: {checkFilesystem: {ext4: {enabled: true, customOptions: [-f], customFilesystemOptions: [-v]}}}";
    let address = format!("127.0.0.1:{admin}");
    let variables = [("OMNIBUS_CSI_METRICS_ADDRESS", address.as_str())];
    let bench = Bench::of(machine, config, &variables)
        .await
        .expect("a server");
    let disk = "zfs-local zfs_asset_name=tank/disk";
    let first = bench.stage(disk).await;
    assert!(first.answer.is_ok(), "{first:?}");
    let made = first.lines.iter().find(|line| line.contains("mkfs"));
    let made = made.expect("it was formatted");
    assert!(
        made.starts_with("here: mkfs.ext4 -m 0 -E nodiscard -L mine /dev/loop"),
        "{made}"
    );
    let again = bench.stage(disk).await;
    assert!(again.answer.is_ok() && again.lines.is_empty(), "{again:?}");
    bench.unstage().await;
    let next = bench.stage(disk).await;
    assert!(next.answer.is_ok(), "{next:?}");
    assert!(
        !next.lines.iter().any(|line| line.contains("mkfs")),
        "{next:?}"
    );
    let checked = next.lines.iter().find(|line| line.contains("fsck"));
    let checked = checked.expect("it was checked");
    assert!(
        checked.contains("-f") && checked.contains("-v"),
        "{checked}"
    );
    bench.unstage().await;
    let metrics = get(admin, "/metrics").await.expect("metrics");
    let counted = "omnibus_csi_commands_total{program=\"mkfs.ext4\",outcome=\"done\"} 1";
    assert!(metrics.contains(counted), "{metrics}");
    bench.end().await;
}

/// Two volumes that differ in one key.
const KEYS: &[(&str, &str)] = &[
    ("nfs server=nas share=/a", "nfs server=nas share=/b"),
    ("nfs server=nas share=/a", "nfs server=san share=/a"),
    ("smb server=nas share=/a", "smb server=san share=/a"),
    ("smb server=nas share=/a", "smb server=nas share=/b"),
    ("lustre server=nas share=/a", "lustre server=nas share=/b"),
    ("lustre server=nas share=/a", "lustre server=san share=/a"),
    ("hostpath path=/usr", "hostpath path=/no/such/path"),
    (
        "zfs-local zfs_asset_name=a/b",
        "zfs-local zfs_asset_name=a/c",
    ),
    (
        "objectivefs filesystem=s3://a/b",
        "objectivefs filesystem=s3://a/c",
    ),
    (
        "objectivefs filesystem=s3://a/b",
        "objectivefs filesystem=s3://a/b env.KEY=1",
    ),
    ("oneclient server=a", "oneclient server=b"),
    (
        "oneclient server=a space_names=x",
        "oneclient server=a space_names=y",
    ),
    (
        "oneclient server=a space_ids=x",
        "oneclient server=a space_ids=y",
    ),
    ("oneclient server=a", "oneclient server=a token=t"),
    (
        "iscsi portal=127.0.0.1 iqn=iqn.2003-01.org:a lun=0",
        "iscsi portal=127.0.0.2 iqn=iqn.2003-01.org:a lun=0",
    ),
    (
        "iscsi portal=127.0.0.1 iqn=iqn.2003-01.org:a lun=0",
        "iscsi portal=127.0.0.1 portals=127.0.0.2 iqn=iqn.2003-01.org:a lun=0",
    ),
    (
        "iscsi portal=127.0.0.1 iqn=iqn.2003-01.org:a lun=0",
        "iscsi portal=127.0.0.1 iqn=iqn.2003-01.org:b lun=0",
    ),
];

/// A volume, and a key of its secret with a value.
const SECRETS: &[(&str, &str, &str)] = &[
    ("nfs server=nas share=/a", "mount_flags", "vers=4"),
    ("objectivefs filesystem=s3://a/b", "env.KEY", "k"),
    ("oneclient server=a", "token", "t"),
    (
        "iscsi portal=127.0.0.1 iqn=iqn.2003-01.org:a lun=0",
        "node-db.-o",
        "x",
    ),
    (
        "nfs server=nas share=/a",
        "democratic-csi.org/node-manual/mount_flags",
        "vers=4",
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_of_a_volume_and_of_its_secret_makes_a_difference() {
    let Some(bench) = Bench::new(WHAT, "", &[]).await else {
        return;
    };
    for (one, other) in KEYS {
        let mut seen = Vec::new();
        for text in [one, other] {
            let staged = bench.stage(text).await;
            seen.push((staged.message(&bench), staged.lines));
            if staged.answer.is_ok() {
                bench.unstage().await;
            }
        }
        assert_ne!(seen[0], seen[1], "{one} or {other}");
    }
    for (text, key, value) in SECRETS {
        let mut seen = Vec::new();
        for secrets in [
            BTreeMap::new(),
            BTreeMap::from([((*key).to_owned(), (*value).to_owned())]),
        ] {
            let mut request = bench.stage_request(text);
            request.secrets = secrets;
            let staged = bench.send(request).await;
            seen.push((staged.message(&bench), staged.lines));
        }
        assert_ne!(seen[0], seen[1], "secret {key}");
    }
    bench.end().await;
}
