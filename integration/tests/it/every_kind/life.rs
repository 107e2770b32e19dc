//! Every call that a driver offers, in the order of a volume's life.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use csi_proto::v1 as csi;
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_try::client::{Answer, CLONE};
use integration::client::Client;
use integration::reads::{self, Outcome};
use integration::server::log_of;
use integration::{volume, wait};

use super::storage::Bench;

/// The calls of a row, as they are made.
pub(super) struct Life {
    client: Client,
    offered: BTreeSet<&'static str>,
    done: Vec<(&'static str, Outcome)>,
    node_id: String,
}

/// Calls of the specification that only read what was made by hand or never.
const OF_THE_NODE: [&str; 8] = [
    "NodeStageVolume",
    "NodeUnstageVolume",
    "NodePublishVolume",
    "NodeUnpublishVolume",
    "NodeGetVolumeStats",
    "NodeGetVolumeHealth",
    "NodeGetStorageHealth",
    "NodeExpandVolume",
];

// === impl Life ===

impl Life {
    /// Lives a volume's life on the program. Returns the calls, and what is wrong: those that failed, and those that are
    /// offered and were not made. Where `on_node` is false the calls on the node are made elsewhere.
    pub(super) async fn of(
        mut bench: Bench,
        on_node: bool,
    ) -> (Vec<(&'static str, Outcome)>, Vec<String>) {
        let client = bench.server.client();
        let mut life = Self {
            offered: client.offered().await.expect("what it offers"),
            client,
            done: Vec::new(),
            node_id: String::new(),
        };
        life.identity().await;
        match &bench.by_hand {
            Some(context) => {
                let volume = csi::Volume {
                    volume_id: "by-hand".to_owned(),
                    volume_context: context.clone(),
                    ..csi::Volume::default()
                };
                life.node(&bench, &volume).await;
            }
            None => life.controller(&bench, on_node && is_root()).await,
        }
        let mut wrong: Vec<String> = life
            .done
            .iter()
            .filter_map(|(call, outcome)| {
                outcome.as_ref().err().map(|what| format!("{call}: {what}"))
            })
            .collect();
        let made: BTreeSet<_> = life.done.iter().map(|(call, _)| *call).collect();
        for call in life.offered.difference(&made) {
            let elsewhere = !on_node && OF_THE_NODE.contains(call);
            let without_volumes = bench.by_hand.is_some() && *call == "ValidateVolumeCapabilities";
            let unprivileged = !is_root() && OF_THE_NODE.contains(call);
            if !elsewhere && !without_volumes && !unprivileged {
                wrong.push(format!("{call} is offered and was not tried"));
            }
        }
        if !wrong.is_empty() {
            let log = log_of(bench.place.place());
            let lines: Vec<_> = log.lines().rev().take(20).collect();
            wrong.push(lines.into_iter().rev().collect::<Vec<_>>().join("\n"));
        }
        bench.server.kill().await;
        (life.done, wrong)
    }

    /// Notes how a call ended.
    fn note<T>(&mut self, call: &'static str, answer: Answer<T>) -> Option<T> {
        match answer {
            Ok(answer) => {
                self.done.push((call, Ok(())));
                Some(answer)
            }
            Err(failure) => {
                self.done.push((call, Err(failure.to_string())));
                None
            }
        }
    }

    fn offers(&self, call: &str) -> bool {
        self.offered.contains(call)
    }

    /// Something else that has to be true after a call.
    fn expect(&mut self, call: &'static str, is_so: bool, what: &str) {
        if !is_so {
            self.done.push((call, Err(what.to_owned())));
        }
    }

    async fn identity(&mut self) {
        let client = self.client.clone();
        let answer = client.get_plugin_info(csi::GetPluginInfoRequest {}).await;
        self.note("GetPluginInfo", answer);
        let request = csi::GetPluginCapabilitiesRequest {};
        self.note(
            "GetPluginCapabilities",
            client.get_plugin_capabilities(request).await,
        );
        let probed = self.note("Probe", client.probe(csi::ProbeRequest {}).await);
        let is_ready = probed.is_some_and(|probed| probed.ready != Some(false));
        self.expect("Probe", is_ready, "it is not ready");
        let request = csi::ControllerGetCapabilitiesRequest {};
        self.note(
            "ControllerGetCapabilities",
            client.controller_get_capabilities(request).await,
        );
        let request = csi::NodeGetCapabilitiesRequest {};
        self.note(
            "NodeGetCapabilities",
            client.node_get_capabilities(request).await,
        );
        let info = self.note(
            "NodeGetInfo",
            client.node_get_info(csi::NodeGetInfoRequest {}).await,
        );
        self.node_id = info.map(|info| info.node_id).unwrap_or_default();
    }

    async fn controller(&mut self, bench: &Bench, on_node: bool) {
        let client = self.client.clone();
        let request = sized(volume::create("pvc-one", &BTreeMap::new()), bench.size);
        let Some(made) = self.note("CreateVolume", client.volume(request.clone()).await) else {
            return;
        };
        let again = self.note("CreateVolume", client.volume(request).await);
        let is_same = again.is_some_and(|again| again.volume_id == made.volume_id);
        self.expect("CreateVolume", is_same, "again it is another volume");
        write(bench, &made, "content");
        self.looks(&made).await;
        self.publish(&made).await;
        if on_node {
            self.node(bench, &made).await;
        }
        self.unpublish(&made).await;
        let mut others = Vec::new();
        if self.offers("CreateSnapshot") {
            others.extend(self.snapshot(bench, &made).await);
        }
        if self.offers(CLONE) {
            let mut request = sized(volume::create("pvc-clone", &BTreeMap::new()), bench.size);
            request.volume_content_source = volume::from_volume(&made.volume_id);
            let cloned = self.note(CLONE, client.volume(request).await);
            self.expect(
                CLONE,
                holds(bench, cloned.as_ref()),
                "it has not the content of its source",
            );
            others.extend(cloned);
        }
        if self.offers("ControllerExpandVolume") {
            let mut request = volume::expand(&made.volume_id, bench.size * 2);
            request.volume_capability = Some(volume::mounted(Mode::SingleNodeWriter));
            let answer = client.controller_expand_volume(request).await;
            self.note("ControllerExpandVolume", answer);
        }
        for volume in others.into_iter().chain([made]) {
            let answer = client
                .delete_volume(volume::delete(&volume.volume_id))
                .await;
            self.note("DeleteVolume", answer);
            let answer = client
                .delete_volume(volume::delete(&volume.volume_id))
                .await;
            self.note("DeleteVolume", answer);
        }
        if self.offers("ListVolumes") {
            let left = self.note("ListVolumes", client.volume_ids().await);
            self.expect(
                "ListVolumes",
                left.is_none_or(|left| left.is_empty()),
                "volumes are left",
            );
        }
    }

    /// Calls that only read.
    async fn looks(&mut self, made: &csi::Volume) {
        let capability = volume::mounted(Mode::SingleNodeWriter);
        let read = reads::of_a_volume(&self.client, &self.offered, made, capability).await;
        self.done.extend(read);
    }

    async fn publish(&mut self, made: &csi::Volume) {
        if !self.offers("ControllerPublishVolume") {
            return;
        }
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: made.volume_id.clone(),
            node_id: self.node_id.clone(),
            volume_capability: Some(volume::mounted(Mode::SingleNodeWriter)),
            volume_context: made.volume_context.clone(),
            ..Default::default()
        };
        let answer = self.client.controller_publish_volume(request).await;
        self.note("ControllerPublishVolume", answer);
    }

