//! The login that `truenas setup-user` makes: what is missing and nothing else, and enough for the driver.

use std::slice;

use driver_core::config::{Document, NoEnvironment};
use driver_core::{
    Conditions, DeleteSnapshot, DeleteVolume, Driver, ExpandVolume, HealthQuery, SizeRange, Source,
};
use driver_truenas::setup::{Administrator, Plan, Seen, Wanted, dialect_of};
use driver_truenas::{Client, from_document};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use truenas_sim::{Generation, Options, Simulator};

use crate::costs::{call, create, request, snapshot};
use crate::volumes::{appliance, config, set_up};

/// As `config`, for a user that is not made yet.
fn text(nas: &Simulator, kind: &str, key: &str, zfs: &str) -> String {
    config(nas, kind, zfs)
        .replace(nas.api_key(), key)
        .replace("username: root", "username: csi")
}

fn document(text: &str) -> Document {
    Document::parse(text, &NoEnvironment).expect("a document")
}

fn administrator(nas: &Simulator, document: &Document) -> Client {
    let root = Administrator {
        username: "root".to_owned(),
        api_key: Some(SecretString::from(nas.api_key())),
        password: None,
    };
    root.client(document).expect("a client")
}

async fn plan(wanted: &Wanted, client: &Client, renew: bool) -> Plan {
    let seen = wanted.look(client).await.expect("what is there");
    let dialect = client.dialect().await.expect("a dialect");
    wanted.plan(&dialect, &seen, renew).expect("a plan")
}

/// Makes the login of a configuration, and returns the key.
pub(crate) async fn made(nas: &Simulator, text: &str) -> SecretString {
    let document = document(text);
    let wanted = Wanted::of(&document).expect("a login");
    let client = administrator(nas, &document);
    let made = plan(&wanted, &client, false).await.carry_out(&client).await;
    made.expect("made").key.expect("a key")
}

async fn rows(nas: &Simulator, service: &str, filter: Value) -> Vec<Value> {
    let rows = nas.call(&format!("{service}.query"), vec![filter]).await;
    rows.expect(service).as_array().expect("rows").clone()
}

