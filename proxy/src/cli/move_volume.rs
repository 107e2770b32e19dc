//! `move`: a volume goes to another connection in rounds, while pods use it, and becomes a volume there at the end.
//!
//! Each round carries what was written since the one before. All that is known of a move is on the storage of both
//! connections, so the same command goes on after any interruption. The volume that was moved stays.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use driver_core::transfer::CopyTag;
use driver_core::{
    Claim, CreateVolume, Elsewhere, Error, Kind, MadeFor, Mover, ObjectName, Secrets, SizeRange,
    Source, TopologyRequirement, Volume, VolumeId, VolumeName,
};

use crate::cli::adopt::size;
use crate::cli::args::EX_USAGE;
use crate::cli::explain;
use crate::cli::export_pvs::{self, ObjectFlags, claim, object};
use crate::cli::selection::{QUESTION, within};
use crate::message::{self, printable};
use crate::process;
use crate::routing::connection::Connection;
use crate::routing::connections::{ConnectionName, Connections, VolumeHandle};
use progress::Progress;
use work::Move;

mod progress;
#[cfg(test)]
mod tests;
mod work;

/// The rounds of one run without an end. The third carries what was written during the second, which was short.
const ROUNDS: usize = 3;
/// A round of fewer bytes is the last one: another one would not be shorter.
const LITTLE: u64 = 64 << 20;
/// The time of one round. As long as a copy may take; it goes on in the next run.
const ROUND: Duration = Duration::from_hours(48);

pub(crate) const AFTER: &str = "\
HANDLE is `spec.csi.volumeHandle` of the PersistentVolume: v:<connection>/<id>. Both connections have to be of ZFS and \
send streams: zfs-generic-*, zfs-local-*, and TrueNAS by SSH (freenas-nfs and its kin).

Without --finish the volume stays in use: up to three rounds carry it, each what was written since the one before. Run it \
again as often as you like. With --finish, once no pod uses it, the last round is carried, what has come becomes a volume, \
and its objects are written to standard output. The old volume stays, and so do its VolumeSnapshots. Killed at any moment, \
the same command goes on.

Examples:
  See what would be done:
    omnibus-csi move v:nas/pvc-0a1b --to=ssd --driver-config-file=proxy.yaml \\
      --csi-name=org.example.csi --dry-run
  Carry it while pods use it:
    omnibus-csi move v:nas/pvc-0a1b --to=ssd --driver-config-file=proxy.yaml \\
      --csi-name=org.example.csi
  Switch, after its pods were scaled to zero:
    omnibus-csi move v:nas/pvc-0a1b --to=ssd --driver-config-file=proxy.yaml \\
      --csi-name=org.example.csi --storage-class=ssd --finish > moved.yaml
  Change your mind:
    omnibus-csi move v:nas/pvc-0a1b --to=ssd --driver-config-file=proxy.yaml \\
      --csi-name=org.example.csi --give-up

Exit codes:
  0   the rounds have ended; or it is moved, and its objects are written
  1   it cannot be moved, is in use, or the storage failed: standard error says why
  64  the command line or the configuration is wrong";

/// The volume, its new connection, and its objects.
#[derive(Debug, Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub struct MoveFlags {
    /// The handle of the volume, such as v:nas/pvc-0a1b
    pub handle: String,
    /// The connection that it goes to
    #[arg(long, value_name = "CONNECTION")]
    pub to: String,
    /// The configuration with `driver: proxy`, YAML
    #[arg(long, value_name = "PATH")]
    pub driver_config_file: PathBuf,
    /// Carry the last round, make it a volume, and write its objects
    #[arg(long)]
    pub finish: bool,
    /// Finish although nodes use it, or may: what they write after the last round is lost
    #[arg(long, requires = "finish")]
    pub while_attached: bool,
    /// Remove what the move has left at both ends; a volume is never removed
    #[arg(long, conflicts_with_all = ["finish", "dry_run"])]
    pub give_up: bool,
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// The claim that gets it (default: as the storage records it, else none)
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = claim)]
    pub claim: Option<Claim>,
    /// The name of its persistent volume (default: as the storage records it, else that of the volume)
    #[arg(long, value_name = "NAME", value_parser = object)]
    pub name: Option<ObjectName>,
    /// Its size, if nothing limits it now: 10Gi
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Its objects
    #[command(flatten)]
    pub objects: ObjectFlags,
}

