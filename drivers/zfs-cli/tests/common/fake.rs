//! A host whose `zfs` is a script of a test.

use std::path::Path;
use std::time::Duration;

use driver_core::{BackendIdentity, Call};
use driver_zfs::name::DatasetName;
use driver_zfs_cli::Cli;
use driver_zfs_cli::ZfsTools;
use exec::{Local, Runner};

use crate::common::Counting;

pub(crate) type FakeCli = Cli<Counting<Local>>;

/// Writes a program that is this script, and gives its path.
pub(crate) fn program(folder: &Path, name: &str, script: &str) -> String {
    let program = folder.join(name);
    exec::testing::write_program(&program, &format!("#!/bin/sh\n{script}\n"));
    program.to_str().unwrap().to_owned()
}

/// A host whose `zfs` is this script, and whose `sudo` is another one beside it, if there is one.
pub(crate) fn host(folder: &Path, script: &str) -> FakeCli {
    host_by(Counting::new(Local::new()), folder, script)
}

/// The same, reached by this runner.
pub(crate) fn host_by<R: Runner>(runner: R, folder: &Path, script: &str) -> Cli<R> {
    let zfs = program(folder, "zfs", script);
    let sudo = folder.join("sudo");
    let tools = ZfsTools::new(Some(&zfs), sudo.to_str(), false).unwrap();
    Cli::new(runner, tools, BackendIdentity("test".into())).locking_in(folder.to_str().unwrap())
}

pub(crate) fn call() -> Call {
    Call::within(Duration::from_mins(2))
}

pub(crate) fn dataset(text: &str) -> DatasetName {
    DatasetName::parse(text).unwrap()
}
