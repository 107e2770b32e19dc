//! JSON-RPC 2.0 on `/api/current` and the routes of versions. The texts were recorded on 25.10.6 and 26.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::counters::Travel;
use crate::failure::Failure;
use crate::nas::Nas;
use crate::session::{Out, Session};

/// A request that can be executed.
pub(crate) struct Request {
    pub(crate) id: Value,
    /// A request without an id is not answered.
    pub(crate) answered: bool,
    pub(crate) method: String,
    pub(crate) params: Vec<Value>,
    pub(crate) bytes: usize,
}

/// Reads a frame; what is wrong with it is answered at once.
pub(crate) fn read(session: &Session, text: &str) -> Option<Request> {
    let refuse = |id: &Value, code: i32, message: &str| {
        session.send_json(
            &json!({"jsonrpc": "2.0", "error": {"code": code, "message": message}, "id": id}),
        );
        None
    };
    let message: Value = match serde_json::from_str(text) {
        Ok(message) => message,
        Err(error) => return refuse(&Value::Null, -32700, &python_json_error(text, &error)),
    };
    if message.is_array() {
        return refuse(
            &Value::Null,
            -32700,
            "Batch messages are not supported at this time",
        );
    }
    let id = message.get("id").cloned();
    if let Some(text) = wrong_envelope(&message) {
        // Read, not run: without an id there is no answer at all.
        return id.and_then(|id| refuse(&id, -32600, text));
    }
    Some(Request {
        answered: id.is_some(),
        id: id.unwrap_or_default(),
        method: message["method"].as_str().unwrap_or_default().to_owned(),
        params: message
            .get("params")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default(),
        bytes: text.len(),
    })
}

fn wrong_envelope(message: &Value) -> Option<&'static str> {
    if message.get("jsonrpc") != Some(&json!("2.0")) {
        return Some("'jsonrpc' member must be of type string and must be exactly '2.0'");
    }
    if !message.get("method").is_some_and(Value::is_string) {
        return Some("'method' member must be of type string");
    }
    if message
        .get("params")
        .is_some_and(|params| !params.is_array())
    {
        return Some("'params' member must be of type array");
    }
    let id = message.get("id").unwrap_or(&Value::Null);
    let good = id.is_null() || id.is_string() || id.is_i64() || id.is_u64();
    (!good).then_some("'id' member must be of type null, string or number")
}

/// The text of Python's parser for what is no JSON at all.
pub(crate) fn python_json_error(text: &str, error: &serde_json::Error) -> String {
    let start = text.trim_start().chars().next();
    if start.is_none_or(|start| !"{[\"-0123456789tfn".contains(start)) || text.starts_with("not") {
        "Expecting value: line 1 column 1 (char 0)".to_owned()
    } else {
        format!(
            "Expecting value: line {} column {}",
            error.line(),
            error.column()
        )
    }
}

/// Runs a request and answers it.
pub(crate) async fn run(nas: Arc<Nas>, session: Arc<Session>, request: Request, travel: Travel) {
    let Request {
        id,
        answered,
        method,
        params,
        bytes,
    } = request;
    nas.counters.arrived(&method, bytes);
    let result = limited(&nas, &session, &method, params, &id).await;
    let failed = result.is_err();
    let text = match result {
        Ok(result) => json!({"jsonrpc": "2.0", "result": result, "id": id}).to_string(),
        Err(Failure::Raw(result)) => {
            format!("{{\"jsonrpc\": \"2.0\", \"result\": {result}, \"id\": {id}}}")
        }
        Err(Failure::Cut) => {
            nas.counters.answered(&method, 0, true);
            session.send(Out::Cut);
            return;
        }
        Err(failure) => json!({"jsonrpc": "2.0", "error": failure.jsonrpc(), "id": id}).to_string(),
    };
    nas.counters.answered(&method, text.len(), failed);
    drop(travel);
    if answered {
        session.send(Out::Text(text));
    }
}

/// Ten calls of a connection run at a time, ten more wait, and the next is refused.
pub(crate) async fn limited(
    nas: &Arc<Nas>,
    session: &Arc<Session>,
    method: &str,
    params: Vec<Value>,
    id: &Value,
) -> Result<Value, Failure> {
    let _place = Place::take(session).ok_or(Failure::TooManyCalls)?;
    nas.counters
        .pending(session.pending.load(Ordering::Relaxed));
    let _permit = session.running.acquire().await;
    let Some(route) = session.route else {
        return nas.call(session, method, params, id.clone()).await;
    };
    let generation = nas.generation();
    let params = route.request(generation, method, params)?;
    let result = nas.call(session, method, params, id.clone()).await?;
    Ok(route.answer(generation, method, result))
}

struct Place<'a>(&'a Session);

impl<'a> Place<'a> {
    fn take(session: &'a Session) -> Option<Self> {
        if session.pending.fetch_add(1, Ordering::Relaxed) >= 20 {
            session.pending.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Self(session))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::Relaxed);
    }
}
