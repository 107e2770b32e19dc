//! Users, API keys and tokens.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::scram::Secret;

/// A user that can log in.
#[derive(Clone)]
pub struct User {
    /// The password.
    pub password: String,
    /// The roles; `None` is full administration.
    pub roles: Option<Vec<String>>,
    /// The second factor, if the user has one.
    pub otp: Option<String>,
}

/// An API key, shown to its user once.
#[derive(Clone)]
pub struct ApiKey {
    /// Its name.
    pub name: String,
    /// The user of the key.
    pub user: String,
    /// The part after the dash.
    pub secret: String,
    /// It can no longer be used.
    pub revoked: bool,
    /// It ends at this time of the simulator's clock.
    pub expires: Option<Duration>,
    /// What it may do up to 24.10, where a key has such a list and no user; `None` is everything.
    pub allowed: Option<Vec<Allowed>>,
}

/// An entry of the list of a key. Read from `utils/allowlist.py` of TS-24.10.2.4 and TS-22.12.4.2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    /// `CALL`, `SUBSCRIBE`, a verb of HTTP, or `*`.
    pub method: String,
    /// A name, with `*` for any text.
    pub resource: String,
}

impl Allowed {
    /// Whether the entry covers this.
    pub(crate) fn covers(&self, method: &str, resource: &str) -> bool {
        let mut parts = self.resource.split('*');
        let first = parts.next().unwrap_or_default();
        let fits = match (resource.strip_prefix(first), parts.next_back()) {
            (Some(rest), None) => rest.is_empty(),
            (Some(rest), Some(last)) => rest.strip_suffix(last).is_some_and(|middle| {
                parts
                    .try_fold(middle, |left, part| {
                        left.split_once(part).map(|(_, left)| left)
                    })
                    .is_some()
            }),
            (None, _) => false,
        };
        (self.method == "*" || self.method == method) && fits
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User")
            .field("roles", &self.roles)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKey")
            .field("name", &self.name)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
pub(crate) struct Accounts {
    pub(crate) users: BTreeMap<String, User>,
    pub(crate) keys: BTreeMap<i64, ApiKey>,
    pub(crate) tokens: BTreeMap<String, Token>,
}

#[derive(Clone)]
pub(crate) struct Token {
    pub(crate) user: String,
    pub(crate) ends: Duration,
    pub(crate) single_use: bool,
}

/// The way a login by key ends.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum KeyCheck {
    Good(i64, String),
    Expired,
    Wrong,
}

impl Accounts {
    /// Adds a key and returns it as the user would write it down.
    pub(crate) fn add_key(
        &mut self,
        name: &str,
        user: &str,
        secret: &str,
        expires: Option<Duration>,
    ) -> (i64, String) {
        let id = self.keys.keys().next_back().copied().unwrap_or_default() + 1;
        let key = ApiKey {
            name: name.to_owned(),
            user: user.to_owned(),
            secret: secret.to_owned(),
            revoked: false,
            expires,
            allowed: None,
        };
        self.keys.insert(id, key);
        (id, format!("{id}-{secret}"))
    }

    pub(crate) fn check_key(&self, text: &str, user: Option<&str>, now: Duration) -> KeyCheck {
        let found = text.split_once('-').and_then(|(id, secret)| {
            let id: i64 = id.parse().ok()?;
            self.keys
                .get(&id)
                .filter(|key| key.secret == secret)
                .map(|key| (id, key))
        });
        match found {
            Some((_, key)) if user.is_some_and(|user| user != key.user) => KeyCheck::Wrong,
            Some((_, key)) if key.revoked || key.expires.is_some_and(|end| end <= now) => {
                KeyCheck::Expired
            }
            Some((id, key)) => KeyCheck::Good(id, key.user.clone()),
            None => KeyCheck::Wrong,
        }
    }

    pub(crate) fn roles(&self, user: &str) -> Option<Vec<String>> {
        self.users
            .get(user)
            .map_or_else(|| Some(Vec::new()), |user| user.roles.clone())
    }

    pub(crate) fn scram_secret(&self, id: i64, user: &str) -> Option<Secret> {
        let key = self
            .keys
            .get(&id)
            .filter(|key| key.user == user && !key.revoked)?;
        Some(Secret::new(id, &key.secret))
    }
}
