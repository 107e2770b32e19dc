//! `truenas setup-user`: the login of a driver, made with that of an administrator.
//!
//! What was done goes to standard error; standard output has the key alone, or the calls of `--print`.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use driver_core::config::{Document, Environment};
use driver_truenas::setup::{Administrator, Made, Plan, Seen, Wanted, dialect_of};
use secrecy::{ExposeSecret, SecretString};

use crate::cli::args::{EX_USAGE, SetupUserFlags, TruenasCommand};
use crate::message::printable;
use crate::process::{self, complain};
use crate::routing::config_file;

const USER: &str = "OMNIBUS_CSI_TRUENAS_ADMIN_USER";
const PASSWORD: &str = "OMNIBUS_CSI_TRUENAS_ADMIN_PASSWORD";
const API_KEY: &str = "OMNIBUS_CSI_TRUENAS_ADMIN_API_KEY";
/// The time that all of it may take. It makes a few dozen exchanges and no copy.
const PATIENCE: Duration = Duration::from_mins(2);

/// The environment, without the key that is about to be made: what is not set is empty.
struct Incomplete;

impl Environment for Incomplete {
    fn variable(&self, name: &str) -> Option<String> {
        Some(process::variable(name).unwrap_or_default())
    }
}

/// Carries it out, and returns the exit code.
pub fn run(command: &TruenasCommand) -> ExitCode {
    let TruenasCommand::SetupUser(flags) = command;
    let read = read(&flags.driver_config_file);
    let (document, wanted) = match read {
        Ok(read) => read,
        Err(error) => return fail(&error, ExitCode::from(EX_USAGE)),
    };
    let work = async {
        let work = tokio::time::timeout(PATIENCE, set_up(flags, &document, &wanted)).await;
        work.unwrap_or_else(|_| {
            Err(anyhow!(
                "TrueNAS did not answer within two minutes; try again"
            ))
        })
    };
    match process::carry_out(work) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => fail(&error, ExitCode::FAILURE),
        Err(code) => code,
    }
}

fn fail(error: &anyhow::Error, code: ExitCode) -> ExitCode {
    let chain = printable(&process::chain(error.as_ref()));
    complain(&format!("omnibus-csi: {chain}"));
    code
}

fn read(path: &Path) -> Result<(Document, Wanted)> {
    let text =
        config_file::read_regular(path).with_context(|| format!("read {}", path.display()))?;
    let document = Document::parse(&text, &Incomplete)?;
    let wanted = Wanted::of(&document).with_context(|| path.display().to_string())?;
    Ok((document, wanted))
}

async fn set_up(flags: &SetupUserFlags, document: &Document, wanted: &Wanted) -> Result<()> {
    if let Some(release) = &flags.release {
        let plan = wanted.plan(&dialect_of(release)?, &Seen::default(), flags.new_key)?;
        print(&plan);
        return Ok(());
    }
    let nas = administrator()?.client(document)?;
    let seen = wanted.look(&nas).await?;
    let plan = wanted.plan(&nas.dialect().await?, &seen, flags.new_key)?;
    if flags.print {
        print(&plan);
        return Ok(());
    }
    for note in &plan.notes {
        complain(&format!("note: {note}"));
    }
    let revoked = plan.revoked;
    // Before the key is made: TrueNAS does not show it again.
    let path = flags.key_file.as_deref().filter(|_| plan.makes_key());
    let file = path.map(KeyFile::new).transpose()?;
    let Made { done, key } = plan.carry_out(&nas).await?;
    let kept = keep(file, key.as_ref());
    for step in &done {
        complain(&format!("done: {step}"));
    }
    if done.is_empty() {
        complain("nothing is missing");
    }
    kept?;
    let again = wanted.plan(&nas.dialect().await?, &wanted.look(&nas).await?, false)?;
    match again.steps().next() {
        Some(step) => Err(anyhow!(
            "TrueNAS said yes, and this is still missing: {step}"
        )),
        None if revoked => Err(anyhow!(
            "the API key was revoked, and the driver cannot log in: run this again with --new-key"
        )),
        None => Ok(()),
    }
}

