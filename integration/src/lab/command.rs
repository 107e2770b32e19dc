//! Commands of the storage side and of the host, run by the tests and never by the program.
#![expect(
    clippy::disallowed_methods,
    reason = "the tests act as storage and as administrator with the system's own tools"
)]

use std::process::{Command, Stdio};

/// Runs a command to its end and gives what it printed.
///
/// # Panics
/// If it fails.
pub fn run(words: &[&str]) -> String {
    attempt(words).unwrap_or_else(|why| panic!("{}: {why}", words.join(" ")))
}

/// Runs a command to its end; what it printed if it succeeded, else why not.
pub fn attempt(words: &[&str]) -> Result<String, String> {
    let output = Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(format!(
        "{}: {}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    ))
}
