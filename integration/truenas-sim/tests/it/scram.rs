//! The login of 26 that never sends the key.

use aws_lc_rs::{digest, hmac, pbkdf2};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use truenas_sim::Generation;

use crate::client::{Client, nas};

fn sign(key: &[u8], message: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA512, key), message)
        .as_ref()
        .to_vec()
}

async fn step(client: &mut Client, kind: &str, text: &str) -> Value {
    let data = json!([{"mechanism": "SCRAM", "scram_type": kind, "rfc_str": text}]);
    client.call("auth.login_ex", data).await.expect("an answer")
}

/// The header without a binding to a TLS channel.
const FREE: &str = "n,,";
/// The one with a binding to the certificate of the server.
const BOUND: &str = "p=tls-server-end-point,,";
const NONCE: [u8; 32] = [7; 32];

/// Logs in and returns the last answer, and the signature that it should carry.
async fn log_in(client: &mut Client, key: &str) -> (Value, String) {
    log_in_with(client, key, FREE, &[]).await
}

async fn log_in_with(
    client: &mut Client,
    key: &str,
    header: &str,
    binding: &[u8],
) -> (Value, String) {
    let (id, secret) = key.split_once('-').expect("a key");
    let bare = format!("n=root:{id},r={}", STANDARD.encode(NONCE));
    let first = step(client, "CLIENT_FIRST_MESSAGE", &format!("{header}{bare}")).await;
    if first["response_type"] == "AUTH_ERR" {
        return (first, String::new());
    }
    assert_eq!(first["scram_type"], "SERVER_FIRST_RESPONSE");
    let first = first["rfc_str"].as_str().expect("a message").to_owned();
    let part = |name: &str| {
        first
            .split(',')
            .find_map(|part| part.strip_prefix(name))
            .expect("a part")
            .to_owned()
    };
    let (nonce, iterations) = (part("r="), part("i=").parse().expect("a number"));
    // Bytes are joined and then encoded, so the text of ours is no part of the text of theirs.
    assert!(!nonce.starts_with(&STANDARD.encode(NONCE)));
    let both = STANDARD.decode(&nonce).expect("base64");
    assert_eq!((both.len(), &both[..32]), (64, &NONCE[..]));
    let salt = STANDARD.decode(part("s=")).expect("base64");
    let mut salted = [0; 64];
    pbkdf2::derive(
        pbkdf2::PBKDF2_HMAC_SHA512,
        iterations,
        &salt,
        secret.as_bytes(),
        &mut salted,
    );
    let client_key = sign(&salted, b"Client Key");
    let stored = digest::digest(&digest::SHA512, &client_key);
    let last = format!(
        "c={},r={nonce}",
        STANDARD.encode([header.as_bytes(), binding].concat())
    );
    let message = format!("{bare},{first},{last}");
    let signature = sign(stored.as_ref(), message.as_bytes());
    let proof: Vec<u8> = client_key
        .iter()
        .zip(&signature)
        .map(|(left, right)| left ^ right)
        .collect();
    let answer = step(
        client,
        "CLIENT_FINAL_MESSAGE",
        &format!("{last},p={}", STANDARD.encode(proof)),
    )
    .await;
    let expected = sign(&sign(&salted, b"Server Key"), message.as_bytes());
    (answer, format!("v={}", STANDARD.encode(expected)))
}

#[tokio::test]
async fn scram_proves_both_sides_and_a_wrong_key_fails_at_the_end() {
    let nas = nas(Generation::V26Rc).await;
    let mut client = Client::connect(&nas).await;
    let (answer, _) = log_in(&mut client, "1-wrong").await;
    assert_eq!(answer, json!({"response_type": "AUTH_ERR"}));
    assert!(client.call("system.version", json!([])).await.is_err());
    let (answer, signature) = log_in(&mut client, nas.api_key()).await;
    assert_eq!(answer["scram_type"], "SERVER_FINAL_RESPONSE");
    assert_eq!(answer["rfc_str"], json!(signature));
    assert!(client.call("system.version", json!([])).await.is_ok());
}

#[tokio::test]
async fn a_login_is_bound_to_the_certificate_and_only_over_tls() {
    let nas = nas(Generation::V26Rc).await;
    let seen = digest::digest(&digest::SHA256, nas.certificate_der());
    let refused = json!({"response_type": "AUTH_ERR"});
    let mut client = Client::tls(&nas).await;
    let another = digest::digest(&digest::SHA256, b"another certificate");
    let (answer, _) = log_in_with(&mut client, nas.api_key(), BOUND, another.as_ref()).await;
    assert_eq!(answer, refused);
    // A client that claims no binding must not send one.
    let (answer, _) = log_in_with(&mut client, nas.api_key(), FREE, seen.as_ref()).await;
    assert_eq!(answer, refused);
    let (answer, signature) = log_in_with(&mut client, nas.api_key(), BOUND, seen.as_ref()).await;
    assert_eq!(answer["rfc_str"], json!(signature));
    let mut client = Client::connect(&nas).await;
    let (answer, _) = log_in_with(&mut client, nas.api_key(), BOUND, seen.as_ref()).await;
    assert_eq!(answer, refused);
}

#[tokio::test]
async fn a_message_that_is_none_is_a_wrong_login_and_a_last_one_needs_a_first() {
    let nas = nas(Generation::V26Rc).await;
    let mut client = Client::connect(&nas).await;
    for text in [
        "",
        "n,,n=root:1,r=c2hvcnQ=",
        "n,,n=other:1,r=BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=",
    ] {
        let answer = step(&mut client, "CLIENT_FIRST_MESSAGE", text).await;
        assert_eq!(answer, json!({"response_type": "AUTH_ERR"}), "{text}");
    }
    let last = json!([{"mechanism": "SCRAM", "scram_type": "CLIENT_FINAL_MESSAGE", "rfc_str": "c=biws,r=x,p=y"}]);
    let error = client
        .call("auth.login_ex", last)
        .await
        .expect_err("an error");
    assert_eq!(
        error["data"]["reason"],
        "[EFAULT] SCRAM authentication is not in progress"
    );
}

#[tokio::test]
async fn releases_before_26_do_not_know_scram() {
    let nas = nas(Generation::V25_10).await;
    let mut client = Client::connect(&nas).await;
    let data =
        json!([{"mechanism": "SCRAM", "scram_type": "CLIENT_FIRST_MESSAGE", "rfc_str": "n,,"}]);
    let refused = client.refused("auth.login_ex", data).await;
    assert!(
        refused[0][1]
            .as_str()
            .expect("a text")
            .starts_with("Input tag 'SCRAM' found using 'mechanism'")
    );
}
