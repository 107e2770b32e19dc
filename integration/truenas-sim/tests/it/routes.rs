//! The routes of older versions of the API, for clients that ask for one by name.
//!
//! What such a route lacks was found by running the models of the releases; the texts were recorded on 25.10.6.

use serde_json::{Value, json};
use truenas_sim::{Generation, Simulator};

use crate::client::{Client, nas};
use crate::rest::get;

async fn logged_in(nas: &Simulator, version: &str) -> Client {
    let mut client = Client::version(nas, version).await;
    let login = json!([{
        "mechanism": "API_KEY_PLAIN",
        "username": "root",
        "api_key": nas.api_key(),
    }]);
    let answer = client.call("auth.login_ex", login).await.expect("a login");
    assert_eq!(answer["response_type"], "SUCCESS");
    client
}

fn reason(answer: Result<Value, Value>) -> (Value, Value) {
    let error = answer.expect_err("a refusal");
    (error["code"].clone(), error["data"]["reason"].clone())
}

#[tokio::test]
async fn a_route_of_25_04_lacks_the_methods_that_had_no_models_then() {
    let nas = nas(Generation::V25_10).await;
    let mut client = logged_in(&nas, "v25.04.2").await;
    for (service, verb) in [
        ("pool.dataset", "create"),
        ("pool.snapshot", "query"),
        ("nvmet.subsys", "query"),
        ("sharing.smb", "create"),
        ("core", "job_wait"),
        ("auth", "login_with_api_key"),
    ] {
        let (code, text) = reason(client.call(&format!("{service}.{verb}"), json!([])).await);
        assert_eq!(code, -32001, "{service}.{verb}");
        assert_eq!(
            text,
            format!("[ENOMETHOD] Method '{verb}' not found in '{service}'")
        );
    }
    let none = client.call("no.such", json!([])).await.expect_err("none");
    assert_eq!(none["code"], -32601);
    for method in ["sharing.nfs.query", "iscsi.portal.query"] {
        assert_eq!(client.call(method, json!([])).await, Ok(json!([])));
    }
}

#[tokio::test]
async fn a_route_takes_and_gives_the_fields_of_its_version() {
    let nas = nas(Generation::V25_10).await;
    nas.call(
        "pool.dataset.create",
        vec![json!({"name": "tank/z", "type": "VOLUME", "volsize": 1_073_741_824})],
    )
    .await
    .expect("a volume");
    let extent = json!({"name": "z", "type": "DISK", "disk": "zvol/tank/z"});
    let mut later = extent.clone();
    later["product_id"] = json!("disk");

    let mut client = logged_in(&nas, "v25.04.2").await;
    let (code, text) = reason(client.call("iscsi.extent.create", json!([later])).await);
    assert_eq!(code, -32602);
    assert_eq!(
        text,
        "[EINVAL] iscsi_extent_create.product_id: Extra inputs are not permitted\n"
    );
    let made = client.call("iscsi.extent.create", json!([extent])).await;
    let made = made.expect("an extent");
    assert_eq!(made["name"], "z");
    assert!(made.get("product_id").is_none(), "{made}");
    let rows = client.call("iscsi.extent.query", json!([])).await;
    assert!(rows.expect("rows")[0].get("product_id").is_none());

    // The newest version is the same as `current`.
    let mut client = logged_in(&nas, "v25.10.5").await;
    let rows = client.call("iscsi.extent.query", json!([])).await;
    assert!(rows.expect("rows")[0].get("product_id").is_some());
}

#[tokio::test]
async fn a_client_of_25_10_finds_its_fields_on_26_by_its_route_alone() {
    let nas = nas(Generation::V26Rc).await;
    let secret = |name: &str| {
        json!([{
            "name": name,
            "encryption": true,
            "inherit_encryption": false,
            "encryption_options": {"algorithm": "AES-256-GCM", "passphrase": "a pass phrase"},
        }])
    };
    let mut client = logged_in(&nas, "v25.10.4").await;
    let made = client.call("pool.dataset.create", secret("tank/a")).await;
    assert_eq!(made.expect("a dataset")["encrypted"], true);
    let later = json!([{"dataset": "tank/a", "name": "s", "suspend_vms": true}]);
    let (code, _) = reason(client.call("pool.snapshot.create", later.clone()).await);
    assert_eq!(code, -32602);
    let query = json!([{"paths": ["tank/a"]}]);
    let found = client.call("zfs.resource.query", query).await;
    assert_eq!(found.expect("a dataset")[0]["name"], "tank/a");
    let (code, text) = reason(
        client
            .call("zfs.resource.snapshot.query", json!([{}]))
            .await,
    );
    assert_eq!(code, -32001);
    assert_eq!(
        text,
        "[ENOMETHOD] Method 'query' not found in 'zfs.resource.snapshot'"
    );

    let mut client = logged_in(&nas, "current").await;
    let (code, text) = reason(client.call("pool.dataset.create", secret("tank/b")).await);
    assert_eq!(code, -32602);
    assert!(
        text.to_string().contains("algorithm: Extra inputs"),
        "{text}"
    );
    let made = client.call("pool.snapshot.create", later).await;
    assert_eq!(made.expect("a snapshot")["name"], "tank/a@s");
}

#[tokio::test]
async fn each_version_that_a_release_names_has_a_route_and_no_other() {
    for generation in Generation::ALL {
        let nas = nas(generation).await;
        for version in generation.api_versions().unwrap_or_default() {
            let mut client = logged_in(&nas, version).await;
            let pong = client.call("core.ping", json!([])).await;
            assert_eq!(pong, Ok(json!("pong")), "{generation} {version}");
        }
        for other in ["v24.04.0", "v25.10.6", "v27.0.0"] {
            let (status, _, _) = get(nas.http(), &format!("/api/{other}")).await;
            assert_eq!(status, 404, "{generation} {other}");
        }
    }
}
