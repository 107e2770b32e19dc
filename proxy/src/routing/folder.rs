//! The connections of a folder, kept in step with its files.
//!
//! A changed file is read and its connection built before the old one is replaced. A file that
//! cannot be used leaves the last good one in service, and the log, the metrics and `check` say why.
//! Connections share nothing but this process.

mod health;
mod loader;
mod loads;
mod poller;
mod scan;
mod settings;
mod states;
mod usage;
mod watch;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use driver_core::config::Document;

use crate::routing::config_file::ConfigFileError;
use crate::routing::connection::{Connection, ConnectionContext};
use crate::routing::connections::{ConnectionName, Connections};
use crate::routing::own_thread;
#[cfg(not(test))]
use loader::Loader;
use scan::Folders;
use settings::Keep;

pub use health::Duties;
pub(crate) use health::watch_one;
#[cfg(test)]
pub(crate) use loader::Loader;
pub(crate) use loader::report;
pub(crate) use settings::ProxySettings;
#[cfg(any(test, feature = "console"))]
pub(crate) use states::Health;
pub use states::States;
pub(crate) use states::Summary;
pub use watch::Watch;

/// The folders of a process, and what becomes of their files.
#[derive(Debug)]
pub struct Folder {
    folders: Folders,
    loader: Loader,
    keep: Keep,
}

/// Everything that lies in the folders, read once.
#[derive(Debug)]
pub(crate) struct Survey {
    pub(crate) all: Vec<Surveyed>,
    /// Files that should be connections and are not.
    pub(crate) odd: Vec<String>,
    /// Names in the main file without a file, by their keys; empty if a folder cannot be read.
    pub(crate) missing: Vec<(String, ConnectionName)>,
}

/// One file.
#[derive(Debug)]
pub(crate) struct Surveyed {
    pub(crate) name: ConnectionName,
    pub(crate) path: PathBuf,
    pub(crate) opened: Result<(Arc<Document>, Connection), ConfigFileError>,
}

// === impl Folder ===

impl Folder {
    /// The folders that `settings` names, whose files become `connections`.
    pub(crate) fn new(
        settings: &ProxySettings,
        base: Arc<Document>,
        context: Arc<ConnectionContext>,
        connections: Connections,
    ) -> Self {
        Self {
            folders: Folders::new(settings.folders.clone()),
            keep: settings.keep,
            loader: Loader::new(base, context, connections, settings.names.clone()),
        }
    }

    /// Reads everything once, and serves nothing.
    pub(crate) fn survey(&mut self) -> Survey {
        let scan = self.folders.scan_blocking(Instant::now());
        let all = scan.changed.into_iter().map(|changed| {
            let (name, path) = (changed.name, changed.path);
            let opened = self.loader.read(&name, path.clone(), changed.text);
            Surveyed { name, path, opened }
        });
        let all: Vec<_> = all.collect();
        let missing = self
            .loader
            .missing(|name| all.iter().any(|one| one.name == *name));
        Survey {
            missing: if scan.unread == 0 {
                missing
            } else {
                Vec::new()
            },
            all,
            odd: scan.odd,
        }
    }
}
