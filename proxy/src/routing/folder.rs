//! The connections of a folder, kept as its files are.
//!
//! A file that changed is read, and its connection built, before anything is swapped: one that
//! cannot be used leaves the last good one at work, and why is told in the log, in the metrics and
//! by `check`. Nothing is shared between connections but this process.

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

pub(crate) use health::watch_one;
#[cfg(test)]
pub(crate) use loader::Loader;
pub(crate) use loader::report;
pub(crate) use settings::ProxySettings;
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
    /// What is no connection, and should be.
    pub(crate) odd: Vec<String>,
    /// What the main file names, by its key, and no file is called; nothing if a folder cannot be read.
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
        let look = self.folders.look_here(Instant::now());
        let all = look.changed.into_iter().map(|changed| {
            let (name, path) = (changed.name, changed.path);
            let opened = self.loader.read(&name, path.clone(), changed.text);
            Surveyed { name, path, opened }
        });
        let all: Vec<_> = all.collect();
        let missing = self
            .loader
            .missing(|name| all.iter().any(|one| one.name == *name));
        Survey {
            missing: if look.unread == 0 {
                missing
            } else {
                Vec::new()
            },
            all,
            odd: look.odd,
        }
    }
}
