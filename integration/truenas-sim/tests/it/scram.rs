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

/// Logs in and returns the last answer, and the signature that it should carry.
async fn log_in(client: &mut Client, key: &str) -> (Value, String) {
    let (id, secret) = key.split_once('-').expect("a key");
    let bare = format!("n=root:{id},r=bm9uY2U=");
    let first = step(client, "CLIENT_FIRST_MESSAGE", &format!("n,,{bare}")).await;
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
    let bytes = STANDARD.decode(&nonce).expect("base64");
    assert!(bytes.starts_with(b"nonce"));
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
    let last = format!("c={},r={nonce}", STANDARD.encode("n,,"));
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
