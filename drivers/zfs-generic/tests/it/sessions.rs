//! What becomes of those that are connected when who gets in changes, on a configfs that pretends: a
//! session goes when the kernel would end it, and not when its name goes.

use crate::common::{Ask, Host, LIO, NVMET, Volume, pair};
use driver_core::NodeId;
use driver_zfs::Export as _;
use driver_zfs::property::PropertyName;
use driver_zfs_generic::DiskExport;
use serde_json::{Value, json};

const NQN: &str = "nqn.2003-01.org.example:pvc-1";
const SECOND: &str = "nqn.2003-01.org.example:pvc-2";
const SUBSYSTEM: &str = "cfg/nvmet/subsystems/nqn.2003-01.org.example:pvc-1";

fn called(text: &str, name: &str) -> String {
    let form = if text.contains("iscsi:") {
        "iqn.2004-10"
    } else {
        "nqn.2014-08"
    };
    format!("{form}.org.example:{name}")
}

/// The same without the line that says what nodes are called.
fn open(text: &str) -> String {
    let (start, _) = text.split_once("    nodes:").unwrap();
    start.to_owned()
}

/// A volume that is made on a host, and the nodes that are let in and connected.
struct Stage {
    host: Host,
    export: DiskExport,
    volume: Volume,
    target: &'static str,
    text: &'static str,
}

impl Stage {
    async fn new(host: Host, text: &'static str, names: &[&str]) -> Self {
        let target = match text {
            LIO => "iqn.2003-01.org.example:pvc-1",
            _ => NQN,
        };
        let (export, volume) = (host.export(text), Volume::new("tank/v", "pvc-1", 7));
        let mut stage = Self {
            host,
            export,
            volume,
            target,
            text,
        };
        assert!(stage.ask(&Ask::Establish).await);
        for name in names {
            assert!(stage.ask(&Ask::Allow(NodeId::parse(name).unwrap())).await);
            stage.host.connect(target, &called(text, name), 1);
        }
        stage
    }

    /// The same of before nodes had names: these are connected, and the volume is published to the recorded ones.
    async fn before_nodes(
        host: Host,
        text: &'static str,
        recorded: &str,
        connected: &[&str],
    ) -> Self {
        let mut stage = Self::new(host, text, &[]).await;
        stage.export = stage.host.export(&open(text));
        assert!(stage.ask(&Ask::Establish).await);
        for name in connected {
            stage.host.connect(stage.target, &called(text, name), 1);
        }
        stage.export = stage.host.export(text);
        stage.volume = stage.volume.remembering(PropertyName::PUBLISHED, recorded);
        assert!(stage.is_open().await);
        stage
    }

    /// Whether every node gets in.
    async fn is_open(&self) -> bool {
        let facts = self.host.facts(&self.export, &self.volume).await;
        let subject = self.volume.subject();
        let name = self.export.export_name(&subject).unwrap();
        self.export.is_open(&subject, &name, &facts)
    }

    async fn ask(&mut self, ask: &Ask) -> bool {
        let done = self.host.settle(&self.export, &mut self.volume, ask);
        done.await.is_ok()
    }

    /// Revokes a node, interrupted at a step; at none where it is 0, which tells how many there are.
    async fn revoke_cut(&mut self, node: &str, cut: u32, steps: &mut u32) {
        self.host.counted();
        self.host.cut = (cut > 0).then_some(cut);
        let done = self.revoke(node).await;
        if cut == 0 {
            *steps = self.host.counted();
        }
        assert_eq!(done, cut == 0, "cut {cut} of {steps}");
        self.host.cut = None;
    }

    async fn revoke(&mut self, name: &str) -> bool {
        let node = NodeId::parse(name).unwrap();
        self.ask(&Ask::Revoke(Some(node))).await
    }

    /// Why the host cannot end what one node has open, as a fence asks it.
    async fn refusal(&self) -> Option<String> {
        let mut answers = Vec::new();
        for question in self.export.ask_to_cut_off() {
            answers.push(self.host.run(&question).await.unwrap());
        }
        self.export.refuses_to_cut_off(&answers).unwrap()
    }

    fn is_connected(&self, name: &str) -> bool {
        let name = called(self.text, name);
        self.host.is_connected(self.target, &name)
    }

