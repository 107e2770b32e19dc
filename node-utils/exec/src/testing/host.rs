//! Changes of a test to the machine it runs on, past the runner.

use std::process::Command;

/// Runs a program and gives what it prints.
///
/// # Panics
/// If it cannot be run, fails, or prints something else than text.
#[expect(clippy::disallowed_methods, reason = "a test of the lab is no driver")]
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
    String::from_utf8(output.stdout).unwrap_or_else(|error| panic!("{program}: {error}"))
}
