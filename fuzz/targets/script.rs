//! The output of a script of commands: only its markers are trusted.
//!
//! Input: the number of commands, then the captured standard output and standard error, as parts.
//! `@` stands for the marker, which no input can guess.
#![no_main]

use exec::script::Script;
use exec::{Command, Effect, Program, Step};
use fuzz::one_line;
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static COMMANDS: LazyLock<Vec<Command>> = LazyLock::new(|| {
    let command = |name| Command::new(Program::constant(name));
    ["true", "zfs", "mount", "false"].map(command).into()
});
/// One for each number of commands.
static SCRIPTS: LazyLock<Vec<(Script<'static>, String)>> = LazyLock::new(|| {
    let script = |count| Script::of(&COMMANDS[..count]).expect("a script");
    let script = |count| {
        let script = script(count);
        let marker = marker(&script);
        (script, marker)
    };
    (0..=COMMANDS.len()).map(script).collect()
});

fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let (script, marker) = &SCRIPTS[usize::from(*first) % SCRIPTS.len()];
    let commands = &COMMANDS[..usize::from(*first) % SCRIPTS.len()];
    if holds(rest, marker.as_bytes()) {
        // libFuzzer sees every comparison; a command cannot.
        return;
    }
    let mut parts = rest.splitn(3, |byte| *byte == 0x1e);
    let [stdout, stderr, cut] = [(); 3].map(|()| parts.next().unwrap_or_default());
    printed_output_is_returned(script, marker, commands, stdout);
    let (stdout, stderr) = (spoken(stdout, marker), spoken(stderr, marker));
    let whole = outcome(script, commands, &stdout, &stderr);
    let started = format!("{marker}:start\n");
    if !holds(&stdout, started.as_bytes()) {
        assert!(whole.chars().all(|letter| letter == 'u'), "{whole}");
    }
    // A part of the output never proves more than all of it.
    let length = stdout
        .len()
        .min(usize::from(cut.first().copied().unwrap_or(0)));
    let part = outcome(script, commands, &stdout[..length], &stderr);
    for (part, whole) in part.chars().zip(whole.chars()) {
        assert!(part == whole || part == 'u', "{part:?} became {whole:?}");
    }
});

/// The marker of a script, as its text has it.
fn marker(script: &Script<'_>) -> String {
    let text = String::from_utf8_lossy(script.expose());
    let steps = text.find("omnibus_steps() {").expect("steps");
    let at = steps + text[steps..].find("omnibus-").expect("a marker");
    text[at..at + "omnibus-".len() + 32].to_owned()
}

fn spoken(text: &[u8], marker: &str) -> Vec<u8> {
    let mut spoken = Vec::with_capacity(text.len());
    for byte in text {
        match byte {
            b'@' => spoken.extend_from_slice(marker.as_bytes()),
            other => spoken.push(*other),
        }
    }
    spoken
}

fn holds(text: &[u8], wanted: &[u8]) -> bool {
    text.windows(wanted.len()).any(|window| window == wanted)
}

/// One letter for each step: done, failed, not started, unknown.
fn outcome(script: &Script<'_>, commands: &[Command], stdout: &[u8], stderr: &[u8]) -> String {
    let batch = script.read(stdout, stderr, None);
    let steps = batch.steps();
    assert_eq!(steps.len(), commands.len());
    let mut letters = String::new();
    for (index, step) in steps.iter().enumerate() {
        letters.push(match step {
            Step::Done(output) => {
                let marker = marker(script);
                let code = output.status.code().expect("a signal is no success");
                let line = format!("\n{marker}:{index}:{code}\n");
                assert!(holds(stdout, line.as_bytes()), "{line:?} was not printed");
                assert!(output.stdout.is_empty() || holds(stdout, &output.stdout));
                assert!(output.stderr.is_empty() || holds(stderr, &output.stderr));
                'd'
            }
            Step::Failed(error) => {
                one_line(error);
                'f'
            }
            Step::NotStarted => 'n',
            Step::Unknown => 'u',
        });
    }
    let rest = letters.trim_start_matches('d');
    let rest = match rest.strip_prefix('f') {
        Some(rest) => rest.trim_start_matches('n'),
        None => rest.trim_start_matches('u'),
    };
    assert!(rest.is_empty(), "{letters}");
    assert_eq!(batch.is_done(), letters.chars().all(|letter| letter == 'd'));
    if !commands.is_empty() {
        assert_eq!(script.is_complete(stdout), !letters.contains('u'));
    }
    if letters.contains(['d', 'u']) {
        assert_eq!(batch.effect(), Effect::Possible);
    }
    letters
}

/// Any output at all comes back byte by byte from between the markers.
fn printed_output_is_returned(
    script: &Script<'_>,
    marker: &str,
    commands: &[Command],
    printed: &[u8],
) {
    let mut stdout = format!("motd\n{marker}:start\n").into_bytes();
    let mut stderr = stdout.clone();
    for index in 0..commands.len() {
        stdout.extend_from_slice(printed);
        stdout.extend(format!("\n{marker}:{index}:0\n").into_bytes());
        stderr.extend_from_slice(printed);
        stderr.extend(format!("\n{marker}:{index}\n").into_bytes());
    }
    let batch = script.read(&stdout, &stderr, None);
    let outputs = batch.into_outputs().expect("all are done");
    assert_eq!(outputs.len(), commands.len());
    for output in outputs {
        assert!(output.stdout == printed && output.stderr == printed);
    }
}