/// Writes the key where it was asked for.
fn keep(file: Option<KeyFile>, key: Option<&SecretString>) -> Result<()> {
    let Some(key) = key else { return Ok(()) };
    let line = format!("{}\n", key.expose_secret());
    if let Some(file) = file {
        return file.fill(&line);
    }
    process::say(&line);
    Ok(())
}

/// A new file that only its owner can read. Without a key in it, it is removed: it would be in the way of
/// the next run.
struct KeyFile {
    path: PathBuf,
    file: File,
    is_filled: bool,
}

impl KeyFile {
    fn new(path: &Path) -> Result<Self> {
        let mut options = File::options();
        let options = options.write(true).create_new(true).mode(0o600);
        let file = options
            .open(path)
            .with_context(|| format!("make {}, which must not exist", path.display()))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            is_filled: false,
        })
    }

    fn fill(mut self, line: &str) -> Result<()> {
        let written = self.file.write_all(line.as_bytes());
        let written = written.and_then(|()| self.file.sync_all());
        self.is_filled = written.is_ok();
        let advice = "the key is lost; run this again with --new-key";
        written.with_context(|| format!("write {}: {advice}", self.path.display()))
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        if !self.is_filled
            && let Err(error) = fs::remove_file(&self.path)
        {
            let path = self.path.display();
            complain(&format!("remove {path}, which has no key: {error}"));
        }
    }
}

fn print(plan: &Plan) {
    for note in &plan.notes {
        process::say(&format!("# note: {note}\n"));
    }
    process::say(&plan.script());
}

/// The login from the environment: on the command line every process of the machine would see it.
fn administrator() -> Result<Administrator> {
    let secret = |name| {
        process::variable(name)
            .filter(|text| !text.is_empty())
            .map(SecretString::from)
    };
    let (api_key, password) = (secret(API_KEY), secret(PASSWORD));
    if api_key.is_none() && password.is_none() {
        return Err(anyhow!(
            "the login of an administrator is needed: set {PASSWORD} or {API_KEY}, and {USER} if that is not \
             `truenas_admin`; or use --print --release, which asks nothing of the NAS"
        ));
    }
    let username = process::variable(USER).filter(|name| !name.is_empty());
    Ok(Administrator {
        username: username.unwrap_or_else(|| "truenas_admin".to_owned()),
        api_key,
        password,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::cli::args::{self, Command, Invocation};

    #[test]
    fn the_key_is_for_its_owner_alone_and_no_file_is_overwritten() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        let file = KeyFile::new(&path).expect("a file");
        let key = SecretString::from("1-secret");
        keep(Some(file), Some(&key)).expect("written");
        assert_eq!(fs::read_to_string(&path).expect("a text"), "1-secret\n");
        let mode = fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(KeyFile::new(&path).is_err(), "it is there");
        assert_eq!(fs::read_to_string(&path).expect("a text"), "1-secret\n");
    }

    #[test]
    fn a_file_without_a_key_is_taken_away() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        let file = KeyFile::new(&path).expect("a file");
        keep(Some(file), None).expect("removed");
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_run_that_is_given_up_leaves_no_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        let file = KeyFile::new(&path).expect("a file");
        let silent = async {
            std::future::pending::<()>().await;
            keep(Some(file), None)
        };
        let outcome = tokio::time::timeout(Duration::from_millis(1), silent).await;
        outcome.expect_err("no answer");
        assert!(!path.exists());
    }

    #[test]
    fn the_file_needs_no_flag_and_a_release_is_only_printed() {
        let parse = |argv: &[&str]| {
            let argv = ["omnibus-csi", "truenas", "setup-user"].iter().chain(argv);
            args::parse(argv.map(Into::into).collect(), &|_| None)
        };
        let Ok(Invocation::Command(Command::Truenas(TruenasCommand::SetupUser(flags)))) =
            parse(&["driver.yaml", "--print", "--release=25.10"])
        else {
            panic!("not understood");
        };
        assert_eq!(flags.driver_config_file, Path::new("driver.yaml"));
        assert_eq!(flags.release.as_deref(), Some("25.10"));
        parse(&["driver.yaml", "--release=25.10"]).expect_err("nothing is to be printed");
    }
}
