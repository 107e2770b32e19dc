//! A command: a program and its arguments, some of them secret. Never a shell string.
//!
//! A command does not say *where* it runs; the runner does. `Display` and `Debug` mask secrets, so a command may
//! be logged. Every user of a machine can read the arguments of its processes, so pass a secret on standard input
//! if the tool accepts it there.

mod argument;
mod mask;
mod program;
mod routine;

use std::fmt;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use tokio::time::Instant;

use crate::quote::NulByte;

pub use argument::{Argument, Input, InvalidCommand};
pub use csi_types::{InvalidVariable, Variable};
pub use mask::CommandLine;
pub(crate) use mask::{Secrets, printable};
pub use program::{InvalidProgram, Program};
pub(crate) use routine::{Routine, RoutineCalls};

const SH: Program = Program::constant("sh");
/// The name of a function in a shell that was started for it.
const FUNCTION: &str = "omnibus_function";
/// The variable with a list that a script is run around.
pub(crate) const LIST: &str = "omnibus_list";
/// The variable with the names of the routines that this list calls.
pub(crate) const ROUTINES: &str = "omnibus_routines";

/// The default deadline of a command. What asks nothing of a network or a pool ends in a second.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(30);

/// The default output cap, in bytes.
const DEFAULT_OUTPUT_CAP: usize = 8 << 20;

/// A program, its arguments and the bounds it runs within.
#[derive(Clone)]
pub struct Command {
    program: Program,
    arguments: Vec<Argument>,
    script: Option<Script>,
    environment: Vec<(Variable, Argument)>,
    input: Input,
    /// The routines in the input; a shell that stays open may have them already.
    calls: Option<RoutineCalls>,
    hidden: Vec<SecretString>,
    accept: Accept,
    deadline: Duration,
    output_cap: usize,
    call_start: Option<Instant>,
}

