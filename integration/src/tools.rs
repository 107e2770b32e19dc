//! Programs other than the one under test: csi-sanity, the Go compiler, our Go client.
#![expect(
    clippy::disallowed_methods,
    reason = "starts the tools of the tests, not of the program"
)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use tokio::process::Command;

use crate::binary::{omnibus_csi, profile_dir};

/// Runs a tool to its end.
///
/// # Panics
/// If it cannot be started.
pub async fn run(
    program: &Path,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    folder: &Path,
) -> Output {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = command.output().await;
    output.unwrap_or_else(|error| panic!("{}: {error}", program.display()))
}

/// Runs the program under test itself, without a server's flags.
pub async fn omnibus(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(omnibus_csi());
    command
        .args(arguments)
        .env_clear()
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command.output().await.expect("the program can be started")
}

/// Builds our Go client against the module versions of `modules`, and returns its path.
///
/// # Errors
///
/// The output of the compiler.
pub async fn go_client(go: &Path, modules: &str) -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("go-client");
    let binary = profile_dir().join(format!("go-client-{}", modules.trim_end_matches(".mod")));
    let mut command = Command::new(go);
    command
        .args(["build", "-trimpath"])
        .arg(format!("-modfile={modules}"))
        .arg("-o")
        .arg(&binary)
        .arg(".")
        .current_dir(source)
        .env("CGO_ENABLED", "0")
        .env("GOTOOLCHAIN", "local")
        .env("GOFLAGS", "-mod=readonly")
        .stdin(Stdio::null());
    let output = command.output().await.map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(binary);
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}
