//! The calls: one client and the baselines in turn, then many concurrent clients.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use csi_proto::v1::{ProbeRequest, Volume};
use integration::client::Client;
use integration::place::Place;
use integration::volume;

use crate::floor::Floor;
use crate::load::{self, Load};
use crate::report::{Figures, Report, median, row, title};

/// The measured program, and the number of repetitions.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    pub(crate) ours: Client,
    pub(crate) empty: Client,
    pub(crate) place: &'a Place,
    pub(crate) rounds: usize,
    pub(crate) calls: usize,
}

/// The longest pod cycle, in milliseconds.
const CYCLE_AIM: f64 = 2.0;
/// The longest time to stage a staged volume again, in milliseconds.
pub(crate) const AGAIN_AIM: f64 = 5.0;

/// One subject: our times, the floor's times, and the ratio of their medians in each round.
#[derive(Debug, Default)]
pub(crate) struct Pairing {
    ours: Vec<Duration>,
    floor: Vec<Duration>,
    ratios: Vec<f64>,
}

// === impl Bench ===

impl Bench<'_> {
    /// One warm client, in turn with the floors.
    pub(crate) async fn alone(&self, report: &mut Report) -> Result<()> {
        let floor = Floor::new(self.place.path())?;
        let staged = self.staged("alone").await?;
        let (mut probe, mut volumes, mut mounts, mut cycle, mut again) = (
            Pairing::default(),
            Pairing::default(),
            Pairing::default(),
            Vec::new(),
            Vec::new(),
        );
        for round in 0..=self.rounds {
            let empty = self.probes(&self.empty).await?;
            let ours = self.probes(&self.ours).await?;
            let two_calls = 2 * Figures::of(&mut empty.clone()).p50;
            let made = self.made_and_deleted(round).await?;
            let bare_made = bare(self.calls, || floor.create_and_delete())?;
            let published = self.published(&staged).await?;
            let bare_published = bare(self.calls, || floor.publish_and_unpublish())?;
            let cycles = self.cycles(round).await?;
            let repeated = self.staged_again(&staged).await?;
            if round == 0 {
                continue; // warm-up
            }
            probe.add(ours, empty, Duration::ZERO);
            volumes.add(made, bare_made, two_calls);
            mounts.add(published, bare_published, two_calls);
            cycle.extend(cycles);
            again.extend(repeated);
        }
        title("one warm client");
        probe.show("Probe", "the empty service", 1.2, report);
        volumes.show(
            "create + delete",
            "its system calls + 2 empty calls",
            1.5,
            report,
        );
        mounts.show(
            "publish + unpublish",
            "its system calls + 2 empty calls",
            1.5,
            report,
        );
        in_millis(
            "a pod's cycle of 6 calls (aim in ms)",
            cycle,
            CYCLE_AIM,
            report,
        );
        in_millis("a directory staged again (in ms)", again, AGAIN_AIM, report);
        self.gone(staged).await
    }

    /// 1, 8 and 64 clients at once, each with its own connection.
    pub(crate) async fn together(&self) -> Result<()> {
        for clients in [1, 8, 64] {
            title(&format!("{clients} clients at once"));
            let calls = (self.calls * 8 / clients).max(20);
            let each = self.connections(clients).await?;
            let probes = load::many(clients, calls, {
                let each = each.clone();
                move |who, _| {
                    let mut client = each[who].clone();
                    async move {
                        client.identity.probe(ProbeRequest {}).await?;
                        Ok(())
                    }
                }
            });
            show("Probe", probes.await?);
            self.volumes_together(&each, calls).await?;
            self.mounts_together(&each, calls).await?;
        }
        Ok(())
    }

    async fn volumes_together(&self, each: &[Client], calls: usize) -> Result<()> {
        let name = |who, call| format!("together-{who}-{call}");
        let create = load::many(each.len(), calls, {
            let each = each.to_vec();
            move |who, call| {
                let mut client = each[who].clone();
                async move {
                    let request = volume::create(&name(who, call), &BTreeMap::new());
                    client.controller.create_volume(request).await?;
                    Ok(())
                }
            }
        });
        show("CreateVolume", create.await?);
        let delete = load::many(each.len(), calls, {
            let each = each.to_vec();
            move |who, call| {
                let mut client = each[who].clone();
                async move {
                    client
                        .controller
                        .delete_volume(volume::delete(&name(who, call)))
                        .await?;
                    Ok(())
                }
            }
        });
        show("DeleteVolume", delete.await?);
        Ok(())
    }

    async fn mounts_together(&self, each: &[Client], calls: usize) -> Result<()> {
        let mut staged = Vec::new();
        for who in 0..each.len() {
            staged.push(self.staged(&format!("together-{who}")).await?);
        }
        let pairs = load::many(each.len(), calls, {
            let (each, staged) = (each.to_vec(), staged.clone());
            move |who, _| {
                let (mut client, (made, staging)) = (each[who].clone(), staged[who].clone());
                async move {
                    let target = staging.with_extension("pod");
                    published_once(&mut client, &made, &staging, &target).await
                }
            }
        });
        show("NodePublish + NodeUnpublish", pairs.await?);
        for one in staged {
            self.gone(one).await?;
        }
        Ok(())
    }

    async fn connections(&self, clients: usize) -> Result<Vec<Client>> {
        let mut each = Vec::new();
        for _ in 0..clients {
            each.push(Client::connect(&self.place.socket()).await?);
        }
        Ok(each)
    }

    async fn probes(&self, client: &Client) -> Result<Vec<Duration>> {
        let mut client = client.clone();
        let mut times = Vec::with_capacity(self.calls);
        for _ in 0..self.calls {
            let began = Instant::now();
            client.identity.probe(ProbeRequest {}).await?;
            times.push(began.elapsed());
        }
        Ok(times)
    }

    async fn made_and_deleted(&self, round: usize) -> Result<Vec<Duration>> {
        let mut client = self.ours.controller.clone();
        let mut times = Vec::with_capacity(self.calls);
        for call in 0..self.calls {
            let name = format!("alone-{round}-{call}");
            let (create, delete) = (
                volume::create(&name, &BTreeMap::new()),
                volume::delete(&name),
            );
            let began = Instant::now();
            client.create_volume(create).await?;
            client.delete_volume(delete).await?;
            times.push(began.elapsed());
        }
        Ok(times)
    }

    async fn published(&self, (made, staging): &(Volume, PathBuf)) -> Result<Vec<Duration>> {
        let mut client = self.ours.node.clone();
        let target = staging.with_extension("pod");
        let mut times = Vec::with_capacity(self.calls);
        for _ in 0..self.calls {
            let publish = volume::publish(made, staging, &target);
            let unpublish = volume::unpublish(made, &target);
            let began = Instant::now();
            client.node_publish_volume(publish).await?;
            client.node_unpublish_volume(unpublish).await?;
            times.push(began.elapsed());
        }
        Ok(times)
    }

    async fn cycles(&self, round: usize) -> Result<Vec<Duration>> {
        let mut client = self.ours.clone();
        let mut times = Vec::new();
        for call in 0..self.calls / 4 {
            let name = format!("cycle-{round}-{call}");
            let staging = self.place.node().join(&name);
            let target = staging.with_extension("pod");
            let began = Instant::now();
            let request = volume::create(&name, &BTreeMap::new());
            let made = client.controller.create_volume(request).await?.into_inner();
            let made = made.volume.context("a reply without a volume")?;
            client
                .node
                .node_stage_volume(volume::stage(&made, &staging))
                .await?;
            published_once(&mut client, &made, &staging, &target).await?;
            client
                .node
                .node_unstage_volume(volume::unstage(&made, &staging))
                .await?;
            client
                .controller
                .delete_volume(volume::delete(&made.volume_id))
                .await?;
            times.push(began.elapsed());
        }
        Ok(times)
    }

    async fn staged(&self, name: &str) -> Result<(Volume, PathBuf)> {
        let mut client = self.ours.clone();
        let request = volume::create(name, &BTreeMap::new());
        let made = client.controller.create_volume(request).await?.into_inner();
        let made = made.volume.context("a reply without a volume")?;
        let staging = self.place.node().join(name);
        client
            .node
            .node_stage_volume(volume::stage(&made, &staging))
            .await?;
        Ok((made, staging))
    }

    async fn staged_again(&self, (made, staging): &(Volume, PathBuf)) -> Result<Vec<Duration>> {
        let mut client = self.ours.node.clone();
        let mut times = Vec::with_capacity(self.calls);
        for _ in 0..self.calls {
            let request = volume::stage(made, staging);
            let began = Instant::now();
            client.node_stage_volume(request).await?;
            times.push(began.elapsed());
        }
        Ok(times)
    }

    async fn gone(&self, (made, staging): (Volume, PathBuf)) -> Result<()> {
        let mut client = self.ours.clone();
        client
            .node
            .node_unstage_volume(volume::unstage(&made, &staging))
            .await?;
        client
            .controller
            .delete_volume(volume::delete(&made.volume_id))
            .await?;
        Ok(())
    }
}

