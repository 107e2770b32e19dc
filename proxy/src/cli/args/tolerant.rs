//! What democratic-csi's parser accepts and clap does not: unknown flags.
//!
//! They are taken out, with the value they seem to have, and named in a warning: after an upgrade
//! of the image only, everything goes on. compat: "Command line".

use std::ffi::OsString;

/// A command line without unknown flags.
#[derive(Debug, Default)]
pub(super) struct Tolerant {
    /// `--flag=value` for each flag that is known, and what asks for help.
    pub(super) known: Vec<OsString>,
    /// One line for each part that was left out.
    pub(super) warnings: Vec<String>,
}

/// Sorts `args` by whether their flag is one of `flags`.
pub(super) fn known_only(args: Vec<OsString>, flags: &[&str]) -> Tolerant {
    let mut tolerant = Tolerant::default();
    let mut args = args.into_iter().peekable();
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy().into_owned();
        if matches!(text.as_str(), "--help" | "-h" | "--version" | "-V") {
            tolerant.known.push(arg);
            continue;
        }
        let Some(flag) = text.strip_prefix("--") else {
            tolerant.warnings.push(format!(
                "`{}` means nothing here and is ignored",
                printable(&text)
            ));
            continue;
        };
        let (name, has_value) = match flag.split_once('=') {
            Some((name, _)) => (name, true),
            None => (flag, false),
        };
        if !flags.contains(&name) {
            tolerant.warnings.push(unknown(name, flags));
            if !has_value {
                args.next_if(|next| !is_flag(next));
            }
            continue;
        }
        if has_value {
            tolerant.known.push(arg);
        } else {
            take_values(name, &mut args, &mut tolerant.known);
        }
    }
    tolerant
}

/// `--csi-mode node controller` names two modes; any other flag has one value.
fn take_values(
    name: &str,
    args: &mut std::iter::Peekable<std::vec::IntoIter<OsString>>,
    known: &mut Vec<OsString>,
) {
    let most = if name == "csi-mode" { usize::MAX } else { 1 };
    let mut taken = 0;
    while taken < most {
        let Some(value) = args.next_if(|next| !is_flag(next)) else {
            break;
        };
        let mut arg = OsString::from(format!("--{name}="));
        arg.push(value);
        known.push(arg);
        taken += 1;
    }
    if taken == 0 {
        // Without its value: clap says what is missing.
        known.push(format!("--{name}").into());
    }
}

fn is_flag(arg: &OsString) -> bool {
    arg.to_string_lossy().starts_with('-')
}

fn unknown(name: &str, flags: &[&str]) -> String {
    // The value is not shown: it may be a secret that belongs to another flag.
    let name = printable(name);
    let nearest = flags
        .iter()
        .map(|flag| (strsim::jaro_winkler(&name, flag), flag))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    match nearest {
        Some((_, flag)) => format!("unknown flag --{name} is ignored; is --{flag} meant?"),
        None => format!("unknown flag --{name} is ignored"),
    }
}

fn printable(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_debug).collect()
}
