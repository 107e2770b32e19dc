//! Logins, sessions, roles and limits.

use std::time::Duration;

use serde_json::{Value, json};
use truenas_sim::{Generation, Options, Simulator};

use crate::client::{Client, End, nas};

const MODERN: [Generation; 4] = [
    Generation::V25_04,
    Generation::V25_10,
    Generation::V26Beta,
    Generation::V26Rc,
];

fn plain_key(user: &str, key: &str) -> Value {
    json!([{"mechanism": "API_KEY_PLAIN", "username": user, "api_key": key}])
}

#[tokio::test]
async fn a_key_is_good_for_its_own_user_only() {
    for generation in MODERN {
        let nas = nas(generation).await;
        let mut client = Client::connect(&nas).await;
        let wrong = client
            .call("auth.login_ex", plain_key("admin", nas.api_key()))
            .await
            .expect("an answer");
        assert_eq!(wrong, json!({"response_type": "AUTH_ERR"}), "{generation}");
        let right = client
            .call("auth.login_ex", plain_key("root", nas.api_key()))
            .await
            .expect("an answer");
        assert_eq!(right["response_type"], "SUCCESS", "{generation}");
        assert_eq!(
            client.call("system.version", json!([])).await,
            Ok(json!(generation.version()))
        );
    }
}

#[tokio::test]
async fn a_key_that_is_sent_in_clear_from_elsewhere_is_revoked() {
    let nas = nas(Generation::V25_10).await;
    nas.faults()
        .set(|settings| settings.loopback_is_foreign = true);
    let mut client = Client::connect(&nas).await;
    let answer = client
        .call("auth.login_ex", plain_key("root", nas.api_key()))
        .await;
    assert_eq!(answer, Ok(json!({"response_type": "EXPIRED"})));
    nas.faults()
        .set(|settings| settings.loopback_is_foreign = false);
    let answer = client
        .call("auth.login_ex", plain_key("root", nas.api_key()))
        .await;
    assert_eq!(answer, Ok(json!({"response_type": "EXPIRED"})));
}

#[tokio::test]
async fn an_expired_session_takes_a_new_login_on_the_same_connection() {
    for generation in MODERN {
        let nas = nas(generation).await;
        let mut client = Client::root(&nas).await;
        nas.expire_sessions();
        // Since 25.10 a ping needs no login, and so does not show that there is none.
        let ping = client.call("core.ping", json!([])).await;
        assert_eq!(
            ping.is_ok(),
            generation >= Generation::V25_10,
            "{generation}"
        );
        let error = client
            .call("system.version", json!([]))
            .await
            .expect_err("no login");
        assert_eq!(error["data"]["error"], 207, "{generation}");
        assert_eq!(
            client
                .call("auth.login_with_api_key", json!([nas.api_key()]))
                .await,
            Ok(json!(true))
        );
        assert_eq!(
            client.call("system.version", json!([])).await,
            Ok(json!(generation.version()))
        );
    }
}

#[tokio::test]
async fn a_session_ends_after_thirty_days_with_its_connection_open() {
    let nas = nas(Generation::V25_10).await;
    nas.faults().set(|settings| settings.idle_timeout = false);
    let mut client = Client::root(&nas).await;
    nas.clock().advance(Duration::from_hours(24 * 29));
    assert!(client.call("system.version", json!([])).await.is_ok());
    nas.clock().advance(Duration::from_hours(24 * 2));
    let error = client
        .call("system.version", json!([]))
        .await
        .expect_err("no login");
    assert_eq!(error["data"]["errname"], "ENOTAUTHENTICATED");
}

#[tokio::test]
async fn a_revoked_key_ends_the_session_that_used_it() {
    let nas = nas(Generation::V25_10).await;
    let mut client = Client::root(&nas).await;
    nas.revoke_api_key(1);
    let error = client
        .call("system.version", json!([]))
        .await
        .expect_err("no login");
    assert_eq!(error["data"]["error"], 207);
    let answer = client
        .call("auth.login_ex", plain_key("root", nas.api_key()))
        .await;
    assert_eq!(answer, Ok(json!({"response_type": "EXPIRED"})));
}

