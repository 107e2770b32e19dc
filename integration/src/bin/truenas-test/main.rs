//! The suites against a TrueNAS that is there: `make truenas-test` starts it, docs/truenas-tasks.md says with what.
#![expect(clippy::print_stdout, reason = "the results are what it is for")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use driver_core::config::ProcessEnvironment;
use integration::appliance::Appliance;
use integration::requirement;

/// The configuration of a connection, which makes volumes below `zfs.datasetParentName`.
const CONFIG: &str = "OMNIBUS_TRUENAS_CONFIG";
/// A file with the secrets that a node needs for a volume, lines of `KEY=VALUE`.
const SECRETS: &str = "OMNIBUS_TRUENAS_SECRETS";

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let file = |variable| std::env::var_os(variable).map(PathBuf::from);
    let config = file(CONFIG).with_context(|| format!("{CONFIG} does not name a configuration"))?;
    let text = std::fs::read_to_string(&config)
        .with_context(|| format!("{CONFIG}: {}", config.display()))?;
    let secrets = file(SECRETS).map(std::fs::read_to_string).transpose()?;
    let secrets = secrets.as_deref();
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let tag = format!("{:x}", since.as_secs());
    let nas = Appliance::new(&text, &tag, Arc::new(ProcessEnvironment))?;
    let mut failed = 0;
    let mut report = |what: &str, outcome: Result<()>| match outcome {
        Ok(()) => println!("passed  {what}"),
        Err(error) => {
            failed += 1;
            println!("FAILED  {what}: {error:#}");
        }
    };
    report("check", nas.is_checked().await);
    report("the contract of drivers", nas.keeps_the_contract().await);
    if requirement::root("volumes that are mounted here") {
        report("omnibus-csi try", nas.is_tried(secrets).await);
        if let Some(program) = requirement::tool_from("csi-sanity", "OMNIBUS_CSI_SANITY") {
            report("csi-sanity", nas.is_sane(&program, secrets).await);
        }
    }
    let left = nas
        .leaks()
        .await
        .map(|left| left.into_iter().collect::<Vec<_>>());
    report(
        "nothing is left on the NAS",
        left.and_then(|left| match left.as_slice() {
            [] => Ok(()),
            left => Err(anyhow::anyhow!("{}", left.join("\n        "))),
        }),
    );
    Ok(ExitCode::from(u8::from(failed > 0)))
}
