//! One error for everything that can go wrong between us and the NAS, read from the structure of the
//! answer. Text decides only where TrueNAS flattens a failure of ZFS into `EFAULT` or `EINVAL`.

use std::fmt;

use serde_json::Value;

/// The kind of an error, as far as a caller can act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The configuration of the connection cannot be right.
    Config,
    /// No socket could be opened, or the NAS does not answer.
    Unreachable,
    /// The certificate of the NAS is not accepted.
    Certificate,
    /// The NAS refuses the credentials.
    Login,
    /// The session expired and could not be renewed.
    NotAuthenticated,
    /// The user lacks a role for this method.
    Denied,
    /// The connection ended before the call was sent.
    NotSent,
    /// The connection ended after the call was sent: it may have been executed, in full or in part.
    UnknownOutcome,
    /// The NAS has more calls in hand than it takes, or limits the rate.
    Overloaded,
    /// This generation has no such method or field.
    Unsupported,
    /// The NAS refuses the arguments.
    Invalid,
    /// The object does not exist.
    NotFound,
    /// An object of that name exists.
    Exists,
    /// The object is in use.
    Busy,
    /// The object has children, snapshots, clones or holds.
    Dependents,
    /// There is no room.
    NoSpace,
    /// The dataset is encrypted and locked.
    Locked,
    /// The NAS refuses for a reason that has no kind of its own.
    Refused,
    /// The answer is not what this generation answers.
    Protocol,
}

/// Whether a failed call may have changed anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Proved: nothing was done.
    None,
    /// Something may have been done; only reading the state tells.
    Possible,
}

