//! What a method can end with, apart from a result, and how each protocol shows it.

use serde_json::{Value, json};

use crate::Generation;

/// `ENOENT`.
pub(crate) const ENOENT: i32 = 2;
/// `EAGAIN`.
pub(crate) const EAGAIN: i32 = 11;
/// `EACCES`.
pub(crate) const EACCES: i32 = 13;
/// `EFAULT`.
pub(crate) const EFAULT: i32 = 14;
/// `EBUSY`.
pub(crate) const EBUSY: i32 = 16;
/// `EEXIST`.
pub(crate) const EEXIST: i32 = 17;
/// `EINVAL`.
pub(crate) const EINVAL: i32 = 22;
/// `ENOSPC`.
pub(crate) const ENOSPC: i32 = 28;
/// `ENOTEMPTY`.
pub(crate) const ENOTEMPTY: i32 = 39;
/// `EBADMSG`.
pub(crate) const EBADMSG: i32 = 74;
/// `ENOMETHOD` of the middleware.
pub(crate) const ENOMETHOD: i32 = 201;
/// `EDATASETISLOCKED` of the middleware.
pub(crate) const EDATASETISLOCKED: i32 = 205;
/// `ENOTAUTHENTICATED` of the middleware.
pub(crate) const ENOTAUTHENTICATED: i32 = 207;

/// The failure of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Failure {
    /// Several checks, or the validator: class `ValidationErrors`.
    Validation(Vec<Invalid>),
    /// One check, raised at once: class `ValidationError`.
    Single(Invalid),
    /// `get_instance`, `update` or `delete` of what does not exist: class `InstanceNotFound`.
    NotFound(Invalid),
    /// Class `CallError`.
    Call {
        /// The error number.
        errno: i32,
        /// The text, without the leading `[ERRNAME]`.
        reason: String,
        /// Any data.
        extra: Value,
    },
    /// An exception that the middleware did not expect; error number 22.
    Exception {
        /// The Python class.
        class: String,
        /// `str()` of it.
        text: String,
    },
    /// There is no such method.
    NoMethod(String),
    /// More than 20 calls in flight on one connection.
    TooManyCalls,
    /// The connection is cut without an answer.
    Cut,
    /// None: the call is answered with this text as its result.
    Raw(String),
    /// nginx answers this status instead of the middleware; only REST shows it.
    Http(u16),
}

/// One entry of a validation error.
#[derive(Debug, Clone, PartialEq)]
pub struct Invalid {
    /// The attribute; `None` where the middleware has none.
    pub attribute: Option<String>,
    /// The text.
    pub message: String,
    /// The error number of this entry.
    pub errno: i32,
}

impl Invalid {
    /// An entry with error number 22.
    pub fn new(attribute: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            attribute: Some(attribute.into()),
            message: message.into(),
            errno: EINVAL,
        }
    }

    /// The same with another error number.
    #[must_use]
    pub fn errno(mut self, errno: i32) -> Self {
        self.errno = errno;
        self
    }

    fn line(&self) -> String {
        format!(
            "[{}] {}: {}",
            errname(self.errno),
            self.attribute.as_deref().unwrap_or("None"),
            self.message
        )
    }

    fn triplet(&self) -> Value {
        json!([self.attribute, self.message, self.errno])
    }
}

impl Failure {
    /// One check that failed, as the middleware collects them.
    pub fn invalid(attribute: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Validation(vec![Invalid::new(attribute, message)])
    }

    /// A `CallError` without data.
    pub fn call(errno: i32, reason: impl Into<String>) -> Self {
        Self::Call {
            errno,
            reason: reason.into(),
            extra: Value::Null,
        }
    }

    /// `X 7 does not exist`.
    pub fn not_found(attribute: Option<&str>, message: impl Into<String>) -> Self {
        Self::NotFound(Invalid {
            attribute: attribute.map(str::to_owned),
            message: message.into(),
            errno: ENOENT,
        })
    }

    /// The Python class that the trace names.
    pub fn class(&self) -> &str {
        match self {
            Self::Validation(_) => "ValidationErrors",
            Self::Single(_) => "ValidationError",
            Self::NotFound(_) => "InstanceNotFound",
            Self::Exception { class, .. } => class,
            Self::Call { .. }
            | Self::NoMethod(_)
            | Self::TooManyCalls
            | Self::Cut
            | Self::Raw(_)
            | Self::Http(_) => "CallError",
        }
    }

    /// The text that starts with `[ERRNAME]`, or the plain text of an unexpected exception.
    pub fn reason(&self) -> String {
        match self {
            Self::Validation(entries) => entries.iter().map(|entry| entry.line() + "\n").collect(),
            Self::Single(entry) | Self::NotFound(entry) => entry.line(),
            Self::Call { errno, reason, .. } => format!("[{}] {reason}", errname(*errno)),
            Self::Exception { text, .. } => text.clone(),
            Self::NoMethod(method) => {
                let service = method.split_once('.').map_or("", |(service, _)| service);
                format!("[ENOMETHOD] Service '{service}' not found")
            }
            Self::TooManyCalls => {
                "[ETOOMANYREFS] Maximum number of concurrent calls has exceeded".to_owned()
            }
            Self::Cut | Self::Raw(_) | Self::Http(_) => String::new(),
        }
    }

    /// `extra` of the error object.
    pub fn extra(&self) -> Value {
        match self {
            Self::Validation(entries) => entries.iter().map(Invalid::triplet).collect(),
            Self::Single(entry) | Self::NotFound(entry) => json!([entry.triplet()]),
            Self::Call { extra, .. } => extra.clone(),
            _ => Value::Null,
        }
    }