#[tokio::test]
async fn the_twenty_first_login_within_a_minute_is_refused() {
    let nas = nas(Generation::V25_10).await;
    nas.faults().set(|settings| settings.idle_timeout = false);
    let mut client = Client::connect(&nas).await;
    for _ in 0..20 {
        assert_eq!(
            client
                .call("auth.login_with_api_key", json!(["1-wrong"]))
                .await,
            Ok(json!(false))
        );
    }
    let error = client
        .call("auth.login_with_api_key", json!([nas.api_key()]))
        .await
        .expect_err("too many");
    assert_eq!(error["data"]["reason"], "[EBUSY] Rate Limit Exceeded");
    nas.clock().advance(Duration::from_secs(61));
    assert_eq!(
        client
            .call("auth.login_with_api_key", json!([nas.api_key()]))
            .await,
        Ok(json!(true))
    );
}

#[tokio::test]
async fn a_role_allows_what_it_includes_and_nothing_else() {
    let options = Options::new(Generation::V25_10).user(
        "csi",
        "password-of-csi",
        Some(&["SHARING_NFS_WRITE"]),
    );
    let nas = Simulator::start(options).await.expect("a simulator");
    let mut client = Client::connect(&nas).await;
    assert_eq!(
        client
            .call("auth.login", json!(["csi", "password-of-csi"]))
            .await,
        Ok(json!(true))
    );
    assert_eq!(
        client.call("sharing.nfs.query", json!([])).await,
        Ok(json!([]))
    );
    assert!(
        client
            .call("sharing.nfs.create", json!([{"path": "/mnt/tank"}]))
            .await
            .is_ok()
    );
    let error = client
        .call("pool.dataset.query", json!([]))
        .await
        .expect_err("not authorized");
    assert_eq!(error["data"]["reason"], "[EACCES] Not authorized");
}

#[tokio::test]
async fn secrets_are_masked_for_those_who_may_only_read() {
    let options = Options::new(Generation::V25_10).user(
        "csi",
        "password-of-csi",
        Some(&["SHARING_ISCSI_AUTH_READ"]),
    );
    let nas = Simulator::start(options).await.expect("a simulator");
    let mut root = Client::root(&nas).await;
    let made = root
        .call(
            "iscsi.auth.create",
            json!([{"tag": 1, "user": "u", "secret": "secretsecret1"}]),
        )
        .await;
    assert_eq!(made.expect("credentials")["secret"], "secretsecret1");
    let mut client = Client::connect(&nas).await;
    client
        .call("auth.login", json!(["csi", "password-of-csi"]))
        .await
        .expect("a login");
    let found = client
        .call("iscsi.auth.query", json!([]))
        .await
        .expect("credentials");
    assert_eq!(found[0]["secret"], "********");
}

#[tokio::test]
async fn a_standby_node_sends_the_client_elsewhere() {
    let nas = nas(Generation::V25_10).await;
    nas.faults()
        .set(|settings| settings.standby_of = vec!["https://10.0.0.2".to_owned()]);
    let mut client = Client::connect(&nas).await;
    let answer = client
        .call("auth.login_ex", plain_key("root", nas.api_key()))
        .await;
    assert_eq!(
        answer,
        Ok(json!({"response_type": "REDIRECT", "urls": ["https://10.0.0.2"]}))
    );
}

#[tokio::test]
async fn a_second_factor_is_asked_for() {
    let nas = nas(Generation::V25_10).await;
    nas.require_otp("root", "123456");
    let mut client = Client::connect(&nas).await;
    let password =
        json!([{"mechanism": "PASSWORD_PLAIN", "username": "root", "password": "sesame-for-root"}]);
    let answer = client
        .call("auth.login_ex", password)
        .await
        .expect("an answer");
    assert_eq!(
        answer,
        json!({"response_type": "OTP_REQUIRED", "username": "root"})
    );
    let answer = client
        .call(
            "auth.login_ex_continue",
            json!([{"mechanism": "OTP_TOKEN", "otp_token": "123456"}]),
        )
        .await;
    assert_eq!(answer.expect("an answer")["response_type"], "SUCCESS");
}

#[tokio::test]
async fn a_long_frame_closes_the_connection() {
    let nas = nas(Generation::V25_10).await;
    let mut client = Client::connect(&nas).await;
    client.request("core.ping", json!(["x".repeat(9000)])).await;
    let text = "Anonymous connection max message length is 8 kB".to_owned();
    assert_eq!(client.end().await, End::Closed(1007, text));
    let mut client = Client::root(&nas).await;
    client
        .request("core.ping", json!(["x".repeat(70_000)]))
        .await;
    assert_eq!(
        client.end().await,
        End::Closed(1009, "Max message length is 64 kB".to_owned())
    );
}
