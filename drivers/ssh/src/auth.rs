//! Authentication: by key, by password, and by keyboard-interactive.
//!
//! Each method is tried once and only if the server offers it, because servers count failures. `FreeBSD` and TrueNAS
//! often offer keyboard-interactive only, and expect the password there.

use std::sync::Arc;

use russh::client::{AuthResult, Handle, Handler, KeyboardInteractiveAuthResponse};
use russh::keys::{Algorithm, PrivateKeyWithHashAlg};
use russh::{MethodKind, MethodSet};
use secrecy::{ExposeSecret, SecretString};

use crate::key::Key;
use crate::settings::Settings;

/// The maximum number of rounds of prompts.
const QUESTIONS: usize = 8;

/// Why the login failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AuthError {
    #[error("log in as `{user}`: the server refused {tried} and takes {offered}")]
    Refused {
        user: String,
        tried: String,
        offered: String,
    },
    #[error("log in as `{user}`: neither a key nor a password is configured")]
    Nothing { user: String },
    #[error("log in")]
    Transport(#[from] russh::Error),
}

/// The methods tried, and those the server still accepts.
struct Attempts {
    tried: Vec<&'static str>,
    offered: Option<MethodSet>,
}

/// Logs in; the error lists what was tried.
pub(crate) async fn log_in<H: Handler>(
    handle: &mut Handle<H>,
    settings: &Settings,
) -> Result<(), AuthError> {
    let user = &settings.user;
    if settings.key.is_none() && settings.password.is_none() {
        return Err(AuthError::Nothing { user: user.clone() });
    }
    let mut attempts = Attempts {
        tried: Vec::new(),
        offered: None,
    };
    if let Some(key) = &settings.key
        && attempts.note("the key", with_key(handle, user, key).await?)
    {
        return Ok(());
    }
    if let Some(password) = &settings.password {
        if attempts.offers(MethodKind::Password) {
            let answer = handle
                .authenticate_password(user, password.expose_secret())
                .await?;
            if attempts.note("the password", answer) {
                return Ok(());
            }
        }
        if attempts.offers(MethodKind::KeyboardInteractive)
            && attempts.note("the dialogue", in_dialogue(handle, user, password).await?)
        {
            return Ok(());
        }
    }
    Err(attempts.refused(user))
}

async fn with_key<H: Handler>(
    handle: &mut Handle<H>,
    user: &str,
    key: &Key,
) -> Result<AuthResult, russh::Error> {
    // Current servers refuse SHA-1 signatures; use the best hash that this server supports.
    let hash = match key.0.algorithm() {
        Algorithm::Rsa { .. } => handle.best_supported_rsa_hash().await?.flatten(),
        _ => None,
    };
    let key = PrivateKeyWithHashAlg::new(Arc::clone(&key.0), hash);
    handle.authenticate_publickey(user, key).await
}

async fn in_dialogue<H: Handler>(
    handle: &mut Handle<H>,
    user: &str,
    password: &SecretString,
) -> Result<AuthResult, russh::Error> {
    let mut answer = handle
        .authenticate_keyboard_interactive_start(user, None)
        .await?;
    for _ in 0..QUESTIONS {
        let prompts = match answer {
            KeyboardInteractiveAuthResponse::Success => return Ok(AuthResult::Success),
            KeyboardInteractiveAuthResponse::Failure {
                remaining_methods,
                partial_success,
            } => {
                return Ok(AuthResult::Failure {
                    remaining_methods,
                    partial_success,
                });
            }
            KeyboardInteractiveAuthResponse::InfoRequest { prompts, .. } => prompts,
        };
        // A prompt with echo does not ask for a password.
        let reply = |echo: bool| if echo { "" } else { password.expose_secret() };
        let replies = prompts.iter().map(|prompt| reply(prompt.echo).to_owned());
        answer = handle
            .authenticate_keyboard_interactive_respond(replies.collect())
            .await?;
    }
    Ok(AuthResult::Failure {
        remaining_methods: MethodSet::empty(),
        partial_success: false,
    })
}

// === impl Attempts ===

impl Attempts {
    /// Records an attempt; `true` if it succeeded.
    fn note(&mut self, what: &'static str, answer: AuthResult) -> bool {
        match answer {
            AuthResult::Success => true,
            AuthResult::Failure {
                remaining_methods, ..
            } => {
                self.tried.push(what);
                self.offered = Some(remaining_methods);
                false
            }
        }
    }

    /// Before the first answer the offered methods are not known, so every method is tried.
    fn offers(&self, method: MethodKind) -> bool {
        self.offered
            .as_ref()
            .is_none_or(|methods| methods.contains(&method))
    }

    fn refused(self, user: &str) -> AuthError {
        let offered: Vec<String> = self
            .offered
            .iter()
            .flat_map(|methods| methods.iter())
            .map(|method| <&str>::from(method).to_owned())
            .collect();
        AuthError::Refused {
            user: user.to_owned(),
            tried: joined(&self.tried, " and "),
            offered: joined(&offered, ", "),
        }
    }
}

fn joined<T: AsRef<str>>(words: &[T], by: &str) -> String {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    if words.is_empty() {
        "nothing".to_owned()
    } else {
        words.join(by)
    }
}
