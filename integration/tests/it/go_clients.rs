//! Go's gRPC over a unix socket: every way of dialling, several versions of the library.

use std::path::{Path, PathBuf};

use integration::place::Place;
use integration::requirement;
use integration::server::Launch;
use integration::tools;
use serde_json::Value;

/// Module files in `go-client`, and the version of grpc-go that each pins.
const VERSIONS: [(&str, &str); 3] = [
    ("go.mod", "1.80.0"),
    ("grpc-1.57.mod", "1.57.2"),
    ("grpc-1.29.mod", "1.29.1"),
];

/// The ways of dialling that `go-client/main.go` knows.
const STYLES: [&str; 5] = [
    "kubelet",
    "old-kubelet",
    "sidecar",
    "old-sidecar",
    "short-scheme",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubelet_and_sidecars_of_all_years_are_answered() {
    const WHAT: &str = "the Go client";
    let named = std::env::var_os("OMNIBUS_GO").map(PathBuf::from);
    let Some(go) = named.or_else(|| requirement::tool(WHAT, "go")) else {
        return;
    };
    let place = Place::new();
    let mut server = Launch::local_hostpath(&place).start(&place).await;
    for (modules, version) in VERSIONS {
        let client = match tools::go_client(&go, modules).await {
            Ok(client) => client,
            Err(why) => {
                requirement::could_not_run(WHAT, &format!("{modules} could not be built: {why}"));
                continue;
            }
        };
        for style in STYLES {
            asks(&client, style, version, &place).await;
        }
    }
    assert!(server.terminate().await.success());
}

async fn asks(client: &Path, style: &str, version: &str, place: &Place) {
    let socket = place.socket();
    let arguments = [style.as_ref(), socket.as_os_str()];
    let output = tools::run(client, arguments, place.path()).await;
    let what = format!("grpc-go {version}, {style}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {stderr}");
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(answer["grpc"], version, "{what}");
    assert_eq!(answer["ready"], true, "{what}");
    assert_eq!(answer["name"], "org.omnibus-csi.test", "{what}");
    assert_eq!(answer["node_id"], "node-a", "{what}");
}
