//! The commands in the controller's pod, and the console.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use crate::api::{ApiServer, Said, World, run};

#[test]
fn a_command_runs_in_the_controllers_pod_and_its_output_and_exit_code_are_passed_on() {
    let mut world = World::new();
    world.said = Some(Said {
        stdout: "nas  good\n".repeat(5000),
        stderr: "waiting for nas\n".to_owned(),
        code: 1,
    });
    let expected = world.said.clone().unwrap();
    let server = ApiServer::new(world);
    let (code, out, err) = server.kubectl(&["orphans", "--min-age=7d", "--remove"]);
    assert_eq!((code, out, err), (1, expected.stdout, expected.stderr));
    let asked = server.asked();
    let exec = asked
        .iter()
        .find(|target| target.contains("/exec"))
        .expect("a command");
    assert!(
        exec.contains("/namespaces/storage/pods/csi-controller/exec"),
        "{exec}"
    );
    let words = "command=omnibus-csi&command=orphans&command=--driver-config-file%3D%2Fconfig%2Fdriver-config-file.yaml\
                 &command=--min-age%3D7d&command=--remove";
    assert!(
        exec.contains("container=csi-driver") && exec.ends_with(words),
        "{exec}"
    );
}

#[test]
fn output_that_is_not_read_to_its_end_is_no_error_to_report() {
    let mut world = World::new();
    world.said = Some(Said {
        stdout: "nas  good\n".repeat(100_000),
        stderr: String::new(),
        code: 0,
    });
    let server = ApiServer::new(world);
    let mut program = Command::new(env!("CARGO_BIN_EXE_kubectl-omnibus"))
        .env_clear()
        .env("KUBECONFIG", server.kubeconfig())
        .arg("connections")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(program.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "nas  good\n");
    let ended = program.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(141));
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
}

#[test]
fn each_command_of_the_controller_has_its_own_name_there() {
    for command in ["connections", "orphans", "exports", "check"] {
        let mut world = World::new();
        world.said = Some(Said {
            stdout: "all is well\n".to_owned(),
            stderr: String::new(),
            code: 0,
        });
        let server = ApiServer::new(world);
        let (code, out, err) = server.kubectl(&[command, "--json"]);
        assert_eq!((code, out.as_str()), (0, "all is well\n"), "{err}");
        let name = format!("command={command}&");
        assert!(server.asked().iter().any(|target| target.contains(&name)));
    }
}

/// Beside the driver of the world, one with a controller on each of two nodes.
fn two_drivers() -> World {
    let mut world = World::new();
    let ours = world.objects["ours"].as_array_mut().unwrap();
    for node in ["one", "two"] {
        let mut pod = ours[1].clone();
        pod["metadata"]["name"] = serde_json::json!(format!("local-{node}"));
        pod["spec"]["nodeName"] = serde_json::json!(node);
        pod["spec"]["containers"][0]["args"] = serde_json::json!([
            "--csi-name=org.example.local",
            "--driver-config-file=/c.yaml"
        ]);
        ours.push(pod);
    }
    world
}

#[test]
fn a_command_that_looks_asks_each_driver_and_each_node_under_a_line_of_its_own() {
    let mut world = two_drivers();
    world.said = Some(Said {
        stdout: "nas  bad\n".to_owned(),
        stderr: "waiting\n".to_owned(),
        code: 1,
    });
    let server = ApiServer::new(world);
    let (code, out, err) = server.kubectl(&["check"]);
    let expected = "=== org.example.csi ===\nnas  bad\n=== org.example.local, node one ===\nnas  bad\n\
                    === org.example.local, node two ===\nnas  bad\n";
    assert_eq!((code, out.as_str()), (1, expected), "{err}");
    assert_eq!(err, "waiting\n".repeat(3));
    let (code, out, err) =
        server.kubectl(&["connections", "--node=two", "--driver=org.example.local"]);
    assert_eq!(
        (code, out.as_str(), err.as_str()),
        (1, "nas  bad\n", "waiting\n")
    );
    let (_, out, err) = server.kubectl(&["orphans", "--json"]);
    assert_eq!(out, "nas  bad\n".repeat(3));
    assert!(err.contains("org.example.local, node two"), "{err}");
    for change in [["orphans", "--remove"], ["exports", "--repair"]] {
        let (code, out, err) = server.kubectl(&change);
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(err.contains("several drivers are installed"), "{err}");
    }
    let (_, out, err) = server.kubectl(&["connections", "--", "--help"]);
    assert_eq!(out, "nas  bad\n", "{err}");
}

