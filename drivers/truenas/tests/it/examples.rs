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

/// Sections of its examples of the other protocols instead of `nfs`, with everything that is commented out there.
const THEIR_SMB: &str = "
smb:
  shareHost: 10.0.0.5
  nameTemplate: \"{{ parameters.foo }}\"
  namePrefix: \"\"
  nameSuffix: \"\"
  shareAuxiliaryConfigurationTemplate: |
    guest ok = yes
  shareHome: false
  shareAllowedHosts: []
  shareDeniedHosts: []
  shareGuestOk: true
  shareRecycleBin: true
  shareBrowsable: false
  shareAccessBasedEnumeration: true
  shareTimeMachine: false
";
const THEIR_ISCSI: &str = "
iscsi:
  targetPortal: 10.0.0.5:3260
  targetPortals: []
  interface:
  nameTemplate: \"{{ parameters.foo }}\"
  namePrefix: csi-
  nameSuffix: -clustera
  targetGroups:
  - targetGroupPortalGroup: 1
    targetGroupInitiatorGroup: 1
    targetGroupAuthType: None
    targetGroupAuthGroup:
  extentCommentTemplate: \"{{ parameters.foo }}\"
  extentInsecureTpc: true
  extentXenCompat: false
  extentDisablePhysicalBlocksize: true
  extentBlocksize: 512
  extentRpm: SSD
  extentAvailThreshold: 0
";

/// The example of a kind, with its keys below `zfs` and its section.
fn theirs(kind: &str) -> String {
    let start = THEIRS.find("nfs:\n  shareComment").expect("the section");
    let (common, nfs) = THEIRS.split_at(start);
    let common = common.replace("driver: freenas-nfs", &format!("driver: {kind}"));
    let zvols =
        "  zvolCompression:\n  zvolDedup:\n  zvolEnableReservation: false\n  zvolBlocksize:\n";
    let acls = "  datasetPermissionsAclsBinary: setfacl\n  datasetPermissionsAcls:\n  - '-m everyone@:full_set:allow'\n";
    match kind.rsplit('-').next() {
        Some("smb") => format!("{common}{acls}{THEIR_SMB}"),
        Some("iscsi") => {
            let files = common.find("  datasetEnableQuotas").expect("a key");
            format!("{}{zvols}{THEIR_ISCSI}", &common[..files])
        }
        _ => format!("{common}{nfs}"),
    }
}

#[test]
fn every_configuration_of_democratic_csi_is_read_and_plain_http_is_named() {
    for theirs_is in [
        "freenas-nfs",
        "freenas-smb",
        "freenas-iscsi",
        "freenas-api-nfs",
        "freenas-api-smb",
        "freenas-api-iscsi",
    ] {
        for kind in [
            theirs_is.to_owned(),
            theirs_is.replace("freenas", "truenas"),
        ] {
            let document = read(&theirs(&kind));
            from_document(&document).unwrap_or_else(|error| panic!("{kind}: {error}"));
            let findings = document.findings();
            let unknown = findings.iter().find(|f| f.severity == Severity::UnknownKey);
            assert!(unknown.is_none(), "{kind}: {findings:?}");
            assert!(
                findings.iter().any(
                    |f| f.path == "httpConnection.protocol" && f.message.contains("clear text")
                ),
                "{kind}: {findings:?}"
            );
        }
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

#[test]
fn each_configuration_of_the_pages_is_read_without_a_remark() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let mut kinds = Vec::new();
    for page in ["truenas.md", "truenas-tasks.md"] {
        let page = fs::read_to_string(folder.join(page)).expect(page);
        for block in page.split("```yaml\n").skip(1) {
            let lines = block.lines().take_while(|line| line.trim() != "```");
            let lines: Vec<&str> = lines.collect();
            let indented = lines.iter().all(|line| line.starts_with("   "));
            let lines = lines
                .iter()
                .map(|line| if indented { &line[3..] } else { line });
            let text = lines.collect::<Vec<_>>().join("\n");
            if !text.starts_with("driver:") {
                continue;
            }
            let fingerprint = "ab".repeat(32);
            let text = text
                .replace("<64 hexadecimal digits>", &fingerprint)
                .replace("${TRUENAS_FINGERPRINT}", &fingerprint);
            let document = read(&text);
            from_document(&document).unwrap_or_else(|error| panic!("{error}: {text}"));
            let findings = document.findings();
            assert!(findings.is_empty(), "{findings:?}: {text}");
            kinds.push(document.driver().expect("a driver").to_owned());
        }
    }
    for protocol in ["nfs", "smb", "iscsi", "nvmeof"] {
        let kind = format!("truenas-api-{protocol}");
        assert!(kinds.contains(&kind), "{kind}: {kinds:?}");
    }
}
