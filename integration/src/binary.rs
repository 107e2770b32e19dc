//! The place where the program under test is.
//!
//! `make test` names it in `OMNIBUS_CSI`. A bare `cargo test` builds it beside the test that runs,
//! with the profile of that test: cargo does not build the program of another package by itself.
#![expect(
    clippy::disallowed_methods,
    reason = "cargo is called by the tests, not by the program"
)]

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The program, built if need be.
///
/// # Panics
/// If there is none and it cannot be built.
pub fn omnibus_csi() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match env::var_os("OMNIBUS_CSI") {
        Some(named) => {
            let path = PathBuf::from(named);
            assert!(
                path.is_file(),
                "OMNIBUS_CSI names {}, which is not there: run `cargo build -p omnibus-csi`",
                path.display()
            );
            path
        }
        None => build(),
    })
}

/// The directory of the profile in which this test was built, such as `target/debug`.
pub fn profile_dir() -> PathBuf {
    let mut dir = env::current_exe().expect("a test knows its own path");
    dir.pop();
    if dir.ends_with("deps") {
        dir.pop();
    }
    dir
}

fn build() -> PathBuf {
    let profile = profile_dir();
    let target = profile.parent().expect("a profile lies in a target dir");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["build", "--quiet", "--package", "omnibus-csi"])
        .arg("--target-dir")
        .arg(target)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")));
    if profile.ends_with("release") {
        command.arg("--release");
    }
    let status = command.status().expect("cargo can be run");
    let binary = profile.join("omnibus-csi");
    assert!(
        status.success() && binary.is_file(),
        "the program under test is missing: run `cargo build -p omnibus-csi` and see why it fails"
    );
    binary
}
