//! `explain`: what it asks of the cluster, and what it says.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api::{ApiServer, Said, World, run};

/// The chain as JSON, with the exit code.
fn explain(server: &ApiServer) -> (i32, Value) {
    let (code, text, problem) = server.kubectl(&["explain", "data", "--json"]);
    let chain = serde_json::from_str(&text).expect(&problem);
    (code, chain)
}

fn link<'a>(chain: &'a Value, name: &str) -> &'a Value {
    let links = chain["links"].as_array().unwrap();
    let found = links.iter().find(|link| link["link"] == name);
    found.unwrap_or_else(|| panic!("no link {name}: {chain:#}"))
}

#[test]
fn a_sound_claim_is_followed_from_its_class_to_its_pods_within_two_seconds() {
    let server = ApiServer::new(World::new());
    let began = Instant::now();
    let (code, text, _) = server.kubectl(&["explain", "-n", "shop", "pvc/data"]);
    assert!(began.elapsed() < Duration::from_secs(2), "{began:?}");
    assert_eq!(code, 0, "{text}");
    assert!(
        text.is_ascii() && text.ends_with("\nall links hold\n"),
        "{text}"
    );
    let names: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1))
        .collect();
    let expected = [
        "claim",
        "class",
        "controller",
        "persistent-volume",
        "handle",
        "connection",
        "storage",
        "parent",
        "volume",
        "export",
        "node-pod",
        "registered",
        "attached",
        "staged",
        "mount",
        "published",
        "pod",
        "links",
    ];
    assert_eq!(names, expected, "{text}");
    let asked = server.asked();
    let command = "command=--&command=v%3Anas%2Fpvc-claim-1";
    let of = |pod: &str| {
        let mut all = asked.iter();
        all.find(|target| target.contains(&format!("/pods/{pod}/exec")))
            .expect(pod)
    };
    assert!(of("csi-controller").contains(command), "{asked:?}");
    assert!(!of("csi-controller").contains("node-only"), "{asked:?}");
    assert!(
        of("csi-node-1").contains("command=--node-only"),
        "{asked:?}"
    );
}

#[test]
fn a_fault_that_the_controller_sees_is_named_with_a_remedy_for_this_machine() {
    let mut world = World::new();
    world.objects["storage"]["links"][5] = json!({
        "link": "export", "state": "broken", "text": "it is missing",
        "remedy": "`omnibus-csi exports --driver-config-file=/config/driver-config-file.yaml --connection=nas --repair` puts it back"
    });
    let server = ApiServer::new(world);
    let (code, chain) = explain(&server);
    assert_eq!((code, &chain["broken"]), (1, &json!("export")), "{chain:#}");
    let remedy = "`kubectl omnibus exports --connection=nas --repair` puts it back";
    assert_eq!(link(&chain, "export")["remedy"], remedy);
    assert_eq!(
        link(&chain, "parent")["facts"]["available_bytes"],
        1_319_413_953_331_u64
    );
    assert_eq!(link(&chain, "mount")["node"], "one");
}

#[test]
fn a_claim_that_is_not_there_is_broken_and_nothing_more_is_asked_for() {
    let mut world = World::new();
    world.objects["claim"] = Value::Null;
    let server = ApiServer::new(world);
    let (code, chain) = explain(&server);
    assert_eq!((code, &chain["broken"]), (1, &json!("claim")), "{chain:#}");
    let asked = server.asked();
    assert!(
        !asked.iter().any(|target| target.contains("/exec")),
        "{asked:?}"
    );
}

#[test]
fn each_right_that_is_missing_is_named_and_is_no_success() {
    for (kind, name, right) in [
        (
            "persistentvolumeclaims",
            "claim",
            "get on persistentvolumeclaims in shop",
        ),
        (
            "storageclasses",
            "class",
            "get on storageclasses in the whole cluster",
        ),
        (
            "persistentvolumes",
            "persistent-volume",
            "get on persistentvolumes in the whole cluster",
        ),
        ("pods", "pod", "list on pods in shop"),
        (
            "volumeattachments",
            "attached",
            "list on volumeattachments in the whole cluster",
        ),
        (
            "csinodes",
            "registered",
            "get on csinodes in the whole cluster",
        ),
        ("exec", "storage", "get and create on pods/exec in storage"),
    ] {
        let mut world = World::new();
        world.forbidden.push(kind);
        let server = ApiServer::new(world);
        let (code, chain) = explain(&server);
        assert_eq!(
            (code, &chain["state"]),
            (2, &json!("unknown")),
            "{kind}: {chain:#}"
        );
        let unknown = link(&chain, name);
        let text = unknown["text"].as_str().unwrap();
        assert!(
            text.contains("not looked at") && text.contains(right),
            "{kind}: {unknown:#}"
        );
    }
}