    fn remembered(&self) -> String {
        let name = PropertyName::parse("omnibus-csi:nodes").unwrap();
        let subject = self.volume.subject();
        subject.remembered(&name).unwrap_or_default().to_owned()
    }

    async fn allowed(&self) -> Vec<String> {
        let facts = self.host.facts(&self.export, &self.volume).await;
        assert_eq!((facts.missing, facts.partial), (vec![], vec![]));
        facts.allowed
    }

    /// Linked to a port that no configuration knows.
    fn linked_by_hand(&self, nqn: &str) {
        let port = self.host.path("cfg/nvmet/ports/9");
        std::fs::create_dir_all(port.join("subsystems")).unwrap();
        let link = port.join("subsystems").join(nqn);
        let subsystem = self.host.path("cfg/nvmet/subsystems").join(nqn);
        std::os::unix::fs::symlink(subsystem, link).unwrap();
    }

    /// The kernel refuses every write to the state of the controllers that it shows.
    fn is_locked_down(&self) {
        for entry in std::fs::read_dir(self.host.path("controllers").join(NQN)).unwrap() {
            let state = entry.unwrap().path().join("state");
            std::fs::remove_file(&state).unwrap();
            std::fs::create_dir(state).unwrap();
        }
    }

    fn saved(&self) -> Value {
        serde_json::from_str(&self.host.text("etc/saved.json")).unwrap()
    }
}

async fn present(host: &Host, export: &DiskExport, volume: &mut Volume) {
    host.settle(export, volume, &Ask::Establish).await.unwrap();
}

fn newer() -> Host {
    let host = Host::new();
    host.shows_controllers();
    host
}

#[tokio::test]
async fn a_node_is_revoked_and_the_others_stay_connected_at_whatever_step_a_call_is_interrupted() {
    for (text, shows) in [(LIO, false), (NVMET, true), (NVMET, false)] {
        let (mut steps, mut cut) = (0, 0);
        while cut <= steps {
            let host = if shows { newer() } else { Host::new() };
            let mut stage = Stage::new(host, text, &["a", "b", "c"]).await;
            stage.host.counted();
            stage.host.cut = (cut > 0).then_some(cut);
            let done = stage.revoke("a").await;
            if cut == 0 {
                steps = stage.host.counted();
                assert!(done && steps > 1, "{steps}");
            }
            assert_eq!(done, cut == 0, "cut {cut} of {steps}");
            stage.host.cut = None;
            assert!(stage.is_connected("b") && stage.is_connected("c"));
            if !done {
                // Another call at this point does not admit the node that is being revoked.
                assert!(stage.ask(&Ask::Establish).await);
                let allowed = stage.allowed().await;
                assert!(!allowed.contains(&called(text, "a")), "cut {cut}");
            }
            assert!(stage.revoke("a").await);
            // Where the kernel does not list connections, no single connection can be ended.
            let stays = text == NVMET && !shows;
            assert_eq!(stage.is_connected("a"), stays, "cut {cut}");
            assert!(stage.is_connected("b") && stage.is_connected("c"));
            let left = [called(text, "b"), called(text, "c")];
            assert_eq!(stage.allowed().await, left, "cut {cut}");
            cut += 1;
        }
    }
}

#[tokio::test]
async fn the_last_node_is_put_out_by_every_kernel_and_ports_of_others_come_back() {
    for (text, shows) in [(LIO, false), (NVMET, true), (NVMET, false)] {
        let (mut steps, mut cut) = (0, 0);
        while cut <= steps {
            let host = if shows { newer() } else { Host::new() };
            let mut stage = Stage::new(host, text, &["a"]).await;
            let mut second = Volume::new("tank/v", "pvc-2", 8);
            if text == NVMET {
                present(&stage.host, &stage.export, &mut second).await;
                stage.linked_by_hand(NQN);
                stage.linked_by_hand(SECOND);
                std::fs::remove_file(stage.host.path("etc/saved.json")).unwrap();
                assert!(stage.ask(&Ask::Establish).await);
                stage.host.connect(NQN, &called(text, "a"), 9);
            }
            stage.revoke_cut("a", cut, &mut steps).await;
            if text == NVMET {
                // Another volume of the same ports is saved before this one is put right.
                let other = Ask::Allow(NodeId::parse("d").unwrap());
                let settled = stage.host.settle(&stage.export, &mut second, &other);
                settled.await.unwrap();
            }
            assert!(stage.revoke("a").await);
            assert!(!stage.is_connected("a"), "cut {cut}");
            assert_eq!(stage.allowed().await, [""; 0], "cut {cut}");
            assert_eq!(stage.remembered(), "");
            if text == NVMET {
                let link = format!("cfg/nvmet/ports/9/subsystems/{NQN}");
                assert!(stage.host.path(&link).is_symlink(), "cut {cut}");
                let enabled = stage.host.text(&format!("{SUBSYSTEM}/namespaces/1/enable"));
                assert_eq!(enabled.trim(), "1", "cut {cut}");
            }
            cut += 1;
        }
        assert!(steps > 1, "{steps}");
    }
}

