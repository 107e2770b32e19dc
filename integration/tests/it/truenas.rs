//! The whole program with connections to a NAS, here the simulator.

use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use csi_proto::v1 as csi;
use driver_core::config::NoEnvironment;
use integration::appliance::Appliance;
use integration::client::Client;
use integration::observe::{free_port, get};
use integration::place::Place;
use integration::server::{Launch, log_of};
use integration::{requirement, tools, volume};
use serde_json::{Value, json};
use truenas_sim::{Action, Generation, Options, Rule, Simulator};

pub(super) async fn nas(options: Options) -> Simulator {
    let nas = Simulator::start(options).await.expect("a NAS");
    nas.set_up("10.0.0.5").await.expect("set up");
    nas
}

/// A connection, with this login.
pub(super) fn config(nas: &Simulator, kind: &str, login: Value) -> Value {
    let mut http = json!({
        "protocol": "https",
        "host": "127.0.0.1",
        "port": nas.https().port(),
        "username": "root",
        "allowInsecure": true,
    });
    let Value::Object(login) = login else {
        panic!("no login: {login}");
    };
    http.as_object_mut().expect("an object").extend(login);
    let mut config = json!({
        "driver": kind,
        "httpConnection": http,
        "zfs": {"datasetParentName": "tank/csi/v", "detachedSnapshotsDatasetParentName": "tank/csi/s"},
    });
    let (protocol, section) = match kind.rsplit('-').next() {
        Some("nfs") => (
            "nfs",
            json!({"shareHost": "10.0.0.5", "shareAllowedNetworks": ["10.0.0.0/8"]}),
        ),
        Some("smb") => ("smb", json!({"shareHost": "10.0.0.5"})),
        Some("iscsi") => (
            "iscsi",
            json!({
                "targetPortal": "10.0.0.5:3260",
                "targetGroups": [{"targetGroupPortalGroup": 1, "targetGroupInitiatorGroup": 1}],
            }),
        ),
        _ => (
            "nvmeof",
            json!({"transports": ["tcp://10.0.0.5:4420"], "ports": [1]}),
        ),
    };
    config[protocol] = section;
    config
}

pub(super) fn by_key(nas: &Simulator) -> Value {
    json!({"apiKey": nas.api_key(), "apiKeyLogin": "plain"})
}

const KINDS: [&str; 8] = [
    "freenas-api-nfs",
    "freenas-api-smb",
    "freenas-api-iscsi",
    "freenas-api-nvmeof",
    "freenas-nfs",
    "freenas-smb",
    "freenas-iscsi",
    "freenas-nvmeof",
];

/// A private key that can be used, and its lines, none of which may be shown.
async fn private_key(folder: &Path) -> Option<(String, Vec<String>)> {
    let program = requirement::tool("keys of SSH in logs", "ssh-keygen")?;
    let file = folder.join("key");
    let words = ["-q", "-t", "ed25519", "-N", "", "-f"].map(str::to_owned);
    let words = words.into_iter().chain([file.display().to_string()]);
    let made = tools::run(&program, words, folder).await;
    assert!(made.status.success(), "{made:?}");
    let text = std::fs::read_to_string(&file).expect("a key");
    let body = text.lines().filter(|line| !line.starts_with('-'));
    // The first line is the same in every key.
    let lines = body.skip(1).map(str::to_owned).collect();
    Some((text, lines))
}

/// Calls that do well and calls that fail in each way: by the network, by the NAS, by the login.
async fn calls(client: &Client, nas: &Simulator, secret: &str) -> String {
    let mut said = String::new();
    let asked = volume::create("pvc-1", &volume::parameters(&[]));
    let mut controller = client.controller.clone();
    for action in [
        None,
        Some(Action::Fail {
            errno: 14,
            reason: format!("it quotes {secret}"),
        }),
        Some(Action::CutAfter),
    ] {
        if let Some(action) = action {
            nas.faults().add(Rule::new("*", action).times(1));
        }
        let made = controller.create_volume(asked.clone()).await;
        let id = made
            .as_ref()
            .ok()
            .and_then(|made| made.get_ref().volume.clone());
        let _ = write!(said, "{made:?}");
        if let Some(volume) = id {
            let gone = volume::delete(&volume.volume_id);
            let _ = write!(said, "{:?}", controller.delete_volume(gone).await);
        }
    }
    let listed = controller
        .list_volumes(csi::ListVolumesRequest::default())
        .await;
    let _ = write!(said, "{listed:?}");
    nas.faults().clear();
    said
}