#[test]
fn a_program_in_the_pod_that_cannot_explain_is_named_with_what_it_said() {
    let mut world = World::new();
    world.said = Some(Said {
        stdout: String::new(),
        stderr: "error: unrecognized subcommand 'explain'\n".to_owned(),
        code: 64,
    });
    let server = ApiServer::new(world);
    let (code, chain) = explain(&server);
    assert_eq!(code, 2, "{chain:#}");
    let text = link(&chain, "storage")["text"].as_str().unwrap();
    assert!(
        text.contains("storage/csi-controller ended with 64: error: unrecognized subcommand"),
        "{text}"
    );
}

#[test]
fn a_cluster_that_does_not_answer_is_given_up_within_seconds() {
    let mut world = World::new();
    world.silent = true;
    let server = ApiServer::new(world);
    let began = Instant::now();
    let (code, chain) = explain(&server);
    assert!(began.elapsed() < Duration::from_secs(6), "{began:?}");
    assert_eq!(code, 2);
    let text = link(&chain, "claim")["text"].as_str().unwrap();
    assert!(text.contains("did not answer in 4 s"), "{text}");
}

#[test]
fn without_a_cluster_or_a_claim_the_exit_code_says_so() {
    let program = || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_kubectl-omnibus"));
        command.env_clear();
        command
    };
    let (code, _, problem) = run(program().args(["explain", "data", "--kubeconfig=/no/such/file"]));
    assert_eq!(code, 2, "{problem}");
    assert!(problem.contains("kubeconfig"), "{problem}");
    let (code, _, problem) = run(program().args(["explain", "data", "-A"]));
    assert_eq!(code, 64, "{problem}");
    for (empty, said) in [
        (["explain", "", "--json"], "the name of the claim is empty"),
        (
            ["explain", "pvc/", "--json"],
            "the name of the claim is empty",
        ),
        (["explain", "-n", ""], "the name of the namespace is empty"),
    ] {
        let (code, _, problem) = run(program().args(empty));
        assert_eq!(code, 64, "{problem}");
        assert!(problem.contains(said), "{problem}");
    }
    let (code, text, _) = run(program().args(["explain", "--help"]));
    assert_eq!(code, 0);
    assert!(
        text.contains("Examples:") && text.contains("Exit codes:"),
        "{text}"
    );
}

#[test]
fn of_a_claim_without_a_volume_the_connection_of_its_class_is_looked_at() {
    let unbound = || {
        let mut world = World::new();
        world.objects["claim"]["status"]["phase"] = json!("Pending");
        world.objects["claim"]["spec"] = json!({"storageClassName": "fast"});
        world.objects["class"]["volumeBindingMode"] = json!("WaitForFirstConsumer");
        world.objects["pods"] = json!([]);
        world
    };
    let mut down = unbound();
    let row = json!({"name": "nas", "driver": null, "health": "bad", "error": "refused", "volumes": null});
    down.said = Some(Said {
        stdout: json!({"connections": [row], "odd": []}).to_string(),
        stderr: String::new(),
        code: 1,
    });
    let server = ApiServer::new(down);
    let (code, chain) = explain(&server);
    assert_eq!(
        (code, &chain["broken"]),
        (1, &json!("storage")),
        "{chain:#}"
    );
    assert_eq!(link(&chain, "storage")["text"], "nas: refused");
    let command = "command=omnibus-csi&command=connections";
    assert!(server.asked().iter().any(|target| target.contains(command)));

    let mut alone = unbound();
    alone.said = Some(Said {
        stdout: String::new(),
        stderr: "the configuration has no folder".to_owned(),
        code: 64,
    });
    let server = ApiServer::new(alone);
    let (code, chain) = explain(&server);
    assert_eq!((code, &chain["state"]), (0, &json!("holds")), "{chain:#}");
}

