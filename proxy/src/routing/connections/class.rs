//! The connections that a class names.
//!
//! Each of them may hold a part of the volume, so that without one the call fails. A class that names
//! none that exists is wrong.

use std::sync::Arc;

use driver_core::parameters::{CONNECTION, CONNECTIONS};
use driver_core::{Effect, Error, Parameters};
use futures_util::future::join_all;

use super::lazy::LazyConnection;
use super::name::ConnectionName;
use super::{Connections, Naming, Table, missing_one};
use crate::routing::connection::Connection;

/// The most names that an error lists.
const MAX_LISTED: usize = 10;

/// Why a class names no connections.
enum Unnamed {
    /// It is wrong.
    Wrong(Error),
    /// A connection is missing, which may hold a part of the volume.
    Missing(Error),
}

// === impl Connections ===

impl Connections {
    /// The connections where a new volume of a class may be; at least one. They are opened at the same time. Those that make no new
    /// volumes are included. compat: "The proxy".
    pub(crate) async fn for_new(
        &self,
        parameters: &Parameters,
    ) -> Result<Vec<Arc<Connection>>, Error> {
        let class = match self.of_class(parameters) {
            Ok(class) => class,
            Err(Unnamed::Wrong(error)) => return Err(error),
            Err(Unnamed::Missing(error)) => return Err(with_possible_effect(error)),
        };
        let opened = join_all(class.iter().map(LazyConnection::open)).await;
        let opened = opened.into_iter();
        opened
            .map(|one| one.map_err(with_possible_effect))
            .collect()
    }

    /// The connections of a capacity query: those of the class, or all if no class is named.
    pub(crate) fn for_room(
        &self,
        parameters: &Parameters,
    ) -> Result<Vec<Arc<LazyConnection>>, Error> {
        let names = |key| parameters.raw().contains_key(key);
        if self.is_routed() && !names(CONNECTION) && !names(CONNECTIONS) {
            let table = self.table();
            let served = table.values().filter(|lazy| lazy.kind().is_some());
            return Ok(served.cloned().collect());
        }
        // A query changes nothing.
        self.of_class(parameters).map_err(Unnamed::into_error)
    }

    /// The connections that a fence is about, and whether its parameters name them: those, or all, with one that stands for
    /// those that are unknown.
    pub(crate) fn for_fences(
        &self,
        parameters: &Parameters,
    ) -> Result<(Vec<Arc<LazyConnection>>, bool), Error> {
        let names = |key| parameters.raw().contains_key(key);
        let are_named = self.is_routed() && (names(CONNECTION) || names(CONNECTIONS));
        if self.is_routed() && !are_named {
            return Ok((self.listed(), false));
        }
        // Nothing is changed yet.
        let asked = self.of_class(parameters).map_err(Unnamed::into_error)?;
        Ok((asked, are_named))
    }

    /// The connections that a class names, each once.
    fn of_class(&self, parameters: &Parameters) -> Result<Vec<Arc<LazyConnection>>, Unnamed> {
        let wrong = |why: &str| {
            let error = Error::invalid("request field `parameters`").because(why);
            Err(Unnamed::Wrong(error))
        };
        let Naming::Named(names) = &self.inner.naming else {
            let lazy = self.table().get(&ConnectionName::unnamed()).cloned();
            return Ok(lazy.into_iter().collect());
        };
        // A class of the driver that had the name before names none.
        if let Some(legacy) = &self.legacy {
            let unknown = self.unknown();
            let lazy = self.find(&legacy.connection);
            let missing = || Unnamed::Missing(missing_one(&legacy.connection, unknown));
            return Ok(vec![lazy.ok_or_else(missing)?]);
        }
        let value = |key: &str| {
            let value = parameters.raw().get(key).map(|value| value.trim());
            value.filter(|value| !value.is_empty())
        };
        let texts = match (value(CONNECTION), value(CONNECTIONS)) {
            (Some(one), None) => vec![one],
            (None, Some(several)) => several.split(',').map(str::trim).collect(),
            (Some(_), Some(_)) => {
                return wrong("`connection` and `connections` cannot both be given");
            }
            (None, None) => return Err(Unnamed::Wrong(without_connection(parameters))),
        };
        // First, because what becomes known is in the table before it is said that all are known.
        let unknown_ones = self.unknown();
        let table = self.table();
        let (mut found, mut missing) =
            (Vec::<Arc<LazyConnection>>::with_capacity(texts.len()), None);
        for text in &texts {
            let name = ConnectionName::parse(text)
                .map_err(|error| Unnamed::Wrong(Error::invalid(unknown(text)).because(error)))?;
            let name = names.meant(&name);
            match table.get(name) {
                Some(lazy) if found.iter().any(|known| known.name() == lazy.name()) => {}
                Some(lazy) => found.push(Arc::clone(lazy)),
                None if unknown_ones.is_some() => {
                    return Err(Unnamed::Missing(missing_one(name, unknown_ones)));
                }
                None => drop(missing.get_or_insert(*text)),
            }
        }
        match missing {
            Some(text) if found.is_empty() => Err(Unnamed::Wrong(not_there(&table, text))),
            Some(text) => Err(Unnamed::Missing(missed(text))),
            None => Ok(found),
        }
    }
}

// === impl Unnamed ===

impl Unnamed {
    /// The error of a call that makes nothing.
    fn into_error(self) -> Error {
        match self {
            Self::Wrong(error) | Self::Missing(error) => error,
        }
    }
}

/// Marks an error about a connection that cannot be asked: an earlier call may have made a part of the
/// volume there, and after a final error the caller would forget it.
fn with_possible_effect(error: Error) -> Error {
    error.with_effect(Effect::Possible)
}

/// The error of a class without a connection, with the key that may have been meant to name it.
fn without_connection(parameters: &Parameters) -> Error {
    let error = Error::invalid("request field `parameters`")
        .because("`connection` is required and missing");
    let near = |key: &&String| {
        let key = key.to_lowercase();
        [CONNECTION, CONNECTIONS]
            .iter()
            .any(|known| strsim::osa_distance(known, &key) <= 3)
    };
    match parameters.raw().keys().find(near) {
        Some(key) => error.advise(format!("is `{}` a misspelling of it?", key.escape_debug())),
        None => error,
    }
}

fn unknown(text: &str) -> String {
    let shown: String = text.chars().take(64).collect();
    format!("connection `{}`", shown.escape_debug())
}

/// The error of a class of which one connection is missing, and others are there.
fn missed(text: &str) -> Error {
    Error::invalid(unknown(text))
        .because("it does not exist, and may hold a part of the volume")
        .advise(
            "put its file there, with `proxy.perDriver.newVolumes: false` if nothing is to be made there, \
             or take it out of the class",
        )
}

/// The error of a class that names a connection which does not exist.
fn not_there(table: &Table, text: &str) -> Error {
    let known: Vec<_> = table
        .keys()
        .take(MAX_LISTED)
        .map(|name| format!("`{name}`"))
        .collect();
    let advice = match table.len() {
        0 => "there is no connection yet: put its file into `proxy.configFolder`".to_owned(),
        more if more > MAX_LISTED => format!("some of those that exist: {}", known.join(", ")),
        _ => format!("those that exist: {}", known.join(", ")),
    };
    Error::invalid(unknown(text))
        .because("it does not exist")
        .advise(advice)
}
