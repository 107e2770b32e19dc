//! `auth.*` and `api_key.*`.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{Answer, Call, unknown, users};
use crate::Generation;
use crate::accounts::{Accounts, Allowed, KeyCheck, Token, User};
use crate::failure::{EFAULT, Failure, Invalid};
use crate::random;
use crate::rows;
use crate::scram::{Exchange, First};
use crate::session::Login;

pub(super) async fn run(call: &Call, service: &str, verb: &str) -> Answer {
    match (service, verb) {
        ("auth", "login") => login(call).await,
        ("auth", "login_with_api_key") => login_with_api_key(call).await,
        ("auth", "login_with_token" | "token") => Ok(json!(use_token(call, call.text(0)))),
        ("auth", "login_ex") => login_ex(call).await,
        ("auth", "login_ex_continue") => {
            second_factor(call, rows::text(call.object(0), "otp_token")).await
        }
        ("auth", "generate_token") => Ok(json!(new_token(call))),
        ("auth", "mechanism_choices") => mechanisms(call),
        ("auth", "me") => own(call),
        ("auth", "logout") => {
            call.session.set_login(None);
            Ok(json!(true))
        }
        ("auth", "sessions") => {
            let sessions = call.nas.open_sessions();
            let rows = sessions.iter().filter_map(|session| {
                let login = session.login()?;
                Some(json!({
                    "id": session.id,
                    "current": session.id == call.session.id,
                    "internal": false,
                    "origin": session.peer.to_string(),
                    "credentials": if login.key.is_some() { "API_KEY" } else { "LOGIN_PASSWORD" },
                    "credentials_data": {"username": login.user},
                    "created_at": call.nas.clock.date(),
                    "secure_transport": session.encrypted,
                }))
            });
            call.query(rows.collect())
        }
        ("api_key", verb) => api_keys(call, verb),
        _ => Err(unknown(call)),
    }
}

impl Call {
    fn log_in(&self, user: &str, key: Option<i64>) {
        let roles = users::roles(&self.nas, user);
        self.session.set_login(Some(Login {
            user: user.to_owned(),
            key,
            roles,
            at: self.nas.clock.now(),
        }));
    }

    async fn pause(&self) {
        tokio::time::sleep(Duration::from_millis(
            self.nas.faults.settings().failed_login_ms,
        ))
        .await;
    }

    /// Whether the key was sent unencrypted over a network. From 25.04 on it is revoked then.
    fn sent_in_clear(&self) -> bool {
        let foreign = !self.session.loopback() || self.nas.faults.settings().loopback_is_foreign;
        self.generation >= Generation::V25_04 && !self.session.encrypted && foreign
    }
}

/// The user, if the password is right.
fn check_password(call: &Call, name: &str, password: &str) -> Option<User> {
    let accounts = call.nas.accounts();
    accounts
        .users
        .get(name)
        .filter(|user| user.password == password)
        .cloned()
}

async fn login(call: &Call) -> Answer {
    let (name, password) = (call.text(0), call.text(1));
    let otp = call.params.get(2).and_then(Value::as_str);
    let good = check_password(call, name, password)
        .is_some_and(|user| user.otp.is_none() || user.otp.as_deref() == otp);
    if good {
        call.log_in(name, None);
    } else {
        call.pause().await;
    }
    Ok(json!(good))
}

async fn login_with_api_key(call: &Call) -> Answer {
    let result = check_key(call, call.text(0), None);
    if result != "SUCCESS" {
        call.pause().await;
    }
    Ok(json!(result == "SUCCESS"))
}

/// The `response_type` of a login by key.
fn check_key(call: &Call, text: &str, user: Option<&str>) -> &'static str {
    let checked = call
        .nas
        .accounts()
        .check_key(text, user, call.nas.clock.now());
    match checked {
        KeyCheck::Good(id, _) if call.sent_in_clear() => {
            if let Some(key) = call.nas.accounts().keys.get_mut(&id) {
                key.revoked = true;
            }
            "EXPIRED"
        }
        KeyCheck::Good(id, user) => {
            call.log_in(&user, Some(id));
            "SUCCESS"
        }
        KeyCheck::Expired => "EXPIRED",
        KeyCheck::Wrong => "AUTH_ERR",
    }
}