#[tokio::test]
async fn a_node_that_connected_while_access_was_open_stays_when_another_one_leaves() {
    let mut stage = Stage::new(newer(), NVMET, &["a"]).await;
    stage.host.connect(NQN, &called(NVMET, "old"), 1);
    assert!(stage.revoke("a").await);
    assert!(!stage.is_connected("a") && stage.is_connected("old"));
    // It is revoked by its own name, although that name is recorded nowhere.
    assert!(stage.revoke("old").await);
    assert!(!stage.is_connected("old"));
}

#[tokio::test]
async fn a_recorded_node_is_put_out_of_an_open_target_at_whatever_step_a_call_is_interrupted() {
    for (text, shows) in [(LIO, false), (NVMET, true), (NVMET, false)] {
        // Where the kernel does not list connections, those of all end with the last recorded node.
        let others: &[&str] = if text == LIO || shows { &["old"] } else { &[] };
        let connected = [&["a"][..], others].concat();
        let (mut steps, mut cut) = (0, 0);
        while cut <= steps {
            let host = if shows { newer() } else { Host::new() };
            let mut stage = Stage::before_nodes(host, text, "a,", &connected).await;
            stage.revoke_cut("a", cut, &mut steps).await;
            assert!(stage.revoke("a").await);
            assert!(!stage.is_connected("a"), "cut {cut}");
            assert!(!stage.is_open().await, "it would come back");
            assert_eq!(stage.remembered(), "");
            let next = Ask::Publish(NodeId::parse("b").unwrap());
            assert!(stage.ask(&next).await);
            assert_eq!(stage.allowed().await, [called(text, "b")], "cut {cut}");
            assert!(others.iter().all(|name| stage.is_connected(name)));
            cut += 1;
        }
        assert!(steps > 1, "{steps}");
    }
}

#[tokio::test]
async fn all_recorded_nodes_are_put_out_of_an_open_target() {
    for (text, shows) in [(LIO, false), (NVMET, true), (NVMET, false)] {
        let host = if shows { newer() } else { Host::new() };
        let mut stage = Stage::before_nodes(host, text, "a,b,", &["a", "b"]).await;
        assert!(stage.ask(&Ask::Revoke(None)).await);
        assert!(!stage.is_connected("a") && !stage.is_connected("b"));
        assert!(!stage.is_open().await);
    }
}

#[tokio::test]
async fn an_open_target_stays_as_it_is_when_a_node_leaves_that_is_not_recorded() {
    for text in [LIO, NVMET] {
        let mut stage = Stage::before_nodes(Host::new(), text, "b,", &["b", "old"]).await;
        assert!(stage.revoke("a").await);
        assert!(stage.is_connected("b") && stage.is_connected("old"));
        assert!(stage.is_open().await);
    }
}

#[tokio::test]
async fn a_node_leaves_a_target_that_was_not_closed_after_its_nodes_were_listed() {
    for text in [LIO, NVMET] {
        let connected = ["a", "b", "old"];
        let mut stage = Stage::before_nodes(newer(), text, "a,b,", &connected).await;
        let list = ["a", "b"].map(|name| pair(&called(text, name), name));
        let name = PropertyName::parse("omnibus-csi:nodes").unwrap();
        stage.volume = stage.volume.remembering(name, &list.join(","));
        assert!(stage.revoke("a").await);
        assert!(!stage.is_connected("a"));
        assert!(stage.is_connected("b") && stage.is_connected("old"));
        let facts = stage.host.facts(&stage.export, &stage.volume).await;
        assert_eq!(facts.allowed, [called(text, "b")]);
        let opens = ["generate_node_acls", "attr_allow_any_host"];
        let is_open = |missing: &String| opens.iter().any(|name| missing.ends_with(name));
        assert!(!facts.missing.iter().any(is_open), "{:?}", facts.missing);
    }
}

