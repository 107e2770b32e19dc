//! `check` over SSH where no key of the host is configured.

use std::fs;
use std::path::Path;

use integration::sshd::Sshd;
use integration::tools;
use serde_json::{Value, json};
use truenas_sim::{Generation, Options, Simulator};

async fn checked(file: &Path) -> String {
    let file = format!("--driver-config-file={}", file.display());
    let output = tools::omnibus(&["check", &file], &[]).await;
    String::from_utf8(output.stdout).expect("a text")
}

fn over_ssh(driver: &str, connection: &Value) -> Value {
    json!({
        "driver": driver,
        "sshConnection": connection,
        "zfs": {"datasetParentName": "tank/v", "detachedSnapshotsDatasetParentName": "tank/s"},
        "nfs": {"shareHost": "127.0.0.1"},
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_over_ssh_without_a_host_key_prints_the_key_that_the_host_shows() {
    let Some(sshd) = Sshd::start("the host key in a check", "").await else {
        return;
    };
    let nas = Simulator::start(Options::new(Generation::V24_10)).await;
    let nas = nas.expect("a NAS");
    let mut generic = over_ssh("zfs-generic-nfs", &sshd.connection());
    generic["nfs"]["shareStrategy"] = "setDatasetProperties".into();
    let mut freenas = over_ssh("freenas-nfs", &sshd.connection());
    freenas["nfs"]["shareAllowedNetworks"] = json!(["10.0.0.0/8"]);
    freenas["httpConnection"] = json!({
        "protocol": "https",
        "host": "127.0.0.1",
        "port": nas.https().port(),
        "username": "root",
        "password": "sesame-for-root",
        "allowInsecure": true,
    });
    let shown = sshd.fingerprint().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("config.yaml");
    for mut config in [generic, freenas] {
        // None, what was printed, and the whole key.
        for (given, is_doubtful) in [
            (None, true),
            (Some(shown.clone()), false),
            (Some(sshd.host_key()), false),
        ] {
            if let Some(given) = given {
                config["sshConnection"]["hostKey"] = given.into();
            }
            fs::write(&file, config.to_string()).expect("a file");
            let said = checked(&file).await;
            let advice = format!("add `hostKey: {shown}` to sshConnection");
            assert_eq!(said.contains(&advice), is_doubtful, "{said}");
            // It did reach the host, which has none of these datasets.
            assert!(said.contains("tank/"), "{said}");
        }
    }
}
