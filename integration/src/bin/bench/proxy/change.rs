//! A change to one of many connections: from the write of its file to the first call that it serves.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use csi_proto::v1::ControllerGetVolumeRequest;
use integration::volume;
use tonic::Code;

use super::fleet::{self, Fleet};
use crate::report::{Figures, Report, row, title};

/// The connection that is changed.
const CHANGED: usize = 421;
/// The longest time from write to served, in milliseconds.
const SERVED_AIM: f64 = 1_000.0;
/// A longer wait never ends.
const PATIENCE: Duration = Duration::from_secs(30);

/// Moves a connection from one storage to another and back.
pub(super) async fn measure(fleet: &Fleet, quick: bool, report: &mut Report) -> Result<()> {
    let name = fleet::name(CHANGED);
    let request = volume::create("there", &fleet::class(&name));
    fleet.client().controller.create_volume(request).await?;
    let (there, elsewhere) = (fleet.base(CHANGED), fleet.base(CHANGED + 1));
    let mut times = Vec::new();
    for change in 0..if quick { 4 } else { 20 } {
        let away = change % 2 == 0;
        let base = if away { &elsewhere } else { &there };
        let began = Instant::now();
        fleet.put(&name, &fleet::local(base, change + 1))?;
        while has(fleet, &name).await? == away {
            ensure!(began.elapsed() < PATIENCE, "the change is never served");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        times.push(began.elapsed());
    }
    title("a change to one of 1,000 connections, from write to served");
    let longest = times.iter().max().copied().unwrap_or_default();
    let millis = longest.as_secs_f64() * 1e3;
    let text = format!("{}  longest {millis:.0} ms", Figures::of(&mut times));
    report.aimed("one change (aim in ms)", &text, millis, SERVED_AIM);
    let (this, others) = fleet.changed(&name);
    row("times that it was built again", &this.to_string());
    ensure!(this > 0, "the log does not say what was changed");
    #[expect(clippy::cast_precision_loss, reason = "few")]
    let figure = others as f64;
    report.aimed(
        "others that were built again",
        &others.to_string(),
        figure,
        0.0,
    );
    Ok(())
}

/// Whether the connection has its volume.
async fn has(fleet: &Fleet, name: &str) -> Result<bool> {
    let volume_id = format!("v:{name}/there");
    let request = ControllerGetVolumeRequest { volume_id };
    match fleet
        .client()
        .controller
        .controller_get_volume(request)
        .await
    {
        Ok(_) => Ok(true),
        Err(status) if status.code() == Code::NotFound => Ok(false),
        Err(status) => Err(status.into()),
    }
}
