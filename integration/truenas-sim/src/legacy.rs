//! The websocket protocol on `/websocket`, which every release speaks. Answers were recorded on 25.10.6.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::Generation;
use crate::counters::Travel;
use crate::failure::Failure;
use crate::jsonrpc::limited;
use crate::nas::Nas;
use crate::session::{Out, Session};

/// A call, or a message that needs no task of its own.
pub(crate) enum Message {
    Call {
        id: Value,
        method: String,
        params: Vec<Value>,
        bytes: usize,
    },
    Subscribe {
        id: Value,
        name: String,
    },
    Done,
}

/// Reads a frame and answers all but calls and subscriptions.
pub(crate) fn read(nas: &Nas, session: &Session, connected: &mut bool, text: &str) -> Message {
    let Ok(message) = serde_json::from_str::<Value>(text) else {
        session.send(Out::Close(1007, "Invalid JSON"));
        return Message::Done;
    };
    let id = message.get("id").cloned().unwrap_or_default();
    let kind = message
        .get("msg")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if kind == "connect" {
        if message.get("version") == Some(&json!("1")) {
            *connected = true;
            session.send_json(&json!({"msg": "connected", "session": session.id}));
        } else {
            session.send_json(&json!({"msg": "failed", "version": "1"}));
        }
        return Message::Done;
    }
    if !*connected {
        session.send_json(&json!({"msg": "failed", "version": "1"}));
        return Message::Done;
    }
    match kind {
        "method" => Message::Call {
            id,
            method: message
                .get("method")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned(),
            params: message
                .get("params")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default(),
            bytes: text.len(),
        },
        "sub" => Message::Subscribe {
            id,
            name: message["name"].as_str().unwrap_or_default().to_owned(),
        },
        "unsub" => {
            let ident = id.as_str().map_or_else(|| id.to_string(), str::to_owned);
            session.unsubscribe(&ident);
            Message::Done
        }
        "ping" if nas.generation() <= Generation::V24_10 => {
            let mut pong = json!({"msg": "pong"});
            if !id.is_null() {
                pong["id"] = id;
            }
            session.send_json(&pong);
            Message::Done
        }
        _ => Message::Done,
    }
}

pub(crate) fn subscribe(nas: &Nas, session: &Session, id: &Value, name: &str) {
    let refuse = |kind: &str, reason: &str| {
        session.send_json(&json!({"msg": kind, "id": id, "error": {"error": 13, "errname": "EACCES", "reason": reason}}));
    };
    let Some(login) = session.login() else {
        return refuse("nosub", "Not authenticated");
    };
    // `can_subscribe` of `main.py`: up to 22.12 only by the list, on 24.10 jobs are for every login.
    let open = nas.generation() >= Generation::V24_10 && name == "core.get_jobs";
    if !open && !nas.key_allows(&login, "SUBSCRIBE", name) {
        return refuse("result", "Not authorized");
    }
    let ident = id.as_str().map_or_else(|| id.to_string(), str::to_owned);
    session.subscribe(ident, name.to_owned());
    session.send_json(&json!({"msg": "ready", "subs": [id]}));
}

/// Runs a call and answers it.
pub(crate) async fn run(
    nas: Arc<Nas>,
    session: Arc<Session>,
    id: Value,
    method: String,
    params: Vec<Value>,
    bytes: usize,
    travel: Travel,
) {
    nas.counters.arrived(&method, bytes);
    let result = limited(&nas, &session, &method, params, &id).await;
    let failed = result.is_err();
    let text = match result {
        Ok(result) => json!({"msg": "result", "id": id, "result": result}).to_string(),
        Err(Failure::Raw(result)) => {
            format!("{{\"msg\": \"result\", \"id\": {id}, \"result\": {result}}}")
        }
        Err(Failure::Cut) => {
            nas.counters.answered(&method, 0, true);
            session.send(Out::Cut);
            return;
        }
        Err(failure) => {
            json!({"msg": "result", "id": id, "error": failure.legacy(nas.generation())})
                .to_string()
        }
    };
    nas.counters.answered(&method, text.len(), failed);
    drop(travel);
    session.send(Out::Text(text));
}
