//! The files in `examples/`, and the sections that democratic-csi's own have.

use std::fs;
use std::path::Path;

use driver_core::config::{Document, NoEnvironment, Severity};
use driver_truenas::{KINDS, from_document};

fn read(text: &str) -> Document {
    let text = text
        .replace("${TRUENAS_API_KEY}", "1-canary")
        .replace("privateKey: ${TRUENAS_SSH_KEY}", "password: x");
    Document::parse(&text, &NoEnvironment).expect("a document")
}

#[test]
fn every_example_builds_its_driver_and_has_no_unused_key() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let freenas = KINDS.iter().filter(|kind| kind.starts_with("freenas-"));
    for kind in freenas {
        let text = fs::read_to_string(folder.join(format!("{kind}.yaml"))).expect(kind);
        let document = read(&text);
        assert_eq!(document.driver().expect("a driver"), *kind);
        from_document(&document).unwrap_or_else(|error| panic!("{kind}: {error}"));
        let findings = document.findings();
        assert!(findings.is_empty(), "{kind}: {findings:?}");
    }
}

/// The keys of democratic-csi's example of an NFS driver over SSH, with its placeholders replaced.
const THEIRS: &str = "
driver: freenas-nfs
instance_id:
httpConnection:
  protocol: http
  host: 10.0.0.5
  port: 80
  apiVersion: 2
  username: root
  password: secret
  allowInsecure: true
sshConnection:
  host: 10.0.0.5
  port: 22
  username: root
  password: secret
zfs:
  cli:
    sudoEnabled: true
    paths:
      zfs: /usr/local/sbin/zfs
      zpool: /usr/local/sbin/zpool
      sudo: /usr/local/bin/sudo
      chroot: /usr/sbin/chroot
  datasetProperties:
    \"org.freenas:description\": \"{{ parameters.foo }}\"
  datasetParentName: tank/k8s/a/vols
  detachedSnapshotsDatasetParentName: tank/k8s/a/snaps
  datasetEnableQuotas: true
  datasetEnableReservation: false
  datasetPermissionsMode: \"0777\"
  datasetPermissionsUser: 0
  datasetPermissionsGroup: 0
nfs:
  shareCommentTemplate: \"{{ parameters.foo }}\"
  shareHost: 10.0.0.5
  shareAlldirs: false
  shareAllowedHosts: []
  shareAllowedNetworks: []
  shareMaprootUser: root
  shareMaprootGroup: wheel
  shareMapallUser: \"\"
  shareMapallGroup: \"\"
";

#[test]
fn a_configuration_of_democratic_csi_is_read_and_plain_http_is_named() {
    for (theirs, ours) in [
        ("freenas-nfs", "truenas-nfs"),
        ("freenas-nfs", "freenas-nfs"),
    ] {
        let document = read(&THEIRS.replace(theirs, ours));
        from_document(&document).unwrap_or_else(|error| panic!("{error}"));
        let findings = document.findings();
        let unknown = findings.iter().find(|f| f.severity == Severity::UnknownKey);
        assert!(unknown.is_none(), "{findings:?}");
        assert!(
            findings
                .iter()
                .any(|f| f.path == "httpConnection.protocol" && f.message.contains("clear text")),
            "{findings:?}"
        );
    }
}

#[test]
fn what_is_missing_is_named() {
    for (take, path) in [
        ("  host: 10.0.0.5\n  port: 80\n", "httpConnection"),
        (
            "  username: root\n  password: secret\n  allowInsecure",
            "httpConnection",
        ),
        ("  shareHost: 10.0.0.5\n", "nfs"),
        ("  datasetParentName: tank/k8s/a/vols\n", "zfs"),
    ] {
        let text = THEIRS.replace(
            take,
            if take.ends_with("allowInsecure") {
                "  allowInsecure"
            } else {
                ""
            },
        );
        let error = from_document(&read(&text)).expect_err(path).to_string();
        assert!(error.contains(path), "{path}: {error}");
        assert!(!error.contains("secret"), "{error}");
    }
    let start = THEIRS.find("sshConnection").expect("the section");
    let end = THEIRS.find("zfs:\n  cli").expect("the section");
    let without = format!("{}{}", &THEIRS[..start], &THEIRS[end..]);
    let error = from_document(&read(&without))
        .expect_err("no SSH")
        .to_string();
    assert!(error.contains("sshConnection"), "{error}");
}

#[test]
fn an_api_key_without_its_user_is_doubtful() {
    let text = THEIRS.replace(
        "  username: root\n  password: secret\n  allowInsecure",
        "  apiKey: 1-secret\n  allowInsecure",
    );
    let document = read(&text);
    from_document(&document).expect("a driver");
    let found = document.findings();
    let user = found.iter().find(|f| f.path == "httpConnection.username");
    assert!(user.is_some(), "{found:?}");
    assert!(!format!("{found:?}").contains("1-secret"));
}

#[tokio::test]
async fn a_share_that_is_open_to_all_hosts_is_doubtful() {
    let nas = crate::volumes::appliance(truenas_sim::Generation::V25_10).await;
    let closed = "shareAllowedNetworks: [10.0.0.0/8]";
    for (allowed, doubtful) in [
        (closed, false),
        ("shareAllowedHosts: [10.0.0.7]", false),
        ("shareAllowedHosts: [], shareAllowedNetworks: []", true),
        ("shareAlldirs: false", true),
    ] {
        let text = crate::volumes::config(&nas, "truenas-api-nfs", "").replace(closed, allowed);
        let document = read(&text);
        from_document(&document).expect("a driver");
        let found = document.findings();
        let open = found.iter().any(|f| f.path == "nfs.shareAllowedNetworks");
        assert_eq!(open, doubtful, "{allowed}: {found:?}");
    }
}
