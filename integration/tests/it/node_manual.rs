//! node-manual as a whole program: what a hand-written volume makes a node run, and with what.
//!
//! The programs are recorders on a machine of the test's own; that they do their work is for the
//! lab. Disks are loop devices in the place of zvols, and really formatted.

mod documented;
mod hostile;
mod programs;
mod served;
mod suite;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use csi_proto::v1 as csi;
use csi_proto::v1::volume_capability::access_mode::Mode;
use integration::machine::Machine;
use integration::server::{Server, log_of};
use integration::volume;
use tonic::Status;

/// A server on a machine of its own.
struct Bench {
    machine: Machine,
    server: Server,
}

/// The result of staging a volume.
#[derive(Debug)]
struct Staged {
    /// The commands that ran, one line each: `here: mount -t nfs …`.
    lines: Vec<String>,
    answer: Result<(), Status>,
    took: Duration,
}

/// `nfs server=nas share=/a` as a volume context.
fn context(text: &str) -> BTreeMap<String, String> {
    let (kind, keys) = text.split_once(' ').unwrap_or((text, ""));
    let pairs = keys
        .split_whitespace()
        .filter_map(|pair| pair.split_once('='));
    pairs
        .chain([("node_attach_driver", kind)])
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

// === impl Bench ===

impl Bench {
    /// A server with more lines in its configuration and more variables in its environment.
    async fn new(what: &str, config: &str, environment: &[(&str, &str)]) -> Option<Self> {
        Self::of(Machine::new(what)?, config, environment).await
    }

    async fn of(machine: Machine, config: &str, environment: &[(&str, &str)]) -> Option<Self> {
        let launch = environment
            .iter()
            .fold(machine.launch(config), |launch, (key, value)| {
                launch.env(key, value)
            });
        let server = launch.start(&machine.place).await;
        Some(Self { machine, server })
    }

    fn stage_request(&self, text: &str) -> csi::NodeStageVolumeRequest {
        csi::NodeStageVolumeRequest {
            volume_id: "by hand".into(),
            staging_target_path: self.machine.staging("staging").display().to_string(),
            volume_capability: Some(volume::mounted(Mode::SingleNodeWriter)),
            volume_context: context(text),
            ..Default::default()
        }
    }

    async fn stage(&self, text: &str) -> Staged {
        self.send(self.stage_request(text)).await
    }

    async fn send(&self, request: csi::NodeStageVolumeRequest) -> Staged {
        self.machine.forget();
        let start = Instant::now();
        let answer = self.server.client().node.node_stage_volume(request).await;
        let took = start.elapsed();
        let place = self.machine.place.path();
        let ran = self.machine.ran();
        Staged {
            lines: ran.iter().map(|ran| ran.line(place)).collect(),
            answer: answer.map(drop),
            took,
        }
    }

    async fn unstage(&self) {
        let request = csi::NodeUnstageVolumeRequest {
            volume_id: "by hand".into(),
            staging_target_path: self.machine.staging("staging").display().to_string(),
        };
        let gone = self.server.client().node.node_unstage_volume(request).await;
        gone.unwrap_or_else(|status| panic!("unstage: {status:?}"));
    }

    /// The server lives, met no defect, and stops when it is asked to.
    async fn end(mut self) {
        let log = log_of(&self.machine.place);
        assert!(self.server.is_alive(), "{log}");
        assert!(!log.contains("a defect"), "{log}");
        assert!(self.server.terminate().await.success());
    }
}

// === impl Staged ===

impl Staged {
    /// The text of the answer, without what is different in each run.
    fn message(&self, bench: &Bench) -> String {
        let place = bench.machine.place.path().display().to_string();
        let text = self.answer.as_ref().err().map(Status::message);
        text.unwrap_or("staged").replace(&place, "")
    }
}
