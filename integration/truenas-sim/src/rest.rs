//! REST under `/api/v2.0`, up to 25.10: `middlewared/restful.py`.

use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, Method as Verb};
use serde_json::{Value, json};

use crate::accounts::KeyCheck;
use crate::counters::Travel;
use crate::failure::Failure;
use crate::nas::Nas;
use crate::random;
use crate::session::{Login, Protocol, Session};
use crate::table::{Method, Presence, Table};

/// nginx waits this long for an answer.
const PATIENCE: std::time::Duration = std::time::Duration::from_mins(1);

/// A request without its body being read as JSON yet.
pub(crate) struct Request {
    pub(crate) verb: Verb,
    /// The path below `/api/v2.0/`.
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    pub(crate) peer: IpAddr,
    pub(crate) encrypted: bool,
}

/// Status and body; `None` if the connection is to be cut.
pub(crate) async fn answer(nas: &Arc<Nas>, request: Request) -> Option<(u16, Value)> {
    let route = match route(nas, &request) {
        Ok(route) => route,
        Err(early) => return Some(early),
    };
    let (session, _outbox) = Session::new(
        random::uuid(),
        Protocol::Rest,
        request.peer,
        request.encrypted,
    );
    let session = Arc::new(session);
    match log_in(nas, &request.headers) {
        Ok(login) => session.set_login(login),
        Err(text) => return Some((401, json!(text))),
    }
    nas.register(&session);
    let _travel = Travel::begin(nas);
    nas.counters.arrived(&route.method, request.body.len());
    let call = {
        let (nas, method) = (Arc::clone(nas), route.method.clone());
        // It goes on although nginx gives up, and although the client goes away.
        tokio::spawn(async move { nas.call(&session, &method, route.params, Value::Null).await })
    };
    let deadline = nas.clock.now() + PATIENCE;
    let result = tokio::select! {
        result = call => result.unwrap_or(Err(Failure::Cut)),
        () = nas.clock.reach(deadline) => Err(Failure::Http(504)),
    };
    let failed = result.is_err();
    let answer = match result {
        Err(Failure::Cut) => None,
        Err(Failure::Raw(text)) => serde_json::from_str(&text).ok().map(|body| (200, body)),
        Err(failure) => Some(failure.rest()),
        Ok(result) => Some((200, result)),
    };
    let bytes = answer
        .as_ref()
        .map_or(0, |(_, body)| body.to_string().len());
    nas.counters.answered(&route.method, bytes, failed);
    answer
}

fn log_in(nas: &Nas, headers: &HeaderMap) -> Result<Option<Login>, String> {
    let Some(header) = headers.get(http::header::AUTHORIZATION) else {
        return Ok(None);
    };
    let header = header.to_str().unwrap_or_default();
    let (kind, rest) = header.split_once(' ').unwrap_or_default();
    let accounts = nas.accounts();
    let now = nas.clock.now();
    let login = |user: &str, key| Login {
        user: user.to_owned(),
        key,
        roles: accounts.roles(user),
        at: now,
    };
    match kind.to_lowercase().as_str() {
        "bearer" => match accounts.check_key(rest.trim(), None, now) {
            KeyCheck::Good(id, user) => Ok(Some(login(&user, Some(id)))),
            KeyCheck::Expired | KeyCheck::Wrong => Err("Invalid API key".to_owned()),
        },
        "basic" => {
            let decoded = STANDARD
                .decode(rest.trim())
                .ok()
                .and_then(|bytes| String::from_utf8(bytes).ok());
            let (user, password) = decoded
                .as_deref()
                .and_then(|text| text.split_once(':'))
                .unwrap_or_default();
            let good = accounts
                .users
                .get(user)
                .is_some_and(|known| known.password == password && known.otp.is_none());
            // Recorded on 25.10.6.
            if good {
                Ok(Some(login(user, None)))
            } else {
                Err("Bad username or password".to_owned())
            }
        }
        "token" => match accounts
            .tokens
            .get(rest.trim())
            .filter(|token| token.ends > now)
        {
            Some(token) => Ok(Some(login(&token.user, None))),
            None => Err("Invalid token".to_owned()),
        },
        _ => Ok(None),
    }
}

struct Route {
    method: String,
    params: Vec<Value>,
}

type Early = (u16, Value);

fn route(nas: &Nas, request: &Request) -> Result<Route, Early> {
    let table = Table::of(nas.generation());
    let segments: Vec<String> = request
        .path
        .trim_matches('/')
        .split('/')
        .map(decode)
        .collect();
    let body = read_body(&request.body)?;
    let not_found = || (404, json!("404: Not Found"));
    let has = |name: &str| table.method(name).is_some();
    if let Some(at) = segments
        .iter()
        .position(|segment| segment == "id")
        .filter(|at| at + 1 < segments.len())
    {
        let service = segments[..at].join(".");
        let id = typed_id(&service, &segments[at + 1]);
        let verb = match (request.verb.as_str(), segments.get(at + 2)) {
            ("GET", None) => {
                let filters = json!([["id", "=", id]]);
                let mut options = json!({"get": true});
                if let Some(extra) = extra(&request.query) {
                    options["extra"] = extra;
                }
                return Ok(Route {
                    method: format!("{service}.query"),
                    params: vec![filters, options],
                });
            }
            ("PUT", None) => "update",
            ("DELETE", None) => "delete",
            (_, Some(verb)) => verb,
            _ => return Err((405, json!("405: Method Not Allowed"))),
        };
        let name = format!("{service}.{verb}");
        let method = table.method(&name).ok_or_else(not_found)?;
        let mut params = vec![id];
        params.extend(arguments(method, 1, body)?);
        return Ok(Route {
            method: name,
            params,
        });
    }
    let service = segments.join(".");
    let name = match request.verb.as_str() {
        "GET" if has(&format!("{service}.query")) => {
            return Ok(Route {
                method: format!("{service}.query"),
                params: query(&request.query),
            });
        }
        "GET" if has(&format!("{service}.config")) => format!("{service}.config"),
        "POST" if has(&format!("{service}.create")) => format!("{service}.create"),
        "PUT" if has(&format!("{service}.update")) => format!("{service}.update"),
        _ => service,
    };
    if name == "core.get_jobs" {
        return Ok(Route {
            method: name,
            params: query(&request.query),
        });
    }
    let method = table.method(&name).ok_or_else(not_found)?;
    Ok(Route {
        params: arguments(method, 0, body)?,
        method: name,
    })
}

