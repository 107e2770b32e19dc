//! The two protocols on the socket: JSON-RPC 2.0, and the older one that is derived from DDP.
//!
//! Both carry the same methods, positional arguments and error objects; only the envelopes differ.

use std::fmt;

use driver_core::byte_budget::ReservedBytes;
use serde::de::{DeserializeOwned, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};
use tokio_tungstenite::tungstenite::Utf8Bytes;

use crate::api::USUAL_ANSWER;
use crate::rows::Text;
use crate::{Error, rows};

/// The collection that tells of jobs.
pub(crate) const JOBS: &str = "core.get_jobs";

/// The longest error and the longest event that are read: what is longer is none of TrueNAS, and much in memory.
const LONGEST: usize = 64 * 1024;

/// The most objects in an answer whose rows are not counted: a NAS writes a hundred bytes for each, and an empty one
/// takes many times its text.
const MOST_OBJECTS: usize = 10_000;

/// The envelopes that a socket carries.
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
    /// The answer to the request of that id; without a failure it is in the message, not read yet.
    Answer { id: String, failure: Option<Error> },
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

    /// Reads a message, but not what a call answers: only the call knows what that is.
    pub(crate) fn read(self, text: &str) -> Result<Incoming, Error> {
        let no_object = || Error::protocol("the NAS sent a message that is no JSON object");
        // A list would be read as the fields of a head.
        if !text.trim_start().starts_with('{') {
            return Err(no_object());
        }
        let head: Head = serde_json::from_str(text).map_err(|_| no_object())?;
        Ok(match self {
            Self::JsonRpc => read_json_rpc(head, text),
            Self::Legacy => read_legacy(head, text),
        })
    }
}

/// The fields that tell messages apart. The rest is passed over.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Head {
    id: Text,
    msg: Text,
    method: Text,
    error: Given,
}

/// Whether there is a value.
#[derive(Debug, Default)]
struct Given(bool);

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Option::<IgnoredAny>::deserialize(deserializer)?;
        Ok(Self(value.is_some()))
    }
}

/// A short message in full.
fn whole(text: &str) -> Option<Map<String, Value>> {
    let short = text.len() <= LONGEST;
    short.then(|| serde_json::from_str(text).ok()).flatten()
}

/// The error of a message that has one.
fn error_of(text: &str, read: fn(&Value) -> Error) -> Error {
    let message = whole(text);
    let error = message.and_then(|mut message| message.remove("error"));
    let too_long = || Error::protocol("the NAS answers an error that is too long to be read");
    error.map_or_else(too_long, |error| read(&error))
}

/// The error of no call. It ends all of them, and its text may quote a secret of any: only its number is kept.
fn of_no_call(error: &Value) -> Error {
    let code = error["code"].as_i64().unwrap_or_default();
    Error::protocol(format!(
        "the NAS sent an error that belongs to no call, with the code {code}"
    ))
}

fn read_json_rpc(head: Head, text: &str) -> Incoming {
    if let Some(method) = head.method.0 {
        if method != "collection_update" {
            return Incoming::Other;
        }
        let update = whole(text).and_then(|mut message| message.remove("params"));
        return update.map_or(Incoming::Other, event);
    }
    match (head.id.0, head.error.0) {
        (Some(id), has_failed) => Incoming::Answer {
            id,
            failure: has_failed.then(|| error_of(text, Error::from_json_rpc)),
        },
        (None, true) => Incoming::Failed(error_of(text, of_no_call)),
        (None, false) => Incoming::Other,
    }
}

fn read_legacy(head: Head, text: &str) -> Incoming {
    let kind = head.msg.0.as_deref().unwrap_or_default();
    match (kind, head.id.0) {
        ("connected", _) => Incoming::Connected,
        ("failed", _) => Incoming::Failed(Error::protocol("the NAS refuses the protocol version")),
        ("result" | "nosub", Some(id)) => {
            let failure = head.error.0.then(|| error_of(text, Error::from_data));
            Incoming::Answer { id, failure }
        }
        ("ready", _) => {
            let subscribed = whole(text).and_then(|message| {
                let ids = message.get("subs")?.as_array()?;
                ids.first()?.as_str().map(str::to_owned)
            });
            subscribed.map_or(Incoming::Other, |id| Incoming::Answer { id, failure: None })
        }
        ("added" | "changed" | "removed", _) => {
            let update = whole(text).map(Value::Object);
            update.map_or(Incoming::Other, event)
        }
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

/// A message with the answer to a call.
#[derive(Debug)]
pub(crate) struct Answered {
    text: Utf8Bytes,
    /// The memory of the process that is reserved for the text.
    _reserved: Option<ReservedBytes>,
}

/// Why an answer cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unread {
    /// It is larger than any answer to this call.
    #[error("unexpected answer: it has {0} bytes")]
    TooLarge(usize),
    /// It has more objects than any answer to this call.
    #[error("unexpected answer: it has {0} objects")]
    TooMany(usize),
    /// It is something else.
    #[error("unexpected answer: {0}")]
    Other(#[from] serde_json::Error),
}

// === impl Answered ===

impl Answered {
    pub(crate) fn new(text: Utf8Bytes, reserved: Option<ReservedBytes>) -> Self {
        Self {
            text,
            _reserved: reserved,
        }
    }

    /// Reads it as what the call answers, of at most so many bytes.
    pub(crate) fn read<T: DeserializeOwned>(self, largest: usize) -> Result<T, Unread> {
        if self.text.len() > largest {
            return Err(Unread::TooLarge(self.text.len()));
        }
        let objects = self.text.bytes().filter(|byte| *byte == b'{').count();
        if largest <= USUAL_ANSWER && objects > MOST_OBJECTS {
            return Err(Unread::TooMany(objects));
        }
        let read: Envelope<T> = serde_json::from_str(&self.text)?;
        match read.0 {
            Some(result) => Ok(result),
            // What answers nothing answers null.
            None => Ok(serde_json::from_value(Value::Null)?),
        }
    }

    /// Reads it as a list, row by row. `keep` says of each whether it stays in memory.
    pub(crate) fn read_rows<T: DeserializeOwned>(
        self,
        largest: usize,
        keep: &mut dyn FnMut(T) -> bool,
    ) -> Result<(), Unread> {
        if self.text.len() > largest {
            return Err(Unread::TooLarge(self.text.len()));
        }
        let mut reader = serde_json::Deserializer::from_str(&self.text);
        Rows { keep, inner: false }.deserialize(&mut reader)?;
        Ok(())
    }
}

/// Reads the list in `result` row by row.
struct Rows<'k, T> {
    keep: &'k mut dyn FnMut(T) -> bool,
    /// Whether this is the list, or the message that it is in.
    inner: bool,
}

impl<'de, T: DeserializeOwned> DeserializeSeed<'de> for Rows<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.inner {
            deserializer.deserialize_seq(self)
        } else {
            deserializer.deserialize_map(self)
        }
    }
}

