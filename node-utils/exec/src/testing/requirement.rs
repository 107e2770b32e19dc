//! The way a test of any crate reports that it cannot run on this machine.
//!
//! It prints the reason and returns; with `OMNIBUS_REQUIRE_ALL=1` it fails. `make test` collects the reports in the
//! file named by `OMNIBUS_COULD_NOT_RUN`. Not part of the program.

use std::env;
use std::fs::OpenOptions;
use std::io::{self, Write as _};

/// Says that `what` did not run, and why.
///
/// # Panics
/// Where everything is required.
pub fn could_not_run(what: &str, why: &str) {
    let line = |text: &str| {
        let words: Vec<_> = text.split_whitespace().collect();
        words.join(" ")
    };
    let (what, why) = (line(what), line(why));
    // Not a macro: what those print is swallowed where a test passes.
    let _ = writeln!(io::stderr(), "\n!! COULD NOT RUN: {what}: {why}\n");
    if let Some(account) = env::var_os("OMNIBUS_COULD_NOT_RUN") {
        let written = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&account)
            .and_then(|mut file| file.write_all(format!("{what}\t{why}\n").as_bytes()));
        assert!(written.is_ok(), "cannot write to {}", account.display());
    }
    let required = env::var_os("OMNIBUS_REQUIRE_ALL").is_some_and(|value| value == "1");
    assert!(
        !required,
        "{what} could not run and everything is required: {why}"
    );
}

/// Says that the test of this thread did not run, and why.
///
/// # Panics
/// Where everything is required.
pub fn this_test_could_not_run(why: &str) {
    let thread = std::thread::current();
    could_not_run(thread.name().unwrap_or("a test"), why);
}
