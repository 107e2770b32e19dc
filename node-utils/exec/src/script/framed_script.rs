//! Several scripts through one shell, one after another.
//!
//! Starting a shell costs two round trips and several processes on the other machine. So the shell stays open, and
//! each script runs in a subshell, which cannot change anything for the next one. A marker line with a random
//! number on both outputs ends each script. The script is one compound command, so the shell starts it only when
//! all of it has arrived. Background processes of a script may still print: a shell that prints anything after the
//! end marker must not be used again. The routines that a script calls are sent to the shell itself, once.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::Marker;
use super::read::{find, status};
use crate::command::{Command, Routine};
use crate::error::RunError;
use crate::output::Status;

/// A script for a shell that stays.
pub struct FramedScript {
    marker: Marker,
    routines: Vec<Routine>,
    text: Vec<u8>,
}

/// The routines that an open shell has already.
#[derive(Debug, Default)]
pub struct KnownRoutines(BTreeSet<String>);

/// Finds the end of a script in both outputs.
#[derive(Debug)]
pub struct EndMarker {
    stdout: MarkerSearch,
    stderr: MarkerSearch,
}

/// The search for the end marker in one output.
#[derive(Debug)]
struct MarkerSearch {
    marker_line: String,
    searched: usize,
    found: Option<usize>,
}

// === impl FramedScript ===

impl FramedScript {
    /// Frames the script that `command`, which has to be [`REMOTE_COMMAND`], has on its standard input.
    ///
    /// [`REMOTE_COMMAND`]: super::REMOTE_COMMAND
    pub fn of(command: &Command) -> Result<Self, RunError> {
        let marker = Marker::for_command(command)?;
        let (routines, script) = command.calls();
        let mut frame = String::new();
        // bash prints the text of a subshell that a signal ended, with the secrets in it. So the waiting shell's
        // standard error is closed until then.
        let _ = write!(
            frame,
            "\n) 2>&3 3>&- </dev/null\nomnibus_status=$?; exec 2>&3 3>&-\n\
             printf '\\n%s:%s\\n' {marker} \"$omnibus_status\"; printf '\\n%s\\n' {marker} >&2\n",
            marker = marker.0
        );
        let text = [b"exec 3>&2 2>/dev/null\n(\n", script, frame.as_bytes()].concat();
        let routines = routines.to_vec();
        Ok(Self {
            marker,
            routines,
            text,
        })
    }

    /// The text to send to a shell that knows these routines; adds the new ones. It holds the secrets of the
    /// script.
    pub fn expose_for(&self, known: &mut KnownRoutines) -> Vec<u8> {
        let mut new = self.routines.clone();
        new.retain(|routine| known.0.insert(routine.name()));
        // A NUL byte was refused when the script was rendered.
        let mut text = Routine::declare(&new).unwrap_or_default().into_bytes();
        text.extend_from_slice(&self.text);
        text
    }

    /// The markers that end it.
    pub fn frame(&self) -> EndMarker {
        EndMarker {
            stdout: MarkerSearch::of(format!("\n{}:", self.marker.0)),
            stderr: MarkerSearch::of(format!("\n{}\n", self.marker.0)),
        }
    }
}

impl std::fmt::Debug for FramedScript {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FramedScript").finish_non_exhaustive()
    }
}

// === impl EndMarker ===

impl EndMarker {
    /// The bytes that the end markers add to the output, at most.
    pub const LENGTH: usize = 128;

    /// The status of the script, once both outputs have ended. Cuts the outputs at their end markers.
    pub fn end(&mut self, stdout: &mut Vec<u8>, stderr: &mut Vec<u8>) -> Option<Status> {
        let at = self.stdout.find(stdout)?;
        let word = &stdout[at + self.stdout.marker_line.len()..];
        // Without its line end the status itself may be cut.
        let end = word.iter().position(|byte| *byte == b'\n')?;
        let status = status(&word[..end])?;
        let complained = self.stderr.find(stderr)?;
        stdout.truncate(at);
        stderr.truncate(complained);
        Some(status)
    }
}

// === impl MarkerSearch ===

impl MarkerSearch {
    fn of(marker_line: String) -> Self {
        Self {
            marker_line,
            searched: 0,
            found: None,
        }
    }