fn read_body(body: &[u8]) -> Result<Option<Value>, Early> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    serde_json::from_slice(body).map(Some).map_err(|error| {
        (
            400,
            json!({"message": format!("Failed to parse JSON: {error}")}),
        )
    })
}

/// One argument that is left is the body itself; several are its members.
fn arguments(method: &Method, skip: usize, body: Option<Value>) -> Result<Vec<Value>, Early> {
    let left = method.args.get(skip..).unwrap_or_default();
    let Some(body) = body else {
        return match left
            .iter()
            .find(|argument| argument.presence == Presence::Required)
        {
            // A model whose fields all have defaults, and the dictionaries of old releases, may be absent.
            Some(argument) if left.len() > 1 => Err((
                400,
                json!({"message": format!("{} attribute expected.", argument.name)}),
            )),
            _ => Ok(Vec::new()),
        };
    };
    if let [_] = left {
        return Ok(vec![body]);
    }
    let Value::Object(mut members) = body else {
        return if left.is_empty() {
            Ok(Vec::new())
        } else {
            Err((400, json!({"message": "A dict was expected"})))
        };
    };
    let mut params = Vec::new();
    for argument in left {
        match (members.remove(&argument.name), &argument.presence) {
            (Some(value), _) => params.push(value),
            (None, Presence::Required) => {
                return Err((
                    400,
                    json!({"message": format!("{} attribute expected.", argument.name)}),
                ));
            }
            (None, Presence::Default(value)) => params.push(value.clone()),
            (None, Presence::Optional) => params.push(Value::Null),
        }
    }
    if !members.is_empty() {
        let names: Vec<_> = members.keys().cloned().collect();
        return Err((
            400,
            json!({"message": format!("The following attributes are not expected: {}", names.join(", "))}),
        ));
    }
    Ok(params)
}

fn typed_id(service: &str, text: &str) -> Value {
    let by_name = matches!(service, "pool.dataset" | "zfs.snapshot" | "pool.snapshot");
    match text.parse::<i64>() {
        Ok(number) if !by_name => json!(number),
        _ => json!(text),
    }
}

/// The parts of a query string, decoded.
fn pairs(text: &str) -> impl Iterator<Item = (String, String)> {
    text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(key), decode(&value.replace('+', " ")))
    })
}

/// The parameters that start with `extra.`; a value is JSON, or else text: `normalize_query_parameter` of `restful.py`.
fn extra(text: &str) -> Option<Value> {
    let given: serde_json::Map<String, Value> = pairs(text)
        .filter_map(|(key, value)| {
            let name = key.strip_prefix("extra.")?;
            let value = serde_json::from_str(&value).unwrap_or(Value::String(value));
            Some((name.to_owned(), value))
        })
        .collect();
    (!given.is_empty()).then_some(Value::Object(given))
}

fn query(text: &str) -> Vec<Value> {
    let mut filters = Vec::new();
    let mut options = json!({});
    for (key, value) in pairs(text) {
        match key.as_str() {
            "limit" | "offset" => options[&key] = json!(value.parse::<u64>().unwrap_or_default()),
            "count" => options["count"] = json!(!matches!(value.as_str(), "0" | "false")),
            "sort" => options["order_by"] = value.split(',').collect(),
            extra if extra.starts_with("extra.") => {}
            _ => filters.push(filter(&key, &value)),
        }
    }
    if let Some(extra) = extra(text) {
        options["extra"] = extra;
    }
    vec![Value::Array(filters), options]
}

fn filter(key: &str, value: &str) -> Value {
    let (field, operator) = key.rsplit_once("__").unwrap_or((key, "="));
    let operator = match operator {
        "eq" => "=",
        "ne" => "!=",
        "gt" => ">",
        "gte" => ">=",
        "lt" => "<",
        "lte" => "<=",
        "startswith" => "^",
        other => other,
    };
    if operator == "in" || operator == "nin" {
        return json!([
            field,
            operator,
            value.split(',').map(typed).collect::<Vec<_>>()
        ]);
    }
    let (number, text) = (typed(value), json!(value));
    if number == text {
        json!([field, operator, text])
    } else {
        // The type of the field decides, which the tables do not carry for results.
        json!(["OR", [[field, operator, number], [field, operator, text]]])
    }
}

fn typed(text: &str) -> Value {
    match text {
        "true" => json!(true),
        "false" => json!(false),
        _ => text
            .parse::<i64>()
            .map_or_else(|_| json!(text), |number| json!(number)),
    }
}

/// Percent-encoding, as far as ids need it.
fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let code = tail
            .get(..2)
            .filter(|_| *first == b'%')
            .and_then(|code| std::str::from_utf8(code).ok());
        if let Some(byte) = code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            bytes.push(byte);
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
