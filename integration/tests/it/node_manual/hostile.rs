//! Secrets and hostile strings of hand-written volumes.

use std::collections::BTreeMap;

use csi_proto::v1::volume_capability::AccessType;
use integration::conformance::strings::strings;
use integration::observe::{free_port, get};
use integration::server::log_of;
use tonic::Code;

use super::{Bench, context};

const CANARY: &str = "c4n4ry-5ecret";

const WHAT: &str = "secrets and hostile strings of volumes made by hand";

/// One volume of each kind that runs a program here, with every key of a secret that it may have.
const KINDS: [&str; 9] = [
    "nfs server=nas share=/a",
    "smb server=nas share=a",
    "lustre server=mgs share=/a",
    "hostpath path=/no/such/path",
    "zfs-local zfs_asset_name=omnibus-csi-test/a",
    "objectivefs filesystem=s3://pool/a",
    "oneclient server=provider",
    "iscsi portal=127.0.0.1 iqn=iqn.2003-01.org.example:a lun=0",
    "nvmeof transport=tcp://127.0.0.1 nqn=nqn.2003-01.org.example:a nsid=1",
];

fn secrets(value: &str) -> BTreeMap<String, String> {
    let keys = [
        "mount_flags",
        "token",
        "env.SECRET_KEY",
        "env.OBJECTIVEFS_LICENSE",
        "node-db.node.session.auth.authmethod",
        "node-db.node.session.auth.username",
        "node-db.node.session.auth.password",
        "node-db.node.session.auth.password_in",
        "anything else",
    ];
    let scopes = ["", "democratic-csi.org/", "democratic-csi.org/node-manual/"];
    let all = scopes
        .iter()
        .flat_map(|scope| keys.iter().map(move |key| format!("{scope}{key}")));
    all.map(|key| (key, value.to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_of_a_volume_reaches_a_log_a_message_a_metric_or_an_argument() {
    let admin = free_port();
    let address = format!("127.0.0.1:{admin}");
    let variables = [("OMNIBUS_CSI_METRICS_ADDRESS", address.as_str())];
    let Some(bench) = Bench::new(WHAT, "", &variables).await else {
        return;
    };
    let mut ran = 0;
    for kind in KINDS {
        for value in [
            CANARY.to_owned(),
            format!("password={CANARY}"),
            format!("username={CANARY},password={CANARY}"),
            format!("\n{CANARY}\u{0}"),
        ] {
            for place in ["secret", "context", "flags"] {
                let mut request = bench.stage_request(kind);
                match place {
                    "secret" => request.secrets = secrets(&value),
                    "context" => request.volume_context.extend([
                        ("token".to_owned(), value.clone()),
                        ("env.SECRET_KEY".to_owned(), value.clone()),
                    ]),
                    _ => {
                        let capability = request.volume_capability.as_mut().expect("one");
                        if let Some(AccessType::Mount(mount)) = &mut capability.access_type {
                            mount.mount_flags = vec![value.clone()];
                        }
                    }
                }
                // Without the kernel's part of it nothing is run, and that takes its time to find out.
                if kind.starts_with("nvmeof") && place != "secret" {
                    continue;
                }
                // What is no password is an option like any other, and is an argument.
                let is_option = value == CANARY && (place == "flags" || kind != KINDS[1]);
                let staged = bench.send(request).await;
                let answer = format!("{:?}", staged.answer);
                assert!(!answer.contains(CANARY), "{kind}, {place}: {answer}");
                ran += staged.lines.len();
                let shown = staged.lines.iter().find(|line| line.contains(CANARY));
                let by_flags = place == "flags" || place == "secret";
                assert!(
                    shown.is_none() || (by_flags && is_option),
                    "{kind}, {place}: {shown:?}"
                );
            }
        }
    }
    assert!(ran >= 30, "only {ran} programs ran");
    let log = log_of(&bench.machine.place);
    let leak = log.lines().find(|line| line.contains(CANARY));
    assert!(leak.is_none(), "a secret in the log: {leak:?}");
    assert!(log.contains("NodeStageVolume"), "the log was switched on");
    let metrics = get(admin, "/metrics").await.expect("metrics");
    assert!(metrics.contains("omnibus_csi_commands_total"), "{metrics}");
    assert!(!metrics.contains(CANARY), "a secret in the metrics");
    bench.end().await;
}

/// The answers that a hostile string may get; the last three because a string that is no more than
/// a strange name of a server reaches the recorders, which mount nothing.
const CLEAN: [Code; 7] = [
    Code::InvalidArgument,
    Code::NotFound,
    Code::FailedPrecondition,
    Code::AlreadyExists,
    Code::Internal,
    Code::Unavailable,
    Code::DeadlineExceeded,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_volume_is_refused_or_stays_one_argument() {
    let Some(bench) = Bench::new(WHAT, "", &[]).await else {
        return;
    };
    let (mut tried, mut ran) = (0, 0);
    // NVMe over fabrics runs nothing on a kernel without it; iSCSI is tried below the portal.
    for kind in KINDS.iter().filter(|kind| !kind.starts_with("nvmeof")) {
        for key in context(kind).into_keys() {
            for text in strings() {
                // A directory of this machine may well exist.
                if key == "path" && text.starts_with('/') {
                    continue;
                }
                let mut request = bench.stage_request(kind);
                request.volume_context.insert(key.clone(), text.clone());
                let staged = bench.send(request).await;
                tried += 1;
                let status = staged.answer.expect_err("nothing is ever mounted");
                assert!(
                    CLEAN.contains(&status.code()),
                    "{kind} {key}={text:?}: {status:?}"
                );
                let control = status.message().chars().find(|c| c.is_control());
                assert_eq!(
                    control,
                    None,
                    "{kind} {key}={text:?}: {:?}",
                    status.message()
                );
                for run in bench.machine.ran() {
                    ran += 1;
                    let count = run.arguments.len();
                    let expected = match run.program.as_str() {
                        "mount" | "zfs" => 6,
                        "mount.objectivefs" => 2,
                        "busctl" => continue,
                        "oneclient" => 3,
                        "iscsiadm" => 8,
                        other => panic!("{other} was run for {text:?}"),
                    };
                    assert_eq!(count, expected, "{key}={text:?}: {run:?}");
                    let options = run.arguments.iter().filter(|a| a.starts_with("--"));
                    assert_eq!(options.count(), 0, "{key}={text:?}: {run:?}");
                }
            }
        }
    }
    assert!(tried >= 5_000 && ran >= 100, "{tried} tried, {ran} ran");
    for line in log_of(&bench.machine.place).lines() {
        assert!(
            !line.starts_with("FORGED"),
            "a request wrote its own line: {line}"
        );
        let hidden = line.chars().find(|c| c.is_control());
        assert_eq!(hidden, None, "a control character in the log: {line:?}");
    }
    bench.end().await;
}
