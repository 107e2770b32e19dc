//! From a file to a connection that is served.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use driver_core::config::{ConfigError, Document, ProcessEnvironment, Severity};
use tracing::{error, info, warn};

use super::scan::Changed;
use super::states::States;
use crate::process;
use crate::routing::config_file::ConfigFileError;
use crate::routing::connection::{Connection, ConnectionContext, like};
use crate::routing::connections::{
    Bare, Blueprint, ConnectionName, Connections, LazyConnection, NO_OWNER, Names,
};
use crate::telemetry::metrics::Metrics;

/// Makes connections of files. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Loader {
    base: Arc<Document>,
    context: Arc<ConnectionContext>,
    connections: Connections,
    names: Arc<Names>,
}

/// The result of loading a file.
pub(super) type Built = Result<LazyConnection, ConfigFileError>;

const DEFECT: &str = "met a defect of this program";

// === impl Loader ===

impl Loader {
    pub(crate) fn new(
        base: Arc<Document>,
        context: Arc<ConnectionContext>,
        connections: Connections,
        names: Names,
    ) -> Self {
        Self {
            base,
            context,
            connections,
            names: Arc::new(names),
        }
    }

    pub(crate) fn connections(&self) -> &Connections {
        &self.connections
    }

    /// Names in the main file without a connection, by their keys.
    pub(super) fn missing(
        &self,
        is_there: impl Fn(&ConnectionName) -> bool,
    ) -> Vec<(String, ConnectionName)> {
        self.names.missing(is_there)
    }

    /// Builds the connection of a file. It may block forever, and serves nothing yet.
    pub(super) fn build(&self, changed: Changed) -> Built {
        let Changed {
            name, path, text, ..
        } = changed;
        let (document, connection) = self.read(&name, path, text)?;
        report(&document, Some(&name));
        let context = Arc::clone(&self.context);
        let threads = connection.threads();
        let again = Blueprint::new(move || {
            let again = Connection::open(name.clone(), &document, &context)?;
            Ok(again.with_threads(threads.clone()))
        });
        Ok(LazyConnection::new(connection, again))
    }

    /// Serves the result of a file. If the file cannot be used, the last good one stays in service.
    pub(crate) fn install(
        &self,
        name: &ConnectionName,
        built: Option<Built>,
        states: &States,
        metrics: &Metrics,
    ) {
        let before = self.connections.kind_of(name);
        match built {
            Some(Ok(lazy)) => {
                let driver = lazy.kind().cloned().unwrap_or_default();
                metrics.connection_loaded(name.text(), &driver, before.as_ref());
                let so = if before.is_some() { "changed" } else { "added" };
                info!(connection = %name, %driver, "{so}");
                self.connections.put(lazy);
                states.ask_anew(name);
            }
            Some(Err(problem)) => {
                let key = problem.config().and_then(ConfigError::path);
                self.refuse(name, key, &process::chain(&problem), metrics);
            }
            None => self.refuse(name, None, DEFECT, metrics),
        }
    }

    /// Reports a file whose load takes so long that it may never end.
    pub(super) fn late(&self, name: &ConnectionName, metrics: &Metrics) {
        let why = "what it names cannot be read: no answer for 10 s";
        self.refuse(name, None, why, metrics);
    }

    fn refuse(&self, name: &ConnectionName, key: Option<&str>, text: &str, metrics: &Metrics) {
        let had = self.connections.has(name);
        metrics.connection_refused(name.text());
        let so = if had {
            "the last good one goes on"
        } else {
            "it is not served"
        };
        error!(connection = %name, key, error = text, "its file cannot be used: {so}");
        // Calls for it get the reason, and lists report that they are incomplete. An alias of another
        // connection is never asked for.
        if !had && !self.names.aliases.contains_key(name) {
            self.connections
                .put(LazyConnection::refused(name.clone(), text));
        }
    }

    /// Stops serving a connection. Running calls continue.
    pub(crate) fn remove(&self, name: &ConnectionName, states: &States, metrics: &Metrics) {
        let kind = self.connections.kind_of(name).unwrap_or_default();
        self.connections.remove(name);
        states.forget(name);
        metrics.connection_gone(name.text(), &kind);
        warn!(connection = %name, "removed: its volumes can still be mounted and unmounted, and nothing else");
    }

    /// The connection that a file describes. No backend is touched.
    pub(super) fn read(
        &self,
        name: &ConnectionName,
        path: PathBuf,
        text: io::Result<String>,
    ) -> Result<(Arc<Document>, Connection), ConfigFileError> {
        let text = match text {
            Ok(text) => text,
            Err(error) => return Err(ConfigFileError::Read(path, error)),
        };
        // A panic of one kind of driver must not stop the load of other files.
        let built = catch_unwind(AssertUnwindSafe(|| {
            self.check_name(name)?;
            let document = Document::parse(&text, &ProcessEnvironment)?
                .over(&self.base)
                .with_ids_behind(name.bytes_in_handle());
            let document = Arc::new(document);
            let opened = document.read_whole(
                || like(&document),
                |document| Connection::open(name.clone(), document, &self.context),
            );
            let connection = opened.map_err(|unusable| unusable.error)?;
            Ok((document, connection))
        }));
        let built = built.unwrap_or_else(|_| Err(ConfigError::new(DEFECT)));
        built.map_err(|error| ConfigFileError::Config(path, error))
    }

    /// Refuses a file whose name is an alias, or means "no connection".
    fn check_name(&self, name: &ConnectionName) -> Result<(), ConfigError> {
        // Otherwise such handles would seem to belong to it.
        if self.names.bare == Bare::Nobodys && &**name.text() == NO_OWNER {
            return Err(ConfigError::new(
                "`proxy.legacyConnection: none` says that there is no such connection",
            )
            .advise("give the file another name, and the old one in `proxy.aliases`"));
        }
        match self.names.aliases.get(name) {
            None => Ok(()),
            Some(new) => Err(ConfigError::new(format!(
                "`proxy.aliases` says that this name means the connection `{new}`"
            ))),
        }
    }
}

/// Logs what is odd about a configuration that can be used.
pub(crate) fn report(document: &Document, connection: Option<&ConnectionName>) {
    let connection = connection.map(tracing::field::display);
    for finding in document.findings() {
        let key = finding.path.as_str();
        match finding.severity {
            Severity::NoEffect | Severity::Remark => {
                info!(connection, key, "configuration: {finding}");
            }
            Severity::UnknownKey | Severity::Doubtful => {
                warn!(connection, key, "configuration: {finding}");
            }
        }
    }
}