/// A text that `sh` runs, and how a list has to render it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Script {
    /// It may end the shell, or change it.
    Whole(&'static str),
    /// The body of a function.
    Function(&'static str),
    /// Like `Whole`, but it runs another list, which may be passed in the variable [`LIST`].
    Around(&'static str),
}

/// The exit codes that are an answer rather than a failure.
///
/// A batch stops at the first command whose ending is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Accept {
    /// Zero only.
    #[default]
    Success,
    /// Zero and these, for tools that answer with their exit code (`blkid` 2, `iscsiadm` 21).
    Codes(Vec<i32>),
    /// Any exit code; a signal is still a failure.
    AnyExit,
}

// === impl Command ===

impl Command {
    /// A command without arguments, with empty input and the default bounds.
    pub fn new(program: Program) -> Self {
        Self {
            program,
            arguments: Vec::new(),
            script: None,
            environment: Vec::new(),
            input: Input::Empty,
            calls: None,
            hidden: Vec::new(),
            accept: Accept::Success,
            deadline: DEFAULT_DEADLINE,
            output_cap: DEFAULT_OUTPUT_CAP,
            call_start: None,
        }
    }

    /// A script that `sh` runs with the arguments that follow. In a rendered list it runs in a subshell of the
    /// list, without starting another shell.
    pub fn script(text: &'static str) -> Self {
        Self::shell(Script::Whole(text), text)
    }

    /// Like [`Command::script`], but as the body of a function that needs no process of its own. It ends by
    /// `return`, does not change the shell or its working directory, and reads no variable that neither it nor a
    /// function before it in the list has set. Those begin with `omnibus_`.
    pub fn function(body: &'static str) -> Self {
        let text = format!("{FUNCTION}() {{\n{body}\n}}\n{FUNCTION} \"$@\"");
        Self::shell(Script::Function(body), &text)
    }

    /// `sh -s` that reads a script and runs it with the arguments that follow. `lines` come first and may set
    /// variables for the script. A shell that has the script already receives only the lines. The script must set
    /// every other variable before it reads it.
    ///
    /// # Panics
    /// If the script holds a NUL byte.
    pub fn script_with_prelude(lines: &str, text: &'static str) -> Self {
        let routine = Routine::new(text);
        // The braces make it one compound command: read in part, it runs nothing.
        let lines = format!("{lines}{{\n{} \"$@\"\n}}\n", routine.name());
        let rendered = RoutineCalls::text(vec![routine], &lines);
        let (calls, text) = rendered.expect("a script of ours has no NUL byte");
        let mut command = Self::new(SH).arg("-s").stdin(text);
        command.calls = Some(calls);
        command
    }

    /// `sh -s` with secret lines on standard input, after the routines that they call.
    pub(crate) fn secret_list(routines: Vec<Routine>, lines: &str) -> Result<Self, NulByte> {
        let (calls, text) = RoutineCalls::text(routines, lines)?;
        let mut command = Self::new(SH).arg("-s").secret_stdin(text);
        command.calls = Some(calls);
        Ok(command)
    }

    fn shell(script: Script, text: &str) -> Self {
        let mut command = Self::new(SH).args(["-c", text, SH.as_str()]);
        command.script = Some(script);
        command
    }

    /// Adds one argument that is not secret.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(Argument::Plain(argument.into()));
        self
    }

    /// Adds arguments that are not secret.
    #[must_use]
    pub fn args<A: Into<String>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        let plain = arguments.into_iter().map(|a| Argument::Plain(a.into()));
        self.arguments.extend(plain);
        self
    }

    /// Adds one secret argument. It is masked in logs, but visible in the process list: see the module.
    #[must_use]
    pub fn secret_arg(mut self, argument: SecretString) -> Self {
        self.arguments.push(Argument::Secret(argument));
        self
    }

    /// Sets one environment variable on top of the runner's clean environment.
    #[must_use]
    pub fn env(mut self, name: Variable, value: impl Into<String>) -> Self {
        self.environment.push((name, Argument::Plain(value.into())));
        self
    }

    /// Sets one environment variable whose value never shows in a log.
    #[must_use]
    pub fn secret_env(mut self, name: Variable, value: SecretString) -> Self {
        self.environment.push((name, Argument::Secret(value)));
        self
    }

    /// Gives the command bytes to read; without it standard input is empty.
    #[must_use]
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = Input::Plain(bytes.into());
        self.calls = None;
        self
    }

    /// Gives the command bytes to read that never show in a log or an error.
    #[must_use]
    pub fn secret_stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = Input::Secret(bytes.into().into());
        self.calls = None;
        self
    }

    /// Names a secret that the tool might print although it is not an argument, variable or input line by itself,
    /// such as a password inside a configuration text on standard input.
    #[must_use]
    pub fn hiding(mut self, secret: SecretString) -> Self {
        self.hidden.push(secret);
        self
    }

    /// Says which exit codes are answers.
    #[must_use]
    pub fn accepting(mut self, accept: Accept) -> Self {
        self.accept = accept;
        self
    }

    /// Bounds how long the command may take.
    #[must_use]
    pub fn within(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Bounds how many bytes the command may print.
    #[must_use]
    pub fn with_output_cap(mut self, bytes: usize) -> Self {
        self.output_cap = bytes;
        self
    }

    /// The start of the call that this command belongs to. Queued commands of older calls run first.
    #[must_use]
    pub fn with_call_start(mut self, start: Instant) -> Self {
        self.call_start = Some(start);
        self
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The arguments, without the program.
    pub fn arguments(&self) -> &[Argument] {
        &self.arguments
    }

    /// The script that it is and its arguments, unless it is a program.
    pub(crate) fn as_script(&self) -> Option<(Script, &[Argument])> {
        // Skips `-c`, the text and `$0`.
        Some((self.script?, self.arguments.get(3..)?))
    }

    /// The additions to the clean environment, in order; a later one wins.
    pub fn environment(&self) -> &[(Variable, Argument)] {
        &self.environment
    }

    /// The input of the command.
    pub fn input(&self) -> &Input {
        &self.input
    }

    /// Whether it is `sh -s` that reads a rendered script and its routines.
    pub(crate) fn reads_script(&self) -> bool {
        self.calls.is_some() && self.program == SH
    }

    /// The routines that the input calls, and what it is without them.
    pub(crate) fn calls(&self) -> (&[Routine], &[u8]) {
        let input = self.input.bytes();
        match &self.calls {
            Some(calls) => (calls.routines(), calls.own(input)),
            None => (&[], input),
        }
    }

    /// The exit codes that are answers.
    pub fn accept(&self) -> &Accept {
        &self.accept
    }

    /// The time that the command may take.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The number of bytes of standard output the command may print.
    pub fn output_cap(&self) -> usize {
        self.output_cap
    }

    /// The start of the call that it belongs to, if known.
    pub fn call_start(&self) -> Option<Instant> {
        self.call_start
    }

    /// The command as it may be shown to people.
    pub fn masked(&self) -> CommandLine {
        CommandLine::of(self)
    }

    /// Replaces every secret of this command in `text`. Use it before showing output of the tool.
    pub fn scrub(&self, text: &str) -> String {
        self.secrets().scrub(text)
    }

    /// Refuses what no process can be given. Every runner calls this before it starts anything.
    pub fn validate(&self) -> Result<(), InvalidCommand> {
        for (position, argument) in self.arguments.iter().enumerate() {
            if argument.expose().contains('\0') {
                return Err(InvalidCommand::NulInArgument { position });
            }
        }
        for (name, value) in &self.environment {
            if value.expose().contains('\0') {
                return Err(InvalidCommand::NulInVariable { name: name.clone() });
            }
        }
        Ok(())
    }

    /// The same command started by another program: `prefix` comes before program and arguments.
    pub(crate) fn wrapped(&self, wrapper: Program, prefix: Vec<String>, inner: String) -> Self {
        let mut wrapped = self.clone();
        wrapped.program = wrapper;
        wrapped.script = None;
        wrapped.arguments = prefix.into_iter().map(Argument::Plain).collect();
        wrapped.arguments.push(Argument::Plain(inner));
        wrapped.arguments.extend(self.arguments.iter().cloned());
        wrapped
    }

    /// The same command run by a script; `words` are the first arguments of the script.
    pub(crate) fn within_script<'a>(
        &self,
        script: Script,
        words: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let outer = Self::shell(script, script.text()).args(words);
        let words = outer.arguments.iter().map(|word| word.expose().to_owned());
        let program = self.program.as_str().to_owned();
        let mut within = self.wrapped(SH, words.collect(), program);
        within.script = Some(script);
        within
    }

    /// The same command without additions to the environment.
    pub(crate) fn without_environment(mut self) -> Self {
        self.environment.clear();
        self
    }

    pub(crate) fn secrets(&self) -> Secrets {
        let mut secrets = Secrets::default();
        let variables = self.environment.iter().map(|(_, value)| value);
        for argument in self.arguments.iter().chain(variables) {
            if let Argument::Secret(text) = argument {
                secrets.add(text.expose_secret());
            }
        }
        for hidden in &self.hidden {
            secrets.add(hidden.expose_secret());
        }
        if let Input::Secret(bytes) = &self.input {
            secrets.add_text(&String::from_utf8_lossy(bytes.expose_secret()));
        }
        secrets
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.masked().fmt(f)
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("line", &self.masked().as_str())
            .field("accept", &self.accept)
            .field("deadline", &self.deadline)
            .field("output_cap", &self.output_cap)
            .finish_non_exhaustive()
    }
}

// === impl Script ===

impl Script {
    /// The text.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Whole(text) | Self::Function(text) | Self::Around(text) => text,
        }
    }
}

// === impl Accept ===

impl Accept {
    /// Whether this exit code is an answer.
    pub fn contains(&self, code: i32) -> bool {
        match self {
            Self::Success => code == 0,
            Self::Codes(codes) => code == 0 || codes.contains(&code),
            Self::AnyExit => true,
        }
    }
}