#[test]
fn where_a_pod_of_the_driver_is_missing_its_daemon_set_and_the_node_are_looked_at() {
    let mut world = World::new();
    let template = json!({"metadata": {}, "spec": world.objects["ours"][1]["spec"]});
    let mut set = json!({
        "metadata": {"name": "csi-node", "namespace": "storage"}, "spec": {"selector": {}, "template": template}
    });
    set["spec"]["template"]["spec"]["nodeSelector"] = json!({"disk": "ssd"});
    world.objects["daemonSets"] = json!([set]);
    world.objects["deployments"] = json!([]);
    world.objects["ours"].as_array_mut().unwrap().pop();
    let mut forbidden = world.clone();
    let server = ApiServer::new(world);
    let (code, chain) = explain(&server);
    assert_eq!(
        (code, &chain["broken"]),
        (1, &json!("node-pod")),
        "{chain:#}"
    );
    let text = link(&chain, "node-pod")["text"].as_str().unwrap();
    let why = "the DaemonSet storage/csi-node asks for the label disk=ssd (`nodeSelector`), and one has disk=9";
    assert!(text.ends_with(why), "{text}");
    let asked = server.asked();
    assert!(
        asked
            .iter()
            .any(|target| target.starts_with("/api/v1/nodes/one")),
        "{asked:?}"
    );

    forbidden.forbidden.push("daemonsets");
    let (code, chain) = explain(&ApiServer::new(forbidden));
    assert_eq!(
        (code, &chain["broken"]),
        (1, &json!("node-pod")),
        "{chain:#}"
    );
    let text = link(&chain, "node-pod")["text"].as_str().unwrap();
    let why = "the DaemonSet is not looked at: needs list on daemonsets in the whole cluster";
    assert!(text.ends_with(why), "{text}");
    let remedy = link(&chain, "node-pod")["remedy"].as_str().unwrap();
    assert!(remedy.contains("kubectl describe node one"), "{remedy}");
}

#[test]
fn a_sound_claim_takes_no_look_at_daemon_sets() {
    let server = ApiServer::new(World::new());
    let (code, chain) = explain(&server);
    assert_eq!(code, 0, "{chain:#}");
    let asked = server.asked();
    assert!(
        !asked.iter().any(|target| target.contains("/apis/apps/")),
        "{asked:?}"
    );
}

#[test]
fn a_proxy_of_the_environment_is_used() {
    let server = ApiServer::new(World::new());
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = unused.local_addr().unwrap();
    drop(unused);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_kubectl-omnibus"));
    let command = command.env_clear().env("KUBECONFIG", server.kubeconfig());
    command.env("HTTPS_PROXY", format!("http://{proxy}"));
    let (code, text, problem) = run(command.args(["explain", "data"]));
    assert_eq!(code, 2, "{text}{problem}");
    // It is asked for, and is not there.
    assert!(text.contains("onnection refused"), "{text}{problem}");
    assert_eq!(server.asked(), Vec::<String>::new());
}

/// A claim that is sound, one whose class is missing, and one of another driver.
fn three_claims() -> World {
    let mut world = World::new();
    let claim = |namespace: &str, name: &str, class: &str, volume: &str| {
        json!({
            "metadata": {"name": name, "namespace": namespace, "uid": "claim-1"},
            "spec": {"storageClassName": class, "volumeName": volume}, "status": {}
        })
    };
    world.objects["claims"] = json!([
        claim("shop", "data", "fast", "pvc-claim-1"),
        claim("shop", "mail", "gone", ""),
        claim("shop", "theirs", "ebs", ""),
    ]);
    world.objects["classes"] = json!([
        world.objects["class"],
        {"metadata": {"name": "ebs"}, "provisioner": "ebs.example"},
    ]);
    world
}

#[test]
fn without_a_name_each_claim_of_the_namespace_has_a_line_the_sick_ones_first() {
    let server = ApiServer::new(three_claims());
    let (code, text, problem) = server.kubectl(&["explain"]);
    assert_eq!(code, 1, "{text}{problem}");
    let expected = "\
BROKEN  mail  class: there is no StorageClass `gone`
ok      data  all links hold

2 claims in the namespace shop: 1 with a broken link, 0 not known; 1 claim of other drivers left out
do: see all links and the remedies of each:
  kubectl omnibus explain -n shop mail
";
    assert_eq!(text, expected);
    let asked = server.asked();
    let lists = asked
        .iter()
        .filter(|target| target.contains("/volumeattachments"));
    assert_eq!(lists.count(), 1, "{asked:?}");
    // A claim that is older than its pods may seem to wait for what is done.
    let last = |kind: &str| {
        let list = format!("/namespaces/shop/{kind}?");
        asked.iter().rposition(|target| target.contains(&list))
    };
    let pods = last("pods").expect("a list of the pods");
    assert!(Some(pods) < last("persistentvolumeclaims"), "{asked:?}");

    let (code, text, problem) = server.kubectl(&["explain", "--json"]);
    assert_eq!(code, 1, "{problem}");
    let chains: Value = serde_json::from_str(&text).unwrap();
    let of = |at: usize| (&chains[at]["claim"], &chains[at]["broken"]);
    assert_eq!(chains.as_array().map(Vec::len), Some(2), "{chains:#}");
    assert_eq!(of(0), (&json!("mail"), &json!("class")));
    assert_eq!(of(1), (&json!("data"), &Value::Null));
}