/// Both ends of a move.
#[derive(Debug)]
struct Ends {
    source: Arc<Connection>,
    id: VolumeId,
    target: Arc<Connection>,
}

/// Moves, and writes the objects to standard output at the end.
pub fn run(flags: &MoveFlags) -> ExitCode {
    if let Err(code) = flags.objects.check() {
        return code;
    }
    let connections = match explain::connections(&flags.driver_config_file) {
        Ok(Some(connections)) => connections,
        Ok(None) => {
            return wrong("a move needs two connections, and this configuration has one");
        }
        Err(problem) => return wrong(&problem),
    };
    let progress = Arc::new(Progress::default());
    let shown = Arc::clone(&progress);
    let work = async {
        let ends = match Ends::of(&connections, flags).await {
            Ok(ends) => ends,
            Err(problem) => return Err(wrong(&problem)),
        };
        match carry(&ends, flags, &progress).await {
            Ok(moved) => Ok((ends, moved)),
            Err(problem) => {
                process::complain(&format!("omnibus-csi: {problem}"));
                Err(ExitCode::FAILURE)
            }
        }
    };
    match process::carry_out_saying(work, |line| shown.say(line)) {
        Ok(Ok((ends, Some(volume)))) => export_pvs::print_one(ends.target, volume, &flags.objects),
        Ok(Ok((_, None))) => ExitCode::SUCCESS,
        Ok(Err(code)) | Err(code) => code,
    }
}

fn wrong(problem: &str) -> ExitCode {
    process::complain(&format!("omnibus-csi: {problem}"));
    ExitCode::from(EX_USAGE)
}

/// The volume at the target, if the move is finished.
async fn carry(
    ends: &Ends,
    flags: &MoveFlags,
    progress: &Arc<Progress>,
) -> Result<Option<Volume>, String> {
    let (from, to) = ends.movers()?;
    let volume = ends.volume(flags.give_up).await?;
    let request = ends.request(volume.as_ref(), flags)?;
    let tag = CopyTag::of(ends.target.volume_handle(&request.id));
    let source = from.move_out(&ends.id, &tag);
    let source = source.map_err(|error| message::of(&error))?;
    let moved = Move {
        ends,
        flags,
        to,
        request,
        source: progress::Counted::new(source, progress),
        progress,
    };
    if flags.give_up {
        return moved.give_up().await.map(|()| None);
    }
    if flags.dry_run {
        return moved.explain().await.map(|()| None);
    }
    if !flags.finish {
        return moved.rounds().await.map(|()| None);
    }
    let made = moved.finish().await?;
    Ok(Some(export_pvs::with_size(made, flags.size)))
}

// === impl Ends ===

impl Ends {
    async fn of(connections: &Connections, flags: &MoveFlags) -> Result<Self, String> {
        let said = |error: Error| message::of(&error);
        let handle = VolumeHandle::parse(&flags.handle)
            .map_err(|error| format!("HANDLE: {}: {error}", printable(&flags.handle)))?;
        let (source, id) = connections.of_volume(&handle).await.map_err(said)?;
        let name = ConnectionName::parse(&flags.to).map_err(|error| format!("--to: {error}"))?;
        let target = connections.named_connection(&name).await.map_err(said)?;
        if source.name() == target.name() {
            return Err(format!(
                "--to: the volume is in `{}` already",
                source.name()
            ));
        }
        Ok(Self { source, id, target })
    }

