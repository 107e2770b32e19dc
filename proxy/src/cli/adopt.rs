//! `adopt`: what lies on the storage already becomes a volume of a connection, and its objects are written.
//!
//! The steps are said before they are done. The content is never touched.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use driver_core::{AdoptVolume, Adoption, AdoptionState, Claim, MadeFor, ObjectName, Volume};

use crate::cli::args::EX_USAGE;
use crate::cli::export_pvs::{self, ObjectFlags, claim, object};
use crate::cli::selection::{self, CHANGE, Chosen, QUESTION, name_of, within};
use crate::message::{self, printable};
use crate::process;
use crate::routing::connection::Connection;

#[cfg(test)]
mod tests;

pub(crate) const AFTER: &str = "\
SOURCE is a dataset or zvol by its whole name, right below the parent of the connection's volumes, or a directory of \
the connection's base by its path there. Its content, its permissions and its snapshots stay as they are. Killed at any \
moment, the same command goes on.

Standard output has the objects, standard error what is done; with --dry-run standard output says what would be done.

Examples:
  See what would be done:
    omnibus-csi adopt --driver-config-file=proxy.yaml --connection=nas \\
      --csi-name=org.example.csi tank/k8s/volumes/photos --dry-run
  Do it, for a claim:
    omnibus-csi adopt --driver-config-file=proxy.yaml --connection=nas \\
      --csi-name=org.example.csi --storage-class=nas \\
      --claim=shop/photos tank/k8s/volumes/photos > photos.yaml
    kubectl create -f photos.yaml

Exit codes:
  0   it is a volume, and its objects are written; or it could become one, with --dry-run
  1   it cannot become one, or the storage failed: standard error says why
  64  the command line or the configuration is wrong";

/// The source of the volume, and its objects.
#[derive(Debug, Args)]
pub struct AdoptFlags {
    /// The dataset, zvol or directory
    pub source: String,
    /// The configuration of the storage, YAML
    #[arg(long, value_name = "PATH")]
    pub driver_config_file: PathBuf,
    /// The connection, in a configuration of several
    #[arg(long, value_name = "NAME")]
    pub connection: Option<String>,
    /// The claim that gets it (default: as the storage records it, else none)
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = claim)]
    pub claim: Option<Claim>,
    /// The name of its persistent volume (default: that of the dataset or directory)
    #[arg(long, value_name = "NAME", value_parser = object)]
    pub name: Option<ObjectName>,
    /// Its size, if nothing on the storage says it: 10Gi
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Its objects
    #[command(flatten)]
    pub objects: ObjectFlags,
}

/// A size as Kubernetes writes it: a number, alone or with one of its units.
pub(super) fn size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 10] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("Pi", 1 << 50),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
        ("P", 1_000_000_000_000_000),
    ];
    let unit = UNITS
        .iter()
        .find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (number, bytes) = unit.unwrap_or((text, 1));
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    let size = number.parse::<u64>().ok().filter(|_| is_number);
    let size = size.and_then(|number| number.checked_mul(bytes));
    // The wire has no larger ones.
    size.filter(|size| *size > 0 && i64::try_from(*size).is_ok())
        .ok_or_else(|| "give a size as a claim asks for it, as in 10Gi".to_owned())
}

/// Adopts, and writes the objects to standard output.
pub fn run(flags: &AdoptFlags) -> ExitCode {
    if let Err(code) = flags.objects.check() {
        return code;
    }
    let chosen = selection::choose(&flags.driver_config_file, flags.connection.as_deref());
    let connection = match chosen.and_then(|chosen| only(chosen, flags.connection.is_some())) {
        Ok(connection) => connection,
        Err(code) => return code,
    };
    match process::carry_out(adopt(&connection, flags)) {
        Ok(Ok(Some(volume))) => export_pvs::print_one(connection, volume, &flags.objects),
        Ok(Ok(None)) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            process::complain(&format!("omnibus-csi: {error}"));
            ExitCode::FAILURE
        }
        Err(code) => code,
    }
}

/// The one connection that is meant.
fn only(mut chosen: Chosen, is_named: bool) -> Result<Arc<Connection>, ExitCode> {
    let usage = |why: &str| {
        process::complain(&format!("omnibus-csi: {why}"));
        ExitCode::from(EX_USAGE)
    };
    match (chosen.connections.pop(), chosen.connections.is_empty()) {
        (Some(only), true) if is_named || chosen.problems.is_empty() => Ok(only),
        (None, _) if is_named => {
            for problem in &chosen.problems {
                process::complain(problem.line().trim_end());
            }
            Err(ExitCode::from(EX_USAGE))
        }
        _ => Err(usage(
            "name the connection by --connection; `omnibus-csi connections` lists them",
        )),
    }
}

/// The volume, unless it is only said what would be done.
async fn adopt(connection: &Connection, flags: &AdoptFlags) -> Result<Option<Volume>, String> {
    let driver = connection.driver();
    let name = name_of(connection).unwrap_or_else(|| driver.kind().to_owned());
    if !connection.can().adopt {
        let kind = driver.kind();
        return Err(format!(
            "{name}: the driver `{kind}` cannot make a volume of what exists"
        ));
    }
    let request = AdoptVolume {
        source: flags.source.clone(),
        size: flags.size,
        made_for: MadeFor {
            claim: flags.claim.clone(),
            persistent_volume: flags.name.clone(),
        },
    };
    let plan = within(QUESTION, "look at what is to be adopted", async |call| {
        driver.plan_adoption(call, &request).await
    });
    let plan = plan.await.map_err(|error| message::of(&error))?;
    let handle = connection.volume_handle(&plan.id);
    if plan.state == AdoptionState::Volume {
        return Err(format!(
            "{}: it is the volume `{}` already; `omnibus-csi export-pvs` writes its objects",
            printable(&flags.source),
            printable(&handle)
        ));
    }
    let said = report(&flags.source, &handle, &plan, flags.dry_run);
    if flags.dry_run {
        process::say(&said);
        return Ok(None);
    }
    process::complain(said.trim_end());
    let made = within(CHANGE, "adopt what exists", async |call| {
        driver.adopt_volume(call, &request).await
    });
    let made = made.await.map_err(|error| {
        let error = message::of(&error);
        format!("{error}\nomnibus-csi: what was started goes on when the same command runs again")
    })?;
    Ok(Some(export_pvs::with_size(made, flags.size)))
}

/// The steps, for the operator.
fn report(source: &str, handle: &str, plan: &Adoption, dry: bool) -> String {
    let (source, handle) = (printable(source), printable(handle));
    let mut text = match (plan.state, dry) {
        (AdoptionState::Done, _) => format!("{source} was adopted as the volume `{handle}`\n"),
        (_, true) => format!("{source} would become the volume `{handle}`:\n"),
        (_, false) => format!("{source} becomes the volume `{handle}`:\n"),
    };
    if plan.state == AdoptionState::Open {
        let mark = "mark it as a volume".to_owned();
        for step in plan.steps.iter().chain([&mark]) {
            let _ = writeln!(text, "  {}", printable(step));
        }
    }
    for remark in &plan.remarks {
        let _ = writeln!(text, "note: {}", printable(remark));
    }
    text
}