#[test]
fn a_node_that_is_not_ready_is_left_out_beside_others_and_no_success() {
    let mut world = two_drivers();
    world.said = Some(Said {
        stdout: "nas  good\n".to_owned(),
        stderr: String::new(),
        code: 0,
    });
    world.objects["machines"][1]["status"] =
        serde_json::json!({"conditions": [{"type": "Ready", "status": "Unknown"}]});
    let server = ApiServer::new(world);
    let (code, out, err) = server.kubectl(&["check", "--driver=org.example.local"]);
    let expected =
        "=== org.example.local, node one ===\nnas  good\n=== org.example.local, node two ===\n";
    assert_eq!((code, out.as_str()), (2, expected), "{err}");
    let why =
        "storage/local-two: not asked, as the node two is not ready: `kubectl describe node two`";
    assert!(err.contains(why), "{err}");
    let sum = "1 of 2 controllers did not answer: org.example.local, node two. What was printed is of the others";
    assert!(
        err.lines().last().is_some_and(|line| line.contains(sum)),
        "{err}"
    );
    let asked = server.asked();
    let is_asked = |pod: &str| {
        let exec = format!("/{pod}/exec");
        asked.iter().any(|target| target.contains(&exec))
    };
    assert!(is_asked("local-one") && !is_asked("local-two"), "{asked:?}");
    // One that is named is tried.
    let (code, out, err) = server.kubectl(&["check", "--driver=org.example.local", "--node=two"]);
    assert_eq!((code, out.as_str()), (0, "nas  good\n"), "{err}");
    assert!(!err.contains("did not answer"), "{err}");
}

#[test]
fn controllers_whose_connection_ends_are_named_at_the_end_beside_the_answers_of_the_others() {
    for command in ["exports", "orphans"] {
        let mut world = two_drivers();
        world.said = Some(Said {
            stdout: "nas  good\n".to_owned(),
            stderr: "omnibus-csi: waiting for an answer of the storage since 5 s\n".to_owned(),
            code: 0,
        });
        world.cut = Some("local-one");
        let server = ApiServer::new(world);
        let (code, out, err) = server.kubectl(&[command]);
        let expected = "=== org.example.csi ===\nnas  good\n=== org.example.local, node one ===\nnas  good\n\
                        === org.example.local, node two ===\nnas  good\n";
        // Also of that one what was printed stays.
        assert_eq!((code, out.as_str()), (2, expected), "{err}");
        assert_eq!(err.matches("since 5 s").count(), 3, "{err}");
        assert!(err.contains("storage/local-one: "), "{err}");
        let last = err.lines().last().unwrap();
        assert!(
            last.contains("1 of 3 controllers did not answer: org.example.local, node one."),
            "{err}"
        );
    }
}

