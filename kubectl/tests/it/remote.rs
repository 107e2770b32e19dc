//! The commands in the controller's pod, and the console.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use crate::api::{ApiServer, Said, World};

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