fn use_token(call: &Call, text: &str) -> bool {
    let now = call.nas.clock.now();
    let token = call.nas.accounts().tokens.get(text).cloned();
    let Some(token) = token.filter(|token| token.ends > now) else {
        return false;
    };
    if token.single_use {
        call.nas.accounts().tokens.remove(text);
    }
    call.log_in(&token.user, None);
    true
}

fn new_token(call: &Call) -> String {
    let text = random::hex(64);
    let seconds = call.params.first().and_then(Value::as_u64).unwrap_or(600);
    let token = Token {
        user: call
            .session
            .login()
            .map(|login| login.user)
            .unwrap_or_default(),
        ends: call.nas.clock.now() + Duration::from_secs(seconds),
        single_use: call.flag(3),
    };
    call.nas.accounts().tokens.insert(text.clone(), token);
    text
}

async fn login_ex(call: &Call) -> Answer {
    let data = call.object(0).clone();
    let standby = call.nas.faults.settings().standby_of;
    if !standby.is_empty() {
        return Ok(json!({"response_type": "REDIRECT", "urls": standby}));
    }
    let text = |key: &str| rows::text(&data, key).to_owned();
    let outcome = match rows::text(&data, "mechanism") {
        "API_KEY_PLAIN" => check_key(call, &text("api_key"), Some(&text("username"))),
        "PASSWORD_PLAIN" => match check_password(call, &text("username"), &text("password")) {
            Some(User { otp: None, .. }) => {
                call.log_in(&text("username"), None);
                "SUCCESS"
            }
            Some(_) => {
                call.session.set_half_logged_in(Some(text("username")));
                return Ok(json!({"response_type": "OTP_REQUIRED", "username": text("username")}));
            }
            None => "AUTH_ERR",
        },
        "TOKEN_PLAIN" if use_token(call, &text("token")) => "SUCCESS",
        "OTP_TOKEN" => return second_factor(call, &text("otp_token")).await,
        "SCRAM" => return scram(call, &text("scram_type"), &text("rfc_str")).await,
        _ => "AUTH_ERR",
    };
    respond(call, outcome).await
}

async fn respond(call: &Call, outcome: &str) -> Answer {
    if outcome != "SUCCESS" {
        call.pause().await;
        return Ok(json!({"response_type": outcome}));
    }
    let options = call
        .object(0)
        .get("login_options")
        .cloned()
        .unwrap_or_default();
    let wants_user = options
        .get("user_info")
        .and_then(Value::as_bool)
        .unwrap_or(true);
    let mut answer = json!({
        "response_type": "SUCCESS",
        "user_info": if wants_user { me(call) } else { Value::Null },
        "authenticator": "LEVEL_1",
    });
    if call.generation.is_26() {
        let wanted = options.get("reconnect_token") == Some(&json!(true));
        answer["reconnect_token"] = if wanted {
            json!(new_token(call))
        } else {
            Value::Null
        };
    }
    Ok(answer)
}

async fn second_factor(call: &Call, code: &str) -> Answer {
    let Some(user) = call.session.take_half_logged_in() else {
        return Err(Failure::call(
            crate::failure::EINVAL,
            "OTP token login is not in progress",
        ));
    };
    let right = call
        .nas
        .accounts()
        .users
        .get(&user)
        .is_some_and(|user| user.otp.as_deref() == Some(code));
    if right {
        call.log_in(&user, None);
    }
    respond(call, if right { "SUCCESS" } else { "AUTH_ERR" }).await
}