    /// The place where it is. What was searched once is not searched again.
    fn find(&mut self, text: &[u8]) -> Option<usize> {
        if self.found.is_none() {
            let found = find(&text[self.searched..], self.marker_line.as_bytes());
            self.found = found.map(|at| self.searched + at);
            // Its beginning may be there already.
            self.searched = text.len().saturating_sub(self.marker_line.len() - 1);
        }
        self.found
    }
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "a shell that stays is what is tested here"
)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::process::{Child, Stdio};

    use super::*;
    use crate::script::{REMOTE_COMMAND, SH};

    struct Shell(Child, KnownRoutines);

    impl Shell {
        /// Each `sh` that this machine has.
        fn all() -> Vec<Self> {
            let shells: [&[&str]; 5] = [
                &["sh", "-s"],
                &["dash", "-s"],
                &["bash", "-s"],
                &["busybox", "sh", "-s"],
                // As an SSH server starts it for a user with that login shell.
                &["csh", "-c", REMOTE_COMMAND],
            ];
            let start = |words: &&[&str]| {
                let mut command = std::process::Command::new(words[0]);
                command
                    .args(&words[1..])
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped());
                let child = command.spawn().ok()?;
                Some(Self(child, KnownRoutines::default()))
            };
            shells.iter().filter_map(start).collect()
        }

        fn run(&mut self, script: &str) -> (Status, String, String) {
            self.read(&Command::new(SH).secret_stdin(script.as_bytes()))
                .0
        }

        /// Its result, and how many bytes it was sent.
        fn read(&mut self, command: &Command) -> ((Status, String, String), usize) {
            let framed = FramedScript::of(command).unwrap();
            let input = self.0.stdin.as_mut().unwrap();
            let sent = framed.expose_for(&mut self.1);
            input.write_all(&sent).unwrap();
            let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
            // Each is read to its own end.
            let until = |pipe: &mut dyn std::io::Read, text: &mut Vec<u8>| {
                while !text.ends_with(b"\n") || !String::from_utf8_lossy(text).contains("omnibus-")
                {
                    let mut piece = [0; 4096];
                    let count = pipe.read(&mut piece).unwrap();
                    assert_ne!(
                        count,
                        0,
                        "the shell ended: {}",
                        String::from_utf8_lossy(text)
                    );
                    text.extend_from_slice(&piece[..count]);
                }
            };
            until(self.0.stdout.as_mut().unwrap(), &mut stdout);
            until(self.0.stderr.as_mut().unwrap(), &mut stderr);
            let status = framed
                .frame()
                .end(&mut stdout, &mut stderr)
                .expect("an end");
            let text = |bytes| String::from_utf8(bytes).unwrap();
            ((status, text(stdout), text(stderr)), sent.len())
        }
    }

    impl Drop for Shell {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn one_script_leaves_nothing_to_the_next() {
        let shells = Shell::all();
        assert!(!shells.is_empty());
        for mut shell in shells {
            let first = "cd /usr; left=behind; printf() { :; }; set -u; umask 0; echo one; echo two >&2; exit 7";
            let (status, stdout, stderr) = shell.run(first);
            assert_eq!(
                (status, &*stdout, &*stderr),
                (Status::Exit(7), "one\n", "two\n")
            );
            let second = "printf '%s' \"$left:$PWD:$(umask)\"; cat";
            let (status, stdout, stderr) = shell.run(second);
            assert_eq!((status, &*stderr), (Status::Exit(0), ""));
            let here = std::env::current_dir().unwrap();
            assert!(
                stdout.starts_with(&format!(":{}:0", here.display())),
                "{stdout}"
            );
        }
    }

    #[test]
    fn each_routine_is_sent_to_a_shell_once() {
        const FIRST: &str =
            "# It's long, for a script that is sent once.\nprintf 'one %s' \"$word\"; exit 3";
        const SECOND: &str =
            "# It's long, for a script that is sent once.\nprintf 'two %s' \"$word\"; exit 4";
        for mut shell in Shell::all() {
            let mut lengths = Vec::new();
            for (text, printed, code) in [
                (FIRST, "one a", 3),
                (FIRST, "one a", 3),
                (SECOND, "two a", 4),
                (FIRST, "one a", 3),
                (SECOND, "two a", 4),
            ] {
                let (answer, sent) = shell.read(&Command::script_with_prelude("word=a\n", text));
                assert_eq!(
                    answer,
                    (Status::Exit(code), printed.to_owned(), String::new())
                );
                lengths.push(sent);
            }
            let [first, again, second, third, last] = lengths[..] else {
                panic!("{lengths:?}");
            };
            assert!(again + FIRST.len() < first && again + SECOND.len() < second);
            assert_eq!((third, last), (again, again));
        }
    }

    #[test]
    fn a_killed_script_writes_nothing_to_the_output() {
        for mut shell in Shell::all() {
            let secret = "tell() { printf 'pa\\055ss'; }\nsh -c 'kill -9 $PPID'\necho on\n";
            let (status, stdout, stderr) = shell.run(secret);
            assert_eq!((status, &*stdout, &*stderr), (Status::Signal(9), "", ""));
            let (status, stdout, _) = shell.run("echo next");
            assert_eq!((status, &*stdout), (Status::Exit(0), "next\n"));
        }
    }

    #[test]
    fn a_script_that_did_not_arrive_whole_does_not_begin() {
        for mut shell in Shell::all() {
            let command = Command::new(SH).secret_stdin(&b"echo began\necho ended\n"[..]);
            let framed = FramedScript::of(&command).unwrap();
            let mut input = shell.0.stdin.take().unwrap();
            let whole =
                String::from_utf8(framed.expose_for(&mut KnownRoutines::default())).unwrap();
            let cut = whole.find("\n)").expect("its end");
            input.write_all(&whole.as_bytes()[..cut]).unwrap();
            drop(input);
            let mut stdout = String::new();
            shell
                .0
                .stdout
                .as_mut()
                .unwrap()
                .read_to_string(&mut stdout)
                .unwrap();
            assert_eq!(stdout, "");
        }
    }

    #[test]
    fn no_prefix_of_the_outputs_is_an_end() {
        let command = Command::new(SH).secret_stdin(&b"true"[..]);
        let framed = FramedScript::of(&command).unwrap();
        let m = &framed.marker.0;
        let stdout = format!("one\n\n{m}:130\n");
        let stderr = format!("two\n{m}\n");
        let mut frame = framed.frame();
        for cut in 0..stdout.len() {
            let mut text = stdout.as_bytes()[..cut].to_vec();
            assert_eq!(frame.end(&mut text, &mut stderr.clone().into_bytes()), None);
        }
        let mut frame = framed.frame();
        let mut stdout = stdout.into_bytes();
        for cut in 0..stderr.len() {
            let mut text = stderr.as_bytes()[..cut].to_vec();
            assert_eq!(frame.end(&mut stdout, &mut text), None);
        }
        let mut stderr = stderr.into_bytes();
        let status = frame.end(&mut stdout, &mut stderr);
        assert_eq!(status, Some(Status::Signal(2)));
        assert_eq!((&stdout[..], &stderr[..]), (&b"one\n"[..], &b"two"[..]));
    }
}