/// One entry of a validation error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detail {
    /// The argument and field, such as `sharingnfs_create.path`.
    pub attribute: Option<String>,
    /// The problem with it.
    pub message: String,
    /// The errno of this entry.
    pub errno: i64,
}

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(Box<Parts>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Parts {
    kind: Kind,
    effect: Effect,
    method: Option<String>,
    errno: Option<i64>,
    message: String,
    details: Vec<Detail>,
}

const EPERM: i64 = 1;
const ENOENT: i64 = 2;
const EAGAIN: i64 = 11;
const EACCES: i64 = 13;
const EBUSY: i64 = 16;
const EEXIST: i64 = 17;
const EINVAL: i64 = 22;
const ENOSPC: i64 = 28;
const ENOTEMPTY: i64 = 39;
/// `ENOTEMPTY` of FreeBSD, which CORE runs on.
const ENOTEMPTY_FREEBSD: i64 = 66;
const EDQUOT: i64 = 122;
const EDQUOT_FREEBSD: i64 = 69;
const ETOOMANYREFS: i64 = 109;
const ENOMETHOD: i64 = 201;
const EDATASETISLOCKED: i64 = 205;
const ENOTAUTHENTICATED: i64 = 207;

/// The meaning of the texts of ZFS and of the middleware, where the errno does not say it.
const TEXTS: [(&str, Kind); 31] = [
    ("already exists", Kind::Exists),
    ("already exports", Kind::Exists),
    ("already is a ", Kind::Exists),
    ("already used by", Kind::Exists),
    ("already being used", Kind::Exists),
    ("already in use", Kind::Exists),
    ("currently in use by", Kind::Exists),
    ("must be unique", Kind::Exists),
    ("export conflict", Kind::Exists),
    ("has dependent clones", Kind::Dependents),
    ("has the following clones", Kind::Dependents),
    ("has children", Kind::Dependents),
    ("has snapshots", Kind::Dependents),
    ("snapshot has holds", Kind::Dependents),
    ("used by 1 ", Kind::Dependents),
    ("contains 1 ", Kind::Dependents),
    ("dataset is busy", Kind::Busy),
    ("device busy", Kind::Busy),
    ("is in use", Kind::Busy),
    ("rate limit exceeded", Kind::Overloaded),
    ("out of space", Kind::NoSpace),
    ("no space left", Kind::NoSpace),
    ("quota exceeded", Kind::NoSpace),
    ("more than 80%", Kind::NoSpace),
    ("greater than available space", Kind::NoSpace),
    ("invalid quota or reservation", Kind::NoSpace),
    ("dataset does not exist", Kind::NotFound),
    ("could not find any snapshots", Kind::NotFound),
    ("session is expired", Kind::NotAuthenticated),
    ("not authenticated", Kind::NotAuthenticated),
    ("not authorized", Kind::Denied),
];

/// Whether a text says that a dataset or snapshot is not there, as 26 does and clones before it: `'tank/a' not found`,
/// `Failed to clone snapshot: Snapshot tank/a@s not found`. That of anything else says nothing of an object of ours.
fn says_not_found(text: &str) -> bool {
    let Some(rest) = text.trim_end_matches('.').strip_suffix(" not found") else {
        return false;
    };
    let mut words = rest.rsplit(' ');
    let name = words.next().unwrap_or_default();
    let quoted = name.len() > 2 && name.starts_with('\'') && name.ends_with('\'');
    let of_zfs = matches!(words.next(), Some("snapshot" | "dataset"));
    !name.is_empty() && (quoted || of_zfs)
}

// === impl Error ===

impl Error {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        let effect = match kind {
            Kind::Config
            | Kind::Unreachable
            | Kind::Certificate
            | Kind::Login
            | Kind::NotAuthenticated
            | Kind::NotSent
            | Kind::Overloaded
            | Kind::Unsupported => Effect::None,
            _ => Effect::Possible,
        };
        Self(Box::new(Parts {
            kind,
            effect,
            method: None,
            errno: None,
            message: message.into(),
            details: Vec::new(),
        }))
    }

    /// The answer to a call that the NAS could not make sense of.
    pub(crate) fn protocol(message: impl Into<String>) -> Self {
        Self::new(Kind::Protocol, message)
    }

    /// Reads the `error` member of a JSON-RPC answer.
    pub(crate) fn from_json_rpc(error: &Value) -> Self {
        let message = error["message"].as_str().unwrap_or_default();
        let data = &error["data"];
        let mut answer = match error["code"].as_i64() {
            Some(-32601) => Self::new(Kind::Unsupported, message),
            Some(-32000) => Self::new(Kind::Overloaded, message),
            Some(-32700 | -32600) => Self::protocol(message).nothing_done(),
            _ if data.is_object() => Self::from_data(data),
            _ => Self::protocol(message),
        };
        if answer.0.message.is_empty() {
            message.clone_into(&mut answer.0.message);
        }
        answer
    }

    /// Reads the object that both protocols carry: `error`, `errname`, `reason`, `extra`.
    ///
    /// The stack trace in it is never kept: its frames hold the arguments of the call.
    pub(crate) fn from_data(data: &Value) -> Self {
        let errno = data["error"].as_i64().unwrap_or_default();
        let name = data["errname"].as_str().unwrap_or_default();
        let reason = data["reason"].as_str().unwrap_or_default().trim();
        let details = read_details(&data["extra"]);
        Self::from_parts(errno, name, reason, details)
    }

    /// Reads how a job failed.
    pub(crate) fn from_job(text: &str, exc_info: &Value) -> Self {
        let details = read_details(&exc_info["extra"]);
        let errno = exc_info["errno"].as_i64().unwrap_or_default();
        // Up to 24.10 a job may say its errno in the text only: "[EBUSY] …".
        let name = text.strip_prefix('[').and_then(|text| text.split_once(']'));
        let mut error = Self::from_parts(errno, name.map_or("", |(name, _)| name), text, details);
        error.0.effect = Effect::Possible;
        error
    }

    fn from_parts(errno: i64, name: &str, reason: &str, details: Vec<Detail>) -> Self {
        let kind = if details.is_empty() {
            match classify(errno, name, reason) {
                // What the middleware did not expect has this errno, too: it says nothing of the arguments.
                Kind::Invalid => Kind::Refused,
                kind => kind,
            }
        } else {
            classify_details(&details)
        };
        let mut error = Self::new(kind, reason);
        error.0.errno = Some(errno).filter(|errno| *errno != 0);
        error.0.details = details;
        error
    }

    /// Names the method that failed. A query answers with no rows where nothing is found: one that says that
    /// something is missing says nothing of what was looked for. Only those by paths fail for a missing one.
    pub(crate) fn of(mut self, method: &str) -> Self {
        self.0.method.get_or_insert_with(|| method.to_owned());
        let lists = method.rsplit('.').next() == Some("query");
        let lists = lists && !method.starts_with("zfs.resource.");
        if lists && self.0.kind == Kind::NotFound {
            self.0.kind = Kind::Refused;
        }
        self
    }

    pub(crate) fn nothing_done(mut self) -> Self {
        self.0.effect = Effect::None;
        self
    }

    /// The call was made, and its answer does not say what came of it.
    pub(crate) fn possibly_done(mut self) -> Self {
        self.0.effect = Effect::Possible;
        self
    }

    /// A failure of what comes before a call, such as the login: the call itself was never sent.
    ///
    /// A NAS that is there and takes no login just now proves nothing: a call of a moment ago, of this process
    /// or of one that was killed, may be at work in it.
    pub(crate) fn before_the_call(mut self) -> Self {
        self.0.effect = match self.0.kind {
            Kind::Overloaded => Effect::Possible,
            _ => Effect::None,
        };
        if matches!(self.0.kind, Kind::NotSent | Kind::UnknownOutcome) {
            self.0.kind = Kind::Unreachable;
        }
        self
    }

    /// Whether another attempt with the same settings is of little use.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self.0.kind, Kind::Config | Kind::Certificate | Kind::Login)
    }

    /// Says what was going on, in front of the message.
    pub(crate) fn context(mut self, context: impl fmt::Display) -> Self {
        self.0.message = format!("{context}: {}", self.0.message);
        self
    }

    /// Replaces every occurrence of a secret, also as a NAS may write it that quotes a request.
    pub(crate) fn without(mut self, secret: &str) -> Self {
        let clean = |text: &mut String| *text = driver_core::secrets::masked(text, secret);
        clean(&mut self.0.message);
        let details = self.0.details.iter_mut();
        details.for_each(|detail| clean(&mut detail.message));
        self
    }

    /// The kind of error.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// Whether anything may have been done.
    pub fn effect(&self) -> Effect {
        self.0.effect
    }

    /// The method that failed, if a method was reached.
    pub fn method(&self) -> Option<&str> {
        self.0.method.as_deref()
    }

    /// The errno that the NAS gave.
    pub fn errno(&self) -> Option<i64> {
        self.0.errno
    }

    /// The entries of a validation error. Up to 25.10 an error of a union argument lists the fields of
    /// every branch: the first entry alone says nothing.
    pub fn details(&self) -> &[Detail] {
        &self.0.details
    }

    /// The message, without the method.
    pub fn message(&self) -> &str {
        &self.0.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.method {
            Some(method) => write!(f, "{method}: {}", self.0.message),
            None => f.write_str(&self.0.message),
        }
    }
}

