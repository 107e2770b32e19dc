//! Passwords are in no log, no error and no `Debug`, whatever goes wrong.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use driver_core::DeleteVolume;
use synology_sim::{Action, Fault, Options, Version};
use tracing_subscriber::fmt::MakeWriter;

use crate::nas::{LUN, Nas, TARGET, call, config, id, open};

/// The place where the log goes.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("a log").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn no_password_is_printed_anywhere() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(log.clone())
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .finish();
    // For all threads: whether a line is written is remembered for the whole process.
    tracing::subscriber::set_global_default(subscriber).expect("the only one");
    let mut options = Options::new(Version::V7_2);
    options.password = "canary-login".to_owned();
    let nas = Nas::with(options, "").await;
    let iscsi = "targetTemplate: {auth_type: 1, user: canary-user, password: canary-chap-1}";
    let text = config(&nas.sim, iscsi).replace("sesame", "canary-login");
    let driver = open(&text);
    let mut texts = vec![format!("{driver:?}")];
    for action in [
        Action::CutBefore,
        Action::CutAfter,
        Action::BadGateway,
        Action::Refuse(18_990_708),
        Action::Refuse(101),
        Action::ExpireSessions,
    ] {
        for (api, method) in [
            ("SYNO.API.Auth", "login"),
            (LUN, "create"),
            (TARGET, "create"),
            (LUN, "map_target"),
        ] {
            nas.sim.expire_sessions();
            let mut fault = Fault::once(api, method, action);
            fault.times = 2;
            nas.sim.fault(fault);
            let mut request = nas.request("pvc-1", None);
            let secret = "{password: canary-chap-2, user: canary-user}".to_owned();
            request.secrets = BTreeMap::from([("targetTemplate".to_owned(), secret.into())]);
            let made = driver.create_volume(&call(), &request).await;
            texts.push(format!("{made:?} {request:?}"));
            texts.extend(made.err().map(|error| error.chain()));
            nas.sim.clear_faults();
        }
        drop(
            driver
                .delete_volume(&call(), DeleteVolume::new(&id("pvc-1")))
                .await,
        );
    }
    // A secret that is no YAML must not be quoted by its parser.
    let mut request = nas.request("pvc-1", None);
    let secret = "{password: [canary-chap-2".to_owned();
    request.secrets = BTreeMap::from([("targetTemplate".to_owned(), secret.into())]);
    let error = driver.create_volume(&call(), &request).await;
    texts.push(error.expect_err("no YAML").chain());
    let log = String::from_utf8(log.0.lock().expect("a log").clone()).expect("text");
    assert!(
        log.contains("SYNO.Core.ISCSI.LUN"),
        "the log is not empty: {log}"
    );
    for text in texts.iter().chain([&log]) {
        assert!(!text.contains("canary"), "{text}");
    }
}
