//! REST, the pages without a login, TLS, and the control endpoint.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use truenas_sim::{Action, Generation, Rule, Simulator};

use crate::client::nas;

/// Status, headers and body of one request on a connection of its own; nothing if it was cut.
async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    request: &str,
    key: Option<&str>,
    body: Option<Value>,
) -> Option<(u16, String, String)> {
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    let login = key
        .map(|key| format!("Authorization: Bearer {key}\r\n"))
        .unwrap_or_default();
    let text = format!(
        "{request} HTTP/1.1\r\nHost: nas\r\nConnection: close\r\n{login}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream
        .write_all(text.as_bytes())
        .await
        .expect("an open connection");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, head.to_lowercase(), body.to_owned()))
}

pub(crate) async fn get(address: SocketAddr, path: &str) -> (u16, String, String) {
    let stream = TcpStream::connect(address).await.expect("a connection");
    exchange(stream, &format!("GET {path}"), None, None)
        .await
        .expect("an answer")
}

pub(crate) async fn rest(nas: &Simulator, request: &str, body: Option<Value>) -> (u16, Value) {
    let stream = TcpStream::connect(nas.http()).await.expect("a connection");
    let (status, _, body) = exchange(stream, request, Some(nas.api_key()), body)
        .await
        .expect("an answer");
    (
        status,
        serde_json::from_str(&body).unwrap_or(Value::String(body)),
    )
}

#[tokio::test]
async fn the_page_of_versions_tells_the_generations_apart() {
    for generation in Generation::ALL {
        let nas = nas(generation).await;
        let (status, _, body) = get(nas.http(), "/api/versions").await;
        assert_eq!(
            status == 200,
            generation >= Generation::V25_04,
            "{generation}"
        );
        assert_eq!(
            body.starts_with("[\"v25.04.0\""),
            generation >= Generation::V25_04,
            "{generation}"
        );
        let (status, _, _) = get(nas.http(), "/api/v2.0/system/version").await;
        assert_eq!(
            status == 401,
            generation <= Generation::V25_10,
            "{generation}"
        );
        let (status, _, _) = get(nas.http(), "/api/boot_id").await;
        assert_eq!(
            status == 200,
            generation >= Generation::V25_10,
            "{generation}"
        );
    }
}

#[tokio::test]
async fn a_volume_lives_and_dies_over_rest() {
    for generation in Generation::ALL
        .into_iter()
        .filter(|generation| *generation <= Generation::V25_10)
    {
        let nas = nas(generation).await;
        let new = json!({"name": "tank/a b", "type": "VOLUME", "volsize": 1 << 30});
        let (status, made) = rest(&nas, "POST /api/v2.0/pool/dataset", Some(new)).await;
        assert_eq!(
            (status, &made["id"]),
            (200, &json!("tank/a b")),
            "{generation}: {made}"
        );
        let (status, found) = rest(&nas, "GET /api/v2.0/pool/dataset/id/tank%2Fa%20b", None).await;
        assert_eq!(
            (status, &found["type"]),
            (200, &json!("VOLUME")),
            "{generation}"
        );
        let grown = Some(json!({"volsize": 2_u64 << 30}));
        let (status, _) = rest(&nas, "PUT /api/v2.0/pool/dataset/id/tank%2Fa%20b", grown).await;
        assert_eq!(status, 200, "{generation}");
        let (status, list) = rest(&nas, "GET /api/v2.0/pool/dataset?id=tank%2Fa%20b", None).await;
        assert_eq!(
            (status, &list[0]["volsize"]["parsed"]),
            (200, &json!(2_u64 << 30)),
            "{generation}"
        );
        let options = Some(json!({"recursive": false, "force": true}));
        let (status, _) = rest(
            &nas,
            "DELETE /api/v2.0/pool/dataset/id/tank%2Fa%20b",
            options,
        )
        .await;
        assert_eq!(status, 200, "{generation}");
        let (status, _) = rest(&nas, "GET /api/v2.0/pool/dataset/id/tank%2Fa%20b", None).await;
        assert_eq!(status, 404, "{generation}");
    }
}

