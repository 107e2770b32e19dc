//! The configuration file: read within its limit, and parsed.
//!
//! The same road for serving and for `check`, so that a check cannot be kinder than the server.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use driver_core::config::{ConfigError, Document, MAX_BYTES, ProcessEnvironment};
use rustix::fs::OFlags;

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

/// The text of a file, or a little more of it than a configuration may have.
fn read_text(path: &Path) -> io::Result<String> {
    text_of(File::open(path)?)
}

/// The same of a regular file only: a pipe of that name is not waited for.
pub(crate) fn read_regular(path: &Path) -> io::Result<String> {
    let without_waiting = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options()
        .read(true)
        .custom_flags(without_waiting)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(
            ErrorKind::InvalidInput,
            "not a regular file",
        ));
    }
    text_of(file)
}

fn text_of(file: File) -> io::Result<String> {
    let mut text = String::new();
    // One byte more than allowed, so that the parser sees that it is too long.
    let limit = u64::try_from(MAX_BYTES)
        .unwrap_or(u64::MAX)
        .saturating_add(1);
    file.take(limit).read_to_string(&mut text)?;
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
