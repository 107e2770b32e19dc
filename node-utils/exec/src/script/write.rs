//! Renders a script.
//!
//! Every word of a command passes through [`quote`]; all other text is constant. Standard input is produced by the
//! shell's own `printf` through a pipe: a here-document cannot carry NUL bytes or a last line without its end, and
//! an argument would be visible in the process list. A list that runs under a lock is stored in a variable. Scripts
//! are defined as routines before the list.

use std::fmt::Write as _;

use super::{MISSING, Marker, SIGNALLED};
use crate::command::Script::{Around, Function};
use crate::command::{Accept, Argument, Command, Input, LIST, ROUTINES, Routine};
use crate::quote::{NulByte, quote};
use crate::search::{DIRECTORIES, path_variable};

/// Renders the whole list, as the shell that reads it.
pub(super) fn script(commands: &[Command], marker: &Marker) -> Result<Command, NulByte> {
    let mut text = String::new();
    let mut routines = Vec::new();
    // The server's own PATH comes first. Without a builtin printf the input would be visible in the process list,
    // so then nothing runs. This is tested with an empty PATH, because asking for the type of a command takes a
    // process.
    let _ = write!(
        text,
        "omnibus_steps() {{\n\
         LC_ALL=C; export LC_ALL\n\
         omnibus_path=\"${{PATH:+$PATH:}}{folders}\"; PATH=/dev/null\n\
         printf '' 2>/dev/null || {{ echo 'this sh has no builtin printf' >&2; exit 126; }}\n\
         PATH=$omnibus_path; export PATH\n\
         printf '%s\\n' {marker}:start; printf '%s\\n' {marker}:start >&2\n",
        folders = path_variable(&DIRECTORIES),
        marker = marker.0,
    );
    for (index, command) in commands.iter().enumerate() {
        step(&mut text, index, command, marker)?;
        if let Some((script, _)) = command.as_script() {
            Routine::add(&mut routines, [Routine::new(script.text())]);
        }
        if lines_within(command).is_some() {
            Routine::add(&mut routines, command.calls().0.iter().copied());
        }
    }
    // The shell ends here, not at the end of its input: a transport may keep that open.
    text.push_str("exit 0\n}\nomnibus_steps\n");
    Command::secret_list(routines, &text)
}

/// The lines of a nested list, if the shell of the outer list can run them itself.
fn lines_within(command: &Command) -> Option<&str> {
    let is_read_here = match command.as_script() {
        Some((Around(_), _)) => true,
        Some(_) => false,
        None => command.reads_script(),
    };
    let lines = std::str::from_utf8(command.calls().1);
    lines.ok().filter(|_| is_read_here)
}

fn step(
    text: &mut String,
    index: usize,
    command: &Command,
    marker: &Marker,
) -> Result<(), NulByte> {
    let program = quote(command.program().as_str())?;
    // Looked for first, so that "not installed" is not mixed up with an exit code of 127.
    let _ = writeln!(text, "if command -v {program} >/dev/null 2>&1; then");
    let plain = command.environment().is_empty() && matches!(command.input(), Input::Empty);
    // Never the script's own standard input: the command would wait for the transport to end it.
    if let Some((Function(body), arguments)) = command.as_script()
        && plain
    {
        text.push_str(&Routine::new(body).name());
        write_arguments(text, arguments)?;
        text.push_str(" </dev/null\nomnibus_status=$?\n");
    } else {
        in_subshell(text, command)?;
    }
    let _ = write!(
        text,
        "else omnibus_status={MISSING}; fi\n\
         printf '\\n%s:%s\\n' {marker}:{index} \"$omnibus_status\"; printf '\\n%s\\n' {marker}:{index} >&2\n\
         case $omnibus_status in {accepted}) ;; *) exit 0 ;; esac\n",
        marker = marker.0,
        accepted = pattern(command.accept()),
    );
    Ok(())
}

/// A command in a subshell, which becomes the program if it is one. Some shells print the text of a process that a
/// signal ended, with the secrets in it, so standard error of the waiting shell is closed.
fn in_subshell(text: &mut String, command: &Command) -> Result<(), NulByte> {
    let lines = lines_within(command);
    let reads = lines.is_none() && !matches!(command.input(), Input::Empty);
    text.push_str("exec 3>&2 2>/dev/null\n");
    if reads {
        text.push_str("printf ");
        format_string(text, command.input().bytes());
        text.push_str(" 2>/dev/null | ");
    }
    text.push_str("( ");
    for (name, value) in command.environment() {
        let _ = write!(text, "{name}={}; export {name}; ", quote(value.expose())?);
    }
    match (command.as_script(), lines) {
        (Some((script, arguments)), lines) => {
            if let Some(list) = lines {
                let names = Routine::names(command.calls().0);
                let _ = write!(text, "{LIST}={}; {ROUTINES}='{names}'; ", quote(list)?);
            }
            text.push_str(&Routine::new(script.text()).name());
            write_arguments(text, arguments)?;
        }
        (None, Some(lines)) => {
            // Behind its `-s`.
            text.push_str("set --");
            write_arguments(text, command.arguments().get(1..).unwrap_or_default())?;
            let _ = write!(text, "\n{lines}");
        }
        (None, None) => {
            let _ = write!(text, "exec {}", quote(command.program().as_str())?);
            write_arguments(text, command.arguments())?;
        }
    }
    let input = if reads { "" } else { " </dev/null" };
    let _ = writeln!(
        text,
        " ) 2>&3 3>&-{input}\nomnibus_status=$?; exec 2>&3 3>&-"
    );
    Ok(())
}

fn write_arguments(text: &mut String, arguments: &[Argument]) -> Result<(), NulByte> {
    for argument in arguments.iter().map(Argument::expose) {
        let _ = write!(text, " {}", quote(argument)?);
    }
    Ok(())
}

/// The accepted statuses as a pattern of `case`.
fn pattern(accept: &Accept) -> String {
    let codes = (0..=255).filter(|code| !SIGNALLED.contains(code) && accept.contains(*code));
    codes
        .map(|code| code.to_string())
        .collect::<Vec<_>>()
        .join("|")
}

/// The bytes as the format of `printf`: any byte, in any locale, in plain ASCII.
pub(super) fn format_string(text: &mut String, bytes: &[u8]) {
    text.push('\'');
    for byte in bytes {
        match byte {
            b'%' => text.push_str("%%"),
            // A dash at the beginning would be an option.
            b' '..=b'~' if !matches!(byte, b'\'' | b'\\' | b'-') => text.push(char::from(*byte)),
            // Three digits always: a digit may follow.
            other => {
                let _ = write!(text, "\\{other:03o}");
            }
        }
    }
    text.push('\'');
}