    async fn unpublish(&mut self, made: &csi::Volume) {
        if !self.offers("ControllerUnpublishVolume") {
            return;
        }
        let request = csi::ControllerUnpublishVolumeRequest {
            volume_id: made.volume_id.clone(),
            node_id: self.node_id.clone(),
            ..Default::default()
        };
        let answer = self.client.controller_unpublish_volume(request).await;
        self.note("ControllerUnpublishVolume", answer);
    }

    /// A snapshot, from which a volume is made.
    async fn snapshot(&mut self, bench: &Bench, made: &csi::Volume) -> Option<csi::Volume> {
        let client = self.client.clone();
        let mut request = volume::snapshot("snapshot-one", &made.volume_id);
        request.parameters.clone_from(&bench.snapshot_parameters);
        let mut last = client.snapshot(request.clone()).await;
        if last.as_ref().is_ok_and(|taken| !taken.ready_to_use) {
            last = wait::until_answered("a snapshot that is ready", async || {
                let taken = client.snapshot(request.clone()).await;
                taken
                    .as_ref()
                    .map_or(true, |taken| taken.ready_to_use)
                    .then_some(taken)
            })
            .await;
        }
        let taken = self.note("CreateSnapshot", last)?;
        let read = reads::of_a_snapshot(&client, &self.offered, &taken.snapshot_id).await;
        self.done.extend(read);
        // What is written later is not in it.
        write(bench, made, "later");
        let mut request = sized(volume::create("pvc-restored", &BTreeMap::new()), bench.size);
        request.volume_content_source = volume::from_snapshot(&taken.snapshot_id);
        let restored = self.note("CreateVolume", client.volume(request).await);
        self.expect(
            "CreateVolume",
            holds(bench, restored.as_ref()),
            "it has not the content of its snapshot",
        );
        write(bench, made, "content");
        // A clone may be in the way of its snapshot, so it goes first.
        if let Some(restored) = &restored {
            let answer = client
                .delete_volume(volume::delete(&restored.volume_id))
                .await;
            self.note("DeleteVolume", answer);
        }
        let answer = client
            .delete_snapshot(volume::delete_snapshot(&taken.snapshot_id))
            .await;
        self.note("DeleteSnapshot", answer);
        restored
    }

