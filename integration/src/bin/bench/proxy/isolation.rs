//! The cost of a failing connection for the others.
//!
//! One server without failures, one with a connection whose storage never answers, and one with a
//! file that is rewritten repeatedly and is never valid; the same calls to their other connections,
//! in turn. The released program cannot be made to panic: a test with a driver in memory covers
//! that case.

use std::time::Duration;

use anyhow::{Result, ensure};
use csi_proto::v1::ControllerGetVolumeRequest;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::fleet::{self, Fleet};
use crate::load::{self, Load};
use crate::report::{Figures, Report, median, title};

/// Healthy connections.
const CONNECTIONS: usize = 10;
/// Clients that call them.
const CLIENTS: usize = 4;
/// The concurrent calls to the connection that hangs.
const WAITING: usize = 64;
const P50_AIM: f64 = 1.1;
const P99_AIM: f64 = 2.0;

/// The figures of the others with a failing connection over those without, one for each round.
#[derive(Debug, Default)]
struct Ratios {
    p50: Vec<f64>,
    p99: Vec<f64>,
}

/// Measures calls while a connection hangs, and while one is misconfigured.
pub(super) async fn measure(quick: bool, report: &mut Report) -> Result<()> {
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let hangs = over_ssh(silent.local_addr()?.port());
    let quiet = Fleet::start(CONNECTIONS, &[]).await?;
    let hung = Fleet::start(CONNECTIONS, &[("hangs", &hangs)]).await?;
    let broken = Fleet::start(CONNECTIONS, &[("broken", "driver: [")]).await?;
    let mut trouble = JoinSet::new();
    trouble.spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = silent.accept().await {
            kept.push(stream);
        }
    });
    let answer = asked(&hung, "hangs");
    let answer = tokio::time::timeout(Duration::from_secs(2), answer).await;
    ensure!(answer.is_err(), "what should hang answers: {answer:?}");
    for _ in 0..WAITING {
        let (client, every) = (hung.client(), Duration::from_millis(100));
        trouble.spawn(async move { again_and_again(client, "hangs", every).await });
    }
    let (rounds, calls) = if quick { (3, 200) } else { (9, 1_000) };
    let (mut beside_hung, mut beside_broken) = (Ratios::default(), Ratios::default());
    for round in 0..=rounds {
        let without = others(&quiet, calls).await?;
        let with = others(&hung, calls).await?;
        let writer = rewritten(&broken, calls).await?;
        if round > 0 {
            beside_hung.add(with, without.clone());
            beside_broken.add(writer, without);
        }
    }
    title("the others, beside a connection that hangs, over none");
    beside_hung.show(report);
    title("the others, beside one whose file cannot be used, over none");
    beside_broken.show(report);
    Ok(())
}

/// A connection over SSH to a port of this machine.
fn over_ssh(port: u16) -> String {
    format!(
        "driver: zfs-generic-nfs\n\
         sshConnection: {{host: 127.0.0.1, port: {port}, username: csi, password: none}}\n\
         zfs: {{datasetParentName: tank/v}}\n\
         nfs: {{shareHost: 127.0.0.1, shareStrategy: setDatasetProperties, \
         shareStrategySetDatasetProperties: {{properties: {{sharenfs: rw}}}}}}\n"
    )
}

async fn asked(fleet: &Fleet, connection: &str) -> Result<()> {
    let volume_id = format!("v:{connection}/x");
    let request = ControllerGetVolumeRequest { volume_id };
    let mut client = fleet.client();
    client.controller.controller_get_volume(request).await?;
    Ok(())
}

/// Calls a connection again after the last call has ended, and a pause.
async fn again_and_again(
    client: integration::client::Client,
    connection: &'static str,
    every: Duration,
) {
    loop {
        let volume_id = format!("v:{connection}/x");
        let request = ControllerGetVolumeRequest { volume_id };
        let mut client = client.clone();
        // It is expected to fail.
        drop(client.controller.controller_get_volume(request).await);
        tokio::time::sleep(every).await;
    }
}

/// Calls to the others while an invalid file is written, and its connection called.
async fn rewritten(fleet: &Fleet, calls: usize) -> Result<Load> {
    let mut asking = JoinSet::new();
    let client = fleet.client();
    asking.spawn(again_and_again(client, "broken", Duration::from_millis(10)));
    let writing = async {
        for mark in 0_usize.. {
            fleet.put("broken", &format!("# {mark}\ndriver: ["))?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        written = writing => {
            written?;
            anyhow::bail!("the writer has ended")
        }
        load = others(fleet, calls) => load,
    }
}

/// Volumes created and deleted at the healthy connections.
async fn others(fleet: &Fleet, calls: usize) -> Result<Load> {
    let client = fleet.client();
    load::many(CLIENTS, calls / CLIENTS, move |who, _| {
        let client = client.clone();
        async move {
            let name = fleet::name(who);
            fleet::made_and_deleted(&client, Some(&name), 1).await?;
            Ok(())
        }
    })
    .await
}

// === impl Ratios ===

impl Ratios {
    fn add(&mut self, mut with: Load, mut without: Load) {
        let (with, without) = (
            Figures::of(&mut with.times),
            Figures::of(&mut without.times),
        );
        let over = |with: Duration, without: Duration| with.as_secs_f64() / without.as_secs_f64();
        self.p50.push(over(with.p50, without.p50));
        self.p99.push(over(with.p99, without.p99));
    }

    fn show(mut self, report: &mut Report) {
        for (name, ratios, aim) in [
            ("p50 of create + delete", &mut self.p50, P50_AIM),
            ("p99 of create + delete", &mut self.p99, P99_AIM),
        ] {
            let ratio = median(ratios);
            report.aimed(name, &format!("ratio {ratio:.2}"), ratio, aim);
        }
    }
}
