//! The program as a process: signals, sockets, exit codes, logs. Real children, real sockets. And its services in the
//! process of the test, over drivers of the test.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]
#![expect(
    clippy::disallowed_methods,
    reason = "the program under test is a child of the test, which no runner of ours may be"
)]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use harness::{PROGRAM, Place, Server, probe};

mod checks;
#[cfg(feature = "console")]
mod console;
mod explain;
mod harness;
mod inline;
#[path = "../../src/testing/log.rs"]
mod log;
mod node;
mod over_a_socket;
mod own_mounts;
mod registration;
mod served;
mod try_out;
mod upkeep;

fn http(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn sigterm_and_sigint_end_it_with_exit_code_0_and_without_its_socket() {
    for signal in [Signal::TERM, Signal::INT] {
        let place = Place::new();
        let mut server = place.start();
        assert_eq!(probe(&place.socket(), &[]).status.code(), Some(0));
        server.signal(signal);
        server.until("nothing is in progress any more");
        assert_eq!(server.ended(), Some(0));
        assert!(!place.socket().exists());
    }
}

/// A client that starts a call and does not finish it.
fn hanging_call(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    let mut block = vec![0x83, 0x86];
    for (first, texts) in [
        (0x41, &["localhost"][..]),
        (0x44, &["/csi.v1.Identity/Probe"]),
        (0x5f, &["application/grpc"]),
        (0x40, &["te", "trailers"]),
    ] {
        block.push(first);
        for text in texts {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.as_bytes());
        }
    }
    bytes.extend([0, 0, u8::try_from(block.len()).unwrap(), 1, 4, 0, 0, 0, 1]);
    bytes.extend(block);
    stream.write_all(&bytes).unwrap();
    // The server acknowledges the settings: it has read what came before, too.
    let mut some = [0; 9];
    stream.read_exact(&mut some).unwrap();
    stream
}

#[test]
fn calls_in_progress_hold_it_up_for_the_grace_period_only() {
    let place = Place::new();
    let mut server = Server::of(place.command().arg("--shutdown-grace=0.2"));
    let _client = hanging_call(&place.socket());
    server.signal(Signal::TERM);
    server.until("the grace period is over");
    assert_eq!(server.ended(), Some(0));
    assert!(!place.socket().exists());
}

#[test]
fn a_log_that_is_not_read_does_not_keep_it_from_ending() {
    let place = Place::new();
    let mut command = place.command();
    let mut server = Server::of(command.args(["--shutdown-grace=0.2", "--log-level=silly"]));
    // Each writes some lines; one that gets no answer has filled the pipe.
    let is_answered = |_: &usize| {
        let asked = probe(&place.socket(), &["--timeout=10"]);
        asked.status.code() == Some(0)
    };
    let answered = (0..500).take_while(is_answered).count();
    assert!(
        answered < 500,
        "the log takes everything: this proves nothing"
    );
    server.signal(Signal::TERM);
    let ended = (0..300).find_map(|_| {
        thread::sleep(Duration::from_millis(100));
        server.child.try_wait().unwrap()
    });
    assert_eq!(ended.expect("it ends").code(), Some(1));
}

#[test]
fn a_client_that_says_nothing_is_not_a_call_in_progress() {
    let place = Place::new();
    let mut server = Server::of(place.command().arg("--shutdown-grace=3600"));
    let _silent = UnixStream::connect(place.socket()).unwrap();
    server.signal(Signal::TERM);
    server.until("nothing is in progress any more");
    assert_eq!(server.ended(), Some(0));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let place = Place::new();
    let mut server = Server::of(place.command().arg("--shutdown-grace=3600"));
    let _client = hanging_call(&place.socket());
    server.signal(Signal::TERM);
    server.until("shutting down: no new calls; waiting for those in progress");
    server.signal(Signal::INT);
    server.until("second signal: exiting at once");
    assert_eq!(server.ended(), Some(0));
    assert!(!place.socket().exists());
}

#[test]
fn the_socket_of_a_killed_server_is_taken_over() {
    let place = Place::new();
    let mut killed = place.start();
    killed.signal(Signal::KILL);
    killed.ended();
    assert!(place.socket().exists());
    let _server = place.start();
    assert_eq!(probe(&place.socket(), &[]).status.code(), Some(0));
}

#[test]
fn the_socket_of_a_living_server_is_not() {
    let place = Place::new();
    let _server = place.start();
    let output = place.command().output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("another server answers there"), "{text}");
    assert_eq!(probe(&place.socket(), &[]).status.code(), Some(0));
}

#[test]
fn what_is_no_socket_is_never_removed() {
    let place = Place::new();
    fs::write(place.socket(), "precious").unwrap();
    let output = place.command().output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(fs::read(place.socket()).unwrap(), b"precious");
}