    /// The error number that JSON-RPC shows.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Call { errno, .. } => *errno,
            Self::NoMethod(_) => ENOMETHOD,
            Self::TooManyCalls => 109,
            _ => EINVAL,
        }
    }

    fn is_validation(&self) -> bool {
        matches!(
            self,
            Self::Validation(_) | Self::Single(_) | Self::NotFound(_)
        )
    }

    fn trace(&self) -> Value {
        json!({
            "class": self.class(),
            "frames": [],
            "formatted": format!("truenas-sim keeps no stack traces\n{}: {}\n", self.class(), self.reason()),
            "repr": format!("{}({:?})", self.class(), self.reason()),
        })
    }

    /// The `error` member of a JSON-RPC answer, as recorded on 25.10.6 and 26.
    pub fn jsonrpc(&self) -> Value {
        match self {
            Self::NoMethod(_) => return json!({"code": -32601, "message": "Method does not exist"}),
            Self::TooManyCalls => {
                return json!({"code": -32000, "message": "Maximum number of concurrent calls (20) has exceeded"});
            }
            _ => {}
        }
        let (code, message) = if self.is_validation() {
            (-32602, "Invalid params")
        } else {
            (-32001, "Method call error")
        };
        let errno = self.errno();
        json!({
            "code": code,
            "message": message,
            "data": {
                "error": errno,
                "errname": errname(errno),
                "reason": self.reason(),
                "trace": self.trace(),
                "extra": self.extra(),
            },
        })
    }

    /// The `error` member of an answer on `/websocket`.
    pub fn legacy(&self, generation: Generation) -> Value {
        let errno = match self {
            Self::Validation(_) => EAGAIN,
            Self::Single(entry) | Self::NotFound(entry) => entry.errno,
            other => other.errno(),
        };
        let mut error = json!({
            "error": errno,
            "type": if self.is_validation() { json!("VALIDATION") } else { Value::Null },
            "reason": self.reason(),
            "trace": self.trace(),
            "extra": self.extra(),
        });
        // `errname` was recorded on 25.10.6; releases up to 24.10 were not run.
        if generation >= Generation::V22_12 {
            error["errname"] = json!(errname(errno));
        }
        error
    }

    /// Status and body of a REST answer.
    pub fn rest(&self) -> (u16, Value) {
        match self {
            Self::Validation(entries) => (422, rest_entries(entries)),
            Self::Single(entry) | Self::NotFound(entry) => {
                (422, rest_entries(std::slice::from_ref(entry)))
            }
            Self::Call {
                errno: ENOTAUTHENTICATED,
                ..
            } => (401, json!("401: Unauthorized")),
            // CORE.
            Self::Call {
                errno: EACCES,
                reason,
                ..
            } if reason == "Not authenticated" => (401, json!("401: Unauthorized")),
            Self::Call {
                errno: EACCES,
                reason,
                ..
            } if reason == "Not authorized" => (403, json!("403: Forbidden")),
            Self::Call { errno, .. } => (422, json!({"message": self.reason(), "errno": errno})),
            Self::Exception { class, text } if class == "MatchNotFound" => {
                (404, json!({"message": text}))
            }
            Self::Exception { text, .. } => (
                500,
                json!({"message": text, "traceback": self.trace()["formatted"]}),
            ),
            Self::NoMethod(_) => (404, json!("404: Not Found")),
            Self::Http(status) => (
                *status,
                json!(format!("<html><head><title>{status}</title></head></html>")),
            ),
            Self::TooManyCalls | Self::Cut | Self::Raw(_) => {
                (500, json!({"message": self.reason()}))
            }
        }
    }

    /// `exc_info` of a failed job.
    pub fn job(&self) -> Value {
        let (kind, errno) = match self {
            Self::Call { errno, .. } => (Value::Null, json!(errno)),
            other if other.is_validation() => (json!("VALIDATION"), Value::Null),
            other => (json!(other.class()), Value::Null),
        };
        json!({"repr": self.trace()["repr"], "type": kind, "errno": errno, "extra": self.extra()})
    }
}

fn rest_entries(entries: &[Invalid]) -> Value {
    let mut body = serde_json::Map::new();
    for entry in entries {
        let key = entry.attribute.clone().unwrap_or_else(|| "null".to_owned());
        let list = body.entry(key).or_insert_with(|| json!([]));
        if let Value::Array(list) = list {
            list.push(json!({"message": entry.message, "errno": entry.errno}));
        }
    }
    Value::Object(body)
}

/// The name of an error number.
pub(crate) fn errname(errno: i32) -> &'static str {
    match errno {
        1 => "EPERM",
        2 => "ENOENT",
        11 => "EAGAIN",
        13 => "EACCES",
        14 => "EFAULT",
        16 => "EBUSY",
        17 => "EEXIST",
        18 => "EXDEV",
        20 => "ENOTDIR",
        21 => "EISDIR",
        22 => "EINVAL",
        28 => "ENOSPC",
        39 => "ENOTEMPTY",
        74 => "EBADMSG",
        109 => "ETOOMANYREFS",
        122 => "EDQUOT",
        201 => "ENOMETHOD",
        202 => "ESERVICESTARTFAILURE",
        203 => "EALERTCHECKERUNAVAILABLE",
        204 => "EREMOTENODEERROR",
        205 => "EDATASETISLOCKED",
        206 => "EINVALIDRRDTIMESTAMP",
        207 => "ENOTAUTHENTICATED",
        208 => "ESSLCERTVERIFICATIONERROR",
        209 => "EREBOOTREQUIRED",
        210 => "EHAUNAVAILABLE",
        2008 => "EZFS_BUSY",
        2009 => "EZFS_EXISTS",
        2010 => "EZFS_NOENT",
        _ => "EUNKNOWN",
    }
}
