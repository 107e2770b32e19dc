//! Logins, lost connections, upgrades, certificates.

use driver_truenas::api::snapshot::DeleteSnapshot;
use driver_truenas::api::system::{GetInfo, GetVersion};
use driver_truenas::{Client, Clients, Effect, Generation, HttpConnection, Kind};
use http::StatusCode;
use serde_json::{Value, json};
use truenas_sim::{Options, Simulator};

use crate::nas::{Act, Nas, Seen, failure};

fn nothing(_: &Seen) -> Option<Vec<Act>> {
    None
}

fn delete() -> DeleteSnapshot {
    DeleteSnapshot {
        id: "tank/a@s".to_owned(),
        defer: false,
    }
}

#[tokio::test]
async fn the_generation_is_found_by_what_answers() {
    for (version, generation) in [
        ("TrueNAS-13.0-U6.8", Generation::Core),
        ("TrueNAS-SCALE-22.12.4.2", Generation::V22_12),
        ("TrueNAS-SCALE-24.10.2.4", Generation::V24_10),
        ("TrueNAS-25.04.2.6", Generation::V25_04),
        ("TrueNAS-25.10.6", Generation::V25_10),
        ("TrueNAS-26.0.0-BETA.3", Generation::V26),
    ] {
        let nas = Nas::start(version, nothing).await;
        let dialect = nas.client().dialect().await.expect(version);
        assert_eq!(dialect.generation(), generation);
        assert_eq!(dialect.version().text(), version);
    }
}

#[tokio::test]
async fn a_nas_that_was_upgraded_is_spoken_to_in_its_new_dialect() {
    let nas = Nas::start("TrueNAS-SCALE-24.10.2", |call| {
        // The middleware ends for the upgrade.
        (call.method == "system.info").then(|| vec![Act::Close])
    })
    .await;
    let client = nas.client();
    client.call(&delete()).await.expect("deleted");
    assert_eq!(nas.seen("zfs.snapshot.delete").len(), 1);
    nas.upgrade("TrueNAS-25.10.6");
    client
        .call(&GetInfo)
        .await
        .expect_err("the connection ends");
    client.call(&delete()).await.expect("deleted");
    assert_eq!(nas.seen("pool.snapshot.delete").len(), 1);
}

#[tokio::test]
async fn calls_at_once_share_one_socket_and_one_login() {
    let nas = Nas::start("TrueNAS-25.10.6", nothing).await;
    let client = nas.client();
    let calls: Vec<_> = (0..64)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.call(&GetVersion).await })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.expect("joins").as_deref(), Ok("TrueNAS-25.10.6"));
    }
    assert_eq!((nas.sockets(), nas.logins()), (1, 1));
}

#[tokio::test]
async fn connections_with_equal_settings_share_one_socket() {
    let nas = Nas::start("TrueNAS-25.10.6", nothing).await;
    let clients = Clients::default();
    let get = |key: &str| {
        let block = nas.block(json!({"apiKey": key, "username": "csi"}));
        clients
            .get(block.check().expect("settings"))
            .expect("a client")
    };
    let (one, same, other) = (get("1-canary"), get("1-canary"), get("2-canary"));
    for client in [&one, &same, &other] {
        client.dialect().await.expect("connects");
    }
    assert_eq!((nas.sockets(), nas.logins()), (2, 2));
}

#[tokio::test]
async fn an_expired_session_is_renewed_on_its_socket() {
    let mut expired = true;
    let nas = Nas::start("TrueNAS-25.10.6", move |call| {
        let now = call.method == "pool.snapshot.delete" && std::mem::take(&mut expired);
        now.then(|| {
            vec![failure(
                207,
                "ENOTAUTHENTICATED",
                "[ENOTAUTHENTICATED] Not authenticated",
            )]
        })
    })
    .await;
    let client = nas.client();
    client.call(&delete()).await.expect("deleted");
    assert_eq!(nas.seen("pool.snapshot.delete").len(), 2);
    assert_eq!((nas.sockets(), nas.logins()), (1, 2));
}

