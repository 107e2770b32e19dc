//! Targets by the tools of their stacks, on fake tools: they check their input as the real ones do, and
//! change a tree of files.

use std::sync::Arc;

use crate::common::{Host, Volume};

const TARGETCLI: &str = "driver: zfs-generic-iscsi
iscsi:
  targetPortal: 192.0.2.1
  shareStrategy: targetCli
  shareStrategyTargetCli:
    basename: iqn.2003-01.org.example
    tpg:
      attributes: {authentication: 1, generate_node_acls: true}
      auth: {userid: me, password: 'a$b&c*!(x)\\%', mutual_userid: you, mutual_password: secret}
    block: {attributes: {emulate_tpu: 1, emulate_write_cache: 1}}
";

const NVMETCLI: &str = "driver: zfs-generic-nvmeof
nvmeof:
  transport: tcp://192.0.2.1:4420
  shareStrategy: nvmetCli
  shareStrategyNvmetCli:
    basename: nqn.2003-01.org.example
    configPath: '{etc}/nvmet.json'
    ports: [1, 2]
    subsystem: {attributes: {allow_any_host: true, model: csi}}
";

const SPDK: &str = "driver: zfs-generic-nvmeof
nvmeof:
  transport: tcp://192.0.2.1:4420
  shareStrategy: spdkCli
  shareStrategySpdkCli:
    basename: nqn.2003-01.org.example
    configPath: '{etc}/spdk.json'
    bdev: {type: uring}
    subsystem: {attributes: {allow_any_host: true, max_namespaces: 4}}
    listeners: [{traddr: 192.0.2.1}, {traddr: '2001:db8::1', trsvcid: 4421}]
";

fn host() -> Host {
    let host = Host::new();
    starts(&host);
    host
}

fn starts(host: &Host) {
    for path in [
        "cfg/nvmet/ports/1/subsystems",
        "cfg/nvmet/ports/2/subsystems",
        "spdk",
    ] {
        std::fs::create_dir_all(host.path(path)).unwrap();
    }
}