const PROTOCOLS: [&str; 4] = ["nfs", "smb", "iscsi", "nvmeof"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_login_that_is_made_is_enough() {
    for generation in [
        Generation::V22_12,
        Generation::V24_10,
        Generation::V25_04,
        Generation::V25_10,
        Generation::V26Beta,
        Generation::V26Rc,
    ] {
        for protocol in PROTOCOLS {
            if protocol == "nvmeof" && generation < Generation::V25_10 {
                continue;
            }
            let nas = appliance(generation).await;
            let kind = format!("truenas-api-{protocol}");
            let zfs = if ["nfs", "smb"].contains(&protocol) {
                "  datasetEnableQuotas: true\n  datasetPermissionsMode: '0777'\n"
            } else {
                ""
            };
            let key = made(&nas, &text(&nas, &kind, "", zfs)).await;
            let text = text(&nas, &kind, key.expose_secret(), zfs);
            let driver = from_document(&document(&text)).expect("a driver");
            live(
                driver.as_ref(),
                &format!("{kind} on {generation}"),
                generation,
            )
            .await;
        }
    }
}

/// A volume's whole life. On 25.04 clones need full administration.
async fn live(driver: &dyn Driver, of: &str, generation: Generation) {
    fn well<T>(of: &str, outcome: Result<T, driver_core::Error>) -> T {
        outcome.unwrap_or_else(|error| panic!("{of}: {}", error.chain()))
    }
    let volume = create(driver, "pvc-1").await;
    let taken = snapshot(driver, &volume, "s-1").await;
    if generation != Generation::V25_04 {
        let from = Some(Source::Snapshot(taken.id.clone()));
        let clone = request(driver, "pvc-2", from);
        well(of, driver.create_volume(&call(), &clone).await);
        well(
            of,
            driver
                .delete_volume(&call(), DeleteVolume::new(&clone.id))
                .await,
        );
    }
    let whole = HealthQuery::whole(slice::from_ref(&volume.id));
    let health = well(of, driver.conditions(&call(), whole).await);
    let is_well = |found: &Option<Conditions>| found.as_ref().is_some_and(Conditions::is_healthy);
    assert!(health.iter().all(is_well), "{of}: {health:?}");
    let expander = driver.expander().expect("growth");
    let size = SizeRange::new(4 << 30, 0).expect("a size");
    well(
        of,
        expander
            .expand_volume(&call(), ExpandVolume::new(&volume.id, size))
            .await,
    );
    let snapshots = driver.snapshots().expect("snapshots");
    well(
        of,
        snapshots
            .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
            .await,
    );
    well(
        of,
        driver
            .delete_volume(&call(), DeleteVolume::new(&volume.id))
            .await,
    );
    let said = driver.examine(&call()).await;
    let said: Vec<String> = said.iter().map(driver_core::Error::chain).collect();
    let denied = ["lacks", "uthorized", "logged in using"];
    let lacks = said
        .iter()
        .find(|text| denied.iter().any(|word| text.contains(word)));
    assert!(lacks.is_none(), "{of}: {said:?}");
}

/// The key of a driver for NFS must not reach what is not its own.
#[tokio::test]
async fn the_login_that_is_made_can_do_nothing_else() {
    for generation in [Generation::V22_12, Generation::V24_10, Generation::V25_10] {
        let nas = appliance(generation).await;
        let key = made(&nas, &text(&nas, "truenas-api-nfs", "", "")).await;
        let text = text(&nas, "truenas-api-iscsi", key.expose_secret(), "");
        let driver = from_document(&document(&text)).expect("a driver");
        let asked = request(driver.as_ref(), "pvc-1", None);
        let refused = driver.create_volume(&call(), &asked).await;
        let refused = refused.expect_err("not authorized").chain();
        assert!(refused.contains("uthorized"), "{generation}: {refused}");
    }
}

#[tokio::test]
async fn what_is_there_is_kept_and_what_is_missing_is_added() {
    for generation in [Generation::V25_04, Generation::V25_10, Generation::V26Rc] {
        let nas = appliance(generation).await;
        made(&nas, &text(&nas, "truenas-api-nfs", "", "")).await;
        let again = document(&text(&nas, "truenas-api-nfs", "", ""));
        let client = administrator(&nas, &again);
        let wanted = Wanted::of(&again).expect("a login");
        let nothing = plan(&wanted, &client, false).await;
        assert_eq!(nothing.steps().count(), 0, "{generation}: {nothing:?}");
        assert!(nothing.notes.iter().any(|note| note.contains("--new-key")));
        // Another connection of the same user keeps what the first one needs.
        let other = document(&text(&nas, "truenas-api-iscsi", "", ""));
        let more = plan(&Wanted::of(&other).expect("a login"), &client, false).await;
        let done = more.carry_out(&client).await.expect("made");
        assert_eq!(done.done.len(), 1, "{generation}: {:?}", done.done);
        let found = rows(&nas, "privilege", json!([])).await;
        let roles = found[0]["roles"].to_string();
        for role in ["SHARING_NFS_WRITE", "SHARING_ISCSI_TARGET_WRITE"] {
            assert!(roles.contains(role), "{generation}: {roles}");
        }
        assert_eq!(found[0]["local_groups"].as_array().map(Vec::len), Some(1));
    }
}

/// An upgrade to 25.04 revokes keys with a list.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_login_is_made_again_after_an_upgrade_to_25_04() {
    let nas = appliance(Generation::V24_10).await;
    let old = made(&nas, &text(&nas, "truenas-api-nfs", "", "")).await;
    nas.upgrade(Generation::V25_04);
    let with = |key: &SecretString| {
        let text = text(&nas, "truenas-api-nfs", key.expose_secret(), "");
        from_document(&document(&text)).expect("a driver")
    };
    let problems = with(&old).probe(&call()).await;
    assert!(!problems.is_empty(), "the old key is revoked");
    let new = made(&nas, &text(&nas, "truenas-api-nfs", "", "")).await;
    create(with(&new).as_ref(), "pvc-1").await;
}

