//! The calls that a storage driver needs, typed: what goes out has only the fields that the
//! generation knows, what comes back may have more than we know.
//!
//! A field that the generation lacks makes the request fail before it is sent, unless the
//! documentation of the field says that it is left out.

use std::borrow::Cow;
use std::fmt;

use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::{Dialect, Error, Generation};

pub mod dataset;
pub mod filesystem;
pub mod iscsi;
pub mod nfs;
pub mod nvmet;
pub mod pool;
pub mod replication;
pub mod resource;
pub mod service;
pub mod smb;
pub mod snapshot;
pub mod system;

/// The largest answer that is not a list of datasets or snapshots.
pub(crate) const USUAL_ANSWER: usize = 1 << 20;

/// A call that answers at once.
pub trait Request: Sync {
    /// The type of its answer.
    type Answer: DeserializeOwned;

    /// Writes the call in the dialect of a generation.
    fn encode(&self, dialect: &Dialect) -> Result<Call, Error>;

    /// The most bytes that the answer may have.
    fn largest(&self) -> usize {
        USUAL_ANSWER
    }
}

/// A call that starts a job.
pub trait JobRequest: Sync {
    /// Writes the call in the dialect of a generation.
    fn encode(&self, dialect: &Dialect) -> Result<Call, Error>;

    /// The path whose permissions the job changes, if it does. Up to 25.10 all such jobs of the NAS share one
    /// short queue, and where that is full it answers the number of another path's job.
    fn permits(&self) -> Option<&str> {
        None
    }
}

/// A method and its arguments.
///
/// Its `Debug` shows the method alone: arguments may hold secrets.
#[derive(Clone)]
pub struct Call {
    pub(crate) method: Cow<'static, str>,
    pub(crate) params: Vec<Value>,
    pub(crate) secrets: Vec<SecretString>,
}

/// The object that a call takes, built field by field.
pub(crate) struct Fields<'a> {
    dialect: &'a Dialect,
    object: Map<String, Value>,
    secrets: Vec<SecretString>,
    failure: Option<Error>,
}

/// Whether a method that answers nothing worth reading succeeded: `true`, `null` or the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done;

/// Serves again what was disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enable {
    /// An NFS share.
    NfsShare(i64),
    /// An SMB share.
    SmbShare(i64),
    /// An extent.
    Extent(i64),
    /// A namespace.
    Namespace(i64),
}

/// One condition of a query.
#[derive(Debug, Clone, PartialEq)]
pub struct Filter(Value);

// === impl Call ===

impl Call {
    pub(crate) fn new(method: impl Into<Cow<'static, str>>, params: Vec<Value>) -> Self {
        Self {
            method: method.into(),
            params,
            secrets: Vec::new(),
        }
    }

    /// The method.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// The arguments, in their order.
    pub fn params(&self) -> &[Value] {
        &self.params
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Call").field(&self.method).finish()
    }
}

// === impl Fields ===

impl<'a> Fields<'a> {
    pub(crate) fn new(dialect: &'a Dialect) -> Self {
        Self {
            dialect,
            object: Map::new(),
            secrets: Vec::new(),
            failure: None,
        }
    }

    /// A field that every generation has.
    pub(crate) fn put(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.object.insert(name.to_owned(), value.into());
        self
    }

    /// A field that every generation has, if it is given.
    pub(crate) fn opt<T: Clone + Into<Value>>(self, name: &str, value: Option<&T>) -> Self {
        match value {
            Some(value) => self.put(name, value.clone()),
            None => self,
        }
    }

    /// A field that came with a generation, if it is given.
    pub(crate) fn since<T: Clone + Into<Value>>(
        mut self,
        first: Generation,
        name: &str,
        value: Option<&T>,
    ) -> Self {
        if self.dialect.generation() < first && value.is_some() {
            let lacks = || self.dialect.lacks(&format!("field {name}"));
            self.failure.get_or_insert_with(lacks);
            return self;
        }
        self.opt(name, value)
    }

    /// A field that must never be printed.
    pub(crate) fn secret(mut self, name: &str, value: Option<&SecretString>) -> Self {
        let Some(value) = value else {
            return self;
        };
        self.secrets.push(value.clone());
        self.put(name, value.expose_secret())
    }

    /// The object itself, for a field of another one.
    pub(crate) fn object(self) -> Result<Map<String, Value>, Error> {
        match self.failure {
            Some(failure) => Err(failure),
            None => Ok(self.object),
        }
    }

    /// A call with this object as its only argument.
    pub(crate) fn call(self, method: impl Into<Cow<'static, str>>) -> Result<Call, Error> {
        self.call_after(method, Vec::new())
    }

