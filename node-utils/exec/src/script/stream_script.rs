//! One streamed command over a remote shell: its standard input or output is the stream.
//!
//! A script on standard input would have to end where the stream starts, and not every shell stops reading there.
//! `read` does, as POSIX requires. So the script is a single line, decoded by `printf`, and the bytes after it
//! belong to the command. The remote command is a constant, as for other scripts. It is single-quoted, which even csh
//! leaves unchanged.

use std::fmt::Write as _;

use super::write::format_string;
use super::{MISSING, Marker};
use crate::command::{Argument, Command};
use crate::error::RunError;
use crate::quote::{NulByte, quote};
use crate::search::{DIRECTORIES, path_variable};
use crate::stream;

/// The remote command for every stream.
pub const REMOTE_STREAM: &str =
    r#"sh -c 'IFS= read -r omnibus_line && eval "$(printf "$omnibus_line")"'"#;

/// The bytes that a login may print before the command starts.
const NOISE: usize = 64 << 10;

/// A command of a stream, rendered.
pub struct StreamScript {
    line: String,
    marker: Marker,
}

/// Finds where the output of the command starts.
#[derive(Debug)]
pub struct StartDetector {
    start: Vec<u8>,
    missing: Vec<u8>,
    head: Vec<u8>,
}

/// The state of the output so far.
#[derive(Debug, PartialEq, Eq)]
pub enum StartState {
    /// Not started yet.
    Pending,
    /// The command runs; this is the first chunk of its output.
    Running(Vec<u8>),
    /// Its program is not installed.
    Missing,
    /// Other output that does not end.
    Noise,
}

// === impl StreamScript ===

impl StreamScript {
    /// Renders a command. One with secrets is refused: a `printf` that is no builtin would show them.
    pub fn of(command: &Command) -> Result<Self, RunError> {
        stream::check(command)?;
        let refused = |why: &str| RunError::Spawn {
            command: command.masked(),
            source: std::io::Error::other(why.to_owned()),
        };
        let secret = command.arguments().iter().any(Argument::is_secret)
            || command
                .environment()
                .iter()
                .any(|(_, value)| value.is_secret());
        if secret {
            return Err(refused("a command of a stream has no secrets"));
        }
        let marker = Marker::random().map_err(|error| refused(&error.to_string()))?;
        let text = text(command, &marker).map_err(|error| refused(&error.to_string()))?;
        let mut line = String::with_capacity(text.len() + text.len() / 4);
        format_string(&mut line, text.as_bytes());
        // The quotes belong to a word in a script; here it is a line by itself.
        let line = format!("{}\n", line.trim_matches('\''));
        Ok(Self { line, marker })
    }

    /// The line that is sent before the stream.
    pub fn line(&self) -> &[u8] {
        self.line.as_bytes()
    }

    /// Finds the start of the command in the output.
    pub fn start_detector(&self) -> StartDetector {
        let marker = &self.marker.0;
        StartDetector {
            start: format!("{marker}:start\n").into_bytes(),
            missing: format!("{marker}:{MISSING}\n").into_bytes(),
            head: Vec::new(),
        }
    }
}

fn text(command: &Command, marker: &Marker) -> Result<String, NulByte> {
    let program = quote(command.program().as_str())?;
    let mut text = format!(
        "LC_ALL=C; export LC_ALL\n\
         PATH=\"${{PATH:+$PATH:}}{folders}\"; export PATH\n\
         if command -v {program} >/dev/null 2>&1; then printf '%s\\n' {marker}:start\n\
         else printf '%s\\n' {marker}:{MISSING}; exit 127; fi\n",
        folders = path_variable(&DIRECTORIES),
        marker = marker.0,
    );
    for (name, value) in command.environment() {
        let _ = writeln!(text, "{name}={}; export {name}", quote(value.expose())?);
    }
    let _ = write!(text, "exec {program}");
    for argument in command.arguments().iter().map(Argument::expose) {
        let _ = write!(text, " {}", quote(argument)?);
    }
    Ok(text)
}

// === impl StartDetector ===

