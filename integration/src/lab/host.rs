//! The outer half: the lab's machine as seen from the host that runs the tests.
//!
//! Everything is done through `vagrant/lab`, within a bounded time. The machine belongs to the
//! tests alone: it is an instance of its own, and a developer's lab is not touched.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "starts the lab's own script, and shows what the cells print"
)]

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::cell::{Cell, Machines};
use super::outside::Machine;
use super::{evidence, given, outside};
use crate::binary::{omnibus_csi, profile_dir};

/// From nothing: two package downloads, a kernel module, a first start, all emulated.
const BUILD: Duration = Duration::from_mins(80);
/// The limit for work that goes quickly, on a machine that is busy with other things.
const SHORT: Duration = Duration::from_mins(5);
/// The state with the program in it.
const ARMED: &str = "armed";
/// The number of states of failed cells that are kept; each takes some hundred MiB.
const KEPT: usize = 3;

/// The lab's machine or pair, up and with the program in it.
#[derive(Debug)]
pub struct Lab {
    script: PathBuf,
    instance: String,
    machines: Machines,
    evidence: PathBuf,
    kept: Vec<String>,
}

/// The outcome of a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// As it should; the line, if any, is for the results.
    Passed(String),
    /// Not so; the line says why.
    Failed(String),
    /// It was not started: the run around it ends soon.
    LeftOut,
}

// === impl Lab ===