async fn scram(call: &Call, kind: &str, text: &str) -> Answer {
    let answer = |kind: &str, text: String, user: Value| {
        Ok(
            json!({"response_type": "SCRAM_RESPONSE", "scram_type": kind, "rfc_str": text, "user_info": user}),
        )
    };
    if kind == "CLIENT_FIRST_MESSAGE" {
        // Read: what cannot be parsed, and a binding to a channel without TLS, are wrong logins.
        let first = First::parse(text)
            .filter(|first| !first.is_bound() || call.session.encrypted)
            .filter(|first| call.nas.accounts().users.contains_key(&first.user));
        let Some(first) = first else {
            return respond(call, "AUTH_ERR").await;
        };
        let secret = call.nas.accounts().scram_secret(first.key_id, &first.user);
        let (exchange, text) = Exchange::start(first, secret);
        call.session.set_scram(Some(exchange));
        return answer("SERVER_FIRST_RESPONSE", text, Value::Null);
    }
    let Some(exchange) = call.session.take_scram() else {
        let text = "SCRAM authentication is not in progress";
        return Err(Failure::call(EFAULT, text));
    };
    let (user, key) = (exchange.user.clone(), exchange.key_id);
    match exchange.finish(text, &call.nas.end_point) {
        Some(signature) => {
            call.log_in(&user, Some(key));
            answer("SERVER_FINAL_RESPONSE", signature, me(call))
        }
        None => respond(call, "AUTH_ERR").await,
    }
}

/// Without a login it breaks up to 25.10.6, as recorded there; 26 answers.
fn mechanisms(call: &Call) -> Answer {
    if call.generation.is_26() {
        return Ok(json!([
            "API_KEY_PLAIN",
            "PASSWORD_PLAIN",
            "TOKEN_PLAIN",
            "SCRAM"
        ]));
    }
    if call.session.login().is_none() {
        return Err(Failure::Exception {
            class: "AttributeError".to_owned(),
            text: "'NoneType' object has no attribute 'may_create_auth_token'".to_owned(),
        });
    }
    Ok(json!(["API_KEY_PLAIN", "PASSWORD_PLAIN", "TOKEN_PLAIN"]))
}

fn me(call: &Call) -> Value {
    let Some(login) = call.session.login() else {
        return Value::Null;
    };
    let full = login.roles.is_none();
    let roles = login.roles.unwrap_or_else(|| vec!["FULL_ADMIN".to_owned()]);
    json!({
        "pw_name": login.user,
        "pw_gecos": login.user,
        "pw_dir": "/root",
        "pw_shell": "/bin/bash",
        "pw_uid": 0,
        "pw_gid": 0,
        "grouplist": null,
        "sid": null,
        "source": "LOCAL",
        "local": true,
        "attributes": {},
        "two_factor_config": {"provisioning_uri": null, "secret_configured": false, "interval": 30, "otp_digits": 6},
        "privilege": {
            "roles": {"$set": roles},
            "allowlist": if full { json!([{"method": "*", "resource": "*"}]) } else { json!([]) },
            "web_shell": full,
            "webui_access": true,
        },
        "account_attributes": if full { json!(["LOCAL", "SYS_ADMIN"]) } else { json!(["LOCAL"]) },
    })
}

/// A key has no user up to 24.10: `_me` of `plugins/auth.py` of TS-24.10.2.4 and TS-22.12.4.2.
fn own(call: &Call) -> Answer {
    let by_key = call
        .session
        .login()
        .is_some_and(|login| login.key.is_some());
    if by_key && users::keys_have_lists(call.generation) {
        let text = "You are logged in using API_KEY";
        return Err(Failure::call(EFAULT, text));
    }
    Ok(me(call))
}

fn api_keys(call: &Call, verb: &str) -> Answer {
    match verb {
        "query" => {
            let accounts = call.nas.accounts();
            let rows = accounts.keys.keys();
            let rows = rows.map(|id| shown(call, *id, &accounts)).collect();
            drop(accounts);
            call.query(rows)
        }
        "create" if users::keys_have_lists(call.generation) => create_old_key(call),
        "create" => create_key(call),
        "update" => update_key(call),
        "delete" => {
            let id = call.number(0);
            let removed = call.nas.accounts().keys.remove(&id);
            removed
                .ok_or_else(|| Failure::not_found(None, format!("ApiKey {id} does not exist")))?;
            Ok(json!(true))
        }
        _ => Err(unknown(call)),
    }
}

