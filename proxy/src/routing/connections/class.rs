//! The connections that a class names.
//!
//! One that this process never served is left out of several; one that it served, or that it is about to
//! serve, may have begun the very volume, and is missed.

use std::sync::Arc;

use driver_core::parameters::{CONNECTION, CONNECTIONS};
use driver_core::{Effect, Error, Parameters};
use tracing::warn;

use super::lazy::LazyConnection;
use super::name::ConnectionName;
use super::{Connections, Naming, Table, missing_one};
use crate::routing::connection::Connection;

/// The most names that an error lists.
const MAX_LISTED: usize = 10;

// === impl Connections ===

impl Connections {
    /// Where a new volume of a class may be, of which there is at least one: those that make no new
    /// volumes are among them. compat: "The proxy".
    pub(crate) fn for_new(&self, parameters: &Parameters) -> Result<Vec<Arc<Connection>>, Error> {
        let connections = self.of_class(parameters)?;
        let open = |lazy: &Arc<LazyConnection>| lazy.open().map_err(may_have_begun);
        connections.iter().map(open).collect()
    }

    /// Where a question for room is asked: where a volume of the class would be made, and everywhere
    /// if no class is named.
    pub(crate) fn for_room(
        &self,
        parameters: &Parameters,
    ) -> Result<Vec<Arc<LazyConnection>>, Error> {
        let names = |key| parameters.raw().contains_key(key);
        if matches!(self.inner.naming, Naming::Named(_))
            && !names(CONNECTION)
            && !names(CONNECTIONS)
        {
            let table = self.table();
            let served = table.values().filter(|lazy| lazy.kind().is_some());
            return Ok(served.cloned().collect());
        }
        // A question has begun nothing.
        let asked = self.of_class(parameters);
        asked.map_err(|error| error.with_effect(Effect::None))
    }

    /// The connections that a class names, each once.
    fn of_class(&self, parameters: &Parameters) -> Result<Vec<Arc<LazyConnection>>, Error> {
        let wrong = |why: &str| Err(Error::invalid("request field `parameters`").because(why));
        let Naming::Named(names) = &self.inner.naming else {
            let lazy = self.table().get(&ConnectionName::unnamed()).cloned();
            return Ok(lazy.into_iter().collect());
        };
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
            (None, None) => return wrong("`connection` is required and missing"),
        };
        // First, because what becomes known is in the table before it is said that all are known.
        let unknown_ones = self.unknown();
        let table = self.table();
        let (mut found, mut missing) =
            (Vec::<Arc<LazyConnection>>::with_capacity(texts.len()), None);
        for text in &texts {
            let name = ConnectionName::parse(text)
                .map_err(|error| Error::invalid(unknown(text)).because(error))?;
            let name = names.meant(&name);
            match table.get(name) {
                Some(lazy) if found.iter().any(|known| known.name() == lazy.name()) => {}
                Some(lazy) => found.push(Arc::clone(lazy)),
                None if unknown_ones.is_some() => {
                    return Err(may_have_begun(missing_one(name, unknown_ones)));
                }
                // What was served may have begun the very volume.
                None if self.inner.gone.has(name) => return Err(missed(text)),
                None => drop(missing.get_or_insert_with(|| not_there(&table, text))),
            }
        }
        match missing {
            Some(missing) if found.is_empty() => Err(missing),
            Some(missing) => {
                warn!(
                    "left out of a class over several connections: {}",
                    missing.chain()
                );
                Ok(found)
            }
            None => Ok(found),
        }
    }
}

/// An error about a connection that cannot be asked: an earlier call may have begun the volume there,
/// and whoever takes this one for final would forget it.
pub(crate) fn may_have_begun(error: Error) -> Error {
    error.with_effect(Effect::Possible)
}

fn unknown(text: &str) -> String {
    let shown: String = text.chars().take(64).collect();
    format!("connection `{}`", shown.escape_debug())
}

/// What is said to a class one of whose connections was removed.
fn missed(text: &str) -> Error {
    Error::invalid(unknown(text))
        .because("it does not exist any more, and may have begun the volume")
        .with_effect(Effect::Possible)
        .advise(
            "put its file back, with `proxy.perDriver.newVolumes: false` if nothing is to be made \
             there; if nothing of it is missed, restart this process",
        )
}

/// What is said to a class that names a connection which does not exist.
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