#[tokio::test]
async fn a_new_key_ends_the_old_one() {
    for generation in [Generation::V24_10, Generation::V25_10] {
        let nas = appliance(generation).await;
        let first = made(&nas, &text(&nas, "truenas-api-nfs", "", "")).await;
        let document = document(&text(&nas, "truenas-api-nfs", "", ""));
        let client = administrator(&nas, &document);
        let wanted = Wanted::of(&document).expect("a login");
        let made = plan(&wanted, &client, true).await.carry_out(&client).await;
        let second = made.expect("made").key.expect("a key");
        assert_ne!(first.expose_secret(), second.expose_secret());
        let old = text(&nas, "truenas-api-nfs", first.expose_secret(), "");
        let driver = from_document(&self::document(&old)).expect("a driver");
        let problems = driver.probe(&call()).await;
        assert!(problems[0].chain().contains("login"), "{problems:?}");
    }
}

#[tokio::test]
async fn a_revoked_key_is_seen_and_replaced_on_demand() {
    let nas = appliance(Generation::V25_10).await;
    let key = made(&nas, &text(&nas, "truenas-api-nfs", "", "")).await;
    let document = document(&text(&nas, "truenas-api-nfs", "", ""));
    let client = administrator(&nas, &document);
    let wanted = Wanted::of(&document).expect("a login");
    assert!(!plan(&wanted, &client, false).await.revoked);
    let (id, _) = key.expose_secret().split_once('-').expect("a number");
    nas.revoke_api_key(id.parse().expect("a number"));
    assert!(plan(&wanted, &client, false).await.revoked);
    let new = plan(&wanted, &client, true).await;
    assert!(!new.revoked, "it is replaced");
    assert_eq!(new.steps().count(), 1);
}

#[tokio::test]
async fn a_user_in_a_group_of_others_gets_no_roles() {
    let options = Options::new(Generation::V25_10).user("csi", "sesame", Some(&[]));
    let nas = Simulator::start(options).await.expect("an appliance");
    set_up(&nas).await;
    let document = document(&text(&nas, "truenas-api-nfs", "", ""));
    let client = administrator(&nas, &document);
    let wanted = Wanted::of(&document).expect("a login");
    let seen = wanted.look(&client).await.expect("what is there");
    let dialect = client.dialect().await.expect("a dialect");
    let refused = wanted.plan(&dialect, &seen, false).expect_err("refused");
    assert!(refused.to_string().contains("wheel"), "{refused}");
}

fn over_ssh(nas: &Simulator, login: &str) -> String {
    let zfs = "  datasetPermissionsMode: '0777'\n  datasetPermissionsAcls: ['-m u:kube:rwx']\n";
    let text = text(nas, "truenas-nfs", "", zfs);
    format!("{text}\nsshConnection: {{host: 127.0.0.1, {login}}}\n")
}

#[tokio::test]
async fn a_login_by_ssh_gets_its_rules_of_sudo() {
    let nas = appliance(Generation::V25_10).await;
    let text = over_ssh(&nas, "username: csi, password: sesame-of-csi");
    made(&nas, &text).await;
    let user = rows(&nas, "user", json!([["username", "=", "csi"]])).await;
    let rules = ["/usr/sbin/zfs", "/usr/bin/chmod", "/usr/bin/setfacl"];
    assert_eq!(user[0]["sudo_commands_nopasswd"], json!(rules));
    assert_eq!(user[0]["ssh_password_enabled"], true);
    assert_eq!(user[0]["smb"], false);
    let document = document(&text);
    let client = administrator(&nas, &document);
    let wanted = Wanted::of(&document).expect("a login");
    let again = plan(&wanted, &client, false).await;
    assert_eq!(again.steps().count(), 0, "{again:?}");
    // With a password of its own, it may also be another user.
    let other = self::document(&over_ssh(&nas, "username: shell, password: sesame-of-csi"));
    let steps = plan(&Wanted::of(&other).expect("a login"), &client, false).await;
    let steps: Vec<&str> = steps.steps().collect();
    assert_eq!(steps, ["make the user shell with a group of its own"]);
}