#[tokio::test]
async fn a_session_that_cannot_be_renewed_is_an_error_and_no_loop() {
    let nas = Nas::start("TrueNAS-25.10.6", |call| {
        let refused = call.method == "pool.snapshot.delete";
        refused.then(|| {
            vec![failure(
                207,
                "ENOTAUTHENTICATED",
                "[ENOTAUTHENTICATED] Not authenticated",
            )]
        })
    })
    .await;
    let error = nas.client().call(&delete()).await.expect_err("refused");
    assert_eq!(
        (error.kind(), error.effect()),
        (Kind::NotAuthenticated, Effect::None)
    );
    assert_eq!(nas.seen("pool.snapshot.delete").len(), 2);
    assert_eq!(nas.logins(), 2);
}

#[tokio::test]
async fn refused_credentials_are_not_tried_again_at_once() {
    let nas = Nas::start("TrueNAS-25.10.6", |call| {
        (call.method == "auth.login_ex")
            .then(|| vec![Act::Answer(json!({"response_type": "AUTH_ERR"}))])
    })
    .await;
    let client = nas.client();
    for _ in 0..5 {
        let error = client.call(&GetVersion).await.expect_err("refused");
        assert_eq!((error.kind(), error.effect()), (Kind::Login, Effect::None));
        assert!(
            error.message().contains("httpConnection.username"),
            "{error}"
        );
    }
    assert_eq!(nas.logins(), 1);
}

#[tokio::test]
async fn an_api_key_without_its_user_is_used_as_it_is() {
    for version in [
        "TrueNAS-13.0-U6.8",
        "TrueNAS-SCALE-24.10.2",
        "TrueNAS-25.10.6",
    ] {
        let nas = Nas::start(version, nothing).await;
        let client = nas.client_with(json!({"apiKey": "1-canary"}));
        client.dialect().await.expect(version);
        assert_eq!(
            nas.seen("auth.login_with_api_key")[0].params,
            json!(["1-canary"])
        );
    }
}

#[tokio::test]
async fn a_nas_that_needs_the_user_of_a_key_says_so() {
    let nas = Nas::start("TrueNAS-27.0.0", |call| {
        let unknown = call.method == "auth.login_with_api_key";
        unknown.then(|| vec![failure(201, "ENOMETHOD", "[ENOMETHOD] no")])
    })
    .await;
    let client = nas.client_with(json!({"apiKey": "1-canary"}));
    let error = client.dialect().await.expect_err("refused");
    assert_eq!(error.kind(), Kind::Config);
    assert!(
        error.message().contains("httpConnection.username"),
        "{error}"
    );
}

#[tokio::test]
async fn a_password_is_used_by_every_generation() {
    let block = json!({"username": "csi", "password": "canary"});
    let nas = Nas::start("TrueNAS-13.0-U6.8", nothing).await;
    nas.client_with(block.clone())
        .dialect()
        .await
        .expect("connects");
    assert_eq!(nas.seen("auth.login")[0].params, json!(["csi", "canary"]));
    let nas = Nas::start("TrueNAS-25.10.6", nothing).await;
    nas.client_with(block).dialect().await.expect("connects");
    let data = &nas.seen("auth.login_ex")[0].params[0];
    assert_eq!(data["mechanism"], "PASSWORD_PLAIN");
    assert_eq!(data["username"], "csi");
}

#[tokio::test]
async fn a_key_that_must_use_scram_is_never_sent() {
    let nas = Nas::start("TrueNAS-25.10.6", |call| {
        let login = call.method == "auth.login_ex";
        login.then(|| {
            vec![failure(
                22,
                "EINVAL",
                "[EINVAL] login_data: Input tag 'SCRAM'",
            )]
        })
    })
    .await;
    let block = json!({"apiKey": "1-canary", "username": "csi", "apiKeyLogin": "scram"});
    nas.client_with(block).dialect().await.expect_err("refused");
    let logins = nas.seen("auth.login_ex");
    assert_eq!(logins.len(), 1);
    assert!(
        !logins[0].params.to_string().contains("canary"),
        "{logins:?}"
    );
}

#[tokio::test]
async fn scram_is_used_where_it_is_offered() {
    let nas = Nas::start("TrueNAS-26.0.0", |call| match call.method.as_str() {
        "auth.mechanism_choices" => Some(vec![Act::Answer(json!(["API_KEY_PLAIN", "SCRAM"]))]),
        "auth.login_ex" => Some(vec![Act::Answer(json!({"response_type": "AUTH_ERR"}))]),
        _ => None,
    })
    .await;
    let error = nas.client().dialect().await.expect_err("refused");
    assert_eq!(error.kind(), Kind::Login);
    let logins = nas.seen("auth.login_ex");
    assert_eq!(logins.len(), 1, "no second try with the key itself");
    assert_eq!(logins[0].params[0]["mechanism"], "SCRAM");
    assert!(
        !logins[0].params.to_string().contains("canary"),
        "{logins:?}"
    );
}

