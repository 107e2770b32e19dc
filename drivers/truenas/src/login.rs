//! Logging in, in every way that a generation has.

use secrecy::ExposeSecret;
use serde_json::{Value, json};

use crate::scram::{ClientFirst, ScramError};
use crate::session::Session;
use crate::settings::{ApiKeyLogin, Credentials, Protocol, Settings};
use crate::wire::Transport;
use crate::{Error, Kind};

/// Logs in. Nothing secret has been sent on this socket before.
pub(crate) async fn log_in(session: &Session, settings: &Settings) -> Result<(), Error> {
    refuse_plain_text(session, settings)?;
    let outcome = match session.transport() {
        Transport::JsonRpc => current(session, settings).await,
        Transport::Legacy => legacy(session, &settings.credentials).await,
    };
    outcome.map_err(|error| error.context(format!("login at {}", settings.address())))?;
    session.logged_in();
    Ok(())
}

/// From 25.04 on, a NAS revokes an API key that reaches it in plain text.
fn refuse_plain_text(session: &Session, settings: &Settings) -> Result<(), Error> {
    if settings.endpoint.protocol == Protocol::Https || settings.endpoint.is_loopback() {
        return Ok(());
    }
    let address = settings.address();
    match session.transport() {
        Transport::JsonRpc => Err(Error::new(
            Kind::Config,
            format!(
                "{address}: this TrueNAS revokes an API key that it receives in plain text; nothing \
                 was sent. Set httpConnection.protocol to https"
            ),
        )),
        Transport::Legacy => {
            tracing::warn!(
                %address,
                "the credentials of TrueNAS travel in plain text: set httpConnection.protocol to https"
            );
            Ok(())
        }
    }
}

/// Up to 24.10.
async fn legacy(session: &Session, credentials: &Credentials) -> Result<(), Error> {
    let accepted = match credentials {
        Credentials::ApiKey { key, .. } => with_key_alone(session, key.expose_secret()).await?,
        Credentials::Password { username, password } => {
            let params = [json!(username), json!(password.expose_secret())];
            session.call("auth.login", &params).await? == true
        }
    };
    if accepted { Ok(()) } else { Err(rejected()) }
}

/// From 25.04 on.
async fn current(session: &Session, settings: &Settings) -> Result<(), Error> {
    let options = json!({"user_info": false});
    match &settings.credentials {
        Credentials::Password { username, password } => {
            let data = json!({
                "mechanism": "PASSWORD_PLAIN",
                "username": username,
                "password": password.expose_secret(),
                "login_options": options,
            });
            accept(&login_ex(session, data).await?)
        }
        Credentials::ApiKey {
            username: None,
            key,
        } => {
            if settings.api_key_login == ApiKeyLogin::Scram {
                return Err(user_name_missing("SCRAM"));
            }
            match with_key_alone(session, key.expose_secret()).await {
                Ok(true) => Ok(()),
                Ok(false) => Err(rejected()),
                Err(error) if error.kind() == Kind::Unsupported => {
                    Err(user_name_missing("this TrueNAS"))
                }
                Err(error) => Err(error),
            }
        }
        Credentials::ApiKey {
            username: Some(username),
            key,
        } => {
            let scram = match settings.api_key_login {
                ApiKeyLogin::Scram => true,
                ApiKeyLogin::Plain => false,
                ApiKeyLogin::Auto => offers_scram(session).await?,
            };
            if scram {
                let first = ClientFirst::new(username, key).map_err(config)?;
                return with_scram(session, first).await;
            }
            let data = json!({
                "mechanism": "API_KEY_PLAIN",
                "username": username,
                "api_key": key.expose_secret(),
                "login_options": options,
            });
            accept(&login_ex(session, data).await?)
        }
    }
}

/// A key without the name of its user, as configurations written for REST have it.
async fn with_key_alone(session: &Session, key: &str) -> Result<bool, Error> {
    let accepted = session
        .call("auth.login_with_api_key", &[json!(key)])
        .await?;
    Ok(accepted == true)
}

/// Up to 25.10 the method fails before the login: that means no.
async fn offers_scram(session: &Session) -> Result<bool, Error> {
    match session.call("auth.mechanism_choices", &[]).await {
        Ok(choices) => Ok(choices
            .as_array()
            .is_some_and(|all| all.contains(&json!("SCRAM")))),
        Err(error)
            if matches!(
                error.kind(),
                Kind::NotSent | Kind::UnknownOutcome | Kind::Overloaded
            ) =>
        {
            Err(error)
        }
        Err(_) => Ok(false),
    }
}

