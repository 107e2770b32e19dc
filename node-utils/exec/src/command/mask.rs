//! The way a command is shown in logs and errors: on one line, with its secrets replaced.
//!
//! The line is not quoted for a shell and is never parsed. Control characters are escaped, so that an argument
//! cannot forge a log line or control a terminal.

use std::fmt::{self, Write as _};

use crate::quote;

use super::{Argument, Command, Input};

/// The replacement for a secret.
const MASK: &str = "****";

/// A line of a secret input that is shorter than this is not replaced elsewhere: a text would
/// lose every brace to it. The whole input is replaced whatever its length.
const SHORTEST_SECRET_LINE: usize = 4;

/// A command rendered for people, secrets masked.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct CommandLine(String);

/// The literal secrets of one command.
#[derive(Default)]
pub(crate) struct Secrets(Vec<String>);

// === impl CommandLine ===

impl CommandLine {
    pub(super) fn of(command: &Command) -> Self {
        let secrets = command.secrets();
        let show = |argument: &Argument| match argument {
            Argument::Secret(_) => MASK.to_owned(),
            // A caller may have repeated a secret where it is plain.
            Argument::Plain(text) => word(&secrets.scrub(text)),
        };
        let mut line = String::new();
        for (name, value) in command.environment() {
            line.push_str(name.as_str());
            line.push('=');
            line.push_str(&show(value));
            line.push(' ');
        }
        line.push_str(&word(command.program().as_str()));
        // The script text is left out; only its arguments differ.
        let own = command.as_script().map(|(_, own)| own);
        if own.is_some() {
            line.push_str(" (script)");
        }
        for argument in own.unwrap_or_else(|| command.arguments()) {
            line.push(' ');
            line.push_str(&show(argument));
        }
        match command.input() {
            Input::Empty => {}
            Input::Plain(bytes) => {
                let _ = write!(line, " <({} bytes)", bytes.len());
            }
            Input::Secret(_) => line.push_str(" <(****)"),
        }
        Self(line)
    }

    /// The line.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

// === impl Secrets ===

impl Secrets {
    pub(super) fn add(&mut self, secret: &str) {
        if secret.is_empty() {
            return;
        }
        self.0.push(secret.to_owned());
        // A shell prints the quoted form in its error messages.
        if let Ok(quoted) = quote(secret)
            && secret.contains('\'')
        {
            self.0.push(quoted);
        }
    }

    /// Adds a whole text and each of its lines, because tools print errors by the line.
    pub(super) fn add_text(&mut self, text: &str) {
        self.add(text.trim());
        for line in text.lines().map(str::trim) {
            if line.len() >= SHORTEST_SECRET_LINE {
                self.add(line);
            }
        }
    }

    pub(crate) fn scrub(&self, text: &str) -> String {
        let mut longest_first: Vec<&String> = self.0.iter().collect();
        // Otherwise a secret that begins another would leave the rest of the longer one.
        longest_first.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        let mut scrubbed = text.to_owned();
        for secret in longest_first {
            if scrubbed.contains(secret.as_str()) {
                scrubbed = scrubbed.replace(secret.as_str(), MASK);
            }
        }
        scrubbed
    }
}

/// One argument for display: without quotes if it cannot be misread.
fn word(text: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-*".contains(c);
    if !text.is_empty() && text.chars().all(bare) {
        return text.to_owned();
    }
    format!("'{}'", printable(text))
}

/// The text on one line: control characters are escaped, all else stays.
pub(crate) fn printable(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;

    use crate::{Command, Program, Variable};

    fn iscsiadm() -> Command {
        Command::new(Program::constant("iscsiadm"))
    }

    #[test]
    fn secrets_show_in_neither_display_nor_debug() {
        let command = iscsiadm()
            .arg("--value")
            .secret_arg(SecretString::from("chap-secret"))
            .secret_env(
                Variable::constant("TOKEN"),
                SecretString::from("env-secret"),
            )
            .secret_stdin(b"input-secret\n".to_vec());
        let shown = format!(
            "{command} {command:?} {:?} {:?}",
            command.masked(),
            command.input()
        );
        assert_eq!(
            command.to_string(),
            "TOKEN=**** iscsiadm --value **** <(****)"
        );
        for secret in ["chap-secret", "env-secret", "input-secret"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        for argument in command.arguments() {
            assert!(!format!("{argument:?}").contains("chap-secret"));
        }
    }

    #[test]
    fn a_secret_repeated_in_a_plain_argument_is_masked_too() {
        let command = iscsiadm()
            .arg("user=a,password=s3cret")
            .secret_arg("s3cret".into());
        assert_eq!(command.to_string(), "iscsiadm user=a,password=**** ****");
    }

    #[test]
    fn a_secret_that_begins_another_leaves_nothing_of_the_longer_one() {
        let command = iscsiadm()
            .secret_arg("pass".into())
            .secret_arg("password1".into());
        assert_eq!(command.scrub("got password1 and pass"), "got **** and ****");
    }

    #[test]
    fn lines_of_a_secret_input_and_hidden_values_are_scrubbed() {
        let command = iscsiadm()
            .secret_stdin(b"{\nfirst-line\nkey = hunter22\n}\n".to_vec())
            .hiding("hunter22".into());
        assert_eq!(
            command.scrub("bad line first-line, bad value hunter22 {x}"),
            "bad line ****, bad value **** {x}"
        );
    }

    #[test]
    fn a_secret_with_quotes_is_scrubbed_in_its_quoted_form() {
        let command = iscsiadm().secret_arg("it's".into());
        assert_eq!(
            command.scrub(r"sh: 'it'\''s': not found"),
            "sh: ****: not found"
        );
    }

    #[test]
    fn control_characters_cannot_forge_a_log_line() {
        let command = iscsiadm().arg("a\nERROR b\u{1b}[2J").arg("").arg("ü b");
        assert_eq!(
            command.to_string(),
            r"iscsiadm 'a\nERROR b\u{1b}[2J' '' 'ü b'"
        );
    }
}
