//! One process under several names: the driver's own, and those of releases that were before it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use csi_proto::pluginregistration::InfoRequest;
use csi_proto::pluginregistration::registration_client::RegistrationClient;
use csi_proto::v1::{
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse,
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    ListVolumesRequest, NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse,
    NodeGetInfoRequest, NodeGetInfoResponse, Volume,
};
use integration::client::Client;
use integration::place::Place;
use integration::server::{Launch, Server, log_of};
use integration::{requirement, tools, volume, wait};
use tonic::transport::Endpoint;
use tonic::{Code, Status};

use super::{connection, connections, main_file};

const NAS: &str = "org.old.nas";
const DISKS: &str = "org.old.disks";
const NAMES: &str = "legacyNames: {org.old.nas: nas, org.old.disks: disks}";

fn socket(place: &Place, name: &str) -> PathBuf {
    place.path().join(name).join("csi.sock")
}

fn disks(place: &Place) -> PathBuf {
    place.path().join("disks")
}

/// Both connections, and a server of both names.
fn fleet(place: &Place) -> Launch {
    fs::create_dir_all(connections(place)).expect("a folder");
    connection(place, "nas", &place.base());
    connection(place, "disks", &disks(place));
    main_file(place, NAMES)
}

async fn client(place: &Place, name: &str) -> Client {
    let connect = async || Client::connect(&socket(place, name)).await.ok();
    wait::until_answered("the socket of a legacy name", connect).await
}

async fn create(client: &Client, name: &str, class: &[(&str, &str)]) -> Result<Volume, Status> {
    let request = volume::create(name, &volume::parameters(class));
    let reply = client.controller.clone().create_volume(request).await?;
    Ok(reply.into_inner().volume.expect("a volume"))
}

async fn delete(client: &Client, handle: &str) -> Result<(), Status> {
    let mut controller = client.controller.clone();
    let reply = controller.delete_volume(volume::delete(handle)).await;
    reply.map(drop)
}

async fn listed(client: &Client) -> Vec<String> {
    let list = client
        .controller
        .clone()
        .list_volumes(ListVolumesRequest::default())
        .await;
    let entries = list.expect("a list").into_inner().entries.into_iter();
    let mut handles: Vec<_> = entries
        .filter_map(|entry| entry.volume)
        .map(|one| one.volume_id)
        .collect();
    handles.sort();
    handles
}

/// The first questions of an orchestrator.
type Described = (
    GetPluginCapabilitiesResponse,
    ControllerGetCapabilitiesResponse,
    NodeGetCapabilitiesResponse,
    NodeGetInfoResponse,
);

async fn described(client: &Client) -> Result<Described, Status> {
    let mut client = client.clone();
    let plugin = client
        .identity
        .get_plugin_capabilities(GetPluginCapabilitiesRequest {})
        .await?;
    let request = ControllerGetCapabilitiesRequest {};
    let controller = client
        .controller
        .controller_get_capabilities(request)
        .await?;
    let node = client
        .node
        .node_get_capabilities(NodeGetCapabilitiesRequest {})
        .await?;
    let info = client.node.node_get_info(NodeGetInfoRequest {}).await?;
    Ok((
        plugin.into_inner(),
        controller.into_inner(),
        node.into_inner(),
        info.into_inner(),
    ))
}

async fn name_of(client: &Client) -> String {
    let mut identity = client.identity.clone();
    let info = identity.get_plugin_info(GetPluginInfoRequest {}).await;
    info.expect("an answer").into_inner().name
}

