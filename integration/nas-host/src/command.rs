//! Commands of the machine, without a shell.
#![expect(
    clippy::disallowed_methods,
    reason = "it acts as the appliance, with the system's own tools"
)]

use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use crate::{Answer, Failed};

/// Longer than any command of a small pool takes on a slow machine.
const LIMIT: Duration = Duration::from_mins(2);

/// The output of a command.
#[derive(Debug)]
pub struct Printed {
    /// Whether it succeeded.
    pub success: bool,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub errors: String,
}

// === impl Printed ===

impl Printed {
    fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            success: output.status.success(),
            out: text(&output.stdout),
            errors: text(&output.stderr),
        }
    }
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Runs a command to its end, whatever that is.
pub async fn attempt(words: &[&str]) -> Answer<Printed> {
    let failed = |why: String| Failed(format!("{}: {why}", words.join(" ")));
    let Ok(ended) = timeout(LIMIT, command(words).output()).await else {
        return Err(failed(format!("no end within {LIMIT:?}")));
    };
    let output = ended.map_err(|error| failed(error.to_string()))?;
    Ok(Printed::of(&output))
}

/// Runs a command that has to succeed.
pub async fn run(words: &[&str]) -> Answer<String> {
    let printed = attempt(words).await?;
    if printed.success {
        return Ok(printed.out);
    }
    let said = printed.errors.trim();
    Err(Failed(format!("{}: {said}", words.join(" "))))
}

/// Runs two commands, of which the second reads what the first writes; what the two say of errors.
pub async fn pipe(from: &[&str], into: &[&str]) -> Answer<Printed> {
    let failed = |error: std::io::Error| Failed(format!("{}: {error}", from.join(" ")));
    let mut first = command(from).spawn().map_err(failed)?;
    let written = first.stdout.take();
    let stdin: Stdio = match written {
        Some(written) => written.try_into().map_err(failed)?,
        None => Stdio::null(),
    };
    let second = command(into).stdin(stdin).output();
    let both = async { tokio::try_join!(first.wait_with_output(), second) };
    let Ok(ended) = timeout(LIMIT, both).await else {
        return Err(Failed(format!("{}: no end", from.join(" "))));
    };
    let (first, second) = ended.map_err(failed)?;
    let (first, second) = (Printed::of(&first), Printed::of(&second));
    Ok(Printed {
        success: first.success && second.success,
        errors: second.errors + &first.errors,
        out: second.out,
    })
}

/// Waits for the device of a zvol, which comes later than the zvol, and returns its path.
pub async fn device(zvol: &str) -> Answer<String> {
    let device = format!("/dev/zvol/{zvol}");
    run(&["udevadm", "wait", "--timeout=30", &device]).await?;
    Ok(device)
}
