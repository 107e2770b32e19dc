//! The runner against a real OpenSSH server.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use driver_ssh::{ConnectError, HostKeys, InvalidKey, Key, Ssh};
use exec::{Command, Effect, Program, RunError, Runner, Status};
use futures_util::future::join_all;
use secrecy::SecretString;

use crate::common::{Sshd, WireTo, keygen, kill};

const ECHO: Program = Program::constant("echo");
const SH: Program = Program::constant("sh");
const TRUE: Program = Program::constant("true");

fn shell(script: &str) -> Command {
    Command::new(SH).args(["-c", script])
}

async fn says(ssh: &Ssh, word: &str) -> String {
    let output = ssh.run_checked(&Command::new(ECHO).arg(word)).await;
    output.expect("an answer").text().trim().to_owned()
}

/// Waits for the file that a command makes at its start.
async fn appears(began: &Path) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !began.exists() {
        assert!(Instant::now() < deadline, "the command never begins");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_list_of_commands_costs_one_round_trip_once_the_connection_is_open() {
    let Some(server) = Sshd::start("") else {
        return;
    };
    let wire = WireTo::new(server.port()).await;
    let ssh = Ssh::new(server.settings_over(&wire));
    let list: Vec<Command> = (0..20)
        .map(|n| Command::new(ECHO).arg(n.to_string()))
        .collect();
    let time = async |list: &[Command]| {
        let began = Instant::now();
        let outputs = ssh.run_all(list).await.into_outputs().expect("all of them");
        assert_eq!(outputs.len(), list.len());
        began.elapsed()
    };
    let one_way = Duration::from_millis(150);
    time(&list).await;
    // The least of several, near and far in turns: a busy machine makes both longer, and nothing makes them shorter.
    let (mut near, mut far, mut round_trips) = (Duration::MAX, Duration::MAX, 0.0);
    for _ in 0..20 {
        wire.delay(Duration::ZERO);
        near = near.min(time(&list).await);
        wire.delay(one_way);
        far = far.min(time(&list).await);
        round_trips = far.saturating_sub(near).as_secs_f64() / (2.0 * one_way.as_secs_f64());
        if (0.5..1.5).contains(&round_trips) {
            break;
        }
    }
    assert!(round_trips < 1.5, "{round_trips} round trips");
    assert!(round_trips > 0.5, "the wire was not slow: {round_trips}");
    assert_eq!(wire.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn keys_of_every_form_open_the_door() {
    let Some(server) = Sshd::start("") else {
        return;
    };
    let forms: [(&str, &[&str]); 9] = [
        ("ed25519", &["-t", "ed25519", "-N", ""]),
        ("rsa", &["-t", "rsa", "-b", "2048", "-N", ""]),
        ("ecdsa", &["-t", "ecdsa", "-N", ""]),
        (
            "rsa-pem",
            &["-t", "rsa", "-b", "2048", "-m", "PEM", "-N", ""],
        ),
        ("ecdsa-pem", &["-t", "ecdsa", "-m", "PEM", "-N", ""]),
        (
            "rsa-pkcs8",
            &["-t", "rsa", "-b", "2048", "-m", "PKCS8", "-N", ""],
        ),
        ("encrypted", &["-t", "ed25519", "-N", "a passphrase"]),
        (
            "encrypted-pem",
            &["-t", "rsa", "-b", "2048", "-m", "PEM", "-N", "a passphrase"],
        ),
        (
            "encrypted-ecdsa-pem",
            &["-t", "ecdsa", "-m", "PEM", "-N", "a passphrase"],
        ),
    ];
    for (name, options) in forms {
        let path = server.path().join(name);
        keygen(&path, options);
        server.authorize(&path);
        let text = std::fs::read_to_string(&path).expect("a key");
        let indented: Vec<String> = text.lines().map(|line| format!("      {line}")).collect();
        let indented = indented.join("\r\n");
        let passphrase = name
            .starts_with("encrypted")
            .then(|| SecretString::from("a passphrase"));
        for text in [text, indented] {
            let text = SecretString::from(text);
            let mut settings = server.settings();
            let key = Key::parse(&text, passphrase.as_ref());
            settings.key = Some(key.unwrap_or_else(|error| panic!("{name}: {error}")));
            assert_eq!(says(&Ssh::new(settings), name).await, name);
            if passphrase.is_some() {
                let none = Key::parse(&text, None).expect_err("encrypted");
                assert!(matches!(none, InvalidKey::Encrypted), "{name}: {none}");
                let wrong = Key::parse(&text, Some(&SecretString::from("wrong")));
                let wrong = wrong.expect_err("another passphrase");
                assert!(
                    matches!(wrong, InvalidKey::WrongPassphrase),
                    "{name}: {wrong}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_machine_that_is_not_the_one_that_was_meant_is_not_logged_in_to() {
    let Some(server) = Sshd::start("") else {
        return;
    };
    let key = server.host_key();
    let fields: Vec<&str> = key.split_whitespace().collect();
    let listed = format!(
        "[127.0.0.1]:{} {} {}\n",
        server.port(),
        fields[0],
        fields[1]
    );
    let with = |keys: HostKeys| {
        let mut settings = server.settings();
        settings.host_keys = keys;
        Ssh::new(settings)
    };
    assert_eq!(
        says(
            &with(HostKeys::pinned([key.as_str()]).expect("a key")),
            "key"
        )
        .await,
        "key"
    );
    let known = HostKeys::known(&format!("# mine\n  {listed}")).expect("known hosts");
    assert_eq!(says(&with(known), "known").await, "known");

    let other = server.path().join("other");
    keygen(&other, &["-t", "ed25519", "-N", ""]);
    let other = std::fs::read_to_string(other.with_extension("pub")).expect("a key");
    let elsewhere = listed.replace("127.0.0.1", "127.0.0.9");
    let revoked = format!("{listed}@revoked * {} {}\n", fields[0], fields[1]);
    for (keys, why) in [
        (HostKeys::pinned([other.as_str()]), "not the configured one"),
        (HostKeys::known(&elsewhere), "do not list it"),
        (HostKeys::known(&revoked), "revoked"),
    ] {
        let ssh = with(keys.expect("keys"));
        let error = ssh
            .run(&Command::new(TRUE))
            .await
            .expect_err("another machine");
        assert_eq!(error.effect(), Effect::None);
        let text = chain(&error);
        assert!(text.contains(why), "{text}");
    }
}

#[tokio::test]
async fn the_first_key_is_believed_and_another_one_later_is_not() {
    let Some(server) = Sshd::start("") else {
        return;
    };
    let wire = WireTo::new(server.port()).await;
    let ssh = Ssh::new(server.settings_over(&wire));
    assert_eq!(says(&ssh, "first").await, "first");
    // What serves a connection outlives the server: the wire has to be cut, too.
    let (folder, port) = server.stop();
    wire.cut();
    let Some(_other) = Sshd::restart(folder, port, "") else {
        return;
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let error = ssh.run(&Command::new(TRUE)).await.expect_err("another key");
        let text = chain(&error);
        if text.contains("but showed SHA256:") {
            break;
        }
        // The end of the old connection may be noticed by this very call.
        assert!(Instant::now() < deadline, "{text}");
    }
}

#[tokio::test]
async fn a_server_that_allows_few_sessions_serves_many_callers() {
    let Some(server) = Sshd::start("MaxSessions 2\nMaxStartups 100") else {
        return;
    };
    let wire = WireTo::new(server.port()).await;
    let mut settings = server.settings_over(&wire);
    settings.connections = 2;
    let ssh = Ssh::new(settings);
    let calls = (0..40).map(|n| {
        let ssh = ssh.clone();
        async move { says(&ssh, &n.to_string()).await }
    });
    let answers = join_all(calls).await;
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!(*answer, n.to_string());
    }
    assert!(
        wire.connections.load(Ordering::SeqCst) <= 2,
        "no more than were allowed"
    );
}

#[tokio::test]
async fn one_shell_runs_all_scripts_and_one_that_has_ended_is_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let shells = folder.path().join("shells");
    // What a login prints before the script is no part of any answer.
    let options = format!(
        "ForceCommand echo welcome; echo $$ >>{}; exec sh -s",
        shells.display()
    );
    let Some(server) = Sshd::start(&options) else {
        return;
    };
    let wire = WireTo::new(server.port()).await;
    let mut settings = server.settings_over(&wire);
    (settings.sessions, settings.connections) = (1, 1);
    let ssh = Ssh::new(settings);
    let started = || std::fs::read_to_string(&shells).expect("shells");
    for n in 0..4 {
        assert_eq!(says(&ssh, &n.to_string()).await, n.to_string());
    }
    let first = started();
    assert_eq!(first.lines().count(), 1, "{first}");
    kill(first.trim());
    let deadline = Instant::now() + Duration::from_secs(30);
    // A script may be sent before the end of the shell is noticed. Then its outcome is unknown.
    while let Err(error) = ssh.run(&Command::new(TRUE)).await {
        assert!(!error.outcome_known(), "{error:?}");
        assert!(Instant::now() < deadline, "{error:?}");
    }
    assert_eq!(says(&ssh, "again").await, "again");
    assert_eq!(started().lines().count(), 2, "{}", started());
    assert_eq!(wire.connections.load(Ordering::SeqCst), 1);
}

/// Output of a background process is larger than the window of an idle shell's channel.
#[tokio::test]
async fn what_a_script_leaves_behind_speaks_into_no_answer_and_stops_no_connection() {
    let Some(server) = Sshd::start("") else {
        return;
    };
    let wire = WireTo::new(server.port()).await;
    let mut settings = server.settings_over(&wire);
    (settings.sessions, settings.connections) = (2, 1);
    let ssh = Ssh::new(settings);
    for n in 0..2 {
        let (other, left) = (
            shell("sleep 1; echo other"),
            shell("(sleep 0.2; exec yes $$) & true"),
        );
        let both = async { tokio::join!(ssh.run(&other), ssh.run(&left)) };
        let both = tokio::time::timeout(Duration::from_secs(20), both).await;
        let (other, left) = both.expect("no call waits for the printed output");
        assert_eq!(other.expect("the other one").stdout, b"other\n");
        assert!(left.expect("its own end is seen").stdout.is_empty());
        assert_eq!(says(&ssh, &n.to_string()).await, n.to_string());
    }
    assert_eq!(wire.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn an_end_that_was_not_seen_is_unknown_and_the_next_call_connects_again() {
    let Some(server) = Sshd::start("") else {
        return;
    };
    let wire = WireTo::new(server.port()).await;
    let ssh = Ssh::new(server.settings_over(&wire));
    let began = server.path().join("began");
    let done = server.path().join("done");
    let script = format!(
        "echo > {}; sleep 2; echo > {}",
        began.display(),
        done.display()
    );
    let command = shell(&script);
    let cut = async {
        appears(&began).await;
        wire.cut();
    };
    let (ran, ()) = tokio::join!(ssh.run(&command), cut);
    let error = ran.expect_err("cut");
    assert!(!error.outcome_known(), "{error:?}");
    assert_eq!(error.effect(), Effect::Possible);
    assert_eq!(says(&ssh, "again").await, "again");
    assert_eq!(wire.connections.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn what_takes_too_long_or_says_too_much_is_given_up_and_others_are_served() {
    let Some(server) = Sshd::start("") else {
        return;
    };
    let ssh = Ssh::new(server.settings());
    // A connection and an idle shell, so that the short deadline is that of the command alone.
    assert_eq!(says(&ssh, "first").await, "first");
    let late = ssh
        .run(&shell("sleep 60").within(Duration::from_millis(300)))
        .await;
    let late = late.expect_err("late");
    assert!(matches!(late, RunError::Deadline { .. }), "{late:?}");
    let much = shell("while :; do echo yes; done").with_output_cap(100_000);
    let much = ssh.run(&much).await.expect_err("too much");
    assert!(matches!(much, RunError::OutputTooLarge { .. }), "{much:?}");
    assert_eq!(says(&ssh, "well").await, "well");
}

#[tokio::test]
async fn a_call_that_is_dropped_leaves_its_turn_to_others() {
    let Some(server) = Sshd::start("MaxSessions 2") else {
        return;
    };
    let mut settings = server.settings();
    (settings.sessions, settings.connections) = (1, 1);
    let ssh = Ssh::new(settings);
    // At any moment: while it connects, while its channel is opened, while its shell starts.
    let command = shell("sleep 60");
    for after in [0, 5, 10, 20, 40, 80] {
        let call = ssh.run(&command);
        let ended = tokio::time::timeout(Duration::from_millis(after), call).await;
        assert!(ended.is_err());
    }
    // And while it runs: to what root has started, this server passes no signal on, so that it goes
    // on and keeps its session. There are more of them than sessions.
    for n in 0..3 {
        let began = server.path().join(format!("began-{n}"));
        let command = shell(&format!("echo > {}; sleep 60", began.display()));
        tokio::select! {
            ended = ssh.run(&command) => panic!("it ended: {ended:?}"),
            () = appears(&began) => {}
        }
    }
    assert_eq!(says(&ssh, "well").await, "well");
}

#[tokio::test]
async fn statuses_signals_and_complaints_come_back_as_they_were() {
    let Some(server) = Sshd::start("") else {
        return;
    };
    let ssh = Ssh::new(server.settings());
    let failed = ssh
        .run(&shell("echo no >&2; exit 7"))
        .await
        .expect("an end");
    assert_eq!(failed.status, Status::Exit(7));
    assert_eq!(failed.stderr, b"no\n");
    let killed = ssh.run(&shell("kill -9 $$")).await.expect("an end");
    assert_eq!(killed.status, Status::Signal(9));
    let binary = ssh
        .run(&shell("printf '\\000\\377\\n'"))
        .await
        .expect("an end");
    assert_eq!(binary.stdout, [0, 255, b'\n']);
    let large = ssh
        .run(&shell("head -c 3000000 /dev/zero"))
        .await
        .expect("an end");
    assert_eq!(large.stdout.len(), 3_000_000);
    let input = "x".repeat(5_000_000);
    let counted = Command::new(Program::constant("wc"))
        .arg("-c")
        .stdin(input.as_bytes());
    let counted = ssh.run_checked(&counted).await.expect("an end");
    assert_eq!(counted.text().trim(), "5000000");
}

#[tokio::test]
async fn a_machine_that_is_down_is_unreachable_at_once_and_used_as_soon_as_it_is_up() {
    let Some(server) = Sshd::start("") else {
        return;
    };
    let mut settings = server.settings();
    settings.host_keys = HostKeys::first_use();
    let keys = settings.host_keys.clone();
    let ssh = Ssh::new(settings);
    let (folder, port) = server.stop();
    let error = ssh.run(&Command::new(TRUE)).await.expect_err("down");
    assert!(matches!(error, RunError::Unreachable { .. }), "{error:?}");
    let (said, address) = (chain(&error), format!("127.0.0.1:{}", port.number()));
    assert_eq!(said.matches(&address).count(), 1, "{said}");
    let RunError::Unreachable { source, .. } = &error else {
        panic!("{said}");
    };
    let cause = source.downcast_ref::<ConnectError>().expect("the cause");
    assert!(
        cause.advice().contains("host and port"),
        "{}",
        cause.advice()
    );
    assert_eq!(keys.believed(), None);
    let Some(_server) = Sshd::restart(folder, port, "") else {
        return;
    };
    assert_eq!(says(&ssh, "up").await, "up");
    // Ready to be configured.
    let believed = keys.believed().expect("the first key");
    assert!(HostKeys::pinned([&*believed]).is_ok(), "{believed}");
}

fn chain(error: &RunError) -> String {
    let first: &dyn std::error::Error = error;
    let all = std::iter::successors(Some(first), |error| error.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
