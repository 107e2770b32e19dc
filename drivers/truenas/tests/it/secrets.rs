//! The log and the errors of a connection, at the most verbose level, hold none of its secrets.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use driver_truenas::api::{iscsi, nvmet};
use driver_truenas::{Client, HttpConnection};
use serde_json::{Value, json};
use tracing::Level;
use tracing::subscriber::DefaultGuard;
use truenas_sim::{Options, Simulator};

use crate::catalogue::SIMULATED;

#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no writer panics").extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// One of all that this thread logs, until the guard is dropped.
    pub(crate) fn kept() -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(Level::TRACE)
            .with_writer(move || writer.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    pub(crate) fn note(&self, said: &impl std::fmt::Debug) {
        writeln!(self.clone(), "{said:?}").expect("a buffer takes everything");
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("no writer panics")).into_owned()
    }
}

fn client(nas: &Simulator, credentials: &Value) -> Client {
    let mut block = json!({
        "protocol": "https",
        "host": "127.0.0.1",
        "port": nas.https().port(),
        "allowInsecure": true,
        "username": "root",
    });
    let credentials = credentials.as_object().expect("an object").clone();
    block
        .as_object_mut()
        .expect("an object")
        .extend(credentials);
    let block: HttpConnection = serde_json::from_value(block).expect("a block");
    Client::new(block.check().expect("settings")).expect("a client")
}

#[tokio::test]
async fn no_secret_is_in_a_log_or_an_error() {
    let (log, _guard) = Log::kept();
    for (_, theirs) in SIMULATED {
        let mut options = Options::new(theirs);
        "right-canary-password".clone_into(&mut options.root_password);
        let nas = Simulator::start(options).await.expect("starts");
        nas.faults().set(|settings| settings.failed_login_ms = 0);
        for credentials in [
            json!({"apiKey": "1-wrong-canary-key", "apiKeyLogin": "plain"}),
            json!({"apiKey": "1-wrong-canary-key", "username": null}),
            json!({"password": "wrong-canary-password"}),
        ] {
            let client = client(&nas, &credentials);
            log.note(&client.dialect().await.expect_err("refused"));
            log.note(&client);
        }
        let client = client(&nas, &json!({"password": "right-canary-password"}));
        client.dialect().await.expect("connects");
        let auth = iscsi::CreateAuth {
            tag: 1,
            user: "user".to_owned(),
            // Too long, and with a character that is refused.
            secret: "canary-secret-#-that-is-too-long".into(),
            peer: Some(("nas".to_owned(), "canary-peer".into())),
        };
        log.note(&auth);
        log.note(&client.call(&auth).await.expect_err("refused"));
        let host = nvmet::CreateHost {
            hostnqn: String::new(),
            key: Some("DHHC-1:00:canary:".into()),
            controller_key: None,
            dh_group: None,
            hash: None,
        };
        log.note(&host);
        log.note(&client.call(&host).await.expect_err("refused"));
    }
    let text = log.text();
    assert!(
        text.contains("connected to TrueNAS"),
        "the log is read: {text}"
    );
    assert!(!text.contains("canary"), "{text}");
}