#[tokio::test]
async fn a_connection_that_does_not_end_is_no_success() {
    let mut stage = Stage::new(newer(), NVMET, &["a", "b"]).await;
    stage.host.program("sleep", "#!/bin/sh\n");
    assert!(!stage.revoke("a").await);
    let a = pair(&called(NVMET, "a"), "a");
    assert!(stage.remembered().starts_with(&format!("!{a}")));
    std::fs::remove_file(stage.host.path("bin/sleep")).unwrap();
    assert!(stage.revoke("a").await);
    assert!(!stage.is_connected("a") && stage.is_connected("b"));
    assert!(!stage.remembered().contains(&a));
}

#[tokio::test]
async fn a_kernel_that_is_locked_down_delays_no_call_and_counts_as_one_that_shows_nothing() {
    let mut stage = Stage::new(newer(), NVMET, &["a", "b"]).await;
    stage.is_locked_down();
    stage.host.program("sleep", "#!/bin/sh\nexit 1\n");
    assert!(stage.revoke("a").await);
    assert!(stage.is_connected("a") && stage.is_connected("b"));
    assert_eq!(stage.allowed().await, [called(NVMET, "b")]);
    // Revoking the last node unlinks the ports, which also ends connections of nodes revoked before.
    assert!(stage.revoke("b").await);
    assert!(!stage.is_connected("a") && !stage.is_connected("b"));
}

#[tokio::test]
async fn a_fence_asks_the_host_whether_it_ends_what_one_node_has_open() {
    // LIO does so on every kernel.
    let stage = Stage::new(Host::new(), LIO, &["a"]).await;
    assert!(stage.export.cuts_off());
    assert_eq!(stage.refusal().await, None);
    let refused = async |stage: &Stage, words: &str| {
        let why = stage.refusal().await.unwrap();
        assert!(why.contains(words), "{why}");
    };
    let stage = Stage::new(Host::new(), NVMET, &["a", "b"]).await;
    refused(&stage, "CONFIG_NVME_TARGET_DEBUGFS").await;
    let stage = Stage::new(newer(), NVMET, &["a", "b"]).await;
    assert!(stage.export.cuts_off());
    assert_eq!(stage.refusal().await, None);
    let lockdown = stage.host.path("security/lockdown");
    std::fs::create_dir(lockdown.parent().unwrap()).unwrap();
    for locked in [
        "none [integrity] confidentiality\n",
        "none integrity [confidentiality]\n",
    ] {
        std::fs::write(&lockdown, locked).unwrap();
        refused(&stage, "locked down").await;
    }
    std::fs::write(&lockdown, "[none] integrity confidentiality\n").unwrap();
    assert_eq!(stage.refusal().await, None);
    // A host that does not show whether it is locked down.
    std::fs::remove_file(&lockdown).unwrap();
    assert_eq!(stage.refusal().await, None);
    stage.is_locked_down();
    refused(&stage, "does not allow ending").await;
    // No node is connected where nvmet is not loaded.
    std::fs::remove_dir_all(stage.host.path("cfg/nvmet")).unwrap();
    assert_eq!(stage.refusal().await, None);
}

#[tokio::test]
async fn a_connection_that_ends_slowly_keeps_no_other_volume_waiting() {
    let mut stage = Stage::new(newer(), NVMET, &["a", "b"]).await;
    // The fake `sleep` tries to take the lock of the stack during the wait.
    let fake = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake/sleep");
    let free = include_str!("sessions/sleep.sh").replace("FAKE", fake);
    stage.host.program("sleep", &free);
    assert!(stage.revoke("a").await);
    assert!(!stage.is_connected("a") && stage.is_connected("b"));
    assert!(stage.host.path("asked").exists() && !stage.host.path("held").exists());
}

#[tokio::test]
async fn a_host_with_an_invalid_name_is_disconnected_with_the_last_node() {
    let mut stage = Stage::new(newer(), NVMET, &["a"]).await;
    std::fs::create_dir_all(stage.host.path("controllers").join(NQN)).unwrap();
    for odd in ["plain", "nqn"] {
        stage.host.connect(NQN, odd, 1);
    }
    assert!(stage.ask(&Ask::Revoke(None)).await);
    assert!(!stage.host.is_connected(NQN, "plain") && !stage.is_connected("a"));
}

