//! The requirements of tests for the machine, and the message if one is missing.
//!
//! The message is shared by all crates: [`node_utils::requirement`].

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

pub use node_utils::requirement::could_not_run;

/// Whether this process may mount. Prints a message if not.
pub fn root(what: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        could_not_run(what, "it mounts or changes owners, which needs root");
    }
    is_root
}

/// The path of a program of the machine, or a message that it is missing.
pub fn tool(what: &str, name: &str) -> Option<PathBuf> {
    let found = find(name);
    if found.is_none() {
        could_not_run(what, &format!("{name} is not installed"));
    }
    found
}

/// The path of a program that `make test` sets in the environment, or a message that it is missing.
pub fn tool_from(what: &str, variable: &str) -> Option<PathBuf> {
    let named = env::var_os(variable).map(PathBuf::from);
    if named.is_none() {
        could_not_run(
            what,
            &format!("{variable} does not name it (make test does)"),
        );
    }
    named
}

fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/local/go/bin"].map(PathBuf::from);
    env::split_paths(&path)
        .chain(system)
        .map(|folder| folder.join(name))
        .find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    file.file_name() != Some(OsStr::new(""))
        && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
}