    /// The handle of the volume, as the target records it.
    fn handle(&self) -> String {
        self.source.volume_handle(&self.id)
    }

    /// The halves of both drivers that move volumes.
    fn movers(&self) -> Result<(&dyn Mover, &dyn Mover), String> {
        let (source, target) = (self.source.driver(), self.target.driver());
        let lacks = |connection: &Connection, why: &str| {
            let kind = connection.driver().kind();
            format!(
                "{}: the driver `{kind}` {why}; what moves the content is a claim whose class names `{}` and whose \
                 dataSource is the old claim",
                connection.name(),
                self.target.name()
            )
        };
        let cannot =
            |connection: &Connection| lacks(connection, "sends and receives no streams of ZFS");
        let from = source.mover().ok_or_else(|| cannot(&self.source))?;
        let to = target.mover().ok_or_else(|| cannot(&self.target))?;
        let formats = to.move_formats();
        if !from
            .move_formats()
            .iter()
            .any(|form| formats.contains(form))
        {
            let why = "has disks where the other one has files: neither becomes the other";
            let kind = target.kind();
            return Err(format!("{}: the driver `{kind}` {why}", self.target.name()));
        }
        if source.backend_identity() == target.backend_identity() {
            return Err(format!(
                "`{}` and `{}` are one parent of one storage: there is nothing to move",
                self.source.name(),
                self.target.name()
            ));
        }
        Ok((from, to))
    }

    /// The volume. Where a move is given up it may be gone.
    async fn volume(&self, may_be_gone: bool) -> Result<Option<Volume>, String> {
        let driver = self.source.driver();
        let found = within(QUESTION, "look at the volume", async |call| {
            driver.get_volume(call, &self.id).await
        });
        match found.await {
            Ok(volume) => Ok(Some(volume)),
            Err(error) if may_be_gone && error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(message::of(&error)),
        }
    }

    /// The request that the new volume is recognised by. The same at each run.
    fn request(&self, volume: Option<&Volume>, flags: &MoveFlags) -> Result<CreateVolume, String> {
        let of_volume = volume.map(|volume| volume.made_for.clone());
        let recorded = of_volume.unwrap_or_default();
        let made_for = MadeFor {
            claim: flags.claim.clone().or(recorded.claim),
            persistent_volume: flags.name.clone().or(recorded.persistent_volume),
        };
        let parameters = made_for.to_parameters();
        let name = VolumeName::parse(self.id.as_str()).map_err(|error| error.to_string())?;
        let id = self.target.name_volume(&name, &parameters);
        let handle = self.handle();
        let elsewhere = VolumeId::parse(&handle).map_err(|error| error.to_string())?;
        Ok(CreateVolume {
            name,
            id: id.map_err(|error| message::of(&error))?,
            size: volume.map_or(Ok(SizeRange::ANY), |volume| wanted(volume, flags.size))?,
            capabilities: Vec::new(),
            parameters,
            secrets: Secrets::new(),
            source: Some(Source::Elsewhere(Elsewhere::Volume(elsewhere))),
            topology: TopologyRequirement::default(),
        })
    }
}

/// The size of the new volume: that of the old one.
fn wanted(volume: &Volume, said: Option<u64>) -> Result<SizeRange, String> {
    let bytes = match (volume.capacity, said) {
        (Some(bytes), None) => bytes,
        (Some(bytes), Some(said)) if bytes == said => bytes,
        (Some(bytes), Some(_)) => {
            return Err(format!(
                "the volume has {bytes} bytes: leave --size out; its claim can be expanded afterwards"
            ));
        }
        (None, Some(said)) => said,
        (None, None) => {
            return Err(
                "nothing limits the volume now: say by --size how large it may become".to_owned(),
            );
        }
    };
    let range = i64::try_from(bytes).ok();
    let range = range.and_then(|bytes| SizeRange::new(bytes, 0).ok());
    range.ok_or_else(|| format!("no volume has {bytes} bytes"))
}
