//! The registration with the kubelet: what a kubelet does with the socket, done by the test.

use std::path::{Path, PathBuf};

use csi_proto::pluginregistration::registration_client::RegistrationClient;
use csi_proto::pluginregistration::{InfoRequest, PluginInfo, RegistrationStatus};
use rustix::process::Signal;
use tonic::transport::{Channel, Endpoint};

use super::harness::{Place, Server};

const FOUND: &str = "the kubelet finds this driver here";

fn registry(place: &Place) -> PathBuf {
    place.path("plugins_registry")
}

fn socket(place: &Place) -> PathBuf {
    registry(place).join("org.example-reg.sock")
}

fn registered(place: &Place) -> Server {
    let mut server = Server::of(place.command().arg("--csi-mode=node").args([
        "--kubelet-registration-path=/kubelet/plugins/org.example/csi.sock".to_owned(),
        format!("--plugin-registration-path={}", registry(place).display()),
    ]));
    server.until(FOUND);
    server
}

async fn kubelet(socket: &Path) -> RegistrationClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
    RegistrationClient::new(endpoint.connect().await.unwrap())
}

#[tokio::test]
async fn the_kubelet_gets_the_driver_info_and_its_answer_is_logged() {
    let place = Place::new();
    std::fs::create_dir(registry(&place)).unwrap();
    let mut server = registered(&place);
    let mut kubelet = kubelet(&socket(&place)).await;
    let info = kubelet.get_info(InfoRequest {}).await.unwrap().into_inner();
    let expected = PluginInfo {
        r#type: "CSIPlugin".into(),
        name: "org.example".into(),
        endpoint: "/kubelet/plugins/org.example/csi.sock".into(),
        supported_versions: vec!["1.0.0".into()],
    };
    assert_eq!(info, expected);
    for (plugin_registered, error, said) in [
        (true, "", "the kubelet has registered this driver"),
        (
            false,
            "why not",
            "the kubelet does not register this driver",
        ),
    ] {
        let status = RegistrationStatus {
            plugin_registered,
            error: error.into(),
        };
        kubelet.notify_registration_status(status).await.unwrap();
        let line = server.until(said);
        assert_eq!(line["error"].as_str().unwrap_or_default(), error);
    }
    drop(kubelet);
    server.signal(Signal::TERM);
    assert_eq!(server.ended(), Some(0));
    assert!(
        !socket(&place).exists(),
        "the kubelet would ask a dead socket"
    );
}

#[tokio::test]
async fn after_kill_9_the_next_process_takes_the_socket_over() {
    let place = Place::new();
    std::fs::create_dir(registry(&place)).unwrap();
    let mut first = registered(&place);
    first.signal(Signal::KILL);
    assert_eq!(first.ended(), None);
    assert!(socket(&place).exists());
    let _second = registered(&place);
    let mut kubelet = kubelet(&socket(&place)).await;
    kubelet.get_info(InfoRequest {}).await.unwrap();
}

#[test]
fn a_registration_that_cannot_be_is_refused_before_anything_is_bound() {
    let place = Place::new();
    for (flags, said) in [
        (
            &["--plugin-registration-path=/registration"][..],
            "the second needs the first",
        ),
        (
            &["--kubelet-registration-path=csi.sock"],
            "no absolute path",
        ),
        (
            &[
                "--csi-mode=controller",
                "--kubelet-registration-path=/csi.sock",
            ],
            "no node service",
        ),
    ] {
        let (code, text) = place.refused(place.command().args(flags));
        assert_eq!(code, 64, "{text}");
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn a_folder_that_is_not_there_ends_it_without_its_sockets() {
    let place = Place::new();
    let mut server = Server::of(place.command().args([
        "--kubelet-registration-path=/csi.sock".to_owned(),
        format!("--plugin-registration-path={}", registry(&place).display()),
    ]));
    server.until("no kubelet finds this driver");
    assert_eq!(server.ended(), Some(1));
    assert!(!place.socket().exists());
}
