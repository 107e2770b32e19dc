//! Scripts as commands of the host: as root where that is configured, one at a time where they
//! change what volumes share.
//!
//! A script is a constant, and its input are arguments. Secrets come with the script, on standard input.
//! compat: "Exports of a ZFS host".

use std::time::Duration;

use driver_zfs_cli::exec::{Command, Lock, Program, Variable, quote};

const SH: Program = Program::constant("sh");
const SUDO: Program = Program::constant("sudo");
const SECRETS: Variable = Variable::constant("secrets");

/// The time that a script may take: a tool in Python on a slow host takes seconds for each call.
const SCRIPT: Duration = Duration::from_mins(2);
/// The time that a script may wait for the lock that it takes by itself: `patience` in `lio_saved.sh`.
const TURN: Duration = Duration::from_secs(30);

/// Runs a tool that has its own command language; see there.
const TOOL: &str = include_str!("script/tool.sh");
/// The number of times that a tool is run again that read a file during a write.
pub(crate) const TRIES: &str = "3";

/// The paths of a host that the target stacks share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPaths {
    /// The place where configfs is mounted.
    pub configfs: String,
    /// The place where debugfs is mounted.
    pub debugfs: String,
    /// The place where ZFS shows the state of each pool, without waiting for it.
    pub pools: String,
    /// The lock that `targetcli` holds while it runs.
    pub targetcli_lock: String,
    /// The file that `targetcli` saves; `None` is the file of whatever version there is.
    pub targetcli_saved: Option<String>,
    /// The folder of our own locks; `None` is that of the user that commands run as.
    pub locks: Option<String>,
}

/// The way the scripts of one stack are run.
#[derive(Debug, Clone)]
pub(crate) struct Scripts {
    text: &'static str,
    stack: &'static str,
    sudo: bool,
    places: HostPaths,
}

impl Default for HostPaths {
    fn default() -> Self {
        Self {
            configfs: "/sys/kernel/config".to_owned(),
            debugfs: "/sys/kernel/debug".to_owned(),
            pools: "/proc/spl/kstat/zfs".to_owned(),
            targetcli_lock: "/var/run/targetcli.lock".to_owned(),
            targetcli_saved: None,
            locks: None,
        }
    }
}

/// A script without its comments, indentation and empty lines, as it travels. No text in it may
/// have a line that begins with a blank or a number sign.
pub(crate) fn bare(script: &str) -> String {
    let lines = script.lines().map(str::trim_start);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// A text as a word of the shell.
fn quoted(text: &str) -> String {
    // What has a zero byte was refused when it was read.
    quote(text).unwrap_or_else(|_| "''".to_owned())
}

// === impl Scripts ===

impl Scripts {
    /// The script `text` of a stack, run by sudo or not.
    pub(crate) fn new(
        text: &'static str,
        stack: &'static str,
        sudo: bool,
        places: HostPaths,
    ) -> Self {
        Self {
            text,
            stack,
            sudo,
            places,
        }
    }

    /// The paths of the host.
    pub(crate) fn places(&self) -> &HostPaths {
        &self.places
    }

    /// The script with these arguments, without a lock. `secrets` are lines that it finds in a
    /// variable of that name.
    pub(crate) fn unlocked(&self, arguments: Vec<String>, secrets: &str) -> Command {
        if self.sudo || !secrets.is_empty() {
            return self.on_stdin(secrets, arguments);
        }
        // The shell that runs the list runs it.
        Command::script(self.text)
            .env(SECRETS, "")
            .args(arguments)
            .within(SCRIPT)
    }

    /// The script with these arguments, alone on its stack.
    pub(crate) fn change(&self, arguments: Vec<String>, secrets: &str) -> Command {
        self.alone(&self.on_stdin(secrets, arguments))
    }

    /// The script with these arguments, which takes a lock by itself.
    pub(crate) fn change_by_itself(&self, arguments: Vec<String>, secrets: &str) -> Command {
        self.on_stdin(secrets, arguments).within(SCRIPT + TURN)
    }

    /// The same, alone on its stack among those that are run so.
    pub(crate) fn save_by_itself(&self, arguments: Vec<String>) -> Command {
        self.alone(&self.change_by_itself(arguments, ""))
    }

    /// Runs the commands of a tool, alone on its stack, then observes; see `tool.sh`. `saving` are those for one that
    /// has not saved by itself. `tool` comes before the arguments of the observation, which finds `secrets`.
    pub(crate) fn run_tool(
        &self,
        tool: [&str; 4],
        [commands, saving]: [&str; 2],
        arguments: Vec<String>,
        secrets: &str,
    ) -> Command {
        let look = quoted(&self.text(secrets));
        let (commands, saving) = (quoted(commands), quoted(saving));
        let text = format!("look={look}\ncommands={commands}\nsaving={saving}\n{TOOL}");
        let tool = tool.map(str::to_owned).into_iter();
        self.alone(&self.run(&text, tool.chain(arguments).collect()))
    }

    fn text(&self, secrets: &str) -> String {
        format!("secrets={}\n{}", quoted(secrets), self.text)
    }

    /// The script, on standard input.
    fn on_stdin(&self, secrets: &str, arguments: Vec<String>) -> Command {
        if self.sudo {
            return self.run(&self.text(secrets), arguments);
        }
        let secrets = format!("secrets={}\n", quoted(secrets));
        let command = Command::script_with_prelude(&secrets, self.text);
        command.args(arguments).within(SCRIPT)
    }

    fn run(&self, text: &str, arguments: Vec<String>) -> Command {
        let command = if self.sudo {
            Command::new(SUDO).args(["-n", "--", SH.as_str()])
        } else {
            Command::new(SH)
        };
        // On standard input: arguments are in logs and errors, and for all users of the host to see.
        command.arg("-s").args(arguments).stdin(text).within(SCRIPT)
    }

    fn alone(&self, command: &Command) -> Command {
        let mut lock = Lock::stack(self.stack);
        if let Some(folder) = &self.places.locks {
            lock = lock.within_folder(folder);
        }
        // By sudo it is a process of its own.
        if self.sudo {
            lock.around(command)
        } else {
            lock.around_script(command)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_has_the_time_that_it_may_wait_for_its_lock() {
        let patience = format!("\n    patience={}\n", TURN.as_secs());
        assert!(include_str!("script/lio_saved.sh").contains(&patience));
    }
}