#[tokio::test]
async fn every_tool_makes_it_makes_it_again_when_it_was_lost_and_removes_it() {
    for text in [TARGETCLI, NVMETCLI, SPDK] {
        let host = host();
        let export = host.export(text);
        let volume = Volume::new("tank/v", "pvc-1", 7);
        let nothing = (host.tree("cfg"), host.tree("spdk"));
        host.ensure(&export, &volume).await.unwrap().unwrap();
        let facts = host.facts(&export, &volume).await;
        assert_eq!(facts.missing, [""; 0], "{text}");
        assert!(facts.present.len() > 1, "{facts:?}");
        let there = (host.tree("cfg"), host.tree("spdk"));
        assert_eq!(host.ensure(&export, &volume).await.unwrap().unwrap(), 0);

        host.starts_again();
        std::fs::remove_dir_all(host.path("spdk")).unwrap();
        std::fs::remove_dir_all(host.path("etc")).unwrap();
        std::fs::create_dir(host.path("etc")).unwrap();
        starts(&host);
        assert_eq!(host.ensure(&export, &volume).await.unwrap().unwrap(), 1);
        assert_eq!((host.tree("cfg"), host.tree("spdk")), there, "{text}");

        host.remove(&export, &volume).await.unwrap();
        let facts = host.facts(&export, &volume).await;
        assert_eq!(facts.present, [""; 0], "{text}");
        let mut left = (host.tree("cfg"), host.tree("spdk"));
        left.0.retain(|(path, _)| !path.ends_with("/target/iscsi"));
        // Which namespace was made last, and the folder of all devices.
        left.1.retain(|(path, _)| {
            !path.contains("/uuid") && !path.contains("/bdev.") && !path.ends_with("/subsystem")
        });
        assert_eq!(left, nothing, "{text}");
        assert_eq!(host.remove(&export, &volume).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn targetcli_saves_once_when_it_exits_and_is_made_to_save_where_it_does_not() {
    let host = host();
    let (export, volume) = (host.export(TARGETCLI), Volume::new("tank/v", "pvc-1", 7));
    let saves = || std::fs::read_to_string(host.path("saves")).unwrap_or_default();
    let is_saved = || host.text("etc/targetcli.json").contains("pvc-1");
    for (number, file) in ["unused", "no-save-on-exit"].into_iter().enumerate() {
        std::fs::write(host.path(file), "").unwrap();
        let before = saves().lines().count();
        host.ensure(&export, &volume).await.unwrap().unwrap();
        assert!(is_saved(), "{number}");
        host.remove(&export, &volume).await.unwrap();
        assert!(!is_saved(), "{number}");
        assert_eq!(saves().lines().count(), before + 2, "{number}");
    }
}

#[tokio::test]
async fn spdk_shows_the_same_disk_to_nodes_whenever_it_is_made() {
    let host = host();
    let (export, volume) = (host.export(SPDK), Volume::new("tank/v", "pvc-1", 7));
    host.ensure(&export, &volume).await.unwrap().unwrap();
    let uuid = host.text("spdk/uuid");
    assert_eq!(uuid.trim().len(), 36, "{uuid}");
    let listen = "spdk/subsystem/nqn.2003-01.org.example:pvc-1/listen";
    assert_eq!(host.text(&format!("{listen}/192.0.2.1:4420")).trim(), "tcp");
    assert_eq!(
        host.text(&format!("{listen}/2001:db8::1:4421")).trim(),
        "tcp"
    );
    assert!(host.text("etc/spdk.json").contains("pvc-1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_that_are_made_at_the_same_time_are_all_there() {
    for text in [TARGETCLI, NVMETCLI, SPDK] {
        let host = Arc::new(host());
        let tasks: Vec<_> = (0..4)
            .map(|number| {
                let host = Arc::clone(&host);
                tokio::spawn(async move {
                    let export = host.export(text);
                    let volume = Volume::new("tank/v", &format!("pvc-{number}"), number);
                    host.ensure(&export, &volume).await.unwrap().unwrap();
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        for number in 0..4 {
            let volume = Volume::new("tank/v", &format!("pvc-{number}"), number);
            let facts = host.facts(&host.export(text), &volume).await;
            assert_eq!(facts.missing, [""; 0], "{text}");
        }
    }
}

#[tokio::test]
async fn a_tool_whose_work_cannot_be_seen_has_not_done_it() {
    let host = host();
    // The shell that looks is killed; the tool says that all is well.
    host.program("awk", "#!/bin/sh\nkill -9 $PPID\n");
    let (export, volume) = (host.export(SPDK), Volume::new("tank/v", "pvc-1", 7));
    let facts = driver_zfs_generic::Facts {
        missing: vec!["bdev".to_owned()],
        ..Default::default()
    };
    let subject = volume.subject();
    let export_name = driver_zfs::Export::export_name(&export, &subject).unwrap();
    let acts = driver_zfs::Export::ensure(&export, &subject, &export_name, &facts).unwrap();
    let [_, driver_zfs::export::Act::Do(command)] = &acts[..] else {
        panic!("{acts:?}")
    };
    let error = host.run(command).await.unwrap_err();
    assert!(error.stderr().contains("cannot see"), "{error}");
}

#[tokio::test]
async fn a_user_with_sudo_runs_scripts_by_it_without_being_asked_for_a_password() {
    for text in [TARGETCLI, NVMETCLI, SPDK] {
        let strategy = text.find("    basename:").unwrap();
        let (start, end) = text.split_at(strategy);
        let text = format!("{start}    sudoEnabled: true\n{end}");
        let host = host();
        host.program("sudo", include_str!("tools/sudo.sh"));
        let (export, volume) = (host.export(&text), Volume::new("tank/v", "pvc-1", 7));
        host.ensure(&export, &volume).await.unwrap().unwrap();
        assert_eq!(host.facts(&export, &volume).await.missing, [""; 0]);
        host.remove(&export, &volume).await.unwrap();
        // Three looks and two changes, all of them.
        let seen = host.text("sudoed");
        assert_eq!(seen.lines().count(), 5, "{seen}");
        host.program(
            "sudo",
            "#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n",
        );
        let subject = volume.subject();
        let export_name = driver_zfs::Export::export_name(&export, &subject).unwrap();
        for look in driver_zfs::Export::observe(&export, &subject, &export_name) {
            let error = host.run(&look).await.unwrap_err();
            assert!(error.stderr().contains("password"), "{error}");
        }
    }
}