impl std::error::Error for Error {}

fn read_details(extra: &Value) -> Vec<Detail> {
    let entry = |entry: &Value| match entry.as_array()?.as_slice() {
        [attribute, message, errno] => Some(Detail {
            attribute: attribute.as_str().map(str::to_owned),
            message: message.as_str()?.to_owned(),
            errno: errno.as_i64()?,
        }),
        _ => None,
    };
    // `extra` is free for other uses: it is a list of entries only if all of it is.
    let entries = extra.as_array().map(|all| all.iter().map(entry).collect());
    entries.flatten().unwrap_or_default()
}

/// The most specific entry decides: a union argument also lists what other branches would need.
fn classify_details(details: &[Detail]) -> Kind {
    let kind = |detail: &Detail| {
        let kind = classify(detail.errno, "", &detail.message);
        // From 26 on, some methods name themselves instead of a field.
        let object = match detail.attribute.as_deref() {
            None | Some("id" | "null") => true,
            Some(name) => name.starts_with("zfs.resource.") || name.starts_with("pool.snapshot."),
        };
        // A parent, a user or a host that is missing makes the arguments invalid; only the object of
        // the call itself is what was not found.
        match kind {
            Kind::NotFound if !object => Kind::Invalid,
            other => other,
        }
    };
    let mut kinds = details.iter().map(kind);
    kinds
        .find(|kind| *kind != Kind::Invalid)
        .unwrap_or(Kind::Invalid)
}

fn classify(errno: i64, name: &str, text: &str) -> Kind {
    match errno {
        ENOENT => return Kind::NotFound,
        EEXIST => return Kind::Exists,
        // CORE reports a missing login with the errno of a missing role.
        EPERM | EACCES if text.contains("Not authenticated") || text.contains("is expired") => {
            return Kind::NotAuthenticated;
        }
        EPERM | EACCES => return Kind::Denied,
        ENOSPC | EDQUOT | EDQUOT_FREEBSD => return Kind::NoSpace,
        ENOTEMPTY | ENOTEMPTY_FREEBSD => return Kind::Dependents,
        ETOOMANYREFS => return Kind::Overloaded,
        ENOMETHOD => return Kind::Unsupported,
        EDATASETISLOCKED => return Kind::Locked,
        ENOTAUTHENTICATED => return Kind::NotAuthenticated,
        _ => {}
    }
    let by_name = match name {
        "ENOENT" | "EZFS_NOENT" => Some(Kind::NotFound),
        "EEXIST" | "EZFS_EXISTS" => Some(Kind::Exists),
        "EPERM" | "EACCES" | "EZFS_PERM" => Some(Kind::Denied),
        "ENOSPC" | "EDQUOT" | "EZFS_NOSPC" => Some(Kind::NoSpace),
        "ENOTEMPTY" => Some(Kind::Dependents),
        _ => None,
    };
    let text = text.to_lowercase();
    let by_text = || {
        TEXTS
            .iter()
            .find(|(part, _)| text.contains(part))
            .map(|(_, kind)| *kind)
            .or_else(|| says_not_found(&text).then_some(Kind::NotFound))
    };
    // "Busy" is also what ZFS says of clones and holds, and what the rate limit is reported as.
    let busy = errno == EBUSY || matches!(name, "EBUSY" | "EZFS_BUSY");
    let by_rest = || match errno {
        _ if busy && (text.contains("hold") || text.contains("clone")) => Kind::Dependents,
        _ if busy => Kind::Busy,
        EAGAIN | EINVAL => Kind::Invalid,
        _ => Kind::Refused,
    };
    by_name.or_else(by_text).unwrap_or_else(by_rest)
}

#[cfg(test)]
mod tests;
