//! What a test needs from the machine, and how it says that it could not do its work.
//!
//! A test that lacks something says so aloud and returns; with `OMNIBUS_REQUIRE_ALL=1` it fails.
//! `make test` collects what was said through the file that `OMNIBUS_COULD_NOT_RUN` names.

use std::env;
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Says that `what` did not run, and why.
///
/// # Panics
/// Where everything is required.
pub fn could_not_run(what: &str, why: &str) {
    // Not a macro: those are swallowed by the test harness.
    let _ = writeln!(io::stderr(), "\n!! COULD NOT RUN: {what}: {why}\n");
    if let Some(account) = env::var_os("OMNIBUS_COULD_NOT_RUN") {
        let entry = format!("{what}\t{why}\n");
        let written = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&account)
            .and_then(|mut file| file.write_all(entry.as_bytes()));
        assert!(written.is_ok(), "cannot write to {}", account.display());
    }
    let required = env::var_os("OMNIBUS_REQUIRE_ALL").is_some_and(|value| value == "1");
    assert!(
        !required,
        "{what} could not run and everything is required: {why}"
    );
}

/// Whether this process may mount. Says so if not.
pub fn root(what: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        could_not_run(what, "it mounts or changes owners, which needs root");
    }
    is_root
}

/// The path of a program that the machine has, or a word that it does not.
pub fn tool(what: &str, name: &str) -> Option<PathBuf> {
    let found = find(name);
    if found.is_none() {
        could_not_run(what, &format!("{name} is not installed"));
    }
    found
}

/// The path of a program that `make test` names in the environment, or a word that it does not.
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
