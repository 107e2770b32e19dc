//! The console over real connections: what its API says of volumes, claims, exports and calls, and what a browser shows.

mod browser;
mod site;

use std::time::{Duration, Instant};

use serde_json::Value;
use site::{CLAIM, HOSTILE, SECRET, Site};

fn rows(page: &Value) -> &Vec<Value> {
    page["rows"].as_array().expect("rows")
}

/// The row that has this text at a key.
fn row<'a>(page: &'a Value, key: &str, text: &str) -> &'a Value {
    let found = rows(page).iter().find(|row| row[key] == *text);
    found.unwrap_or_else(|| panic!("no {key} {text}: {page}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_shown_with_its_claim_its_use_its_node_and_its_export() {
    let running = Site::new().start(10).await;
    let volumes = running.api("/api/volumes?connection=nas").await;
    let shop = row(&volumes, "id", "pvc-shop");
    assert_eq!(shop["claim"], "shop/database");
    assert_eq!(shop["nodes"], serde_json::json!(["worker-1"]));
    assert_eq!(
        (&shop["protocol"], &shop["connection"]),
        (&"nfs".into(), &"nas".into())
    );
    assert!(shop["size"].as_u64() >= Some(1 << 30), "{shop}");
    let restored = row(&volumes, "id", "pvc-restored");
    assert_eq!(restored["source"]["kind"], "snapshot");
    // A search finds a claim and a node as well.
    let found = running.api("/api/volumes?search=SHOP%2Fdatabase-").await;
    assert_eq!(rows(&found).len(), 2, "{found}");
    let found = running.api("/api/volumes?search=worker-1").await;
    assert_eq!(rows(&found).len(), 1, "{found}");
    let details = "/api/details?volume=v:nas/pvc-shop&volume=v:nas/pvc-lost&volume=v:nas/none";
    let details = running.api(details).await;
    let shop = row(&details, "handle", "v:nas/pvc-shop");
    assert_eq!(shop["export"], "exported", "{details}");
    assert!(shop["used"].is_u64(), "{details}");
    assert_eq!(
        row(&details, "handle", "v:nas/pvc-lost")["export"],
        "missing"
    );
    let gone = row(&details, "handle", "v:nas/none");
    assert!(
        gone["used"].is_null() && gone["export"] != "exported",
        "{details}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_family_is_a_tree_from_the_oldest_origin_to_the_youngest_copy() {
    let running = Site::new().start(10).await;
    let family = running.api("/api/family?volume=v:nas/pvc-restored").await;
    let shown: Vec<_> = family["members"]
        .as_array()
        .expect("members")
        .iter()
        .map(|member| {
            let handle = member["handle"].as_str().expect("a handle");
            (
                member["depth"].as_u64(),
                member["kind"].as_str(),
                handle.to_owned(),
            )
        })
        .collect();
    assert_eq!(
        shown[0],
        (Some(0), Some("volume"), "v:nas/pvc-shop".to_owned())
    );
    let place = |handle: &str| {
        let found = shown.iter().position(|member| member.2 == handle);
        found.unwrap_or_else(|| panic!("no {handle}: {family}"))
    };
    let restored = place("v:nas/pvc-restored");
    assert_eq!(shown[restored - 1].1, Some("snapshot"), "{family}");
    assert_eq!(shown[restored].0, Some(2), "{family}");
    assert_eq!(shown[place("v:nas/pvc-clone")].0, Some(1), "{family}");
    assert!(family["incomplete"].is_null(), "{family}");
    let snapshots = running.api("/api/snapshots?search=pvc-shop").await;
    assert!(
        rows(&snapshots)
            .iter()
            .all(|row| row["volume"] == "v:nas/pvc-shop")
    );
    assert_eq!(rows(&snapshots).len(), 2, "{snapshots}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storage_that_says_nothing_costs_the_others_seconds_and_is_named() {
    let running = Site::new().start(10).await;
    let began = Instant::now();
    let volumes = running.api("/api/volumes?limit=200").await;
    assert!(
        began.elapsed() < Duration::from_secs(12),
        "{:?}",
        began.elapsed()
    );
    assert!(rows(&volumes).len() > 10, "{volumes}");
    let silent = volumes["silent"].as_array().expect("connections");
    let names: Vec<_> = silent.iter().map(|one| &one["connection"]).collect();
    assert_eq!(names, ["mute", "odd"], "{volumes}");
    let said = silent[0]["error"].as_str().expect("why");
    // The console or the driver itself, whichever ends first: both have the same time.
    assert!(said.contains("within"), "{said}");
    let connections = running.api("/api/connections").await;
    assert_eq!(row(&connections, "name", "odd")["health"], "invalid");
    assert_eq!(rows(&connections).len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_names_come_back_as_json_and_secrets_never() {
    let running = Site::new().start(10).await;
    let calls = running.api("/api/calls").await;
    let claimed = row(&calls, "claim", CLAIM);
    assert_eq!(claimed["rpc"], "CreateVolume");
    let failed = running.api("/api/calls?failed=true").await;
    assert!(!rows(&failed).is_empty());
    assert!(
        rows(&failed).iter().all(|row| row["code"] != "OK"),
        "{failed}"
    );
    let said = failed.to_string();
    for hostile in HOSTILE {
        let as_json = Value::from(hostile).to_string();
        assert!(
            said.contains(as_json.trim_matches('"')),
            "{hostile}: {said}"
        );
    }
    let volumes = running.api("/api/volumes?connection=nas").await;
    assert_eq!(row(&volumes, "id", "pvc-hostile")["claim"], CLAIM);
    let mut all = String::new();
    for target in [
        "/",
        "/console.js",
        "/api/status",
        "/api/connections",
        "/api/calls?limit=1000",
        "/api/volumes?limit=200",
        "/api/snapshots?limit=200",
        "/api/orphans",
        "/api/details?volume=v:nas/pvc-shop&volume=v:mute/x",
        "/api/family?volume=v:nas/pvc-shop",
        "/api/family?volume=v:mute/x",
        "/api/none",
    ] {
        all += &running.raw(target).await;
    }
    let key = running.api_key();
    for secret in [SECRET, key.as_str()] {
        assert!(!all.contains(secret), "a secret is shown: {secret}");
    }
}
