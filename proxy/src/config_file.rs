//! The configuration file: read within its limit, parsed, and turned into a connection.
//!
//! The same road for serving and for `check`, so that a check cannot be kinder than the server.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use driver_core::NodeId;
use driver_core::config::{ConfigError, Document, MAX_BYTES, ProcessEnvironment};
use node_utils::Tools;

use crate::connection::Connection;
use crate::csi_version::CsiVersion;

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    /// It cannot be read.
    #[error("read {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// It is no configuration.
    #[error("{}", .0.display())]
    Config(PathBuf, #[source] ConfigError),
}

/// Reads and parses a file.
pub fn read(path: &Path) -> Result<Document, ConfigFileError> {
    let text = read_text(path).map_err(|error| ConfigFileError::Read(path.to_owned(), error))?;
    Document::parse(&text, &ProcessEnvironment)
        .map_err(|error| ConfigFileError::Config(path.to_owned(), error))
}

/// The connection that a file describes. Its backend is not touched.
pub fn open(
    path: &Path,
    node: &NodeId,
    version: CsiVersion,
    tools: &Tools,
) -> Result<(Document, Connection), ConfigFileError> {
    let document = read(path)?;
    let connection = Connection::open(&document, node, version, tools)
        .map_err(|error| ConfigFileError::Config(path.to_owned(), error))?;
    Ok((document, connection))
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    // One byte more than allowed, so that the parser sees that it is too long.
    let limit = u64::try_from(MAX_BYTES)
        .unwrap_or(u64::MAX)
        .saturating_add(1);
    File::open(path)?.take(limit).read_to_string(&mut text)?;
    Ok(text)
}

// === impl ConfigFileError ===

impl ConfigFileError {
    /// The problem of the configuration, if the file could be read.
    pub fn config(&self) -> Option<&ConfigError> {
        match self {
            Self::Config(_, error) => Some(error),
            Self::Read(..) => None,
        }
    }
}