impl<'de, T: DeserializeOwned> Visitor<'de> for Rows<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Text>()? {
            if key.0.as_deref() == Some("result") {
                let keep = &mut *self.keep;
                map.next_value_seed(Rows { keep, inner: true })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut rows: A) -> Result<(), A::Error> {
        loop {
            let before = rows::used();
            let Some(row) = rows.next_element()? else {
                return Ok(());
            };
            if !(self.keep)(row) {
                rows::forget(before);
            }
        }
    }
}

/// The value in `result`.
struct Envelope<T>(Option<T>);

impl<'de, T: DeserializeOwned> Deserialize<'de> for Envelope<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EnvelopeVisitor<T>(std::marker::PhantomData<T>);
        impl<'de, T: DeserializeOwned> Visitor<'de> for EnvelopeVisitor<T> {
            type Value = Envelope<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a message")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut result = None;
                while let Some(key) = map.next_key::<Text>()? {
                    if key.0.as_deref() == Some("result") {
                        result = map.next_value()?;
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(Envelope(result))
            }
        }
        deserializer.deserialize_map(EnvelopeVisitor(std::marker::PhantomData))
    }
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
            let Ok(Incoming::Answer { id, failure }) = transport.read(text) else {
                panic!("no answer: {text}");
            };
            assert_eq!((id.as_str(), failure), ("1", None));
            let answered = Answered::new(text.into(), None);
            assert_eq!(answered.read::<Value>(99).expect("read"), json!("pong"));
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
                failure: Some(error),
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
    fn a_flood_is_not_kept_whatever_it_says_it_is() {
        let objects = r#"{"a":0},"#.repeat(100_000);
        let list = format!("[{objects}0]");
        let message = format!(r#"{{"jsonrpc":"2.0","id":"1","result":{list}}}"#);
        let answered = Answered::new(message.as_str().into(), None);
        let refused = answered.read::<Value>(1 << 10);
        assert!(matches!(refused, Err(Unread::TooLarge(_))));
        let answered = Answered::new(message.as_str().into(), None);
        let refused = answered.read::<Value>(USUAL_ANSWER);
        assert!(matches!(refused, Err(Unread::TooMany(100_001))));
        let error = format!(r#"{{"jsonrpc":"2.0","id":"1","error":{{"data":{list}}}}}"#);
        let Ok(Incoming::Answer { failure, .. }) = Transport::JsonRpc.read(&error) else {
            panic!("no answer");
        };
        assert_eq!(failure.map(|error| error.kind()), Some(Kind::Protocol));
        let event = format!(
            r#"{{"method":"collection_update","params":{{"collection":"core.get_jobs","fields":{list}}}}}"#
        );
        let read = Transport::JsonRpc.read(&event);
        assert!(matches!(read, Ok(Incoming::Other)));
    }

    #[test]
    fn an_error_without_an_id_belongs_to_no_call() {
        let text =
            r#"{"jsonrpc": "2.0", "error": {"code": -32700, "message": "canary"}, "id": null}"#;
        let Ok(Incoming::Failed(error)) = Transport::JsonRpc.read(text) else {
            panic!("it is of a call");
        };
        // It goes to every call, and only the one whose secret it quotes would mask that.
        assert!(!error.message().contains("canary"), "{error}");
        assert!(error.message().contains("-32700"), "{error}");
    }

    #[test]
    fn what_is_no_json_object_is_an_error() {
        for text in ["", "pong", "[1]", "null"] {
            assert!(Transport::JsonRpc.read(text).is_err(), "{text}");
        }
    }
}