impl Lab {
    /// Starts the machine or the pair, building it if need be. A pair is a lab of its own, so that it
    /// takes nothing away from the other.
    pub async fn up(machines: Machines) -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let target = profile_dir();
        let target = target.parent().context("a profile lies in a target dir")?;
        let mut instance = std::env::var("OMNIBUS_LAB_INSTANCE").unwrap_or_else(|_| "test".into());
        let words: &[&str] = match machines {
            Machines::One => &["up"],
            Machines::Pair => {
                instance.push_str("pair");
                &["up", "--pair"]
            }
        };
        let lab = Self {
            script: root.join("vagrant/lab"),
            instance,
            machines,
            evidence: target.join("omnibus/lab"),
            kept: Vec::new(),
        };
        lab.say("up", words, BUILD).await?;
        Ok(lab)
    }

    /// Copies the program and this binary into each machine, and keeps that state for every cell.
    pub async fn arm(&self) -> Result<()> {
        let folder = tempfile::tempdir()?;
        let mut files = Vec::<OsString>::new();
        let this = std::env::current_exe()?;
        for (binary, name) in [(omnibus_csi(), "omnibus-csi"), (&this, "lab-node")] {
            let small = folder.path().join(name);
            strip(binary, &small).await?;
            files.push(small.into());
        }
        // Only some cells need it; they say so if it is missing.
        if let Some(sanity) = std::env::var_os("OMNIBUS_CSI_SANITY") {
            files.push(sanity);
        }
        self.say("reset", ["reset"], SHORT).await?;
        let mut machines = vec![Machine::Storage];
        if self.machines == Machines::Pair {
            machines.push(Machine::Node);
            files.push(self.folder(&["path"]).await?.join("key").into());
        }
        let first = "mkdir -p /var/lib/lab && /root/omnibus-csi --version && /root/lab-node list >/dev/null";
        for machine in machines {
            let machine = machine.name();
            self.say("push", push(machine, &files), SHORT).await?;
            let words = ["run", "-m", machine, "--", "sh", "-c", first];
            self.say("a first run of what was pushed", words, SHORT)
                .await
                .context("the program that was built here does not run in the lab's machine: is the C library of this system newer than that of Debian 13?")?;
        }
        self.say("save", ["save", ARMED], SHORT).await
    }

    /// The folder of the lab, or of one of its machines.
    async fn folder(&self, words: &[&str]) -> Result<PathBuf> {
        let child = self.start(words, Stdio::piped())?;
        let Ok(output) = timeout(SHORT, child.wait_with_output()).await else {
            bail!("lab path: no end within {SHORT:?}");
        };
        let path = String::from_utf8(output?.stdout)?;
        Ok(PathBuf::from(path.trim_end()))
    }

    /// Runs one cell from the saved state on, showing what it prints.
    pub async fn run(&mut self, cell: &Cell, seed: u64) -> Outcome {
        let folder = self.evidence.join(&cell.name);
        let panics = self.kernel_panics().await;
        let mut result = self.once(cell, seed, &folder).await;
        let mut remark = "";
        // An emulated processor now and then runs what the kernel is just replacing in its own code. What the
        // first run left is kept, for it may have been the cell.
        if result.is_err() && self.kernel_panics().await > panics {
            remark = "its machine's kernel panicked the first time";
            eprintln!("cell {}: {remark}; once more", cell.name);
            let first = self.evidence.join(format!("{}-panicked", cell.name));
            let _ = fs::remove_dir_all(&first);
            let _ = fs::rename(&folder, &first);
            if let Ok(machine) = self.folder(&["path", "storage"]).await {
                let _ = fs::copy(machine.join("console"), first.join("console"));
            }
            result = self.once(cell, seed, &folder).await;
        }
        let error = match result {
            Ok(notes) => {
                let _ = fs::remove_dir_all(&folder);
                let remarks = [remark, &notes].into_iter();
                let remarks: Vec<_> = remarks.filter(|remark| !remark.is_empty()).collect();
                return Outcome::Passed(remarks.join("; "));
            }
            Err(error) => error,
        };
        let why = format!("{error:#}");
        eprintln!("cell {} FAILED: {why}", cell.name);
        self.keep(cell, &folder).await;
        Outcome::Failed(format!("{why}; see {}", folder.display()))
    }

    async fn once(&self, cell: &Cell, seed: u64, folder: &Path) -> Result<String> {
        let _ = fs::remove_dir_all(folder);
        self.reset().await?;
        self.inside(cell, seed, folder).await
    }

    /// The number of panics the consoles show since the machines were started.
    async fn kernel_panics(&self) -> usize {
        let mut panics = 0;
        for machine in ["storage", "node"] {
            let Ok(folder) = self.folder(&["path", machine]).await else {
                continue;
            };
            let console = fs::read(folder.join("console")).unwrap_or_default();
            panics += panics_in(&String::from_utf8_lossy(&console));
        }
        panics
    }

    /// Back to the state with the program in it.
    async fn reset(&self) -> Result<()> {
        let first = self.say("reset", ["reset", ARMED], SHORT).await;
        let Err(error) = first else { return Ok(()) };
        // Now and then the network card of a machine that was put back stays silent.
        eprintln!("once more: {error:#}");
        self.say("reset", ["reset", ARMED], SHORT).await
    }

    /// Runs a cell, and does what it asks for. Returns its remarks for the results.
    async fn inside(&self, cell: &Cell, seed: u64, folder: &Path) -> Result<String> {
        fs::create_dir_all(folder)?;
        let mut log = File::create(folder.join("output"))?;
        let given = given::words();
        let command = format!(
            "exec env TMPDIR=/var/lib/lab OMNIBUS_CSI=/root/omnibus-csi \
             OMNIBUS_CSI_SANITY=/root/csi-sanity OMNIBUS_SEED={seed} {given}/root/lab-node node {} 2>&1",
            cell.name
        );
        let seat = cell.seat.name();
        let mut call = self.command(["run", "-m", seat, "--", "sh", "-c", &command]);
        call.stdout(Stdio::piped());
        // Of one machine nothing can be asked: the cell is on it.
        if cell.machines == Machines::Pair {
            call.stdin(Stdio::piped());
        }
        let mut child = self.started(&mut call)?;
        let mut answers = child.stdin.take();
        let stdout = child.stdout.take().context("a pipe was asked for")?;
        let mut lines = BufReader::new(stdout).lines();
        let mut reason = String::new();
        let mut notes = Vec::new();
        let work = async {
            while let Some(line) = lines.next_line().await? {
                writeln!(log, "{line}")?;
                eprintln!("  {line}");
                notes.extend(outside::noted(&line).map(str::to_owned));
                if let Some(words) = outside::asked(&line) {
                    let outcome = self.say(words[0], &words, cell.limit).await;
                    let answer = outside::answer(&outcome);
                    let to = answers.as_mut().context("only a cell of a pair may ask")?;
                    to.write_all(answer.as_bytes()).await?;
                }
                if reason.is_empty() && line.contains("panicked at") {
                    reason = lines.next_line().await?.unwrap_or_default();
                    writeln!(log, "{reason}")?;
                    eprintln!("  {reason}");
                }
            }
            anyhow::Ok(child.wait().await?)
        };
        let ended = timeout(cell.limit, work).await;
        let Ok(status) = ended else {
            kill(&mut child).await;
            bail!("it took longer than {:?}", cell.limit);
        };
        let status = status?;
        ensure!(status.success(), "{status} {reason}");
        Ok(notes.join("; "))
    }

    /// Fetches what a failed cell left, and keeps the state of the machine.
    async fn keep(&mut self, cell: &Cell, folder: &Path) {
        let fetched = self.fetch(cell, folder).await;
        if let Err(error) = fetched {
            eprintln!("nothing more could be had of it: {error:#}");
        }
        let state = format!("failed-{}", cell.name);
        if self.kept.len() < KEPT && self.say("save", ["save", &state], SHORT).await.is_ok() {
            self.kept.push(state);
        }
    }

    async fn fetch(&self, cell: &Cell, folder: &Path) -> Result<()> {
        let archive = folder.join("evidence.tar");
        let out = File::create(&archive)?;
        let tar = ["tar", "-C", evidence::FOLDER, "-cf", "-", "."];
        let run = ["run", "-m", cell.seat.name(), "--"];
        let mut child = self.start(run.into_iter().chain(tar), out.into())?;
        let Ok(status) = timeout(SHORT, child.wait()).await else {
            kill(&mut child).await;
            bail!("the machine does not answer");
        };
        ensure!(status?.success(), "it left no evidence");
        let mut unpack = Command::new("tar");
        unpack.arg("-xf").arg(&archive).arg("-C").arg(folder);
        ensure!(unpack.status().await?.success(), "tar");
        fs::remove_file(archive)?;
        Ok(())
    }

    /// Takes the machine down, unless something failed that one may want to look at.
    pub async fn down(self, look: bool) -> Result<()> {
        if look && !self.kept.is_empty() {
            let lab = format!("OMNIBUS_LAB_INSTANCE={} vagrant/lab", self.instance);
            eprintln!("\nThe machine of the lab stays up for an inspection:");
            for state in &self.kept {
                eprintln!("  {lab} reset {state} && {lab} ssh");
            }
            eprintln!("  {lab} down\n");
            return Ok(());
        }
        self.say("down", ["down"], SHORT).await
    }

    /// Runs a command of the lab's script; what it says is shown.
    async fn say(
        &self,
        what: &str,
        words: impl IntoIterator<Item = impl AsRef<OsStr>>,
        limit: Duration,
    ) -> Result<()> {
        let mut child = self.start(words, Stdio::inherit())?;
        let Ok(status) = timeout(limit, child.wait()).await else {
            kill(&mut child).await;
            bail!("lab {what}: no end within {limit:?}");
        };
        let status = status?;
        ensure!(status.success(), "lab {what}: {status}");
        Ok(())
    }

    fn start(
        &self,
        words: impl IntoIterator<Item = impl AsRef<OsStr>>,
        stdout: Stdio,
    ) -> Result<Child> {
        self.started(self.command(words).stdout(stdout))
    }

    fn command(&self, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = Command::new(&self.script);
        command
            .args(words)
            .env("OMNIBUS_LAB_INSTANCE", &self.instance)
            .stdin(Stdio::null())
            .process_group(0)
            .kill_on_drop(true);
        command
    }

    fn started(&self, command: &mut Command) -> Result<Child> {
        command
            .spawn()
            .with_context(|| format!("{} cannot be started", self.script.display()))
    }
}

