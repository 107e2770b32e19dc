//! Nodes that use a share, as nfsd and samba show them: a deletion waits for them.
//!
//! The files in `clients` were written by hand, in the form that the sources of Linux 6.12 and of samba print: none was
//! taken from a machine. The host is a folder; its datasets are mounted as the fixtures have it.

use std::os::unix::net::UnixListener;

use driver_core::config::{Document, NoEnvironment};
use driver_core::{Error, Kind};
use driver_zfs::{Export, ZfsConfig};
use driver_zfs_cli::ZfsTools;
use driver_zfs_cli::exec::{Command, Output, Status};
use driver_zfs_generic::{Protocol, ShareExport};

use crate::common::{Host, SH, Volume};

const SCRIPT: &str = include_str!("../../src/script/clients.sh");
const MOUNTS: &str = include_str!("clients/mountinfo");
const INFO: &str = include_str!("clients/info");
const STATES: &str = include_str!("clients/states");
const TABLE: &str = include_str!("clients/smbstatus.txt");
/// The dataset of the fixtures, and its number as nfsd writes it.
const OURS: &str = "tank/csi/volumes/pvc-1";
const NUMBER: &str = "00:35:";
const CLIENTS: &str = "proc/fs/nfsd/clients";

/// A host without clients of NFS.
fn host() -> Host {
    let host = Host::new();
    std::fs::create_dir_all(host.path(CLIENTS)).unwrap();
    std::fs::create_dir_all(host.path("proc/self")).unwrap();
    std::fs::write(host.path("proc/self/mountinfo"), MOUNTS).unwrap();
    host
}

fn client(host: &Host, number: u32, info: &str, states: &str) {
    let folder = host.path(CLIENTS).join(number.to_string());
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("info"), info).unwrap();
    std::fs::write(folder.join("states"), states).unwrap();
}

/// Runs the script as it is, but for where the host is.
async fn run(host: &Host, protocol: &str, dataset: &str) -> String {
    let text = SCRIPT.replace("=/proc/", &format!("={}/proc/", host.path("").display()));
    assert_ne!(text, SCRIPT);
    let text = format!("look() {{\n{text}\n}}\nlook \"$@\"\n");
    let name = dataset.replace(['/', '-'], "_");
    let arguments = ["-s", protocol, dataset, &name];
    let command = Command::new(SH).args(arguments).stdin(text);
    host.run(&command).await.unwrap().text().trim().to_owned()
}

/// The one line of the fixture that begins so.
fn line_of(kind: &str) -> &'static str {
    let start = format!("{{ type: {kind},");
    let mut lines = STATES.lines().filter(|line| line.contains(&start));
    lines.next().unwrap()
}

#[tokio::test]
async fn a_client_of_nfs_that_holds_something_open_is_named_for_its_own_dataset_alone() {
    let host = host();
    assert_eq!(run(&host, "nfs", OURS).await, "");
    client(&host, 3, INFO, "");
    assert_eq!(run(&host, "nfs", OURS).await, "");
    for (number, kind) in (4..).zip(["open", "deleg", "lock"]) {
        let info = INFO.replace("127.0.0.1:", &format!("10.0.0.{number}:"));
        client(&host, number, &info, line_of(kind));
    }
    let seen = run(&host, "nfs", OURS).await;
    let named = [4, 5, 6].map(|n| format!("connected Linux NFSv4.2 lab at 10.0.0.{n}"));
    assert_eq!(seen, named.join("\n"));
    for other in ["tank/csi/volumes", "tank/csi/volumes/pvc-10", "tank/none"] {
        assert_eq!(run(&host, "nfs", other).await, "", "{other}");
    }
}