#[tokio::test]
async fn rest_refuses_in_its_own_shapes() {
    let nas = nas(Generation::V24_10).await;
    let (status, body) = rest(
        &nas,
        "POST /api/v2.0/sharing/nfs",
        Some(json!({"path": "/mnt/tank", "paths": []})),
    )
    .await;
    let expected =
        json!({"sharingnfs_create.paths": [{"message": "Field was not expected", "errno": 22}]});
    assert_eq!((status, body), (422, expected));
    let (status, body) = rest(&nas, "DELETE /api/v2.0/sharing/nfs/id/999", None).await;
    let expected = json!({"null": [{"message": "SharingNFS 999 does not exist", "errno": 2}]});
    assert_eq!((status, body), (422, expected));
    let (status, body) = rest(
        &nas,
        "DELETE /api/v2.0/pool/dataset/id/tank",
        Some(json!({})),
    )
    .await;
    assert_eq!(status, 422);
    assert_eq!(body["errno"], 22);
    // From 25.04 on it has two arguments more than the id, and so takes an object.
    nas.call("iscsi.target.create", vec![json!({"name": "a"})])
        .await
        .expect("a target");
    let (status, _) = rest(
        &nas,
        "DELETE /api/v2.0/iscsi/target/id/1",
        Some(json!(true)),
    )
    .await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn nginx_answers_302_502_and_504() {
    let nas = nas(Generation::V24_10).await;
    nas.faults().set(|settings| settings.redirect_to_tls = true);
    let (status, head, _) = get(nas.http(), "/websocket").await;
    assert_eq!(status, 302);
    assert!(head.contains("location: https://nas/websocket"), "{head}");
    nas.faults()
        .set(|settings| settings.redirect_to_tls = false);
    nas.faults().set(|settings| settings.bad_gateway = true);
    assert_eq!(get(nas.http(), "/api/versions").await.0, 502);
    nas.faults().set(|settings| settings.bad_gateway = false);
    nas.faults()
        .add(Rule::new("pool.dataset.create", Action::Hold).times(1));
    let body = Some(json!({"name": "tank/a"}));
    let request = rest(&nas, "POST /api/v2.0/pool/dataset", body);
    let later = async {
        while nas.faults().holding() == 0 {
            tokio::task::yield_now().await;
        }
        nas.clock().advance(Duration::from_secs(61));
    };
    let ((status, _), ()) = tokio::join!(request, later);
    assert_eq!(status, 504);
    // It goes on behind the gateway.
    nas.faults().release();
    while nas
        .call("pool.dataset.get_instance", vec![json!("tank/a")])
        .await
        .is_err()
    {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn rest_can_be_cut_after_a_call_was_executed() {
    let nas = nas(Generation::V24_10).await;
    nas.faults()
        .add(Rule::new("pool.dataset.create", Action::CutAfter).times(1));
    let stream = TcpStream::connect(nas.http()).await.expect("a connection");
    let new = Some(json!({"name": "tank/a"}));
    assert_eq!(
        exchange(
            stream,
            "POST /api/v2.0/pool/dataset",
            Some(nas.api_key()),
            new
        )
        .await,
        None
    );
    assert!(
        nas.call("pool.dataset.get_instance", vec![json!("tank/a")])
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn the_certificate_is_for_localhost_and_signed_by_itself() {
    let nas = nas(Generation::V25_10).await;
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from(nas.certificate_der().to_vec()))
        .expect("a certificate");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    for (name, good) in [("localhost", true), ("truenas.example.com", false)] {
        let stream = TcpStream::connect(nas.https()).await.expect("a connection");
        let stream = connector
            .connect(ServerName::try_from(name).expect("a name"), stream)
            .await;
        assert_eq!(stream.is_ok(), good, "{name}");
        if let Ok(stream) = stream {
            let (status, _, _) = exchange(stream, "GET /api/versions", None, None)
                .await
                .expect("an answer");
            assert_eq!(status, 200);
        }
    }
    assert!(
        nas.certificate_pem()
            .starts_with("-----BEGIN CERTIFICATE-----\n")
    );
}

async fn control(nas: &Simulator, request: &str, body: Option<Value>) -> (u16, Value) {
    let stream = TcpStream::connect(nas.control().expect("a control endpoint"))
        .await
        .expect("a connection");
    let (status, _, body) = exchange(stream, request, None, body)
        .await
        .expect("an answer");
    (status, serde_json::from_str(&body).expect("JSON"))
}

#[tokio::test]
async fn the_control_endpoint_injects_counts_and_upgrades() {
    let nas = nas(Generation::V24_10).await;
    let rule = json!({"method": "system.version", "times": 1, "action": {"fail": {"errno": 5, "reason": "I/O error"}}});
    assert_eq!(control(&nas, "POST /faults", Some(rule)).await.0, 200);
    let (status, body) = rest(&nas, "GET /api/v2.0/system/version", None).await;
    assert_eq!((status, &body["errno"]), (422, &json!(5)));
    let (_, counts) = control(&nas, "GET /counts", None).await;
    assert_eq!(counts["methods"]["system.version"]["errors"], 1);
    assert_eq!(
        control(&nas, "PUT /generation", Some(json!("26-rc")))
            .await
            .0,
        200
    );
    assert_eq!(nas.generation(), Generation::V26Rc);
    let call = json!(["system.version", []]);
    let (_, answer) = control(&nas, "POST /call", Some(call)).await;
    assert_eq!(answer, json!({"result": "TrueNAS-26.0.0-RC.1"}));
    assert_eq!(
        control(&nas, "POST /faults", Some(json!({"metod": "x"})))
            .await
            .0,
        400
    );
    assert_eq!(control(&nas, "GET /nothing", None).await.0, 404);
}
