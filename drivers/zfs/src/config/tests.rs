//! Configurations that people have, and those that cannot work.

use super::*;
use driver_core::config::NoEnvironment;

fn read(extra: &str) -> Result<Settings, ConfigError> {
    let text = format!(
        "driver: zfs-generic-iscsi\ninstance_id: one\nzfs:\n  datasetParentName: tank/k8s/v\n  \
         detachedSnapshotsDatasetParentName: tank/k8s/s\n  {extra}\n"
    );
    let document = Document::parse(&text, &NoEnvironment)?;
    let config = ZfsConfig::read(&document)?;
    config.settings(&document.common()?, VolumeKind::Zvol, None)
}

#[test]
fn a_size_of_blocks_may_be_a_number_and_is_16k_unless_given() {
    assert_eq!(read("zvolBlocksize: 8192").unwrap().policy.block, 8192);
    assert_eq!(read("").unwrap().policy.block, 16 << 10);
    assert!(read("zvolBlocksize: 5K").is_err());
}

#[test]
fn compression_and_dedup_are_read_however_yaml_sees_them() {
    let policy = read("zvolDedup: on\n  zvolCompression: false")
        .unwrap()
        .policy;
    assert_eq!(policy.dedup.unwrap().as_str(), "on");
    assert_eq!(policy.compression.unwrap().as_str(), "off");
    let policy = read("zvolDedup: ''\n  zvolCompression: zstd-3")
        .unwrap()
        .policy;
    assert!(policy.dedup.is_none());
    assert_eq!(policy.compression.unwrap().as_str(), "zstd-3");
    assert!(policy.thin);
}

#[test]
fn permissions_are_commands_without_a_shell() {
    let policy = read(
        "datasetPermissionsMode: \"0770\"\n  datasetPermissionsUser: 0\n  \
         datasetPermissionsGroup: wheel\n  datasetPermissionsAcls: [\"-m u:kube:rwx\"]",
    );
    let permissions = policy.unwrap().policy.permissions;
    assert_eq!(permissions[0], Permission::Mode(0o770));
    assert_eq!(permissions[1], Permission::Owner("0:wheel".into()));
    let acl = ["-m", "u:kube:rwx"].map(str::to_owned);
    assert_eq!(permissions[2], Permission::Acl(acl.to_vec()));
}

#[test]
fn a_user_alone_brings_the_group_of_its_login_along() {
    for (given, owner) in [
        ("User: kube", "kube:"),
        ("User: 1000", "1000"),
        ("Group: wheel", ":wheel"),
    ] {
        let policy = read(&format!("datasetPermissions{given}")).unwrap().policy;
        assert_eq!(
            policy.permissions,
            [Permission::Owner(owner.into())],
            "{given}"
        );
    }
}

#[test]
fn one_slash_at_the_end_of_a_parent_is_taken_away() {
    let text = "driver: d\nzfs: {datasetParentName: tank/v/, \
                detachedSnapshotsDatasetParentName: tank/s/}\n";
    let document = Document::parse(text, &NoEnvironment).unwrap();
    let config = ZfsConfig::read(&document).unwrap();
    let layout = config.layout(VolumeKind::Zvol).unwrap();
    assert_eq!(layout.volumes.as_str(), "tank/v");
    assert_eq!(layout.detached.unwrap().as_str(), "tank/s");
}

#[test]
fn children_of_the_parent_are_datasets_that_a_class_may_choose() {
    let settings = read("datasetChildren: [fast, bulk, fast]\n  volumeParameters: [datasetChild]");
    let settings = settings.unwrap();
    let parents: Vec<_> = settings.layout.parents().map(DatasetName::as_str).collect();
    assert_eq!(
        parents,
        ["tank/k8s/v", "tank/k8s/v/fast", "tank/k8s/v/bulk"]
    );
    assert_eq!(settings.policy.class.names(), ["datasetChild"]);
    assert!(settings.policy.class.mutable().is_empty());
    for (extra, key) in [
        ("datasetChildren: [a/b]", "zfs.datasetChildren"),
        ("datasetChildren: [a.b]", "zfs.datasetChildren"),
        ("datasetChildren: ['']", "zfs.datasetChildren"),
        ("datasetChildren: [fast, Fast]", "zfs.datasetChildren"),
        ("volumeParameters: [datasetChild]", "zfs.volumeParameters"),
    ] {
        let error = read(extra).expect_err("must be refused");
        assert_eq!(error.path(), Some(key), "{error}");
    }
}

#[test]
fn children_that_no_class_may_choose_are_a_remark() {
    for (parameters, remarks) in [("[datasetChild]", 0), ("[sync]", 1), ("[]", 1)] {
        let text = format!(
            "driver: d\nzfs: {{datasetParentName: tank/v, datasetChildren: [fast], \
             volumeParameters: {parameters}}}\n"
        );
        let document = Document::parse(&text, &NoEnvironment).unwrap();
        ZfsConfig::read(&document).unwrap();
        let found = document.findings();
        let of_children = found
            .iter()
            .filter(|finding| finding.path == "zfs.datasetChildren");
        assert_eq!(of_children.count(), remarks, "{parameters}");
    }
}

#[test]
fn no_zvol_lies_where_its_device_would_have_a_blank() {
    let text = "driver: d\nzfs: {datasetParentName: my pool/v}\n";
    let document = Document::parse(text, &NoEnvironment).unwrap();
    let config = ZfsConfig::read(&document).unwrap();
    assert!(config.layout(VolumeKind::Filesystem).is_ok());
    let error = config.layout(VolumeKind::Zvol).unwrap_err();
    assert_eq!(error.path(), Some("zfs.datasetParentName"));
}

#[test]
fn what_cannot_be_right_is_refused_with_its_key() {
    for (extra, key) in [
        (
            "datasetPermissionsAcls: ['-m \"u:domain users:rwx\"']",
            "zfs.datasetPermissionsAcls",
        ),
        ("datasetProperties: {\"a b\": x}", "zfs.datasetProperties"),
    ] {
        let error = read(extra).expect_err("must be refused");
        assert_eq!(error.path(), Some(key), "{error}");
    }
    for (volumes, detached) in [
        ("tank/v", "tank/v"),
        ("tank/v", "tank/v/s"),
        ("tank/v/a", "tank/v"),
        ("tank/$x", "tank/s"),
    ] {
        let text = format!(
            "driver: d\nzfs: {{datasetParentName: {volumes}, \
             detachedSnapshotsDatasetParentName: {detached}}}\n"
        );
        let document = Document::parse(&text, &NoEnvironment).unwrap();
        let config = ZfsConfig::read(&document).unwrap();
        assert!(
            config.layout(VolumeKind::Zvol).is_err(),
            "{volumes} {detached}"
        );
    }
}

#[test]
fn a_pool_of_detached_snapshots_that_is_another_one_is_a_finding() {
    for (detached, findings) in [("tank/s", 0), ("dozer/s", 1)] {
        let text = format!(
            "driver: d\nzfs: {{datasetParentName: tank/v, \
             detachedSnapshotsDatasetParentName: {detached}}}\n"
        );
        let document = Document::parse(&text, &NoEnvironment).unwrap();
        ZfsConfig::read(&document).unwrap();
        let doubtful = document
            .findings()
            .into_iter()
            .filter(|finding| finding.severity == Severity::Doubtful);
        assert_eq!(doubtful.count(), findings, "{detached}");
    }
}
