use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::Instant;
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1alpha::server_reflection_request::MessageRequest as AlphaRequest;
use tonic_reflection::pb::{v1, v1alpha};

use super::handshake::DEADLINE;
use super::socket::{Bound, UnixSocket};
use super::*;

/// A server without CSI; it stops with the runtime of the test.
async fn connected(dir: &tempfile::TempDir) -> Channel {
    let path = dir.path().join("csi.sock");
    let socket = UnixSocket {
        path: path.clone(),
        mode: 0o600,
    };
    let unix = Some(Bound::listen(&socket).unwrap());
    let (_reporter, health) = tonic_health::server::health_reporter();
    let routes = reflection::add_to(
        Routes::new(health),
        &["grpc.health.v1.Health", "csi.v1.Identity", "csi.v1.Node"],
    );
    tokio::spawn(serve(
        Listeners { unix, tcp: None },
        routes,
        std::future::pending::<()>,
    ));
    let uri = format!("unix:{}", path.display());
    Endpoint::from_shared(uri).unwrap().connect().await.unwrap()
}

async fn is_served(channel: &Channel) -> bool {
    let question = HealthCheckRequest {
        service: String::new(),
    };
    let answer = HealthClient::new(channel.clone()).check(question).await;
    answer.unwrap().into_inner().status == 1
}

fn asking(message_request: MessageRequest) -> v1::ServerReflectionRequest {
    v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(message_request),
    }
}

#[tokio::test]
async fn health_is_answered_and_reflection_knows_csi_in_both_versions() {
    let dir = tempfile::tempdir().unwrap();
    let channel = connected(&dir).await;

    assert!(is_served(&channel).await);

    let questions = tokio_stream::iter([
        asking(MessageRequest::ListServices(String::new())),
        asking(MessageRequest::FileContainingSymbol(
            "csi.v1.Controller".into(),
        )),
    ]);
    let mut client = ServerReflectionClient::new(channel.clone());
    let mut answers = client
        .server_reflection_info(questions)
        .await
        .unwrap()
        .into_inner();
    let mut next = async || {
        answers
            .message()
            .await
            .unwrap()
            .unwrap()
            .message_response
            .unwrap()
    };
    let MessageResponse::ListServicesResponse(list) = next().await else {
        panic!("a list")
    };
    let listed: Vec<_> = list.service.iter().map(|service| &*service.name).collect();
    let served = [
        "grpc.health.v1.Health",
        "csi.v1.Identity",
        "csi.v1.Node",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    ];
    assert_eq!(listed, served, "what is served, and nothing else");
    let file = next().await;
    assert!(
        matches!(file, MessageResponse::FileDescriptorResponse(_)),
        "{file:?}"
    );

    let question = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(AlphaRequest::ListServices(String::new())),
    };
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(channel);
    let answer = client
        .server_reflection_info(tokio_stream::iter([question]))
        .await
        .unwrap();
    assert!(answer.into_inner().message().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_cannot_be_accepted_causes_no_busy_loop_and_does_not_end_the_server() {
    let start = Instant::now();
    let refused = || Err(io::Error::from_raw_os_error(24));
    let incoming = tokio_stream::iter([refused(), refused(), Ok(1), Ok(2)]);
    let taken: Vec<_> = accepted(incoming).collect().await;
    assert_eq!(start.elapsed(), 2 * PAUSE);
    assert!(
        matches!(taken[..], [Err(_), Err(_), Ok(1), Ok(2)]),
        "{taken:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn clients_that_never_finish_the_preface_are_dropped_while_another_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let channel = connected(&dir).await;
    let started = Instant::now();
    let mut clients = Vec::new();
    for sent in [&b""[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r"] {
        let mut client = UnixStream::connect(dir.path().join("csi.sock"))
            .await
            .unwrap();
        client.write_all(sent).await.unwrap();
        clients.push(client);
    }
    assert!(is_served(&channel).await);
    assert!(started.elapsed() < DEADLINE, "they are still connected");
    for mut client in clients {
        // What the server says first, and then the end of the connection, clean or not.
        let mut said = Vec::new();
        let end = tokio::time::timeout(2 * DEADLINE, client.read_to_end(&mut said)).await;
        assert!(end.is_ok(), "its connection is still open");
    }
    let took = started.elapsed();
    assert!(took >= DEADLINE && took < 2 * DEADLINE, "{took:?}");
    assert!(is_served(&channel).await);
}