    /// A call with this object as its last argument.
    pub(crate) fn call_after(
        mut self,
        method: impl Into<Cow<'static, str>>,
        mut params: Vec<Value>,
    ) -> Result<Call, Error> {
        let method = method.into();
        let secrets = std::mem::take(&mut self.secrets);
        let object = self.object().map_err(|failure| failure.of(&method))?;
        params.push(Value::Object(object));
        Ok(Call {
            method,
            params,
            secrets,
        })
    }
}

// === impl Enable ===

impl Request for Enable {
    type Answer = Done;

    fn encode(&self, dialect: &Dialect) -> Result<Call, Error> {
        let (service, id) = match self {
            Self::NfsShare(id) => ("sharing.nfs", id),
            Self::SmbShare(id) => ("sharing.smb", id),
            Self::Extent(id) => ("iscsi.extent", id),
            Self::Namespace(id) => {
                dialect.needs(Generation::V25_10, "NVMe-oF")?;
                ("nvmet.namespace", id)
            }
        };
        Fields::new(dialect)
            .put("enabled", true)
            .call_after(format!("{service}.update"), vec![json!(id)])
    }
}

impl fmt::Display for Enable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NfsShare(id) => write!(f, "NFS share {id}"),
            Self::SmbShare(id) => write!(f, "SMB share {id}"),
            Self::Extent(id) => write!(f, "iSCSI extent {id}"),
            Self::Namespace(id) => write!(f, "NVMe-oF namespace {id}"),
        }
    }
}

// === impl Done ===

impl<'de> serde::Deserialize<'de> for Done {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer)?;
        Ok(Self)
    }
}

// === impl Filter ===

impl Filter {
    /// The field has this value. Fields of nested objects are named with dots.
    pub fn eq(field: &str, value: impl Into<Value>) -> Self {
        Self(json!([field, "=", value.into()]))
    }

    /// The field has one of these values.
    pub fn any_of<T: Into<Value>>(field: &str, values: impl IntoIterator<Item = T>) -> Self {
        let values: Vec<Value> = values.into_iter().map(Into::into).collect();
        Self(json!([field, "in", values]))
    }

    /// The field, a list, contains this value.
    pub fn contains(field: &str, value: impl Into<Value>) -> Self {
        Self(json!([field, "rin", value.into()]))
    }

    /// The field, a text, ends with this.
    pub fn ends_with(field: &str, suffix: &str) -> Self {
        Self(json!([field, "$", suffix]))
    }

    /// The field, a text, is this one, in capitals or not. From 22.12 on.
    pub fn same_text(field: &str, value: &str) -> Self {
        Self(json!([field, "C=", value]))
    }

    /// One of these holds.
    pub fn either(filters: impl IntoIterator<Item = Self>) -> Self {
        let filters: Vec<Value> = filters.into_iter().map(|filter| filter.0).collect();
        Self(json!(["OR", filters]))
    }

    /// Whether this names single objects by their id.
    pub(crate) fn names_id(&self) -> bool {
        self.0[0] == "id" && (self.0[1] == "=" || self.0[1] == "in")
    }

    /// The field, a text, begins with this.
    pub fn starts_with(field: &str, prefix: &str) -> Self {
        Self(json!([field, "^", prefix]))
    }
}

/// The call of a `*.query` method.
pub(crate) fn query(
    method: impl Into<Cow<'static, str>>,
    filters: &[Filter],
    options: Value,
) -> Call {
    let filters: Vec<Value> = filters.iter().map(|filter| filter.0.clone()).collect();
    Call::new(method, vec![Value::Array(filters), options])
}

/// Declares the requests of a service whose rows have a numeric id: a query by filters, and a
/// deletion.
macro_rules! rows {
    ($(#[$doc:meta])* $query:ident, $method:literal, $entry:ty, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub struct $query(pub Vec<$crate::api::Filter>);

        impl $crate::api::Request for $query {
            type Answer = Vec<$entry>;

            fn encode(&self, dialect: &$crate::Dialect) -> Result<$crate::api::Call, $crate::Error> {
                let check: fn(&$crate::Dialect) -> Result<(), $crate::Error> = $check;
                check(dialect)?;
                Ok($crate::api::query($method, &self.0, serde_json::json!({})))
            }
        }
    };
}
pub(crate) use rows;

/// A row that does not say that it is disabled is served.
pub(crate) fn is_enabled() -> bool {
    true
}

/// Some rows have null where the others have a value.
pub(crate) fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: serde::Deserialize<'de> + Default,
{
    let value: Option<T> = serde::Deserialize::deserialize(deserializer)?;
    Ok(value.unwrap_or_default())
}
