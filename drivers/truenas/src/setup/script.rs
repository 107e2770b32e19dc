//! The calls of a plan as commands for the shell of the NAS.

use std::fmt::Write;

use secrecy::ExposeSecret;
use serde_json::Value;

use super::plan::{GROUP, Plan};

impl Plan {
    /// The commands, with what each does. A password is not in them.
    pub fn script(&self) -> String {
        let mut text = String::new();
        for step in &self.steps {
            // Writing to a string does not fail.
            let _ = writeln!(text, "# {}", step.doing);
            let mut params = step.call.params().to_vec();
            // Before they are text: a password with a quote looks different there.
            for secret in &step.call.secrets {
                for param in &mut *params {
                    hide(param, secret.expose_secret());
                }
            }
            let mut words: Vec<String> = params
                .iter()
                .map(|param| quoted(&param.to_string()))
                .collect();
            let mark = format!("\"{GROUP}\"");
            if words.iter().any(|word| word.contains(&mark)) {
                let user = &self.user;
                let _ = writeln!(
                    text,
                    "group=$(midclt call user.query '[[\"username\", \"=\", \"{user}\"]]' | jq '.[0].group.bsdgrp_gid')"
                );
                for word in &mut words {
                    *word = word.replace(&mark, "'\"$group\"'");
                }
            }
            let _ = writeln!(
                text,
                "midclt call {} {}",
                step.call.method(),
                words.join(" ")
            );
        }
        text
    }
}

/// Names a secret where it stands.
fn hide(value: &mut Value, secret: &str) {
    match value {
        Value::String(text) if text == secret => {
            "<password of sshConnection>".clone_into(text);
        }
        Value::Array(all) => all.iter_mut().for_each(|value| hide(value, secret)),
        Value::Object(all) => all.values_mut().for_each(|value| hide(value, secret)),
        _ => {}
    }
}

/// A word that the shell leaves as it is.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}
