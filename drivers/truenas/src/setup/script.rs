//! The calls of a plan as commands for the shell of the NAS.

use std::fmt::Write;

use secrecy::ExposeSecret;

use super::plan::{GROUP, Plan};

impl Plan {
    /// The commands, with what each does. A password is not in them.
    pub fn script(&self) -> String {
        let mut text = String::new();
        for step in &self.steps {
            // Writing to a string does not fail.
            let _ = writeln!(text, "# {}", step.doing);
            let params = step.call.params();
            let mut words: Vec<String> = params
                .iter()
                .map(|param| quoted(&param.to_string()))
                .collect();
            for secret in &step.call.secrets {
                for word in &mut words {
                    *word = word.replace(secret.expose_secret(), "<password of sshConnection>");
                }
            }
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

/// A word that the shell leaves as it is.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}
