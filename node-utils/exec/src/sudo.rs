//! Runs commands as root through `sudo`, for a login that is not root.
//!
//! sudo never asks for a password (`-n`): without a rule that allows the command it fails. The command stays
//! recognisable to rules such as `NOPASSWD: /usr/sbin/zfs`. Reference: sudo(8).

use async_trait::async_trait;

use crate::command::{Command, InvalidCommand, Program};
use crate::error::RunError;
use crate::output::Output;
use crate::runner::{Batch, Runner};
use crate::stream::{InputStream, OutputStream};

const SUDO: Program = Program::constant("sudo");

/// Runs commands through `sudo`.
///
/// sudo drops the environment of its caller. Variables that a command adds are given back by
/// `env`, which a rule must then allow; a secret one is refused, since `env` would show it.
#[derive(Debug, Clone)]
pub struct Sudo<R> {
    inner: R,
}

// === impl Sudo ===

impl<R: Runner> Sudo<R> {
    /// Runs commands as root in the place where `inner` runs them.
    pub fn new(inner: R) -> Self {
        Self { inner }
    }
}

fn raise(command: &Command) -> Result<Command, RunError> {
    let mut prefix = vec!["-n".to_owned(), "--".to_owned()];
    if !command.environment().is_empty() {
        prefix.push("env".to_owned());
    }
    for (name, value) in command.environment() {
        if value.is_secret() {
            let source = InvalidCommand::SecretVariable {
                name: name.clone(),
                through: "sudo",
            };
            return Err(RunError::Invalid {
                command: command.masked(),
                source,
            });
        }
        prefix.push(format!("{name}={}", value.expose()));
    }
    let program = command.program().as_str().to_owned();
    Ok(command.wrapped(SUDO, prefix, program).without_environment())
}

#[async_trait]
impl<R: Runner> Runner for Sudo<R> {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        self.inner.run(&raise(command)?).await
    }

    async fn run_all(&self, commands: &[Command]) -> Batch {
        match commands.iter().map(raise).collect::<Result<Vec<_>, _>>() {
            Ok(raised) => self.inner.run_all(&raised).await,
            Err(error) => Batch::not_started(commands, error),
        }
    }

    async fn stream_output(&self, command: &Command) -> Result<Box<dyn OutputStream>, RunError> {
        self.inner.stream_output(&raise(command)?).await
    }

    async fn run_with_input(
        &self,
        command: &Command,
        input: &mut dyn InputStream,
    ) -> Result<Output, RunError> {
        self.inner.run_with_input(&raise(command)?, input).await
    }
}

#[cfg(test)]
mod tests {
    use super::{Sudo, raise};
    use crate::testing::{Reply, Scripted};
    use crate::{Command, Effect, Program, RunError, Runner, Variable};

    const ZFS: Program = Program::constant("zfs");
    const LANG: Variable = Variable::constant("LANG");

    #[tokio::test]
    async fn the_command_follows_sudo_unchanged_and_its_secrets_stay_secret() {
        let script = Scripted::new().expect("sudo -n -- zfs load-key ****", Reply::empty());
        let sudo = Sudo::new(script);
        let command = Command::new(ZFS)
            .arg("load-key")
            .secret_arg("s3cret".into());
        sudo.perform(&command).await.unwrap();
        sudo.inner.finish();
    }

    #[test]
    fn variables_pass_through_env_but_a_secret_one_is_refused() {
        let plain = raise(&Command::new(ZFS).env(LANG, "C")).unwrap();
        assert_eq!(plain.to_string(), "sudo -n -- env LANG=C zfs");
        let refused = raise(&Command::new(ZFS).secret_env(LANG, "s3cret".into())).unwrap_err();
        assert!(matches!(refused, RunError::Invalid { .. }));
        assert_eq!(refused.effect(), Effect::None);
    }
}