// === impl Pairing ===

impl Pairing {
    /// Adds one round; `calls` is the time of the empty service for the same number of calls.
    pub(crate) fn add(&mut self, ours: Vec<Duration>, floor: Vec<Duration>, calls: Duration) {
        let floor: Vec<_> = floor.into_iter().map(|bare| bare + calls).collect();
        let p50 = |series: &[Duration]| Figures::of(&mut series.to_vec()).p50.as_secs_f64();
        self.ratios.push(p50(&ours) / p50(&floor));
        self.ours.extend(ours);
        self.floor.extend(floor);
    }

    pub(crate) fn show(mut self, name: &str, floor: &str, aim: f64, report: &mut Report) {
        row(floor, &Figures::of(&mut self.floor).to_string());
        let ratio = median(&mut self.ratios);
        let text = format!("{}   ratio {ratio:.2}", Figures::of(&mut self.ours));
        report.aimed(name, &text, ratio, aim);
    }
}

/// A row of times that should not pass `aim` milliseconds.
pub(crate) fn in_millis(name: &str, mut times: Vec<Duration>, aim: f64, report: &mut Report) {
    let figures = Figures::of(&mut times);
    let millis = figures.p50.as_secs_f64() * 1e3;
    report.aimed(name, &figures.to_string(), millis, aim);
}

/// Publishes a staged volume and takes it away again.
async fn published_once(
    client: &mut Client,
    made: &Volume,
    staging: &Path,
    target: &Path,
) -> Result<()> {
    let node = &mut client.node;
    node.node_publish_volume(volume::publish(made, staging, target))
        .await?;
    node.node_unpublish_volume(volume::unpublish(made, target))
        .await?;
    Ok(())
}

fn show(name: &str, mut load: Load) {
    #[expect(clippy::cast_precision_loss, reason = "a few thousand calls")]
    let rate = load.times.len() as f64 / load.took.as_secs_f64();
    row(
        name,
        &format!("{}  {rate:>7.0}/s", Figures::of(&mut load.times)),
    );
}

fn bare(calls: usize, work: impl Fn() -> Result<Duration>) -> Result<Vec<Duration>> {
    (0..calls).map(|_| work()).collect()
}