fn shown(call: &Call, id: i64, accounts: &Accounts) -> Value {
    let key = &accounts.keys[&id];
    let date = call.nas.clock.date();
    if !users::keys_have_lists(call.generation) {
        return json!({"id": id, "name": key.name, "username": key.user, "user_identifier": key.user, "keyhash": "********", "created_at": date, "expires_at": null, "local": true, "revoked": key.revoked, "revoked_reason": null});
    }
    let mut row = json!({"id": id, "name": key.name, "created_at": date});
    if !call.generation.is_core() {
        let entry = |entry: &Allowed| json!({"method": entry.method, "resource": entry.resource});
        row["allowlist"] = match &key.allowed {
            Some(list) => list.iter().map(entry).collect(),
            None => json!([{"method": "*", "resource": "*"}]),
        };
    }
    row
}

/// With what stands once in an answer.
fn with_secret(mut shown: Value, text: &str) -> Value {
    shown["key"] = json!(text);
    shown
}

/// The list of a request; CORE has none.
fn allowed(data: &Map<String, Value>) -> Option<Vec<Allowed>> {
    let entry = |entry: &Value| Allowed {
        method: entry["method"].as_str().unwrap_or_default().to_owned(),
        resource: entry["resource"].as_str().unwrap_or_default().to_owned(),
    };
    let list = data.get("allowlist")?.as_array()?;
    Some(list.iter().map(entry).collect())
}

/// `plugins/api_key.py` of TS-24.10.2.4, TS-22.12.4.2 and TN-13.0-U6.8. On CORE a key may do everything.
fn create_old_key(call: &Call) -> Answer {
    let data = call.object(0);
    let name = rows::text(data, "name");
    let mut accounts = call.nas.accounts();
    if accounts.keys.values().any(|key| key.name == name) {
        let text = "Object with this name already exists";
        return Err(Failure::invalid("api_key_create.name", text));
    }
    let (id, text) = accounts.add_key(name, "root", &random::hex(64), None);
    if let Some(key) = accounts.keys.get_mut(&id) {
        key.allowed = allowed(data);
    }
    Ok(with_secret(shown(call, id, &accounts), &text))
}

/// `plugins/api_key.py` of TS-25.10.6, the same in TS-25.04.2.6 and on the branch of 26.
fn create_key(call: &Call) -> Answer {
    let data = call.object(0);
    let (name, user) = (rows::text(data, "name"), rows::text(data, "username"));
    let mut errors = Vec::new();
    let mut wrong = |text: &str| errors.push(Invalid::new("api_key_create", text));
    if call
        .nas
        .accounts()
        .keys
        .values()
        .any(|key| key.name == name)
    {
        wrong("name must be unique");
    }
    if !call.nas.accounts().users.contains_key(user) {
        wrong("User does not exist.");
    } else if users::roles(&call.nas, user).is_some_and(|roles| roles.is_empty()) {
        wrong("User lacks privilege role membership.");
    }
    if !errors.is_empty() {
        return Err(Failure::Validation(errors));
    }
    let mut accounts = call.nas.accounts();
    let (id, text) = accounts.add_key(name, user, &random::hex(64), None);
    Ok(with_secret(shown(call, id, &accounts), &text))
}

fn update_key(call: &Call) -> Answer {
    let (id, data) = (call.number(0), call.object(1));
    let mut accounts = call.nas.accounts();
    let Some(key) = accounts.keys.get_mut(&id) else {
        return Err(Failure::not_found(
            None,
            format!("ApiKey {id} does not exist"),
        ));
    };
    if let Some(name) = data.get("name").and_then(Value::as_str) {
        name.clone_into(&mut key.name);
    }
    key.allowed = allowed(data).or(key.allowed.take());
    if data.get("reset") != Some(&json!(true)) {
        return Ok(shown(call, id, &accounts));
    }
    key.secret = random::hex(64);
    key.revoked = false;
    let text = format!("{id}-{}", key.secret);
    Ok(with_secret(shown(call, id, &accounts), &text))
}