/// The number of panics that a console shows. One that is followed by a restart at once has no line of its end.
fn panics_in(console: &str) -> usize {
    console.matches("] Kernel panic - not syncing").count()
}

fn push(machine: &str, files: &[OsString]) -> Vec<OsString> {
    let words = ["push", "-m", machine, "--"].map(OsString::from);
    words.into_iter().chain(files.iter().cloned()).collect()
}

/// Kills a child with its group, and waits until it is gone.
pub(super) async fn kill(child: &mut Child) {
    let group = child.id().and_then(|id| i32::try_from(id).ok());
    if let Some(group) = group.and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait().await;
}

/// A copy without what only a debugger reads: most of a binary of the tests.
async fn strip(binary: &Path, into: &Path) -> Result<()> {
    let mut command = Command::new("strip");
    command.arg("--strip-debug").arg("-o").arg(into).arg(binary);
    if !command.status().await.is_ok_and(|status| status.success()) {
        fs::copy(binary, into)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_counts_once_with_a_restart_or_without() {
        let restarted = "[ 1372.236103] PKRU: 55555554\n\
            [ 1372.236241] Kernel panic - not syncing: Fatal exception in interrupt\n\
            [ 1372.237173] Kernel Offset: 0x33c00000 from 0xffffffff81000000\n\
            \u{1b}[!p\u{1b}]104\u{7}[   10.678464] systemd-ssh-generator[282]: Failed to query local AF_VSOCK CID\n";
        let stopped = "[   41.000001] Kernel panic - not syncing: Fatal exception\n\
            [   41.000002] ---[ end Kernel panic - not syncing: Fatal exception ]---\n";
        let counts = [restarted, stopped, &restarted.repeat(2), "[    1.0] quiet"].map(panics_in);
        assert_eq!(counts, [1, 1, 2, 0]);
    }
}