#[test]
fn of_a_driver_with_one_storage_check_answers_for_connections() {
    let mut world = two_drivers();
    world.single = true;
    let server = ApiServer::new(world);
    let (code, out, err) = server.kubectl(&["connections", "--driver=org.example.local"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    for part in [
        "=== org.example.local, node one ===\none storage without a name",
        "\nlocal-one has no errors\n",
        "\nlocal-two has no errors\n",
    ] {
        assert!(out.contains(part), "{out}");
    }
}

#[test]
fn a_command_that_had_nothing_to_look_at_is_no_success() {
    let mut world = World::new();
    world.said = Some(Said {
        stdout: "nothing was looked at: there is no connection that can be asked\n".to_owned(),
        stderr: String::new(),
        code: 0,
    });
    let expected = world.said.clone().unwrap().stdout;
    let server = ApiServer::new(world);
    for command in ["exports", "orphans"] {
        let (code, out, err) = server.kubectl(&[command]);
        assert_eq!((code, out.as_str()), (2, expected.as_str()), "{err}");
    }
}

#[test]
fn a_driver_that_has_nothing_of_the_kind_is_no_failure_alone_or_beside_others() {
    for (command, said) in [
        (
            "exports",
            "no exports to look at: smb-client: the driver exports nothing by itself\n",
        ),
        (
            "orphans",
            "no orphans to look at: smb-client: the driver cannot list them\n",
        ),
    ] {
        let mut world = two_drivers();
        world.said = Some(Said {
            stdout: said.to_owned(),
            stderr: String::new(),
            code: 0,
        });
        let server = ApiServer::new(world);
        let (code, out, err) = server.kubectl(&[command, "--driver=org.example.csi"]);
        assert_eq!((code, out.as_str()), (0, said), "{err}");
        let (code, out, err) = server.kubectl(&[command]);
        assert_eq!((code, out.matches(said).count()), (0, 3), "{out}{err}");
    }
}

#[test]
fn the_page_of_each_command_names_no_other_command() {
    const COMMANDS: [&str; 7] = [
        "connections",
        "orphans",
        "exports",
        "check",
        "export-pvs",
        "adopt",
        "move",
    ];
    for command in COMMANDS {
        let program = env!("CARGO_BIN_EXE_kubectl-omnibus");
        let (code, page, _) = run(Command::new(program).env_clear().args([command, "--help"]));
        assert_eq!(code, 0, "{page}");
        // Lines are broken at the width of the terminal.
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        let own = format!("`kubectl omnibus {command} -- --help`");
        assert!(
            page.contains(&own) && page.contains("Exit codes:"),
            "{page}"
        );
        let named = page.split("kubectl omnibus ").skip(1);
        for rest in named {
            let word = rest.split_whitespace().next().unwrap_or_default();
            assert_eq!(word, command, "{page}");
        }
    }
}

#[test]
fn commands_that_write_objects_get_the_name_of_the_driver_unless_it_is_given() {
    for (words, expected) in [
        (
            vec!["export-pvs", "--connection=nas"],
            "&command=--csi-name%3Dorg.example.csi&command=--connection%3Dnas",
        ),
        (
            vec!["adopt", "tank/a", "--csi-name=org.other.csi"],
            "driver-config-file.yaml&command=tank%2Fa&command=--csi-name%3Dorg.other.csi",
        ),
        (
            vec!["move", "v:nas/pvc-1", "--to=ssd"],
            "&command=--csi-name%3Dorg.example.csi&command=v%3Anas%2Fpvc-1&command=--to%3Dssd",
        ),
    ] {
        let mut world = World::new();
        world.said = Some(Said {
            stdout: "kind: PersistentVolume\n".to_owned(),
            stderr: String::new(),
            code: 0,
        });
        let server = ApiServer::new(world);
        let (code, out, err) = server.kubectl(&words);
        assert_eq!(
            (code, out.as_str()),
            (0, "kind: PersistentVolume\n"),
            "{err}"
        );
        let asked = server.asked();
        let exec = asked.iter().find(|target| target.contains("/exec"));
        let exec = exec.expect("a command");
        assert!(exec.ends_with(expected), "{exec}");
    }
}

#[test]
fn a_controller_that_cannot_be_asked_is_no_success_and_the_reason_is_said() {
    let mut forbidden = World::new();
    forbidden.forbidden.push("exec");
    let mut unseen = World::new();
    unseen.forbidden.push("pods");
    let mut gone = World::new();
    gone.objects["ours"] = serde_json::json!([]);
    for (world, why) in [
        (forbidden, "needs get and create on pods/exec in storage"),
        (
            unseen,
            "needs list on pods in the whole cluster; with --driver-namespace",
        ),
        (gone, "no pod of a controller"),
    ] {
        let server = ApiServer::new(world);
        let (code, _, err) = server.kubectl(&["check"]);
        assert_eq!(code, 2, "{err}");
        assert!(err.contains(why), "{err}");
    }
}

#[test]
fn the_console_is_served_on_the_loopback() {
    let server = ApiServer::new(World::new());
    let mut program = Command::new(env!("CARGO_BIN_EXE_kubectl-omnibus"))
        .env_clear()
        .env("KUBECONFIG", server.kubeconfig())
        .args(["console", "--no-open", "--port=0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut url = String::new();
    let mut stdout = BufReader::new(program.stdout.take().unwrap());
    stdout.read_line(&mut url).unwrap();
    let address = url.trim().strip_prefix("http://").unwrap();
    let address = address.trim_end_matches('/');
    for _ in 0..2 {
        let mut stream = TcpStream::connect(address.replace("localhost", "127.0.0.1")).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        assert!(page.ends_with("the page"), "{page}");
    }
    program.kill().unwrap();
    program.wait().unwrap();
}

#[test]
fn a_console_that_is_off_or_not_allowed_is_said_before_anything_listens() {
    let mut off = World::new();
    let arguments = off.objects["ours"][0]["spec"]["containers"][0]["args"].as_array_mut();
    arguments.unwrap().pop();
    let mut forbidden = World::new();
    forbidden.forbidden.push("portforward");
    for (world, why) in [
        (off, "console: {enabled: true}"),
        (
            forbidden,
            "needs get and create on pods/portforward in storage",
        ),
    ] {
        let server = ApiServer::new(world);
        let (code, out, err) = server.kubectl(&["console", "--no-open"]);
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(err.contains(why), "{err}");
    }
}