#[tokio::test]
async fn a_key_never_travels_in_plain_text_to_a_nas_that_would_revoke_it() {
    let block = json!({"host": "0.0.0.0", "apiKey": "1-canary", "username": "csi"});
    let nas = Nas::start("TrueNAS-25.04.2", nothing).await;
    let error = nas
        .client_with(block.clone())
        .dialect()
        .await
        .expect_err("refused");
    assert_eq!((error.kind(), nas.logins()), (Kind::Config, 0));
    let nas = Nas::start("TrueNAS-SCALE-24.10.2", nothing).await;
    nas.client_with(block)
        .dialect()
        .await
        .expect("up to 24.10 a warning");
}

#[tokio::test]
async fn a_call_that_was_not_answered_is_unknown_and_never_repeated() {
    let nas = Nas::start("TrueNAS-25.10.6", |call| {
        (call.method == "pool.snapshot.delete").then(|| vec![Act::Close])
    })
    .await;
    let error = nas.client().call(&delete()).await.expect_err("lost");
    assert_eq!(
        (error.kind(), error.effect()),
        (Kind::UnknownOutcome, Effect::Possible)
    );
    assert_eq!(error.method(), Some("pool.snapshot.delete"));
    assert_eq!(nas.seen("pool.snapshot.delete").len(), 1);
}

#[tokio::test]
async fn an_http_answer_to_the_handshake_says_what_is_wrong() {
    for (status, location, part) in [
        (StatusCode::BAD_GATEWAY, None, "middleware is not running"),
        (
            StatusCode::FOUND,
            Some("https://nas/"),
            "set httpConnection.protocol to https",
        ),
        (StatusCode::NOT_FOUND, None, "is this a TrueNAS?"),
    ] {
        let nas = Nas::start("TrueNAS-25.10.6", nothing).await;
        nas.refuse(status, location);
        let error = nas.client().dialect().await.expect_err("refused");
        assert_eq!(
            (error.kind(), error.effect()),
            (Kind::Unreachable, Effect::None)
        );
        assert!(error.message().contains(part), "{error}");
        assert_eq!(nas.logins(), 0);
    }
}

#[tokio::test]
async fn a_secret_that_the_nas_quotes_does_not_reach_the_error() {
    let nas = Nas::start("TrueNAS-25.10.6", |call| {
        let login = call.method == "auth.login_ex";
        login.then(|| vec![failure(22, "EINVAL", "[EINVAL] bad key 1-canary, canary")])
    })
    .await;
    let error = nas.client().dialect().await.expect_err("refused");
    assert!(!format!("{error} {error:?}").contains("canary"), "{error}");
}

#[tokio::test]
async fn a_password_that_the_nas_quotes_as_it_was_sent_does_not_reach_the_error() {
    let password = r#"a"b\é"#;
    for quoted in [
        password,
        r#"a\"b\\é"#,
        r#"a\"b\\\u00e9"#,
        "a%22b%5C%C3%A9",
        "a%22b%5c%c3%a9",
    ] {
        let nas = Nas::start("TrueNAS-25.10.6", move |call| {
            let login = call.method == "auth.login_ex";
            let reason = format!("[EINVAL] no login with {quoted} here");
            login.then(|| vec![failure(22, "EINVAL", &reason)])
        })
        .await;
        let client = nas.client_with(json!({"username": "csi", "password": password}));
        let error = client.dialect().await.expect_err("refused");
        assert!(error.message().contains("no login with ****"), "{error}");
        assert!(!error.message().contains(quoted), "{error}");
    }
}

