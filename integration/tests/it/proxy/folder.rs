//! Connections that come, change and go under a running server.

use std::collections::BTreeMap;
use std::fs;

use csi_proto::v1::plugin_capability::{Type, service};
use csi_proto::v1::{
    ControllerGetVolumeRequest, GetPluginCapabilitiesRequest, ListVolumesRequest, PluginCapability,
    ProbeRequest, Volume,
};
use integration::client::Client;
use integration::place::Place;
use integration::server::{Launch, log_of};
use integration::{requirement, tools, volume, wait};
use tonic::{Code, Status};

use super::{connection, connections, main_file, put};

async fn create(client: &Client, name: &str, at: &str) -> Result<Volume, Status> {
    let parameters: BTreeMap<String, String> = [("connection".to_owned(), at.to_owned())].into();
    let request = volume::create(name, &parameters);
    let reply = client.controller.clone().create_volume(request).await?;
    Ok(reply.into_inner().volume.expect("a volume"))
}

/// Makes a volume as soon as its connection is there, as a provisioner does.
async fn created(client: &Client, name: &str, at: &str) -> Volume {
    let ask = async || create(client, name, at).await.ok();
    wait::until_answered("the connection", ask).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_added_changed_and_removed_without_a_restart() {
    let place = Place::new();
    fs::create_dir(connections(&place)).expect("a folder");
    let mut server = main_file(&place, "").start(&place).await;
    let mut client = server.client();
    let capabilities = client
        .identity
        .get_plugin_capabilities(GetPluginCapabilitiesRequest {});
    let before = capabilities.await.expect("an answer").into_inner();
    let none = create(&client, "a", "one")
        .await
        .expect_err("an empty folder");
    assert_eq!(none.code(), Code::InvalidArgument);

    let (one, two) = (place.base(), place.path().join("two"));
    connection(&place, "one", &one);
    let first = created(&client, "a", "one").await;
    assert_eq!(first.volume_id, "v:one/a");
    assert!(one.join("v/a").is_dir());

    connection(&place, "one", &two);
    wait_for(&place, "\"changed\"").await;
    let second = create(&client, "b", "one").await.expect("made");
    assert!(two.join("v/b").is_dir(), "{second:?}");

    put(&place, "one", "driver: [");
    wait_for(&place, "its file cannot be used: the last good one goes on").await;
    create(&client, "c", "one")
        .await
        .expect("made by the last good one");

    let capabilities = client
        .identity
        .get_plugin_capabilities(GetPluginCapabilitiesRequest {});
    let mut after = capabilities.await.expect("an answer").into_inner();
    let all = after.capabilities.len();
    after.capabilities.retain(|one| !is_of_groups(*one));
    assert_eq!(
        all - after.capabilities.len(),
        1,
        "directories offer groups"
    );
    assert_eq!(
        before, after,
        "what else is advertised does not depend on connections"
    );

    fs::remove_file(connections(&place).join("one.yaml")).expect("removed");
    wait_for(&place, "removed: its volumes").await;
    let gone = client
        .controller
        .delete_volume(volume::delete("v:one/b"))
        .await;
    let status = gone.expect_err("its connection is gone");
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(
        status.message().contains("connection `one`"),
        "{}",
        status.message()
    );
    assert!(two.join("v/b").is_dir());
    assert!(server.terminate().await.success());
}

fn is_of_groups(capability: PluginCapability) -> bool {
    let wanted = i32::from(service::Type::GroupControllerService);
    matches!(capability.r#type, Some(Type::Service(service)) if service.r#type == wanted)
}

async fn wait_for(place: &Place, words: &str) {
    wait::until(words, || log_of(place).contains(words).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_mounted_and_unmounted_when_its_connection_is_gone() {
    if !requirement::root("mounting behind the proxy") {
        return;
    }
    let place = Place::new();
    fs::create_dir(connections(&place)).expect("a folder");
    put(
        &place,
        "one",
        &format!(
            "driver: local-hostpath\nlocal-hostpath: {{shareBasePath: {base}, controllerBasePath: {base}}}\n\
             node: {{mount: {{mount_flags: 'nodev,noexec'}}}}\n",
            base = place.base().display()
        ),
    );
    let mut server = main_file(&place, "").start(&place).await;
    let client = server.client();
    let made = created(&client, "a", "one").await;
    assert!(
        made.volume_context.contains_key("omnibus-csi/node"),
        "{made:?}"
    );
    fs::remove_file(connections(&place).join("one.yaml")).expect("removed");
    wait_for(&place, "removed: its volumes").await;
    let (staging, target) = (place.node().join("staging"), place.node().join("target"));
    fs::create_dir(&staging).expect("a folder");
    let node = &mut client.node.clone();
    node.node_stage_volume(volume::stage(&made, &staging))
        .await
        .expect("staged");
    node.node_publish_volume(volume::publish(&made, &staging, &target))
        .await
        .expect("published");
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let line = mounts
        .lines()
        .find(|line| line.contains(&target.display().to_string()));
    let line = line.expect("it is mounted");
    assert!(
        line.contains("noexec") && line.contains("nodev"),
        "options of its connection: {line}"
    );
    node.node_unpublish_volume(volume::unpublish(&made, &target))
        .await
        .expect("unpublished");
    node.node_unstage_volume(volume::unstage(&made, &staging))
        .await
        .expect("unstaged");
    assert!(place.mounts().is_empty());
    assert!(server.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handles_of_a_deployment_without_a_proxy_live_on_behind_it() {
    let place = Place::new();
    fs::create_dir(connections(&place)).expect("a folder");
    let mut alone = integration::server::Launch::local_hostpath(&place)
        .start(&place)
        .await;
    let request = volume::create("old", &BTreeMap::new());
    let old = alone
        .client()
        .controller
        .create_volume(request)
        .await
        .expect("made");
    let old = old.into_inner().volume.expect("a volume");
    assert_eq!(old.volume_id, "old");
    assert!(alone.terminate().await.success());

    connection(&place, "nas", &place.base());
    let mut server = main_file(&place, "legacyConnection: nas")
        .start(&place)
        .await;
    let mut client = server.client();
    let request = ControllerGetVolumeRequest {
        volume_id: "old".into(),
    };
    let found = client
        .controller
        .controller_get_volume(request)
        .await
        .expect("found");
    assert_eq!(
        found.into_inner().volume.expect("a volume").volume_id,
        "old"
    );
    let listed = client
        .controller
        .list_volumes(ListVolumesRequest::default())
        .await;
    let entry = listed.expect("a list").into_inner().entries.remove(0);
    assert_eq!(entry.volume.expect("a volume").volume_id, "v:nas/old");
    client
        .controller
        .delete_volume(volume::delete("old"))
        .await
        .expect("deleted");
    assert!(!place.base().join("v/old").exists());
    assert!(server.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_health_of_connections_is_listed_checked_and_part_of_a_probe() {
    let place = Place::new();
    fs::create_dir(connections(&place)).expect("a folder");
    connection(&place, "good", &place.base());
    // A file where a folder has to be.
    connection(&place, "sick", &place.canary().join("untouched"));
    put(&place, "typo", "driver: local-hostpaht\n");
    let mut server = main_file(&place, "").start(&place).await;
    let mut client = server.client();
    let is_reported = async || {
        let reply = client.identity.probe(ProbeRequest {}).await;
        let reply = reply.expect("an answer");
        assert_eq!(reply.get_ref().ready, Some(true));
        let value = |key: &str| {
            let text = reply
                .metadata()
                .get(format!("omnibus-csi-connections-{key}"));
            text.and_then(|text| text.to_str().ok().map(str::to_owned))
        };
        let both = (value("healthy")?, value("unhealthy")?);
        (both == ("1 of 3".to_owned(), "sick,typo".to_owned())).then_some(())
    };
    wait::until_answered("the health of all", is_reported).await;
    assert!(server.terminate().await.success());

    let config = format!("--driver-config-file={}", place.config().display());
    let listed = tools::omnibus(&["connections", &config, "--json"], &[]).await;
    assert_eq!(listed.status.code(), Some(1));
    let census: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    let row = |name: &str| {
        let rows = census["connections"].as_array().expect("rows");
        rows.iter()
            .find(|row| row["name"] == name)
            .expect(name)
            .clone()
    };
    assert_eq!(row("good")["health"], "good");
    assert_eq!(row("good")["volumes"], 0);
    assert_eq!(row("sick")["health"], "bad");
    assert_eq!(row("typo")["health"], "invalid");
    assert!(
        row("typo")["error"]
            .as_str()
            .expect("text")
            .contains("misspelling")
    );

    let checked = tools::omnibus(&["check", &config, "--json"], &[]).await;
    assert_eq!(checked.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&checked.stdout).expect("JSON");
    assert_eq!(report["usable"], true, "a bad file does not stop a server");
    let of = |name: &str| {
        let all = report["connections"].as_array().expect("reports");
        all.iter()
            .find(|report| report["connection"] == name)
            .expect(name)
            .clone()
    };
    assert_eq!(
        (of("good")["ok"].as_bool(), of("sick")["ok"].as_bool()),
        (Some(true), Some(false))
    );
    assert_eq!(of("typo")["usable"], false);
    // What only the process that serves can find out.
    let notes = of("good")["findings"].to_string();
    assert!(
        notes.contains("its controller has to run on every node"),
        "{notes}"
    );
}

/// The budget of the folder, on a process of its own, in whatever build the tests are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_connections_cost_less_than_a_hundred_mib() {
    let place = Place::new();
    fs::create_dir(connections(&place)).expect("a folder");
    let mut empty = main_file(&place, "").start(&place).await;
    let before = empty.process().rss_kib();
    assert!(empty.terminate().await.success());
    for n in 0..1000 {
        let base = place.base().join(n.to_string());
        connection(&place, &format!("nas-{n:04}"), &base);
    }
    let mut server = main_file(&place, "").start(&place).await;
    let grown = server.process().rss_kib().saturating_sub(before);
    let client = server.client();
    let last = create(&client, "a", "nas-0999").await;
    last.expect("all are there when it begins to serve");
    assert!((1..100 << 10).contains(&grown), "{grown} KiB");
    connection(&place, "nas-0500", &place.path().join("moved"));
    wait_for(&place, "\"changed\"").await;
    create(&client, "b", "nas-0500").await.expect("made");
    assert!(place.path().join("moved/v/b").is_dir());
    assert!(server.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_said_not_to_exist_while_a_folder_could_never_be_read() {
    let place = Place::new();
    fs::create_dir(connections(&place)).expect("a folder");
    connection(&place, "one", &place.base());
    let missing = place.path().join("missing");
    let launch = Launch::new(format!(
        "driver: proxy\nproxy: {{configFolder: [{}, {}], nodeTopology: {{type: node}}}}\n",
        connections(&place).display(),
        missing.display()
    ));
    let mut server = launch.start(&place).await;
    let mut client = server.client();
    create(&client, "a", "one").await.expect("made");
    let first = client
        .controller
        .list_volumes(ListVolumesRequest::default());
    let first = first.await.expect("a part").into_inner();
    assert_eq!(first.entries.len(), 1);
    assert!(!first.next_token.is_empty(), "it does not end here");
    let rest = client.controller.list_volumes(ListVolumesRequest {
        starting_token: first.next_token,
        ..Default::default()
    });
    let rest = rest.await.expect_err("it does not end well");
    assert_eq!(rest.code(), Code::Unavailable);
    let gone = client.controller.delete_volume(volume::delete("v:two/x"));
    let gone = gone.await.expect_err("it is unknown");
    assert!(
        gone.message().contains("cannot be read"),
        "{}",
        gone.message()
    );

    fs::create_dir(&missing).expect("a folder");
    let is_whole = async || {
        let mut client = client.controller.clone();
        let list = client.list_volumes(ListVolumesRequest::default()).await;
        list.ok()
            .filter(|list| list.get_ref().next_token.is_empty())
    };
    let whole = wait::until_answered("the folder", is_whole).await;
    assert_eq!(whole.into_inner().entries.len(), 1);
    assert!(server.terminate().await.success());
}