#[tokio::test]
async fn the_calls_can_be_printed_without_a_nas_and_hold_no_secret() {
    let nas = appliance(Generation::V25_10).await;
    let text = over_ssh(&nas, "username: csi, password: sesame-of-csi");
    let wanted = Wanted::of(&document(&text)).expect("a login");
    let print = |release: &str| {
        let dialect = dialect_of(release).expect("a release");
        wanted.plan(&dialect, &Seen::default(), false)
    };
    let script = print("25.10").expect("a plan").script();
    assert!(!script.contains("sesame"), "{script}");
    let lines: Vec<&str> = script
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    assert!(
        lines[0].starts_with("midclt call user.create '{"),
        "{script}"
    );
    assert!(
        lines[1].starts_with("group=$(midclt call user.query '[["),
        "{script}"
    );
    assert!(
        lines[2].contains("\"local_groups\":['\"$group\"']"),
        "{script}"
    );
    assert!(
        lines[3].starts_with("midclt call api_key.create '{"),
        "{script}"
    );
    // Before roles there is a list of calls, and on CORE neither.
    let old = print("24.10").expect("a plan");
    assert!(
        old.notes.iter().any(|note| note.contains("revokes")),
        "{:?}",
        old.notes
    );
    assert!(old.script().contains("\"resource\":\"sharing.nfs.create\""));
    let refused = print("13.0").expect_err("CORE").to_string();
    assert!(refused.contains("may do everything"), "{refused}");
}

#[tokio::test]
async fn no_password_is_printed_whatever_it_contains() {
    let nas = appliance(Generation::V25_10).await;
    for password in ["a\"canary", "a\\canary", "a'canary", "a\"\\'canary"] {
        let quoted = json!(password);
        let text = over_ssh(&nas, &format!("username: csi, password: {quoted}"));
        let wanted = Wanted::of(&document(&text)).expect("a login");
        let dialect = dialect_of("25.10").expect("a release");
        let plan = wanted.plan(&dialect, &Seen::default(), false);
        let script = plan.expect("a plan").script();
        assert!(!script.contains("canary"), "{script}");
        let named = "\"password\":\"<password of sshConnection>\"";
        assert!(script.contains(named), "{script}");
    }
}

#[test]
fn the_login_of_an_administrator_is_not_sent_in_plain_text() {
    for (connection, is_safe) in [
        ("host: nas.example", false),
        ("host: nas.example, protocol: http", false),
        ("host: nas.example, port: 8080", false),
        ("host: nas.example, protocol: https", true),
        ("host: nas.example, port: 443", true),
        ("host: 127.0.0.1", true),
        ("host: localhost", true),
    ] {
        let text = format!("driver: truenas-api-nfs\nhttpConnection: {{{connection}}}\n");
        let root = Administrator {
            username: "root".to_owned(),
            api_key: None,
            password: Some(SecretString::from("sesame")),
        };
        match root.client(&document(&text)) {
            Ok(_) => assert!(is_safe, "{connection}"),
            Err(refused) => {
                assert!(!is_safe, "{connection}: {refused}");
                assert_eq!(refused.path(), Some("httpConnection.protocol"));
                assert!(refused.to_string().contains("https"), "{refused}");
            }
        }
    }
}

#[test]
fn a_configuration_for_root_or_of_another_driver_is_refused() {
    for (text, part) in [
        (
            "driver: truenas-api-nfs\nhttpConnection: {protocol: https, host: nas, username: root}\n\
             zfs: {datasetParentName: tank/v}\nnfs: {shareHost: nas}\n",
            "httpConnection.username",
        ),
        ("driver: zfs-generic-nfs\n", "driver"),
    ] {
        let refused = Wanted::of(&document(text))
            .expect_err("refused")
            .to_string();
        assert!(refused.contains(part), "{refused}");
    }
}
