//! The two protocols on the socket: JSON-RPC 2.0, and the older one that is derived from DDP.
//!
//! Both carry the same methods, positional arguments and error objects; only the envelopes differ.

use std::fmt;

use serde_json::{Map, Value, json};

use crate::Error;

/// The collection that tells of jobs.
pub(crate) const JOBS: &str = "core.get_jobs";

/// Which envelopes a socket carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// `/api/current`, from 25.04 on.
    JsonRpc,
    /// `/websocket`, up to 24.10.
    Legacy,
}

/// A message from the NAS.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// The answer to the request of that id.
    Answer {
        id: String,
        outcome: Result<Value, Error>,
    },
    /// Something about a collection that was subscribed to.
    Event { collection: String, fields: Value },
    /// The legacy handshake is done.
    Connected,
    /// An error that belongs to no request.
    Failed(Error),
    /// Nothing that we act on.
    Other,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::JsonRpc => "JSON-RPC",
            Self::Legacy => "the old websocket",
        })
    }
}

// === impl Transport ===

impl Transport {
    /// The path of the endpoint.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::JsonRpc => "/api/current",
            Self::Legacy => "/websocket",
        }
    }

    /// The first message of a connection, where the protocol has one.
    pub(crate) fn hello(self) -> Option<String> {
        let hello = json!({"msg": "connect", "version": "1", "support": ["1"]});
        (self == Self::Legacy).then(|| hello.to_string())
    }

    /// A call.
    pub(crate) fn request(self, id: &str, method: &str, params: &[Value]) -> String {
        match self {
            Self::JsonRpc => {
                json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
            }
            Self::Legacy => json!({"id": id, "msg": "method", "method": method, "params": params}),
        }
        .to_string()
    }

    /// A subscription to a collection.
    pub(crate) fn subscribe(self, id: &str, collection: &str) -> String {
        match self {
            Self::JsonRpc => self.request(id, "core.subscribe", &[json!(collection)]),
            Self::Legacy => json!({"id": id, "msg": "sub", "name": collection}).to_string(),
        }
    }

    /// Reads a message.
    pub(crate) fn read(self, text: &str) -> Result<Incoming, Error> {
        let Ok(Value::Object(message)) = serde_json::from_str::<Value>(text) else {
            return Err(Error::protocol(
                "the NAS sent a message that is no JSON object",
            ));
        };
        Ok(match self {
            Self::JsonRpc => read_json_rpc(message),
            Self::Legacy => read_legacy(message),
        })
    }
}

fn read_json_rpc(mut message: Map<String, Value>) -> Incoming {
    if let Some(method) = message.get("method") {
        if method != "collection_update" {
            return Incoming::Other;
        }
        return event(message.remove("params").unwrap_or_default());
    }
    let error = message.remove("error").filter(|error| !error.is_null());
    let outcome = match error {
        Some(error) => Err(Error::from_json_rpc(&error)),
        None => Ok(message.remove("result").unwrap_or_default()),
    };
    match (message.get("id").and_then(Value::as_str), outcome) {
        (Some(id), outcome) => Incoming::Answer {
            id: id.to_owned(),
            outcome,
        },
        (None, Err(error)) => Incoming::Failed(error),
        (None, Ok(_)) => Incoming::Other,
    }
}

fn read_legacy(mut message: Map<String, Value>) -> Incoming {
    let kind = message
        .get("msg")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let id = message.get("id").and_then(Value::as_str).map(str::to_owned);
    match (kind, id) {
        ("connected", _) => Incoming::Connected,
        ("failed", _) => Incoming::Failed(Error::protocol("the NAS refuses the protocol version")),
        ("result" | "nosub", Some(id)) => {
            let error = message.remove("error").filter(|error| !error.is_null());
            let outcome = match error {
                Some(error) => Err(Error::from_data(&error)),
                None => Ok(message.remove("result").unwrap_or_default()),
            };
            Incoming::Answer { id, outcome }
        }
        ("ready", _) => {
            let ids = message.get("subs").and_then(Value::as_array);
            let id = ids.and_then(|ids| ids.first()).and_then(Value::as_str);
            id.map_or(Incoming::Other, |id| Incoming::Answer {
                id: id.to_owned(),
                outcome: Ok(Value::Null),
            })
        }
        ("added" | "changed" | "removed", _) => event(Value::Object(message)),
        _ => Incoming::Other,
    }
}