#[tokio::test]
async fn a_client_that_reads_a_snapshot_of_a_dataset_uses_it() {
    let host = host();
    client(&host, 4, INFO, &line_of("open").replace(NUMBER, "00:1a3:"));
    assert_eq!(run(&host, "nfs", OURS).await, "");
    let text = MOUNTS.to_owned()
        + &format!(
            "99 36 0:419 / /tank/csi/volumes/pvc-1/.zfs/snapshot/a ro,relatime shared:9 - zfs {OURS}@a ro\n"
        );
    std::fs::write(host.path("proc/self/mountinfo"), text).unwrap();
    let seen = run(&host, "nfs", OURS).await;
    assert!(seen.starts_with("connected Linux"), "{seen}");
}

#[tokio::test]
async fn a_name_of_a_file_or_a_client_says_nothing_else() {
    let host = host();
    let open = line_of("open");
    let (start, _) = open.split_once("filename: ").unwrap();
    let other = start.replace(NUMBER, "00:99:");
    let forged = format!("{{ type: open, superblock: \"{NUMBER}7\"");
    for (number, name) in [
        (4, format!("superblock: \"{NUMBER}7\"")),
        (6, format!("a\n- 0x1: {forged}")),
    ] {
        let states = format!("{other}filename: \"{name}\" }}\n");
        client(&host, number, INFO, &states);
        assert_eq!(run(&host, "nfs", OURS).await, "", "{name}");
    }
    let odd = INFO.replace("\"Linux NFSv4.2 lab\"", "\"a\\x0aunseen $(reboot)\"");
    let odd = odd.replace("127.0.0.1:", "[fe80::7]:");
    assert!(odd.contains("reboot") && odd.contains("fe80"), "{odd}");
    client(&host, 5, &odd, open);
    assert_eq!(run(&host, "nfs", OURS).await, "connected fe80::7");
}

#[tokio::test]
async fn a_client_that_has_lost_its_lease_is_said_to_be_silent() {
    let host = host();
    let gone = INFO.replace("status: confirmed", "status: courtesy");
    assert_ne!(gone, INFO);
    client(&host, 4, &gone, line_of("open"));
    let seen = run(&host, "nfs", OURS).await;
    assert!(seen.starts_with("connected Linux NFSv4.2 lab at 127.0.0.1 (silent for "));
    assert!(seen.ends_with(" s)"), "{seen}");
}

#[tokio::test]
async fn what_cannot_be_read_is_hidden_and_what_is_not_there_is_unseen() {
    let host = host();
    // A socket cannot be opened as a file, not even by root.
    client(&host, 4, INFO, "");
    let states = host.path(CLIENTS).join("4/states");
    std::fs::remove_file(&states).unwrap();
    let _socket = UnixListener::bind(host.path("socket")).unwrap();
    std::fs::rename(host.path("socket"), states).unwrap();
    client(&host, 5, INFO, line_of("open"));
    let seen = run(&host, "nfs", OURS).await;
    let mut lines = seen.lines();
    assert!(lines.next().unwrap().starts_with("hidden "), "{seen}");
    assert_eq!(
        lines.next(),
        Some("connected Linux NFSv4.2 lab at 127.0.0.1")
    );

    std::fs::remove_dir_all(host.path(CLIENTS)).unwrap();
    let seen = run(&host, "nfs", OURS).await;
    assert!(seen.starts_with("unseen "), "{seen}");
}

#[tokio::test]
async fn a_host_that_does_not_say_which_filesystems_it_has_hides_who_uses_them() {
    let no_mounts = |host: &Host| std::fs::remove_file(host.path("proc/self/mountinfo")).unwrap();
    let no_awk = |host: &Host| host.program("awk", "#!/bin/sh\nexit 2\n");
    for breaks in [&no_mounts as &dyn Fn(&Host), &no_awk] {
        let host = host();
        client(&host, 4, INFO, line_of("open"));
        let seen = run(&host, "nfs", OURS).await;
        assert!(seen.starts_with("connected "), "{seen}");
        breaks(&host);
        let seen = run(&host, "nfs", OURS).await;
        assert!(seen.starts_with("hidden the filesystems"), "{seen}");
        assert_eq!(seen.lines().count(), 1, "{seen}");
    }
}

