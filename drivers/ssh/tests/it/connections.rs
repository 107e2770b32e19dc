//! What becomes of calls while connecting is slow, refused or given up.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use driver_ssh::{HostKeys, Settings, Ssh};
use exec::{Command, Effect, Program, Runner};
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use secrecy::SecretString;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::common::Sshd;
use crate::log::Log;

const ECHO: Program = Program::constant("echo");
const SH: Program = Program::constant("sh");

/// More than anything here takes.
const LONG: Duration = Duration::from_mins(10);
/// A test that waits longer than this has failed.
const TEST_TIMEOUT: Duration = Duration::from_mins(1);

/// What happens to the connections beyond the limit of a [`LimitedProxy`].
#[derive(Clone, Copy)]
enum Others {
    AreClosed,
    /// They stay open without an answer.
    Wait,
}

/// A TCP proxy to a server that accepts only the first few connections.
struct LimitedProxy {
    port: u16,
    attempts: Arc<AtomicUsize>,
}

impl LimitedProxy {
    async fn new(server: u16, limit: usize, others: Others) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let attempts = Arc::<AtomicUsize>::default();
        let proxy = Self {
            port,
            attempts: Arc::clone(&attempts),
        };
        tokio::spawn(async move {
            let mut waiting = Vec::new();
            while let Ok((mut near, _)) = listener.accept().await {
                if attempts.fetch_add(1, Ordering::SeqCst) >= limit {
                    match others {
                        Others::AreClosed => drop(near),
                        Others::Wait => waiting.push(near),
                    }
                    continue;
                }
                tokio::spawn(async move {
                    let mut far = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await?;
                    copy_bidirectional(&mut near, &mut far).await
                });
            }
        });
        proxy
    }

    fn attempts(&self) -> usize {
        self.attempts.load(Ordering::SeqCst)
    }

    /// Settings that lead to a server through it.
    fn to(&self, server: &Sshd) -> Settings {
        let mut settings = server.settings();
        settings.port = self.port;
        settings.host_keys = HostKeys::first_use();
        settings.connect_within = LONG;
        settings
    }
}

fn echo(word: &str) -> Command {
    Command::new(ECHO).arg(word).within(LONG)
}

