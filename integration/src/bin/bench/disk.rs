//! A disk that is staged already, on this very machine: a zvol that is a loop device, with the
//! recorders of [`Machine`] in place of the node's programs.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use csi_proto::v1::Volume;
use integration::machine::Machine;
use integration::volume;

/// The message of a bench without its machine.
const WHAT: &str = "a stage of a disk";

/// The times of `calls` repeated stages; `None` where this machine cannot have a machine of its own.
pub(crate) async fn staged_again(calls: usize) -> Result<Option<Vec<Duration>>> {
    let Some(mut machine) = Machine::new(WHAT) else {
        return Ok(None);
    };
    machine.add_zvol("tank/disk");
    let mut server = machine.launch("").start(&machine.place).await;
    let mut node = server.client().node;
    let staging = machine.staging("disk");
    let context = [
        ("node_attach_driver", "zfs-local"),
        ("zfs_asset_name", "tank/disk"),
    ];
    let disk = Volume {
        volume_id: "disk".to_owned(),
        volume_context: context
            .map(|(key, value)| (key.into(), value.into()))
            .into(),
        ..Volume::default()
    };
    let request = volume::stage(&disk, &staging);
    node.node_stage_volume(request.clone()).await?;
    let before = machine.ran();
    ensure!(!before.is_empty(), "the first stage makes a filesystem");
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        let request = request.clone();
        let began = Instant::now();
        node.node_stage_volume(request).await?;
        times.push(began.elapsed());
    }
    ensure!(
        machine.ran() == before,
        "a program ran: {:?}",
        machine.ran()
    );
    node.node_unstage_volume(volume::unstage(&disk, &staging))
        .await?;
    server.terminate().await;
    Ok(Some(times))
}