async fn with_scram(session: &Session, first: ClientFirst) -> Result<(), Error> {
    let send = |kind: &'static str, text: String| {
        let data = json!({"mechanism": "SCRAM", "scram_type": kind, "rfc_str": text});
        login_ex(session, data)
    };
    let answer = send("CLIENT_FIRST_MESSAGE", first.message()).await?;
    let server_first = scram_text(&answer, "SERVER_FIRST_RESPONSE")?.to_owned();
    // Half a million iterations would hold up every other task of the thread.
    let work = tokio::task::spawn_blocking(move || first.answer(&server_first));
    let (text, proof) = match work.await {
        Ok(outcome) => outcome.map_err(untrusted)?,
        Err(_) => return Err(Error::protocol("the SCRAM exchange was interrupted")),
    };
    let answer = send("CLIENT_FINAL_MESSAGE", text).await?;
    let server_final = scram_text(&answer, "SERVER_FINAL_RESPONSE")?;
    let verified = proof.verify(server_final);
    if let Err(error) = verified {
        // Its answer does not matter: the socket is given up.
        let _ = session.call("auth.logout", &[]).await;
        return Err(untrusted(error));
    }
    Ok(())
}

fn scram_text<'a>(answer: &'a Value, expected: &str) -> Result<&'a str, Error> {
    if answer["response_type"] != "SCRAM_RESPONSE" {
        accept(answer)?;
        return Err(Error::protocol("the NAS left the SCRAM exchange"));
    }
    match answer["rfc_str"].as_str() {
        Some(text) if answer["scram_type"] == expected => Ok(text),
        _ => Err(Error::protocol("the NAS answers SCRAM out of order")),
    }
}

async fn login_ex(session: &Session, data: Value) -> Result<Value, Error> {
    session.call("auth.login_ex", &[data]).await
}

/// The outcomes of a login are answers, not errors.
fn accept(answer: &Value) -> Result<(), Error> {
    let message = match answer["response_type"].as_str().unwrap_or_default() {
        "SUCCESS" => return Ok(()),
        "AUTH_ERR" => return Err(rejected()),
        "EXPIRED" => "the API key has expired or was revoked: make a new one".to_owned(),
        "DENIED" => "the NAS denies this user this kind of login".to_owned(),
        "OTP_REQUIRED" => {
            "the user has two-factor authentication: use an API key instead".to_owned()
        }
        "REDIRECT" => {
            let urls: Vec<&str> = answer["urls"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            let urls = urls.join(", ");
            // Also one that becomes the active one says so for a while.
            let message = format!(
                "this node is not the active one ({urls} may be): if it stays so, set \
                 httpConnection.host to the address that both nodes share"
            );
            return Err(Error::new(Kind::Overloaded, message));
        }
        other => {
            return Err(Error::protocol(format!(
                "unknown outcome {other:?} of a login"
            )));
        }
    };
    Err(Error::new(Kind::Login, message))
}

fn rejected() -> Error {
    let message = "the NAS rejects the credentials. An API key belongs to one user: \
                   httpConnection.username must be its name, and from 25.04 on protocol https";
    Error::new(Kind::Login, message)
}

fn user_name_missing(who: &str) -> Error {
    let message = format!("{who} needs the user of the API key: set httpConnection.username");
    Error::new(Kind::Config, message)
}

fn config(error: ScramError) -> Error {
    Error::new(Kind::Config, error.to_string())
}

fn untrusted(error: ScramError) -> Error {
    let message = format!(
        "{error}: what answers does not prove that it is the NAS of this key: check \
         httpConnection.host and httpConnection.tls"
    );
    Error::new(Kind::Login, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_of_a_login_says_what_to_do() {
        for (response, kind, part) in [
            ("AUTH_ERR", Kind::Login, "httpConnection.username"),
            ("EXPIRED", Kind::Login, "make a new one"),
            ("OTP_REQUIRED", Kind::Login, "API key"),
            ("DENIED", Kind::Login, "denies"),
            ("REDIRECT", Kind::Overloaded, "https://other"),
            ("NEW", Kind::Protocol, "NEW"),
        ] {
            let answer = json!({"response_type": response, "urls": ["https://other"]});
            let error = accept(&answer).expect_err("refused");
            assert_eq!(error.kind(), kind, "{response}");
            assert!(error.message().contains(part), "{error}");
        }
        assert_eq!(accept(&json!({"response_type": "SUCCESS"})), Ok(()));
    }
}