async fn says(ssh: &Ssh, command: &Command) -> String {
    let output = ssh.run_checked(command).await;
    output.expect("an answer").text().trim().to_owned()
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let all = std::iter::successors(Some(error), |error| error.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[tokio::test]
async fn a_server_that_admits_no_further_connection_serves_all_calls_over_the_first() {
    for others in [Others::AreClosed, Others::Wait] {
        let Some(server) = Sshd::start("") else {
            return;
        };
        let proxy = LimitedProxy::new(server.port(), 1, others).await;
        let mut settings = proxy.to(&server);
        settings.sessions = 2;
        let ssh = Ssh::new(settings);
        let calls = async |seconds: f64, count: u32| {
            let calls = (0..count).map(|n| {
                let script = format!("sleep {seconds}; echo {n}");
                let command = Command::new(SH).args(["-c", &script]).within(LONG);
                let ssh = &ssh;
                async move { assert_eq!(says(ssh, &command).await, n.to_string()) }
            });
            let all = tokio::time::timeout(TEST_TIMEOUT, join_all(calls)).await;
            all.expect("no call waits for more than one turn");
        };
        let began = Instant::now();
        calls(0.1, 12).await;
        // If all commands end within a second, no call waited for a second.
        let in_time = began.elapsed() < Duration::from_secs(1);
        assert!(
            !in_time || proxy.attempts() == 1,
            "permits come often enough"
        );
        calls(1.3, 5).await;
        assert!(proxy.attempts() > 1, "no further connection was tried");
    }
}

#[tokio::test]
async fn why_there_is_no_further_connection_is_said_with_its_causes() {
    let Some(server) = Sshd::start("") else {
        return;
    };
    let log = Log::default();
    // While there is one alone, a line that another test writes first, on its own thread, is never heard here.
    let _second = tracing::Dispatch::new(Log::default());
    let _logs = tracing::subscriber::set_default(log.clone());
    let proxy = LimitedProxy::new(server.port(), 1, Others::AreClosed).await;
    let mut settings = proxy.to(&server);
    settings.sessions = 1;
    let ssh = Ssh::new(settings);
    assert_eq!(says(&ssh, &echo("first")).await, "first");
    let slow = Command::new(SH).args(["-c", "sleep 3; echo slow"]);
    let (slow, waits) = (slow.within(LONG), echo("waits"));
    tokio::join!(says(&ssh, &slow), says(&ssh, &waits));
    let lines = log.lines();
    let line = lines.iter().find(|line| line.contains("have to do"));
    let cause = format!("connect to 127.0.0.1:{}: no agreement", proxy.port);
    assert!(line.is_some_and(|line| line.contains(&cause)), "{lines:?}");
}

#[tokio::test]
async fn all_calls_that_waited_for_an_attempt_get_its_error() {
    let proxy = LimitedProxy::new(0, 0, Others::AreClosed).await;
    let mut settings = Settings::new("127.0.0.1", "csi");
    settings.port = proxy.port;
    settings.password = Some(SecretString::from("none"));
    settings.connect_within = LONG;
    let ssh = Ssh::new(settings);
    let command = echo("unreachable");
    for attempts in 1..3 {
        let calls = join_all((0..20).map(|_| ssh.run(&command)));
        for failed in calls.await {
            let error = failed.expect_err("there is no server");
            assert_eq!(error.effect(), Effect::None);
            let text = chain(&error);
            let cause = format!("connect to 127.0.0.1:{}: no agreement", proxy.port);
            assert!(text.contains(&cause), "{text}");
        }
        assert_eq!(proxy.attempts(), attempts);
    }
}

#[tokio::test]
async fn an_attempt_whose_caller_is_gone_serves_the_others() {
    let Some(server) = Sshd::start("") else {
        return;
    };
    let proxy = LimitedProxy::new(server.port(), 1, Others::AreClosed).await;
    let ssh = Ssh::new(proxy.to(&server));
    let (gone, waits) = (echo("gone"), echo("waits"));
    let mut first = ssh.run(&gone);
    assert!((&mut first).now_or_never().is_none(), "it has to connect");
    let mut second = ssh.run(&waits);
    assert!((&mut second).now_or_never().is_none(), "it is connected");
    drop(first);
    let second = tokio::time::timeout(TEST_TIMEOUT, second).await;
    let output = second.expect("served").expect("an answer");
    assert_eq!(output.text().trim(), "waits");
    assert_eq!(says(&ssh, &echo("later")).await, "later");
    assert_eq!(proxy.attempts(), 1);
}

#[tokio::test]
async fn an_abandoned_attempt_serves_later_calls() {
    let Some(server) = Sshd::start("") else {
        return;
    };
    let proxy = LimitedProxy::new(server.port(), 1, Others::AreClosed).await;
    let ssh = Ssh::new(proxy.to(&server));
    assert!(ssh.run(&echo("gone")).now_or_never().is_none());
    assert_eq!(says(&ssh, &echo("later")).await, "later");
    assert_eq!(proxy.attempts(), 1);
}

#[tokio::test]
async fn where_turns_are_few_a_call_that_began_earlier_has_the_next_one() {
    let Some(server) = Sshd::start("") else {
        return;
    };
    let mut settings = server.settings();
    (settings.sessions, settings.connections) = (1, 1);
    let ssh = Ssh::new(settings);
    let now = Instant::now();
    let began = now + Duration::from_millis(1);
    let slow = Command::new(SH).args(["-c", "sleep 0.5"]).within(LONG);
    let slow = slow.with_call_start(now);
    let ended = std::sync::Mutex::new(Vec::new());
    // Those that come first began last.
    let others = (0..6).rev().map(|n| {
        let since = began + Duration::from_millis(n);
        let (command, ssh, ended) = (echo("").within(LONG).with_call_start(since), &ssh, &ended);
        async move {
            drop(ssh.run_checked(&command).await.unwrap());
            ended.lock().unwrap().push(n);
        }
    });
    let (first, _) = tokio::join!(ssh.run_checked(&slow), join_all(others));
    drop(first.unwrap());
    assert_eq!(ended.into_inner().unwrap(), [0, 1, 2, 3, 4, 5]);
}