/// The password, the key of the API, the password and the private key of SSH: for each kind, with a login that is
/// good and with one that is refused, and every line of the log switched on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_login_of_a_nas_reaches_a_log_a_message_a_metric_or_an_argument() {
    const API: &str = "c4n4ry-of-the-api";
    const SSH: &str = "c4n4ry-of-ssh";
    // Something that speaks no SSH.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("an address").port();
    std::thread::spawn(move || silent.incoming().for_each(drop));
    for kind in KINDS {
        let mut options = Options::new(Generation::V25_10);
        API.clone_into(&mut options.root_password);
        let nas = nas(options).await;
        nas.faults().set(|settings| settings.failed_login_ms = 0);
        let key = nas.api_key().to_owned();
        let (_, key_secret) = key.split_once('-').expect("a key");
        let (wrong, wrong_key) = (format!("wrong-{API}"), format!("1-wrong-{API}"));
        let logins = [
            (json!({"password": API}), API),
            (by_key(&nas), key_secret),
            (json!({"password": wrong}), wrong.as_str()),
            (
                json!({"apiKey": wrong_key, "apiKeyLogin": "plain"}),
                wrong_key.as_str(),
            ),
        ];
        // Each login on one kind with SSH and one without; the others with that which is good.
        let due = match kind {
            "freenas-api-nfs" | "freenas-iscsi" => logins.len(),
            _ => 1,
        };
        for (login, secret) in logins.into_iter().take(due) {
            let place = Place::new();
            let mut canaries = vec![secret.to_owned(), SSH.to_owned()];
            let mut config = config(&nas, kind, login);
            if !kind.contains("-api-") {
                let mut ssh =
                    json!({"host": "127.0.0.1", "port": port, "username": "csi", "password": SSH});
                if let Some((text, lines)) = private_key(place.path()).await {
                    ssh["privateKey"] = json!(text);
                    canaries.extend(lines);
                }
                config["sshConnection"] = ssh;
            }
            let admin = free_port();
            let address = format!("127.0.0.1:{admin}");
            let launch = Launch::new(config.to_string()).set("--metrics-address", &address);
            let mut server = launch.start(&place).await;
            let said = calls(&server.client(), &nas, secret).await;
            let metrics = get(admin, "/metrics").await.expect("metrics");
            assert!(metrics.contains("csi_rpc"), "no metrics: {metrics}");
            let public = server.process().arguments_and_environment();
            let public = String::from_utf8_lossy(&public).into_owned();
            assert!(server.terminate().await.success());
            let log = log_of(&place);
            assert!(log.contains("CreateVolume"), "the log was switched on");
            let checked = format!("--driver-config-file={}", place.config().display());
            let checked = tools::omnibus(&["check", &checked], &[]).await;
            let checked =
                String::from_utf8_lossy(&[checked.stdout, checked.stderr].concat()).into_owned();
            for (what, text) in [
                ("message", &said),
                ("metric", &metrics),
                ("argument", &public),
                ("log", &log),
                ("check", &checked),
            ] {
                let leak = canaries.iter().find(|canary| text.contains(*canary));
                assert!(leak.is_none(), "{kind}: {leak:?} is in a {what}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_check_says_which_nas_answers_where_and_how() {
    for (generation, version, how) in [
        (
            Generation::V24_10,
            "TrueNAS-SCALE-24.10",
            "the old websocket",
        ),
        (Generation::V25_10, "TrueNAS-25.10", "JSON-RPC"),
    ] {
        let nas = nas(Options::new(generation)).await;
        let place = Place::new();
        let check = async |config: &Value| {
            std::fs::write(place.config(), config.to_string()).expect("a file");
            let file = format!("--driver-config-file={}", place.config().display());
            let output = tools::omnibus(&["check", &file], &[]).await;
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let good = config(&nas, "freenas-api-nfs", by_key(&nas));
        let said = check(&good).await;
        assert!(
            said.contains(&format!("note     storage: {version}")),
            "{said}"
        );
        assert!(said.contains(how), "{said}");
        let mut unsafe_one = good.clone();
        unsafe_one["httpConnection"]["allowInsecure"] = json!(false);
        let said = check(&unsafe_one).await;
        assert!(said.contains("the certificate is not accepted"), "{said}");
        let said = check(&config(
            &nas,
            "freenas-api-nfs",
            json!({"password": "wrong"}),
        ))
        .await;
        assert!(said.contains("ERROR    storage"), "{said}");
        assert!(
            said.contains("login") || said.contains("credentials"),
            "{said}"
        );
        let mut elsewhere = good.clone();
        elsewhere["httpConnection"]["port"] = json!(free_port());
        let said = check(&elsewhere).await;
        assert!(said.contains("refused"), "{said}");
        assert!(!said.contains("note     storage"), "{said}");
    }
}

/// The suites that `make truenas-test` runs against an appliance, as far as nothing is mounted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suites_for_an_appliance_pass_on_the_simulator_and_see_what_is_left() {
    for (generation, kind, service) in [
        (Generation::V24_10, "freenas-api-nfs", "nfs"),
        (Generation::V25_10, "freenas-api-nvmeof", "nvmet"),
        (Generation::V26Rc, "freenas-api-iscsi", "iscsitarget"),
    ] {
        let nas = nas(Options::new(generation)).await;
        let text = config(&nas, kind, by_key(&nas)).to_string();
        let tag = "6942a5c0";
        let suites = Appliance::new(&text, tag, Arc::new(NoEnvironment)).expect("a NAS");
        let stopped = suites
            .is_checked()
            .await
            .expect_err("the service is stopped");
        assert!(stopped.to_string().contains(service), "{stopped}");
        let kept = suites.keeps_the_contract().await;
        kept.unwrap_or_else(|error| panic!("{kind} on {generation}: {error:#}"));
        let left = suites.leaks().await.expect("an answer");
        assert!(left.is_empty(), "{kind} on {generation}: {left:#?}");
        let dataset = format!("tank/csi/v/omnibus-test-{tag}/1/v/pvc-left");
        let made = json!({"name": dataset, "create_ancestors": true});
        nas.call("pool.dataset.create", vec![made])
            .await
            .expect("a dataset");
        let share = json!({"path": format!("/mnt/{dataset}")});
        nas.call("sharing.nfs.create", vec![share])
            .await
            .expect("a share");
        let left = suites.leaks().await.expect("an answer");
        assert!(left.contains(&format!("dataset {dataset}")), "{left:#?}");
        assert!(
            left.iter().any(|row| row.starts_with("NFS share")),
            "{left:#?}"
        );
    }
}

/// As an administrator does it again after an upgrade, with the command of the first time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_is_set_up_again_with_the_same_key_file_keeps_its_key() {
    let nas = nas(Options::new(Generation::V25_10)).await;
    let folder = tempfile::tempdir().expect("a folder");
    let (config_file, key_file) = (
        folder.path().join("driver.yaml"),
        folder.path().join("key.txt"),
    );
    let mut made = config(
        &nas,
        "truenas-api-nfs",
        json!({"username": "csi", "apiKey": ""}),
    );
    std::fs::write(&config_file, made.to_string()).expect("a file");
    let (config_file, key_path) = (
        config_file.display().to_string(),
        key_file.display().to_string(),
    );
    let set_up = |more: &'static [&str]| {
        let (config, key) = (
            format!("--driver-config-file={config_file}"),
            format!("--key-file={key_path}"),
        );
        async move {
            let words = ["truenas", "setup-user", &config, &key];
            let words: Vec<&str> = words.into_iter().chain(more.iter().copied()).collect();
            let login = [
                ("OMNIBUS_CSI_TRUENAS_ADMIN_USER", "root"),
                ("OMNIBUS_CSI_TRUENAS_ADMIN_PASSWORD", "sesame-for-root"),
            ];
            let output = tools::omnibus(&words, &login).await;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            (output.status.code(), said)
        }
    };
    let (code, said) = set_up(&[]).await;
    assert_eq!(code, Some(0), "{said}");
    let key = std::fs::read_to_string(&key_file).expect("a key");
    let (code, said) = set_up(&[]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("nothing is missing"), "{said}");
    assert_eq!(std::fs::read_to_string(&key_file).expect("a key"), key);
    // A new one is not written over it, and none is made.
    let (code, said) = set_up(&["--new-key"]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("which must not exist"), "{said}");
    assert_eq!(std::fs::read_to_string(&key_file).expect("a key"), key);
    let keys = nas.call("api_key.query", vec![]).await.expect("keys");
    assert_eq!(keys.as_array().map(Vec::len), Some(2), "{keys}");
    // It is the one of the driver.
    made["httpConnection"]["apiKey"] = key.trim().into();
    made["httpConnection"]["apiKeyLogin"] = "plain".into();
    std::fs::write(&config_file, made.to_string()).expect("a file");
    let flag = format!("--driver-config-file={config_file}");
    let output = tools::omnibus(&["check", &flag], &[]).await;
    let said = String::from_utf8(output.stdout).expect("a text");
    // The service is not started; what it has to say of the login is nothing.
    assert!(!said.contains("login") && !said.contains("lacks"), "{said}");
}