/// Both protocols name the collection and its fields alike.
fn event(mut update: Value) -> Incoming {
    let Some(collection) = update["collection"].as_str().map(str::to_owned) else {
        return Incoming::Other;
    };
    let fields = update["fields"].take();
    Incoming::Event { collection, fields }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn requests_of_both_protocols_carry_positional_arguments() {
        let params = [json!("tank/a"), json!({"recursive": false})];
        let sent = |transport: Transport| -> Value {
            serde_json::from_str(&transport.request("7", "pool.dataset.delete", &params))
                .expect("JSON")
        };
        let new = sent(Transport::JsonRpc);
        assert_eq!(
            new,
            json!({"jsonrpc": "2.0", "id": "7", "method": "pool.dataset.delete", "params": params})
        );
        let old = sent(Transport::Legacy);
        assert_eq!(
            old,
            json!({"msg": "method", "id": "7", "method": "pool.dataset.delete", "params": params})
        );
    }

    #[test]
    fn an_answer_is_read_from_both_protocols() {
        for (transport, text) in [
            (
                Transport::JsonRpc,
                r#"{"jsonrpc": "2.0", "result": "pong", "id": "1"}"#,
            ),
            (
                Transport::Legacy,
                r#"{"id": "1", "msg": "result", "result": "pong"}"#,
            ),
        ] {
            let Ok(Incoming::Answer { id, outcome }) = transport.read(text) else {
                panic!("no answer: {text}");
            };
            assert_eq!((id.as_str(), outcome), ("1", Ok(json!("pong"))));
        }
    }

    #[test]
    fn an_error_is_read_from_both_protocols_alike() {
        let data = json!({"error": 2, "errname": "ENOENT", "reason": "[ENOENT] None: SharingNFS 999 does not exist",
            "extra": [[null, "SharingNFS 999 does not exist", 2]]});
        let new = json!({"jsonrpc": "2.0", "id": "1", "error": {"code": -32602, "message": "Invalid params", "data": data}});
        let old = json!({"msg": "result", "id": "1", "error": data});
        for (transport, message) in [(Transport::JsonRpc, new), (Transport::Legacy, old)] {
            let Ok(Incoming::Answer {
                outcome: Err(error),
                ..
            }) = transport.read(&message.to_string())
            else {
                panic!("no error: {message}");
            };
            assert_eq!(error.kind(), Kind::NotFound);
        }
    }

    #[test]
    fn events_of_both_protocols_are_read_alike() {
        let fields = json!({"id": 5, "state": "SUCCESS"});
        let update =
            json!({"msg": "changed", "collection": "core.get_jobs", "id": 5, "fields": fields});
        let new = json!({"jsonrpc": "2.0", "method": "collection_update", "params": update});
        for (transport, message) in [(Transport::JsonRpc, new), (Transport::Legacy, update)] {
            let Ok(Incoming::Event {
                collection,
                fields: seen,
            }) = transport.read(&message.to_string())
            else {
                panic!("no event: {message}");
            };
            assert_eq!((collection.as_str(), &seen), (JOBS, &fields));
        }
    }

    #[test]
    fn an_error_without_an_id_belongs_to_no_call() {
        let text = r#"{"jsonrpc": "2.0", "error": {"code": -32700, "message": "x"}, "id": null}"#;
        assert!(matches!(
            Transport::JsonRpc.read(text),
            Ok(Incoming::Failed(_))
        ));
    }

    #[test]
    fn what_is_no_json_object_is_an_error() {
        for text in ["", "pong", "[1]", "null"] {
            assert!(Transport::JsonRpc.read(text).is_err(), "{text}");
        }
    }
}