#[tokio::test]
async fn a_certificate_is_checked_unless_the_settings_say_otherwise() {
    let nas = Simulator::start(Options::new(truenas_sim::Generation::V25_10))
        .await
        .expect("starts");
    let connect = async |tls: Value| {
        let mut block =
            json!({"protocol": "https", "host": "127.0.0.1", "port": nas.https().port()});
        block["apiKey"] = json!(nas.api_key());
        block["username"] = json!("root");
        block
            .as_object_mut()
            .expect("an object")
            .extend(tls.as_object().expect("an object").clone());
        let block: HttpConnection = serde_json::from_value(block).expect("a block");
        let client = Client::new(block.check().expect("settings")).expect("a client");
        client.dialect().await.map(drop)
    };
    let pem = nas.certificate_pem();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, nas.certificate_der());
    for refused in [
        json!({}),
        json!({"tls": {"certificateSha256": "00".repeat(32)}}),
        json!({"tls": {"ca": pem}}),
    ] {
        let error = connect(refused.clone()).await.expect_err("refused");
        assert_eq!(error.kind(), Kind::Certificate, "{refused} {error}");
    }
    let pin = csi_types::hex(digest.as_ref());
    for accepted in [
        json!({"tls": {"ca": pem, "serverName": "localhost"}}),
        json!({"tls": {"certificateSha256": pin}}),
        json!({"allowInsecure": true}),
    ] {
        connect(accepted).await.expect("connects");
    }
}

#[test]
fn a_ca_that_is_no_certificate_is_refused_with_its_name() {
    let block =
        json!({"host": "nas", "protocol": "https", "apiKey": "1-x", "tls": {"ca": "nothing"}});
    let block: HttpConnection = serde_json::from_value(block).expect("a block");
    let error = Client::new(block.check().expect("settings")).expect_err("refused");
    assert_eq!(error.kind(), Kind::Config);
    assert!(error.message().contains("httpConnection.tls.ca"), "{error}");
}

/// In a pair the node that becomes the active one says for a while that it is not.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_not_active_yet_is_tried_again_soon() {
    let mut standby = 2;
    let nas = Nas::start("TrueNAS-25.10.6", move |call| {
        let redirected = call.method == "auth.login_ex" && standby > 0;
        redirected.then(|| {
            standby -= 1;
            let urls = json!(["https://other"]);
            vec![Act::Answer(
                json!({"response_type": "REDIRECT", "urls": urls}),
            )]
        })
    })
    .await;
    let client = nas.client();
    let began = tokio::time::Instant::now();
    for _ in 0..2 {
        let error = client.dialect().await.expect_err("not active");
        let seen = (error.kind(), error.effect());
        // No proof that nothing is at work: a call of before may be.
        assert_eq!(seen, (Kind::Overloaded, Effect::Possible), "{error}");
    }
    client.dialect().await.expect("active");
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_login_that_is_refused_for_its_rate_proves_nothing() {
    let nas = Nas::start("TrueNAS-25.10.6", |call| {
        (call.method == "auth.login_ex")
            .then(|| vec![failure(16, "EBUSY", "[EBUSY] Rate Limit Exceeded")])
    })
    .await;
    let error = nas.client().dialect().await.expect_err("refused");
    let seen = (error.kind(), error.effect());
    assert_eq!(seen, (Kind::Overloaded, Effect::Possible), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_login_without_an_answer_is_given_up_and_tried_on_a_new_socket() {
    let mut silent = true;
    let nas = Nas::start("TrueNAS-25.10.6", move |call| {
        (call.method == "auth.login_ex" && std::mem::take(&mut silent)).then(Vec::new)
    })
    .await;
    let client = nas.client();
    let began = tokio::time::Instant::now();
    let error = client.dialect().await.expect_err("no answer");
    assert_eq!(
        (error.kind(), error.effect()),
        (Kind::Unreachable, Effect::None)
    );
    assert!(
        error.message().contains("has not answered auth.login_ex"),
        "{error}"
    );
    assert_eq!(began.elapsed().as_secs(), 30);
    client.dialect().await.expect("answers");
    assert_eq!(nas.sockets(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_call_without_an_answer_is_given_up_and_the_next_one_has_a_new_socket() {
    let mut silent = true;
    let nas = Nas::start("TrueNAS-25.10.6", move |call| {
        (call.method == "pool.snapshot.delete" && std::mem::take(&mut silent)).then(Vec::new)
    })
    .await;
    let client = nas.client();
    let error = client.call(&delete()).await.expect_err("no answer");
    assert_eq!(
        (error.kind(), error.effect()),
        (Kind::UnknownOutcome, Effect::Possible)
    );
    client.call(&delete()).await.expect("answers");
    assert_eq!(nas.sockets(), 2);
}