    async fn node(&mut self, bench: &Bench, made: &csi::Volume) {
        let mut client = self.client.clone();
        let folder = bench.place.place().node();
        let (staging, target) = (folder.join("staging"), folder.join("target"));
        let stages = self.offers("NodeStageVolume");
        if stages {
            fs::create_dir_all(&staging).expect("a folder");
            let answer = client
                .node_stage_volume(volume::stage(made, &staging))
                .await;
            self.note("NodeStageVolume", answer);
        }
        let answer = client
            .node_publish_volume(volume::publish(made, &staging, &target))
            .await;
        if self.note("NodePublishVolume", answer).is_some() {
            self.at_target(&mut client, made, &staging, &target).await;
        }
        let answer = client
            .node_unpublish_volume(volume::unpublish(made, &target))
            .await;
        self.note("NodeUnpublishVolume", answer);
        if stages {
            let answer = client
                .node_unstage_volume(volume::unstage(made, &staging))
                .await;
            self.note("NodeUnstageVolume", answer);
        }
    }

    /// Calls about a volume that a pod uses.
    async fn at_target(
        &mut self,
        client: &mut Client,
        made: &csi::Volume,
        staging: &Path,
        target: &Path,
    ) {
        let text = |path: &Path| path.display().to_string();
        if self.offers("NodeGetVolumeStats") {
            let request = csi::NodeGetVolumeStatsRequest {
                volume_id: made.volume_id.clone(),
                volume_path: text(target),
                staging_target_path: text(staging),
            };
            let answer = client.node_get_volume_stats(request).await;
            self.note("NodeGetVolumeStats", answer);
        }
        let read = reads::of_a_node(&self.client, &self.offered, made, staging, target).await;
        self.done.extend(read);
        if self.offers("NodeExpandVolume") {
            let mut larger = volume::expand(&made.volume_id, made.capacity_bytes.max(1));
            larger.volume_capability = Some(volume::mounted(Mode::SingleNodeWriter));
            let request = volume::expand_on_node(&larger, target);
            let answer = client.node_expand_volume(request).await;
            self.note("NodeExpandVolume", answer);
        }
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn sized(mut request: csi::CreateVolumeRequest, bytes: i64) -> csi::CreateVolumeRequest {
    request.capacity_range = volume::at_least(bytes);
    request
}

/// Puts a file into a volume whose directory is here.
fn write(bench: &Bench, made: &csi::Volume, text: &str) {
    if let Some(base) = &bench.base {
        fs::write(base.join("v").join(&made.volume_id).join("file"), text).expect("a file");
    }
}

/// Whether a copy of it holds that file.
fn holds(bench: &Bench, copy: Option<&csi::Volume>) -> bool {
    let (Some(base), Some(copy)) = (&bench.base, copy) else {
        return true;
    };
    let file = base.join("v").join(&copy.volume_id).join("file");
    fs::read(file).is_ok_and(|text| text == b"content")
}