#[test]
fn each_sick_claim_is_named_at_the_end_and_one_that_waits_for_its_first_pod_is_none() {
    let mut world = three_claims();
    let claims = world.objects["claims"].as_array_mut().unwrap();
    let mut second = claims[1].clone();
    second["metadata"]["name"] = json!("post");
    let mut waits = claims[1].clone();
    waits["metadata"]["name"] = json!("later");
    waits["spec"]["storageClassName"] = json!("fast");
    claims.extend([second, waits]);
    world.objects["class"]["volumeBindingMode"] = json!("WaitForFirstConsumer");
    world.objects["classes"][0]["volumeBindingMode"] = json!("WaitForFirstConsumer");
    world.objects["pods"] = json!([]);
    world.objects["attachments"] = json!([]);
    // A driver with a single storage has no names of connections.
    world.single = true;
    let server = ApiServer::new(world);
    let (code, text, problem) = server.kubectl(&["explain"]);
    assert_eq!(code, 1, "{text}{problem}");
    assert!(
        text.contains("\nok      later  waits for its first pod\n"),
        "{text}"
    );
    let end = "\ndo: see all links and the remedies of each:\n  kubectl omnibus explain -n shop mail\n  \
               kubectl omnibus explain -n shop post\n";
    assert!(text.ends_with(end), "{text}");
}

#[test]
fn all_namespaces_are_looked_at_and_of_many_claims_none_is_left_out() {
    let mut world = three_claims();
    let claims = world.objects["claims"].as_array_mut().unwrap();
    let sound = claims[0].clone();
    claims.truncate(1);
    for number in 0..20 {
        let mut claim = sound.clone();
        claim["metadata"]["name"] = json!(format!("data-{number}"));
        claim["metadata"]["namespace"] = json!(format!("shop-{}", number % 2));
        claims.push(claim);
    }
    // All have the one volume of this world, which is nobody's.
    let volume = world.objects["volume"]["spec"].as_object_mut().unwrap();
    volume.remove("claimRef");
    let server = ApiServer::new(world);
    let (code, text, problem) = server.kubectl(&["explain", "-A"]);
    assert_eq!(code, 0, "{text}{problem}");
    let sum = "21 claims in all namespaces: 0 with a broken link, 0 not known";
    assert!(text.ends_with(&format!("\n\n{sum}\n")), "{text}");
    for line in ["ok      shop/data       ", "ok      shop-1/data-19  "] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn claims_that_cannot_be_listed_and_a_namespace_without_any_are_told_apart() {
    let mut world = three_claims();
    world.objects["claims"] = json!([]);
    let server = ApiServer::new(world.clone());
    let (code, text, problem) = server.kubectl(&["explain", "-n", "empty"]);
    assert_eq!(code, 0, "{problem}");
    assert_eq!(text, "0 claims in the namespace empty\n");
    world.forbidden.push("persistentvolumeclaims");
    let server = ApiServer::new(world);
    let (code, text, problem) = server.kubectl(&["explain"]);
    assert_eq!((code, text.as_str()), (2, ""), "{problem}");
    let right = "needs list on persistentvolumeclaims in shop";
    assert!(problem.contains(right), "{problem}");
}

#[test]
fn a_claim_of_many_that_cannot_be_looked_at_is_no_success() {
    let mut world = three_claims();
    world.objects["claims"].as_array_mut().unwrap().truncate(1);
    world.forbidden.push("exec");
    let server = ApiServer::new(world);
    let (code, text, _) = server.kubectl(&["explain"]);
    assert_eq!(code, 2, "{text}");
    assert!(text.starts_with("?       data  storage: "), "{text}");
    assert!(
        text.contains("\n1 claim in the namespace shop: 0 with a broken link, 1 not known\n"),
        "{text}"
    );
}