/// The old release of `nas`, as it was: this program with one driver, which has the handles of democratic-csi.
async fn old_release(place: &Place) -> Server {
    let launch = Launch::local_hostpath(place).set("--csi-name", NAS);
    launch.start(place).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_old_names_and_the_own_name_are_served_and_given_back() {
    let place = Place::new();
    let mut old = old_release(&place).await;
    let before = described(&old.client()).await.expect("answers");
    let made = create(&old.client(), "one", &[]).await.expect("made");
    assert!(old.terminate().await.success());

    let mut server = fleet(&place).start(&place).await;
    let (own, nas, disk) = (
        server.client(),
        client(&place, NAS).await,
        client(&place, DISKS).await,
    );
    assert_eq!(name_of(&own).await, "org.omnibus-csi.test");
    assert_eq!(name_of(&nas).await, NAS);
    assert_eq!(name_of(&disk).await, DISKS);
    assert_eq!(
        described(&nas).await.expect("answers"),
        before,
        "as the release that was there"
    );
    let own_info = described(&own).await.expect("answers").3;
    assert_eq!(
        own_info.node_id, "n=node-a",
        "the other names are not the own one"
    );

    let two = create(&nas, "two", &[]).await.expect("made");
    assert_eq!(two.volume_id, "two");
    assert_eq!(
        two.accessible_topology, made.accessible_topology,
        "PersistentVolumes of one node have one topology"
    );
    let same = create(&nas, "one", &[]).await.expect("it exists");
    assert_eq!(same, made, "an old volume is asked for again");
    create(&disk, "three", &[]).await.expect("made");
    create(&own, "four", &[("connection", "nas")])
        .await
        .expect("made");
    assert_eq!(listed(&nas).await, ["four", "one", "two"]);
    assert_eq!(listed(&disk).await, ["three"]);
    let all = ["v:disks/three", "v:nas/four", "v:nas/one", "v:nas/two"];
    assert_eq!(listed(&own).await, all);
    assert!(disks(&place).join("v/three").is_dir());

    delete(&own, "v:nas/two")
        .await
        .expect("deleted by its other handle");
    delete(&nas, "four").await.expect("and the other way round");
    delete(&disk, "one")
        .await
        .expect("there is none of that name");
    delete(&nas, "v:disks/three")
        .await
        .expect("handles of the own name are understood");
    assert_eq!(listed(&own).await, ["v:nas/one"]);
    create(&nas, "five", &[]).await.expect("made");

    for name in [NAS, DISKS] {
        assert!(socket(&place, name).exists());
    }
    assert!(server.terminate().await.success());
    for name in [NAS, DISKS] {
        assert!(!socket(&place, name).exists(), "{name}: its socket stays");
    }

    let mut old = old_release(&place).await;
    assert_eq!(listed(&old.client()).await, ["five", "one"]);
    for handle in ["five", "one"] {
        delete(&old.client(), handle).await.expect("deleted");
        assert!(!place.base().join("v").join(handle).exists());
    }
    assert!(old.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_kill_9_the_next_process_has_all_sockets_and_gives_the_same_answers() {
    let place = Place::new();
    let launch = fleet(&place);
    let mut first = launch.start(&place).await;
    let nas = client(&place, NAS).await;
    let before = described(&nas).await.expect("answers");
    let made = create(&nas, "one", &[]).await.expect("made");
    first.kill().await;
    assert!(socket(&place, NAS).exists(), "what a killed process leaves");

    let mut second = launch.start(&place).await;
    let nas = client(&place, NAS).await;
    assert_eq!(described(&nas).await.expect("answers"), before);
    assert_eq!(create(&nas, "one", &[]).await.expect("it exists"), made);
    let listed_by_disks = listed(&client(&place, DISKS).await).await;
    assert_eq!(listed_by_disks, Vec::<String>::new());
    assert!(second.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_without_its_connection_says_so_and_the_others_go_on() {
    let place = Place::new();
    let launch = fleet(&place);
    fs::remove_file(connections(&place).join("disks.yaml")).expect("removed");
    let mut server = launch.start(&place).await;
    wait_for(&place, "proxy.legacyNames.org.old.disks: disks").await;
    let (nas, disk) = (client(&place, NAS).await, client(&place, DISKS).await);
    let refused = described(&disk)
        .await
        .expect_err("its connection is not there");
    assert!(
        refused.message().contains("connection `disks`"),
        "{refused:?}"
    );
    let refused = create(&disk, "one", &[])
        .await
        .expect_err("its connection is not there");
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    create(&nas, "one", &[]).await.expect("made");

    connection(&place, "disks", &disks(&place));
    let created = async || create(&disk, "one", &[]).await.ok();
    wait::until_answered("the connection", created).await;
    described(&disk).await.expect("answers");

    fs::remove_file(connections(&place).join("nas.yaml")).expect("removed");
    wait_for(&place, "removed: its volumes").await;
    let refused = delete(&nas, "one")
        .await
        .expect_err("its connection is gone");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(place.base().join("v/one").is_dir(), "it is not forgotten");
    delete(&disk, "one").await.expect("deleted");
    assert!(server.terminate().await.success());
}

async fn wait_for(place: &Place, words: &str) {
    wait::until(words, || log_of(place).contains(words).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_cannot_be_served_is_an_error_of_the_start() {
    let place = Place::new();
    let launch = fleet(&place);
    let failed = async |launch: &Launch, code: i32, words: &str| {
        fs::write(place.log(), "").expect("an empty log");
        let status = launch.run_to_end(&place).await;
        let log = log_of(&place);
        assert_eq!(status.code(), Some(code), "{words}: {log}");
        assert!(log.contains(words), "{words}: {log}");
        assert!(!place.socket().exists(), "{words}: its own socket stays");
    };
    failed(
        &launch.clone().set("--csi-name", NAS),
        64,
        "the name of the driver itself",
    )
    .await;
    let deep = format!("/{}", "x".repeat(100));
    failed(
        &launch.clone().set("--legacy-sockets", &deep),
        64,
        "at most 107",
    )
    .await;
    let unregistered = launch
        .clone()
        .set("--kubelet-registration-path", "/csi.sock");
    failed(&unregistered, 64, "has no folder for this name").await;
    let elsewhere = launch
        .clone()
        .set("--kubelet-registration-path", "/k/plugins/own/csi.sock");
    failed(&elsewhere, 64, "with --legacy-sockets").await;
    let missing = place.path().join("missing").display().to_string();
    failed(
        &launch.clone().set("--legacy-sockets", &missing),
        1,
        "make the folder",
    )
    .await;

    let path = socket(&place, NAS);
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(&path, "precious").expect("a file");
    failed(&launch, 1, "is not a socket").await;
    assert_eq!(fs::read(&path).expect("a file"), b"precious");
    let left = socket(&place, DISKS);
    assert!(!left.exists(), "the socket of the other name stays");
    fs::remove_file(&path).expect("removed");

    let twice = Place::new();
    let mut server = launch.start(&place).await;
    let dir = place.path().display().to_string();
    let second = launch.set("--legacy-sockets", &dir);
    let status = second.run_to_end(&twice).await;
    assert_eq!(status.code(), Some(1));
    assert!(log_of(&twice).contains("another server answers there"));
    assert_eq!(name_of(&client(&place, NAS).await).await, NAS);
    assert!(server.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_registers_each_name_at_its_own_place_and_needs_no_connection() {
    let place = Place::new();
    let registry = place.path().join("plugins_registry");
    fs::create_dir(&registry).expect("a folder");
    let mut launch = main_file(&place, NAMES)
        .set(
            "--kubelet-registration-path",
            "/k/plugins/org.omnibus-csi.test/csi.sock",
        )
        .set(
            "--plugin-registration-path",
            &registry.display().to_string(),
        )
        .set("--legacy-sockets", &place.path().display().to_string());
    launch.flags.retain(|flag| flag != "--csi-mode=controller");
    let mut server = launch.start(&place).await;
    for (name, endpoint) in [
        (
            "org.omnibus-csi.test",
            "/k/plugins/org.omnibus-csi.test/csi.sock",
        ),
        (NAS, "/k/plugins/org.old.nas/csi.sock"),
        (DISKS, "/k/plugins/org.old.disks/csi.sock"),
    ] {
        let socket = registry.join(format!("{name}-reg.sock"));
        let info = wait::until_answered("the registration", async || ask(&socket).await).await;
        assert_eq!(
            (info.name.as_str(), info.endpoint.as_str()),
            (name, endpoint)
        );
    }
    let mut nas = client(&place, NAS).await;
    let info = nas.node.node_get_info(NodeGetInfoRequest {}).await;
    let info = info.expect("an answer").into_inner();
    assert_eq!(
        (info.node_id.as_str(), info.accessible_topology),
        ("node-a", None)
    );
    let can = nas
        .node
        .node_get_capabilities(NodeGetCapabilitiesRequest {})
        .await;
    assert!(!can.expect("an answer").into_inner().capabilities.is_empty());
    assert!(server.terminate().await.success());
    let left = fs::read_dir(&registry).expect("a folder").count();
    assert_eq!(left, 0, "the kubelet would ask dead sockets");
}

async fn ask(socket: &Path) -> Option<csi_proto::pluginregistration::PluginInfo> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).ok()?;
    let mut kubelet = RegistrationClient::new(endpoint.connect().await.ok()?);
    Some(kubelet.get_info(InfoRequest {}).await.ok()?.into_inner())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_the_old_release_has_mounted_is_unmounted_under_its_name() {
    if !requirement::root("mounting under a legacy name") {
        return;
    }
    let place = Place::new();
    let mut old = old_release(&place).await;
    let made = create(&old.client(), "one", &[]).await.expect("made");
    let (staging, target) = (place.node().join("staging"), place.node().join("target"));
    fs::create_dir(&staging).expect("a folder");
    let mut node = old.client().node;
    let staged = node.node_stage_volume(volume::stage(&made, &staging)).await;
    staged.expect("staged");
    let publish = volume::publish(&made, &staging, &target);
    node.node_publish_volume(publish).await.expect("published");
    fs::write(target.join("data"), "kept").expect("written");
    old.kill().await;

    let mut server = fleet(&place).start(&place).await;
    let nas = client(&place, NAS).await;
    assert_eq!(fs::read(target.join("data")).expect("read"), b"kept");
    let mut node = nas.node.clone();
    let again = node.node_stage_volume(volume::stage(&made, &staging)).await;
    again.expect("it is staged");
    let grown = volume::expand_on_node(&volume::expand(&made.volume_id, 1 << 20), &target);
    node.node_expand_volume(grown)
        .await
        .expect("grown where it is");
    let grown = volume::expand_on_node(&volume::expand("v:nas/one", 1 << 20), &target);
    let by_its_other_handle = node.node_expand_volume(grown).await;
    by_its_other_handle.expect("it is the same volume");
    let unpublish = volume::unpublish(&made, &target);
    node.node_unpublish_volume(unpublish)
        .await
        .expect("unpublished");
    let unstage = volume::unstage(&made, &staging);
    node.node_unstage_volume(unstage).await.expect("unstaged");
    assert!(place.mounts().is_empty());
    delete(&nas, &made.volume_id).await.expect("deleted");
    assert!(server.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_of_a_call_over_a_legacy_name_is_in_the_log() {
    const SECRET: &str = "hunter2-of-a-legacy-name";
    let place = Place::new();
    let mut server = fleet(&place).start(&place).await;
    let nas = client(&place, NAS).await;
    let mut request = volume::create("one", &BTreeMap::new());
    request.secrets = [("password".to_owned(), SECRET.to_owned())].into();
    let mut controller = nas.controller.clone();
    controller.create_volume(request).await.expect("made");
    let mut request = volume::delete("v:none/one");
    request.secrets = [("password".to_owned(), SECRET.to_owned())].into();
    let status = controller
        .delete_volume(request)
        .await
        .expect_err("no such connection");
    assert!(!status.message().contains(SECRET));
    assert!(server.terminate().await.success());
    let log = log_of(&place);
    assert!(log.contains("CreateVolume succeeded"), "the log is there");
    assert!(!log.contains(SECRET));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_names_a_legacy_name_whose_connection_has_no_file() {
    let place = Place::new();
    let launch = fleet(&place);
    let check = async || {
        fs::write(place.config(), &launch.config).expect("a file");
        let config = format!("--driver-config-file={}", place.config().display());
        let checked = tools::omnibus(&["check", &config, "--offline", "--json"], &[]).await;
        String::from_utf8(checked.stdout).expect("text")
    };
    let key = "proxy.legacyNames.org.old.disks";
    let sound = check().await;
    assert!(!sound.contains(key), "{sound}");
    fs::remove_file(connections(&place).join("disks.yaml")).expect("removed");
    let missing = check().await;
    assert!(missing.contains(key), "{missing}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sockets_of_old_names_have_the_permissions_of_the_own_one() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let folder = place.path().join("sockets");
    fs::create_dir(&folder).expect("a folder");
    let launch = fleet(&place)
        .set("--legacy-sockets", &folder.display().to_string())
        .set("--server-socket-permissions-mode", "0660");
    let mut server = launch.start(&place).await;
    let meta = fs::metadata(folder.join(NAS).join("csi.sock")).expect("a socket");
    assert!(meta.file_type().is_socket());
    assert_eq!(meta.permissions().mode() & 0o7777, 0o660);
    assert!(server.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_follows_a_handle_of_a_legacy_name_to_its_connection() {
    let place = Place::new();
    let mut server = fleet(&place).start(&place).await;
    create(&client(&place, DISKS).await, "one", &[])
        .await
        .expect("made");
    assert!(server.terminate().await.success());
    let explain = async |driver: &str| {
        let config = format!("--driver-config-file={}", place.config().display());
        let driver = format!("--csi-name={driver}");
        let words = ["explain", "one", &config, &driver, "--json"];
        let output = tools::omnibus(&words, &[]).await;
        let chain: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let broken = chain["broken"].as_str().map(str::to_owned);
        (broken, chain["links"][1]["facts"]["name"].clone())
    };
    let disks = explain(DISKS).await;
    assert_eq!((disks.0, disks.1.as_str()), (None, Some("disks")));
    let (broken, at) = explain(NAS).await;
    assert_eq!(at, "nas", "there is no such volume");
    assert!(broken.is_some_and(|link| link != "connection"));
    let (broken, _) = explain("org.omnibus-csi.test").await;
    assert_eq!(
        broken.as_deref(),
        Some("connection"),
        "the own name has no such handles"
    );
}