#[tokio::test]
async fn a_node_that_is_called_otherwise_now_is_put_out_by_its_old_name() {
    for text in [LIO, NVMET] {
        let mut stage = Stage::new(newer(), text, &["a", "b"]).await;
        let renamed = text.replace("{{node}}'", "new-{{node}}'");
        stage.export = stage.host.export(&renamed);
        assert!(stage.revoke("a").await);
        assert!(!stage.is_connected("a") && stage.is_connected("b"));
        assert_eq!(stage.allowed().await, [called(text, "b")]);
        // Published again by its new name, it keeps what it has connected by the old one.
        assert!(stage.ask(&Ask::Allow(NodeId::parse("b").unwrap())).await);
        assert!(stage.is_connected("b"));
        assert_eq!(stage.allowed().await.len(), 2);

        // One that has no name at all any more.
        let (start, _) = text.split_once("{nameTemplate").unwrap();
        let other = called(text, "c");
        stage.export = stage
            .host
            .export(&format!("{start}{{names: {{c: '{other}'}}}}\n"));
        assert!(stage.revoke("unknown").await);
        assert!(stage.is_connected("b"));
        assert!(stage.revoke("b").await);
        assert!(!stage.is_connected("b"));
        assert_eq!(stage.allowed().await, [""; 0]);
    }
}

#[tokio::test]
async fn a_node_whose_id_has_changed_is_put_out_by_its_name() {
    for text in [LIO, NVMET] {
        for again in [false, true] {
            let mut stage = Stage::new(newer(), text, &["a", "b"]).await;
            let (start, _) = text.split_once("{nameTemplate").unwrap();
            let (a, b) = (called(text, "a"), called(text, "b"));
            let renamed = format!("{start}{{names: {{n=a: '{a}', n=b: '{b}'}}}}\n");
            stage.export = stage.host.export(&renamed);
            if again {
                let node = NodeId::parse("n=a").unwrap();
                assert!(stage.ask(&Ask::Allow(node)).await);
            }
            assert!(stage.revoke("n=a").await);
            assert!(!stage.is_connected("a") && stage.is_connected("b"));
            assert_eq!(stage.allowed().await, [b.as_str()]);
            assert_eq!(stage.remembered(), pair(&b, "b"));
        }
    }
}

#[tokio::test]
async fn without_names_for_nodes_access_is_open_again_and_no_connection_ends() {
    let mut stage = Stage::new(newer(), NVMET, &["a", "b"]).await;
    stage.export = stage.host.export(&open(NVMET));
    assert!(stage.ask(&Ask::Establish).await);
    assert_eq!(stage.allowed().await, [""; 0]);
    let any = stage.host.text(&format!("{SUBSYSTEM}/attr_allow_any_host"));
    assert_eq!(any.trim(), "1");
    assert_eq!(stage.saved()["subsystems"][0]["allowed_hosts"], json!([]));
    assert!(stage.is_connected("a") && stage.is_connected("b"));
    stage.export = stage.host.export(NVMET);
    assert!(stage.ask(&Ask::Establish).await);
    let both = [called(NVMET, "a"), called(NVMET, "b")];
    assert_eq!(stage.allowed().await, both);
    assert!(stage.is_connected("a") && stage.is_connected("b"));
}

#[tokio::test]
async fn an_observation_does_not_wait_for_another_volume_on_the_same_port() {
    let stage = Stage::new(Host::new(), NVMET, &[]).await;
    // Another volume is there already, and not saved yet.
    let other = stage.host.path("cfg/nvmet/subsystems/nqn.other");
    std::fs::create_dir(&other).unwrap();
    let link = stage.host.path("cfg/nvmet/ports/1/subsystems/nqn.other");
    std::os::unix::fs::symlink(&other, link).unwrap();
    assert_eq!(stage.allowed().await, [""; 0]);
    // A port that does not list this one would not have it after a start of the host.
    let mut saved = stage.saved();
    saved["ports"][0]["subsystems"] = json!(["nqn.other"]);
    std::fs::write(stage.host.path("etc/saved.json"), saved.to_string()).unwrap();
    let facts = stage.host.facts(&stage.export, &stage.volume).await;
    assert_eq!(facts.missing, ["saved"]);
}