impl StartDetector {
    /// Adds a chunk of output, until the command has started.
    pub fn push(&mut self, output: &[u8]) -> StartState {
        self.head.extend_from_slice(output);
        let find = |what: &[u8]| self.head.windows(what.len()).position(|seen| seen == what);
        if let Some(at) = find(&self.start) {
            return StartState::Running(self.head.split_off(at + self.start.len()));
        }
        if find(&self.missing).is_some() {
            return StartState::Missing;
        }
        if self.head.len() > NOISE {
            return StartState::Noise;
        }
        StartState::Pending
    }
}

impl std::fmt::Debug for StreamScript {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamScript").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Output, Stdio};

    use super::*;
    use crate::Program;

    /// Runs the remote command in a shell, with `rest` after the line.
    #[expect(
        clippy::disallowed_methods,
        reason = "the shell of the other side is started as a server would"
    )]
    fn remote(shell: &str, streamed: &StreamScript, rest: &[u8]) -> Option<Output> {
        let mut child = std::process::Command::new(shell)
            .args(["-c", REMOTE_STREAM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        let mut stdin = child.stdin.take().expect("a pipe");
        let sent = [streamed.line(), rest].concat();
        // Side by side: what comes back is more than a pipe holds. A command that reads nothing of it
        // may have ended by then.
        let sender = std::thread::spawn(move || drop(stdin.write_all(&sent)));
        let output = child.wait_with_output().ok();
        sender.join().expect("no panic");
        output
    }

    fn streamed(command: &Command) -> StreamScript {
        StreamScript::of(command).expect("a command without secrets")
    }

    #[test]
    fn what_follows_the_line_is_the_commands_to_the_last_byte() {
        let data: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
        let cat = streamed(&Command::new(Program::constant("cat")));
        let mut shells = 0;
        for shell in ["sh", "dash", "bash", "csh"] {
            let Some(output) = remote(shell, &cat, &data) else {
                continue;
            };
            shells += 1;
            assert!(output.status.success(), "{shell}: {output:?}");
            let mut beginning = cat.start_detector();
            assert_eq!(
                beginning.push(&output.stdout),
                StartState::Running(data.clone())
            );
        }
        assert!(shells > 0, "there is no shell here");
    }

    #[test]
    fn every_word_arrives_as_it_is() {
        let words = [
            "a b", "%s\\n", "it's", "\n\n", "$(id)", "`id`", "-n", "", "\u{e9}", "*",
        ];
        let text = "for word; do printf '<%s>' \"$word\"; done; exit 5";
        let command = Command::new(Program::constant("sh"))
            .args(["-c", text, "sh"])
            .args(words);
        let command = streamed(&command);
        let expected = format!("<{}>", words.join("><"));
        let mut shells = 0;
        for shell in ["sh", "csh"] {
            let Some(output) = remote(shell, &command, b"") else {
                continue;
            };
            shells += 1;
            let state = command.start_detector().push(&output.stdout);
            assert_eq!(
                state,
                StartState::Running(expected.clone().into_bytes()),
                "{shell}"
            );
            assert_eq!(output.status.code(), Some(5), "{shell}");
        }
        assert!(shells > 0, "there is no shell here");
    }

    #[test]
    fn a_missing_program_and_noise_before_it_are_reported() {
        let gone = streamed(&Command::new(Program::constant("omnibus-is-not-there")));
        let output = remote("sh", &gone, b"x").expect("a shell");
        assert_eq!(
            gone.start_detector().push(&output.stdout),
            StartState::Missing
        );
        let mut beginning = gone.start_detector();
        assert_eq!(beginning.push(b"welcome\n"), StartState::Pending);
        let start = beginning.start.clone();
        assert_eq!(beginning.push(&start[..9]), StartState::Pending);
        assert_eq!(beginning.push(&start[9..]), StartState::Running(Vec::new()));
        assert_eq!(
            gone.start_detector().push(&vec![b'x'; NOISE + 1]),
            StartState::Noise
        );
    }

    #[test]
    fn a_secret_does_not_travel_in_a_line() {
        let command = Command::new(Program::constant("cat"))
            .secret_arg(secrecy::SecretString::from("hunter2"));
        assert!(StreamScript::of(&command).is_err());
    }
}