#[test]
fn the_socket_has_the_permissions_asked_for() {
    let place = Place::new();
    let mode = || fs::metadata(place.socket()).unwrap().permissions().mode() & 0o777;
    drop(place.start());
    assert_eq!(mode(), 0o600);
    let _server = Server::of(place.command().arg("--server-socket-permissions-mode=0660"));
    assert_eq!(mode(), 0o660);
}

#[test]
fn a_wrong_command_line_or_configuration_ends_it_with_64_before_anything_is_bound() {
    let place = Place::new();
    let (code, text) = place.refused(place.command().arg("--csi-mode=both"));
    assert_eq!(code, 64);
    assert!(text.contains("--csi-mode"), "{text}");

    let long = "n".repeat(64);
    for id in ["node\n1", "node 1", "node-1\r", "-node", long.as_str()] {
        let (code, text) = place.refused(place.command().env("CSI_NODE_ID", id));
        assert!(code == 64 && text.contains("CSI_NODE_ID"), "{id:?}: {text}");
    }

    fs::write(place.path("config.yaml"), "driver: local-hostpaht\n").unwrap();
    let (code, text) = place.refused(&mut place.command());
    let line: Value = serde_json::from_str(text.trim_end()).unwrap();
    assert_eq!((code, &line["key"]), (64, &Value::from("driver")), "{text}");
    assert!(
        line["error"].as_str().unwrap().contains("local-hostpath"),
        "{text}"
    );

    let broken = "driver: local-hostpath\nlocal-hostpath: [\n";
    for content in [broken, "driver: local-hostpath\nlocal-hostpath: {}\n"] {
        fs::write(place.path("config.yaml"), content).unwrap();
        assert_eq!(place.refused(&mut place.command()).0, 64, "{content}");
    }
    fs::remove_file(place.path("config.yaml")).unwrap();
    assert_eq!(place.refused(&mut place.command()).0, 64);
    assert_eq!(place.refused(Command::new(PROGRAM).env_clear()).0, 64);
}

#[test]
fn a_variable_about_programs_that_cannot_be_meant_is_named_before_anything_is_bound() {
    let place = Place::new();
    for (variable, value) in [
        ("MOUNT_DEFAULT_TIMEOUT", "30s"),
        ("ISCSI_DEFAULT_TIMEOUT", "0"),
        ("NVMEOF_DEFAULT_TIMEOUT", "-1"),
        ("FILESYSTEM_DEFAULT_TIMEOUT", "half an hour"),
        ("ISCSIADM_HOST_STRATEGY", "docker"),
        ("ISCSIADM_HOST_PATH", "sbin/iscsiadm"),
        ("OMNIBUS_CSI_NVME_KEY_FILE", "keys/node"),
    ] {
        let (code, said) = place.refused(place.command().env(variable, value));
        assert_eq!(code, 64, "{variable}");
        assert!(said.contains(variable), "{said}");
    }
}

#[test]
fn what_is_odd_but_usable_is_said_at_start_and_does_not_stop_it() {
    let place = Place::new();
    place.configure("  dirPermissionMode: \"0770\"\n");
    let mut command = place.command();
    command
        .arg("--log-levle=debug")
        .env("RESTIC_DEFAULT_TIMEOUT", "1");
    let server = Server::of(&mut command);
    let text = format!("{:?}", server.lines);
    for said in [
        "--log-levle",
        "RESTIC_DEFAULT_TIMEOUT",
        "dirPermissionMode",
        "dirPermissionsMode",
    ] {
        assert!(text.contains(said), "{said} in {text}");
    }
}

#[test]
fn the_log_level_is_changed_by_signals_and_by_the_admin_endpoint() {
    let place = Place::new();
    let mut server = Server::of(
        place
            .command()
            .args(["--metrics-address=127.0.0.1:0", "--log-level=info"]),
    );
    server.signal(Signal::USR1);
    assert_eq!(
        server.until("the log level has changed")["verbosity"],
        "verbose"
    );
    server.signal(Signal::USR2);
    assert_eq!(
        server.until("the log level has changed")["verbosity"],
        "info"
    );
    let address = server.admin();
    let put = "PUT /log-level HTTP/1.1\r\nContent-Length: 5\r\n\r\ndebug";
    assert!(http(&address, put).ends_with("debug\n"));
    assert_eq!(
        server.until("the log level has changed")["verbosity"],
        "debug"
    );
    probe(&place.socket(), &[]);
    assert_eq!(server.until("Probe succeeded")["rpc"], "Probe");
}

