//! Logging in where a real server would need accounts with passwords, and servers that misbehave:
//! the other side is the server half of the SSH library.

use std::borrow::Cow;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use driver_ssh::{Settings, Ssh};
use exec::{Command, Effect, Program, RunError, Runner};
use russh::keys::PrivateKey;
use russh::server::{Auth, ChannelOpenHandle, Msg, Response, Session};
use russh::{Channel, ChannelId, MethodKind, MethodSet};
use secrecy::SecretString;
use tokio::net::TcpListener;

const TRUE: Program = Program::constant("true");
const HOST_KEY: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g
-----END PRIVATE KEY-----
";

/// What a server does with a script.
#[derive(Clone, Copy)]
enum Does {
    /// It runs nothing at all.
    RefusesToRun,
    /// It closes the channel without a word.
    ClosesWithoutStatus,
    /// It says that the script ended well, and nothing else.
    Forges,
}

#[derive(Clone)]
struct Server {
    password: &'static str,
    does: Does,
    attempts: Arc<AtomicUsize>,
}

impl Server {
    /// Serves on a port of its own; the settings lead there.
    async fn serve(self, methods: &[MethodKind]) -> Settings {
        let mut config = russh::server::Config {
            keys: vec![key()],
            auth_rejection_time: Duration::ZERO,
            auth_rejection_time_initial: Some(Duration::ZERO),
            ..russh::server::Config::default()
        };
        config.methods = MethodSet::from(methods);
        let config = Arc::new(config);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a port");
        let mut settings = Settings::new("127.0.0.1", "csi");
        settings.port = listener.local_addr().expect("an address").port();
        settings.password = Some(SecretString::from("right"));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let config = Arc::clone(&config);
                let server = self.clone();
                tokio::spawn(async move {
                    if let Ok(session) = russh::server::run_stream(config, stream, server).await {
                        let _ = session.await;
                    }
                });
            }
        });
        settings
    }

    fn new(password: &'static str, does: Does) -> Self {
        Self {
            password,
            does,
            attempts: Arc::default(),
        }
    }

    fn judge(&self, password: &str) -> Auth {
        self.attempts.fetch_add(1, Ordering::SeqCst);
        if password == self.password {
            Auth::Accept
        } else {
            Auth::reject()
        }
    }
}

fn key() -> PrivateKey {
    russh::keys::decode_secret_key(HOST_KEY, None).expect("a key")
}

impl russh::server::Handler for Server {
    type Error = russh::Error;

    async fn auth_password(&mut self, _user: &str, password: &str) -> Result<Auth, Self::Error> {
        Ok(self.judge(password))
    }

    async fn auth_keyboard_interactive<'a>(
        &'a mut self,
        _user: &str,
        _submethods: &str,
        response: Option<Response<'a>>,
    ) -> Result<Auth, Self::Error> {
        let Some(mut response) = response else {
            return Ok(Auth::Partial {
                name: Cow::Borrowed(""),
                instructions: Cow::Borrowed(""),
                prompts: Cow::Owned(vec![(Cow::Borrowed("Password: "), false)]),
            });
        };
        let answer = response.next().expect("an answer to the only question");
        Ok(self.judge(std::str::from_utf8(&answer).expect("text")))
    }

    async fn channel_open_session(
        &mut self,
        _channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        reply.accept().await;
        Ok(())
    }

    async fn exec_request(
        &mut self,
        channel: ChannelId,
        command: &[u8],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        assert_eq!(
            command, b"sh -s",
            "whatever is run, the command is the same"
        );
        match self.does {
            Does::RefusesToRun => session.channel_failure(channel)?,
            Does::ClosesWithoutStatus => {
                session.channel_success(channel)?;
                session.close(channel)?;
            }
            Does::Forges => {
                session.channel_success(channel)?;
                session.exit_status_request(channel, 0)?;
                session.close(channel)?;
            }
        }
        Ok(())
    }
}

async fn fails(settings: Settings) -> RunError {
    let ssh = Ssh::new(settings);
    ssh.run(&Command::new(TRUE))
        .await
        .expect_err("no shell there")
}

fn chain(error: &RunError) -> String {
    let first: &dyn std::error::Error = error;
    let all = std::iter::successors(Some(first), |error| error.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[tokio::test]
async fn the_password_is_given_where_it_is_asked_for() {
    for methods in [
        &[MethodKind::Password][..],
        &[MethodKind::KeyboardInteractive],
        &[MethodKind::PublicKey, MethodKind::KeyboardInteractive],
    ] {
        let server = Server::new("right", Does::RefusesToRun);
        let error = fails(server.serve(methods).await).await;
        // Logged in: what it complains about is what comes after that.
        assert!(
            chain(&error).contains("runs no `sh -s`"),
            "{}",
            chain(&error)
        );
        assert_eq!(error.effect(), Effect::None);
    }
}

#[tokio::test]
async fn a_wrong_password_is_tried_once_per_method_and_never_shown() {
    let server = Server::new("another", Does::RefusesToRun);
    let attempts = Arc::clone(&server.attempts);
    let methods = [MethodKind::Password, MethodKind::KeyboardInteractive];
    let error = fails(server.serve(&methods).await).await;
    let text = chain(&error);
    assert!(text.contains("log in as `csi`"), "{text}");
    assert!(text.contains("the password and the dialogue"), "{text}");
    assert!(!format!("{error:?}{text}").contains("right"), "{text}");
    assert!(attempts.load(Ordering::SeqCst) <= 2);
}

#[tokio::test]
async fn without_a_word_about_the_end_nothing_counts_as_done() {
    for does in [Does::ClosesWithoutStatus, Does::Forges] {
        let server = Server::new("right", does);
        let error = fails(server.serve(&[MethodKind::Password]).await).await;
        assert!(!error.outcome_known(), "{error:?}");
    }
}

#[tokio::test]
async fn without_key_and_password_no_login_is_tried() {
    let server = Server::new("right", Does::RefusesToRun);
    let attempts = Arc::clone(&server.attempts);
    let mut settings = server.serve(&[MethodKind::Password]).await;
    settings.password = None;
    let text = chain(&fails(settings).await);
    assert!(text.contains("neither a key nor a password"), "{text}");
    assert_eq!(attempts.load(Ordering::SeqCst), 0);
}
