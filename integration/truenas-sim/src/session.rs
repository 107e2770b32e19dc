//! One connection: who is logged in, what it listens to, what is on its way to it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};

use crate::route::OldRoute;
use crate::scram::Exchange;

/// The protocol that a session speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    JsonRpc,
    Legacy,
    Rest,
    /// Calls of a test, which need no login.
    Local,
}

/// The next message to the client.
#[derive(Debug)]
pub(crate) enum Out {
    Text(String),
    Close(u16, &'static str),
    /// The connection ends without a word.
    Cut,
}

#[derive(Debug, Clone)]
pub(crate) struct Login {
    pub(crate) user: String,
    /// The key that was used.
    pub(crate) key: Option<i64>,
    /// `None`: full administration.
    pub(crate) roles: Option<Vec<String>>,
    /// When, on the clock of the simulator.
    pub(crate) at: Duration,
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) protocol: Protocol,
    /// Of JSON-RPC: the version of the API that the client asked for, if it is not the newest.
    pub(crate) route: Option<OldRoute>,
    pub(crate) peer: IpAddr,
    /// Over TLS.
    pub(crate) encrypted: bool,
    pub(crate) legacy_jobs: AtomicBool,
    /// The number of calls that were accepted and not yet answered.
    pub(crate) pending: AtomicUsize,
    /// Ten calls run at a time.
    pub(crate) running: Semaphore,
    outbox: mpsc::UnboundedSender<Out>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    login: Option<Login>,
    subscriptions: BTreeMap<String, String>,
    scram: Option<Exchange>,
    /// The user that has given the password, and not yet the second factor.
    half_logged_in: Option<String>,
}

impl Session {
    pub(crate) fn new(
        id: String,
        protocol: Protocol,
        peer: IpAddr,
        encrypted: bool,
    ) -> (Self, mpsc::UnboundedReceiver<Out>) {
        let (outbox, receiver) = mpsc::unbounded_channel();
        let session = Self {
            id,
            protocol,
            route: None,
            peer,
            encrypted,
            legacy_jobs: AtomicBool::new(true),
            pending: AtomicUsize::new(0),
            running: Semaphore::new(10),
            outbox,
            state: Mutex::default(),
        };
        (session, receiver)
    }

    pub(crate) fn login(&self) -> Option<Login> {
        self.with(|state| state.login.clone())
    }

    pub(crate) fn set_login(&self, login: Option<Login>) {
        self.with(|state| state.login = login);
    }

    pub(crate) fn set_scram(&self, exchange: Option<Exchange>) {
        self.with(|state| state.scram = exchange);
    }

    pub(crate) fn take_scram(&self) -> Option<Exchange> {
        self.with(|state| state.scram.take())
    }

    pub(crate) fn set_half_logged_in(&self, user: Option<String>) {
        self.with(|state| state.half_logged_in = user);
    }

    pub(crate) fn take_half_logged_in(&self) -> Option<String> {
        self.with(|state| state.half_logged_in.take())
    }

    pub(crate) fn subscribe(&self, ident: String, collection: String) {
        self.with(|state| state.subscriptions.insert(ident, collection));
    }

    pub(crate) fn unsubscribe(&self, ident: &str) {
        self.with(|state| state.subscriptions.remove(ident));
    }

    pub(crate) fn send(&self, out: Out) {
        // The receiver is gone once the connection is; the answer has no reader then.
        drop(self.outbox.send(out));
    }

    pub(crate) fn send_json(&self, message: &Value) {
        self.send(Out::Text(message.to_string()));
    }

    /// Sends an event to those who have subscribed to it.
    pub(crate) fn event(&self, kind: &str, collection: &str, id: &Value, fields: Option<&Value>) {
        let listens = |name: &String| name == collection || name == "*";
        if !self.with(|state| state.subscriptions.values().any(listens)) {
            return;
        }
        let mut params = json!({"msg": kind, "collection": collection, "id": id});
        if let Some(fields) = fields {
            params["fields"] = fields.clone();
        }
        match self.protocol {
            Protocol::JsonRpc => {
                self.send_json(
                    &json!({"jsonrpc": "2.0", "method": "collection_update", "params": params}),
                );
            }
            Protocol::Legacy => self.send_json(&params),
            Protocol::Rest | Protocol::Local => {}
        }
    }

    pub(crate) fn loopback(&self) -> bool {
        self.peer.is_loopback()
    }

    pub(crate) fn waits_for_jobs(&self) -> bool {
        !self.legacy_jobs.load(Ordering::Relaxed)
    }

    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