fn samba(host: &Host, text: &str, status: u8) {
    std::fs::write(host.path("answer"), text).unwrap();
    let program = format!("#!/bin/sh\ncat \"${{0%/bin/*}}/answer\"\nexit {status}\n");
    host.program("smbstatus", &program);
}

#[tokio::test]
async fn the_machines_of_a_share_of_samba_are_seen() {
    let mut seen = 0;
    for awk in ["/usr/bin/mawk", "/usr/bin/gawk", "/bin/busybox"] {
        let host = host();
        if !host.takes("awk", awk) {
            continue;
        }
        seen += 1;
        samba(&host, TABLE, 0);
        // Names of shares ignore case.
        for ours in ["tank/csi/served/v/pvc_1", "tank/csi/served/v/PVC-1"] {
            let machine = run(&host, "smb", ours).await;
            assert_eq!(machine, "connected 127.0.0.1", "{awk}");
        }
        let other = "tank/csi/served/v/pvc-10";
        assert_eq!(run(&host, "smb", other).await, "", "{awk}");
    }
    assert_ne!(seen, 0, "none of these is here");
}

#[tokio::test]
async fn an_answer_of_samba_that_is_not_whole_is_none() {
    let other = "tank/csi/volumes/none";
    for (text, status) in [("smbstatus only works as root!\n", 0), ("", 0), (TABLE, 1)] {
        let host = host();
        samba(&host, text, status);
        let seen = run(&host, "smb", other).await;
        assert!(seen.starts_with("unseen "), "{text}: {seen}");
    }
    let host = host();
    samba(&host, TABLE, 0);
    assert_eq!(run(&host, "smb", other).await, "");
}

/// The nodes that the export reads in answers to its questions.
fn connected(protocol: Protocol, answers: &[&str]) -> Result<Vec<String>, Error> {
    let section = match protocol {
        Protocol::Nfs => "nfs",
        Protocol::Smb => "smb",
    };
    let text = format!(
        "{section}: {{shareHost: nas.example, shareStrategy: setDatasetProperties}}\nzfs: {{datasetParentName: tank/v}}\n"
    );
    let document = Document::parse(&text, &NoEnvironment).unwrap();
    let tools = ZfsTools::from_config(&ZfsConfig::read(&document).unwrap()).unwrap();
    let export = ShareExport::from_document(&document, protocol, tools).unwrap();
    let volume = Volume::new("tank/v", "pvc-1", 7);
    let output = |text: &&str| Output {
        status: Status::Exit(0),
        stdout: text.as_bytes().to_vec(),
        stderr: Vec::new(),
    };
    let answers: Vec<_> = answers.iter().map(output).collect();
    let facts = export.facts(&volume.subject(), &(), &answers).unwrap();
    export.connected(&volume.subject(), &(), &facts)
}

#[test]
fn a_deletion_waits_for_who_is_seen_and_goes_on_where_it_cannot_be_known() {
    let seen = [
        "",
        "connected Linux NFSv4.2 a at 10.0.0.7\nconnected 10.0.0.8\n",
    ];
    let named = ["Linux NFSv4.2 a at 10.0.0.7", "10.0.0.8"];
    assert_eq!(connected(Protocol::Nfs, &seen).unwrap(), named);
    let unseen = ["unseen the kernel has no such folder\n"];
    assert_eq!(connected(Protocol::Nfs, &unseen).unwrap(), [""; 0]);
    let error = connected(Protocol::Nfs, &["hidden what clients hold open\n"]).unwrap_err();
    assert_eq!(error.kind(), Kind::Unreachable, "{}", error.chain());
    // The share of the name is that of another dataset.
    let foreign = ["foreign /tank/v/pvc_1\n", "connected 10.0.0.7\n"];
    assert_eq!(connected(Protocol::Smb, &foreign).unwrap(), [""; 0]);
}