#[test]
fn metrics_count_what_was_asked_and_readiness_is_said() {
    let place = Place::new();
    let mut server = Server::of(place.command().arg("--metrics-address=127.0.0.1:0"));
    let address = server.admin();
    probe(&place.socket(), &[]);
    let page = http(&address, "GET /metrics HTTP/1.1\r\n\r\n");
    assert!(
        page.contains("omnibus_csi_rpc_total{rpc=\"Probe\",code=\"OK\",connection=\"\"} 1"),
        "{page}"
    );
    assert!(http(&address, "GET /ready HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
}

#[test]
fn a_tcp_listener_is_served_beside_the_socket() {
    let place = Place::new();
    let mut command = place.command();
    command.args(["--server-address=127.0.0.1", "--server-port=0"]);
    let server = Server::of(&mut command);
    let line = server
        .lines
        .iter()
        .find(|line| line["message"] == "listening on TCP")
        .unwrap();
    let address = PathBuf::from(line["address"].as_str().unwrap());
    for address in [&address, &place.socket()] {
        let output = probe(address, &[]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
}

#[test]
fn the_probe_fails_in_bounded_time_without_an_answer() {
    let place = Place::new();
    assert_eq!(probe(&place.socket(), &[]).status.code(), Some(1));
    let _silent = UnixListener::bind(place.socket()).unwrap();
    let output = probe(&place.socket(), &["--timeout=0.2"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("does not answer within"), "{text}");
    assert_eq!(
        probe(&place.socket(), &["--csi-version=0.3.0"])
            .status
            .code(),
        Some(64)
    );
}

#[test]
fn its_memory_is_never_written_to_disk() {
    let place = Place::new();
    let server = place.start();
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.child.id())).unwrap();
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"))
        .unwrap();
    // The soft limit is 0 in many a shell already; the hard one is not.
    let limits: Vec<_> = core.split_whitespace().skip(4).take(2).collect();
    assert_eq!(limits, ["0", "0"], "{core}");
}

#[test]
fn links_by_the_names_of_democratic_csi_do_what_those_do() {
    let place = Place::new();
    let link = |name: &str| {
        let path = place.path(name);
        std::os::unix::fs::symlink(PROGRAM, &path).unwrap();
        path
    };
    let mut command = place.command();
    let mut renamed = Command::new(link("democratic-csi"));
    renamed
        .env_clear()
        .args(command.arg("--log-level=info").get_args());
    let _server = Server::of(&mut renamed);
    let mut probe = Command::new(link("liveness-probe"));
    probe
        .env_clear()
        .arg("--csi-version=1.5.0")
        .arg("--csi-address")
        .arg(place.socket());
    assert_eq!(probe.output().unwrap().status.code(), Some(0));
}

fn limit(server: &Server, name: &str) -> Vec<String> {
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.child.id())).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap()
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_soft_limit_of_open_files_is_raised_to_the_hard_one() {
    let place = Place::new();
    let command = place.command();
    let mut shell = Command::new("sh");
    shell
        .env_clear()
        .args(["-c", "ulimit -Sn 64; exec \"$0\" \"$@\"", PROGRAM])
        .args(command.get_args());
    let server = Server::of(&mut shell);
    let files = limit(&server, "Max open files");
    assert_ne!(files[0], "64");
    assert_eq!(files[0], files[1]);
}

#[test]
fn sighup_does_not_end_it() {
    let place = Place::new();
    let mut server = place.start();
    server.signal(Signal::HUP);
    server.until("ignored SIGHUP: restart the process to read the configuration again");
    assert_eq!(probe(&place.socket(), &[]).status.code(), Some(0));
}

#[test]
fn a_port_for_metrics_that_is_taken_is_named() {
    let place = Place::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, said) = place.refused(place.command().arg(format!("--metrics-address={address}")));
    assert_eq!(code, 1);
    assert!(
        said.contains("--metrics-address") && said.contains(&address),
        "{said}"
    );
    assert!(said.contains("another process listens there"), "{said}");
}

#[test]
fn a_server_whose_storage_cannot_be_used_says_so() {
    let place = Place::new();
    fs::remove_dir(place.path("base")).unwrap();
    fs::write(place.path("base"), "a file").unwrap();
    let mut server = place.start();
    let line = server.line("the storage of the connection cannot be used");
    assert_eq!(line["level"], "warn");
    assert!(line["error"].as_str().unwrap().contains("base"), "{line}");
}

#[test]
fn the_free_space_of_the_storage_is_in_the_metrics_of_a_controller() {
    let place = Place::new();
    let mut server = Server::of(place.command().arg("--metrics-address=127.0.0.1:0"));
    let address = server.admin();
    let figure = "omnibus_csi_connection_available_bytes{connection=\"\"} ";
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !http(&address, "GET /metrics HTTP/1.1\r\n\r\n").contains(figure) {
        assert!(std::time::Instant::now() < until, "no such line");
        std::thread::yield_now();
    }
}
