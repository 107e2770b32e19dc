//! Volumes that the guest of a pod mounts: the file contract with the runtime of Kata Containers, on real devices.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::sync::mpsc::{self, Receiver};

use super::crash::kill;
use super::*;
use crate::device::DeviceNumber;

const MIB: u64 = 1 << 20;

/// The folder of the runtime, below that of a test.
const VOLUMES: &str = "run/kata-containers/shared/direct-volumes";

fn of_guests() -> NodeConfig {
    NodeConfig {
        mount_flags: MountFlags::parse(["noatime,_netdev"]).expect("flags"),
        kata: true,
        ..NodeConfig::default()
    }
}

fn guests(test: impl FnOnce(&Bench) + Send + 'static) {
    bench_with(of_guests(), |bench| {
        bench.storage.put("one", 64 * MIB);
        test(bench);
    });
}

impl Bench {
    fn stage_for_guest(&self, node: &Node) -> Result<(), Error> {
        let access = Access::Mount(MountAccess::default());
        let mut request = self.stage_request("one", "s", access);
        request.capability.mode = AccessMode::SingleNodeSingleWriter;
        self.run(node.stage(soon(), request))
    }

    fn guest_request(&self, target: &str) -> PublishRequest {
        let mut request = self.device_request("one", target);
        request.capability.mode = AccessMode::SingleNodeSingleWriter;
        request
    }

    fn publish_to_guest(&self, target: &str) -> Result<(), Error> {
        self.publish(self.guest_request(target))
    }

    /// The folder in which the runtime looks for a target.
    fn entry(&self, target: &str) -> PathBuf {
        self.entry_of(&self.text(&format!("k/{target}")))
    }

    /// The same for a whole path.
    fn entry_of(&self, target: &str) -> PathBuf {
        use base64::Engine as _;
        let name = base64::engine::general_purpose::URL_SAFE.encode(target);
        self.path(VOLUMES).join(name)
    }

    fn written(&self, target: &str) -> Option<serde_json::Value> {
        let text = fs::read(self.entry(target).join("mountInfo.json")).ok()?;
        Some(serde_json::from_slice(&text).expect("JSON"))
    }

    /// Whether the filesystem of the volume is mounted anywhere on this node.
    fn is_on_the_node(&self) -> bool {
        let device = self.storage.device("one");
        let table = MountTable::read().expect("table");
        let mut entries = table.entries();
        entries.any(|entry| DeviceNumber::from(entry.device) == device.number())
    }

    /// A runtime that answers each question with `answer`, and the first lines and bodies of the questions.
    fn runtime_of(&self, target: &str, answer: &'static str) -> Receiver<String> {
        let folder = self.path("run/vc/sbs/5a1b");
        fs::create_dir_all(&folder).expect("folder");
        let socket = folder.join("shim-monitor.sock");
        let _ = fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).expect("socket");
        fs::write(self.entry(target).join("5a1b"), "").expect("the sandbox");
        let (asked, questions) = mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a question");
                let mut text = [0; 4096];
                let length = stream.read(&mut text).expect("read");
                let text = String::from_utf8_lossy(&text[..length]).into_owned();
                if asked.send(text).is_err() {
                    return;
                }
                if answer.is_empty() {
                    // It stays silent until the other side gives up.
                    let _ = stream.read(&mut [0]);
                    continue;
                }
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        questions
    }

    /// Takes the socket of the runtime away, as it does at its end.
    fn end_guest(&self) {
        let socket = self.path("run/vc/sbs/5a1b/shim-monitor.sock");
        fs::remove_file(socket).expect("socket");
    }
}

#[test]
fn a_volume_is_handed_to_a_guest_and_comes_back() {
    guests(|bench| {
        let before = bench.mounts();
        bench.stage_for_guest(&bench.node).expect("stage");
        fs::write(bench.path("k/s/f"), "content").expect("write");
        bench.publish_to_guest("t").expect("publish");
        assert!(!bench.is_on_the_node());
        let device = bench.storage.device("one").node(&Kernel::here());
        let expected = serde_json::json!({
            "volume-type": "directvol",
            "device": device.to_str().expect("text"),
            "fstype": "ext4",
            "options": ["noatime"],
        });
        assert_eq!(bench.written("t"), Some(expected));
        // A pod that is no guest does not lose what it writes.
        let written = fs::write(bench.path("k/t/f"), "");
        assert_eq!(written.expect_err("no room").kind(), ErrorKind::StorageFull);

        bench.publish_to_guest("t").expect("publish again");
        bench.stage_for_guest(&bench.node).expect("stage again");
        assert!(!bench.is_on_the_node());
        assert_eq!(bench.layers("k/t"), 1);
        refused(bench.publish_to_guest("t2"), Kind::Busy);
        refused(bench.unstage("s"), Kind::Busy);
        let other = PublishRequest {
            readonly: true,
            ..bench.guest_request("t")
        };
        refused(bench.publish(other), Kind::Conflict);
        assert!(bench.written("t").is_some() && bench.written("t2").is_none());

        bench.unpublish("t").expect("unpublish");
        bench.unpublish("t").expect("unpublish again");
        assert!(!bench.entry("t").exists() && !bench.path("k/t").exists());
        bench.publish_to_guest("t2").expect("the next pod");
        assert!(bench.written("t2").is_some() && !bench.is_on_the_node());
        bench.unpublish("t2").expect("unpublish");
        bench.stage_for_guest(&bench.node).expect("stage once more");
        assert_eq!(fs::read(bench.path("k/s/f")).expect("read"), b"content");
        bench.unstage("s").expect("unstage");
        bench.nothing_is_left(before);
    });
}

#[test]
fn what_no_guest_can_have_is_refused_and_a_raw_device_is_as_ever() {
    guests(|bench| {
        let before = bench.mounts();
        let access = Access::Mount(MountAccess::default());
        let shared = bench.stage_request("one", "s", access);
        let error = refused(bench.run(bench.node.stage(soon(), shared)), Kind::Invalid);
        assert!(error.chain().contains("ReadWriteOncePod"));
        refused(bench.stage("one", "s"), Kind::Invalid);
        bench.nothing_is_left(before);
        bench.stage_block("one", "s").expect("stage");
        let mut raw = bench.guest_request("t");
        raw.capability.access = Access::Block;
        bench.publish(raw).expect("publish");
        assert!(!bench.path(VOLUMES).exists());
        bench.unpublish("t").expect("unpublish");
        bench.unstage("s").expect("unstage");
        bench.nothing_is_left(before);
    });
}

#[test]
fn the_disk_of_a_guest_is_no_raw_device_for_another_pod() {
    guests(|bench| {
        let before = bench.mounts();
        bench.stage_for_guest(&bench.node).expect("stage");
        bench.publish_to_guest("t").expect("publish");
        let raw = || {
            let mut request = bench.device_request("one", "t2");
            request.capability.access = Access::Block;
            request
        };
        let error = refused(bench.publish(raw()), Kind::Busy);
        assert!(error.chain().contains("guests of Kata"));
        bench.unpublish("t").expect("unpublish");
        refused(bench.publish(raw()), Kind::Busy);
        assert!(!bench.path("k/t2").exists());
        bench.unstage("s").expect("unstage");
        bench.stage_block("one", "s").expect("stage");
        bench.publish(raw()).expect("a raw device by now");
        bench.unpublish("t2").expect("unpublish");
        bench.unstage("s").expect("unstage");
        bench.nothing_is_left(before);
    });
}

#[test]
fn a_configuration_that_changes_takes_no_volume_from_its_pod() {
    guests(|bench| {
        let before = bench.mounts();
        let plain = bench.node.with_config(NodeConfig {
            kata: false,
            ..of_guests()
        });
        bench.stage_for_guest(&plain).expect("stage");
        let to = |node: &Node, target: &str| {
            bench.run(node.publish(soon(), bench.guest_request(target)))
        };
        to(&plain, "t").expect("publish");
        for target in ["t", "t2"] {
            refused(to(&bench.node, target), Kind::Busy);
        }
        assert_eq!(bench.layers("k/s"), 1, "nothing was taken away");
        bench.unpublish("t").expect("unpublish");

        to(&bench.node, "t").expect("publish");
        bench.stage_for_guest(&plain).expect("stage");
        to(&plain, "t").expect("the guest has it, as before");
        let error = refused(to(&plain, "t2"), Kind::Busy);
        assert!(error.chain().contains("guest"), "{}", error.chain());
        assert!(bench.written("t").is_some() && !bench.is_on_the_node());
        bench.unpublish("t").expect("unpublish");

        // The kubelet does not stage it anew for the next pod.
        to(&plain, "t2").expect("the next pod");
        to(&plain, "t2").expect("again");
        assert!(bench.written("t2").is_none() && bench.is_on_the_node());
        assert_eq!((bench.layers("k/s"), bench.layers("k/t2")), (1, 1));
        fs::write(bench.path("k/t2/f"), "content").expect("write");
        bench.unpublish("t2").expect("unpublish");
        to(&bench.node, "t3").expect("a guest again");
        assert!(bench.written("t3").is_some() && !bench.is_on_the_node());
        bench.unpublish("t3").expect("unpublish");
        bench.unstage("s").expect("unstage");
        bench.nothing_is_left(before);
    });
}

#[test]
fn what_other_programs_have_written_is_not_touched() {
    guests(|bench| {
        let before = bench.mounts();
        bench.stage_for_guest(&bench.node).expect("stage");
        for target in ["t", "other"] {
            fs::create_dir_all(bench.entry(target)).expect("folder");
            fs::write(bench.entry(target).join("mountInfo.json"), "{}").expect("file");
        }
        refused(bench.publish_to_guest("t"), Kind::Conflict);
        assert!(bench.is_on_the_node(), "nothing was taken away yet");
        bench.unpublish("t").expect("unpublish");
        bench.publish_to_guest("t2").expect("publish");
        bench.unpublish("t2").expect("unpublish");
        for target in ["t", "other"] {
            assert_eq!(bench.written(target), Some(serde_json::json!({})));
        }
        bench.unstage("s").expect("unstage");
        bench.nothing_is_left(before);
    });
}

#[test]
fn a_folder_of_the_runtime_that_cannot_be_read_concerns_the_volumes_of_guests_only() {
    guests(|bench| {
        let before = bench.mounts();
        bench.stage_for_guest(&bench.node).expect("stage");
        bench.publish_to_guest("t").expect("publish");
        let folder = bench.path("run/kata-containers");
        let aside = bench.path("run/aside");
        fs::rename(&folder, &aside).expect("aside");
        symlink("kata-containers", &folder).expect("a link to itself");

        let plain = bench.node.with_config(NodeConfig::default());
        let staged = StageRequest {
            staging: bench.staging("d"),
            attachment: bench.attachment("one"),
            capability: capability(AccessMode::SingleNodeMultiWriter, ""),
            secrets: StageSecrets::default(),
        };
        bench.run(plain.stage(soon(), staged)).expect("stage");
        let published = PublishRequest {
            staging: bench.staging("d"),
            ..bench.request("pod")
        };
        bench
            .run(plain.publish(soon(), published))
            .expect("publish");
        let path = |name: &str| AbsolutePath::parse(&bench.text(name)).expect("path");
        for name in ["k/pod", "k/d"] {
            bench.stats(name).expect("stats");
            let health = bench.run(plain.conditions(soon(), &[path(name)]));
            assert!(health.expect("conditions").is_healthy());
        }
        bench.unpublish("pod").expect("unpublish");
        bench.unstage("d").expect("unstage");

        refused(bench.stats("k/t"), Kind::Internal);
        refused(bench.unpublish("t"), Kind::Internal);
        assert_eq!(bench.layers("k/t"), 1, "nothing was taken away");
        fs::remove_file(&folder).expect("link");
        fs::rename(&aside, &folder).expect("back");
        bench.unpublish("t").expect("unpublish");
        bench.unstage("s").expect("unstage");
        bench.nothing_is_left(before);
    });
}

#[test]
fn the_path_of_a_target_is_encoded_as_the_kubelet_spells_it() {
    guests(|bench| {
        let before = bench.mounts();
        symlink(bench.path("k"), bench.path("link")).expect("link");
        let target = bench.text("link/t");
        let request = || PublishRequest {
            target: TargetPath::parse(&target).expect("path"),
            ..bench.guest_request("t")
        };
        bench.stage_for_guest(&bench.node).expect("stage");
        bench.publish(request()).expect("publish");
        bench.publish(request()).expect("publish again");
        assert!(bench.entry_of(&target).join("mountInfo.json").exists());
        assert!(!bench.entry("t").exists() && !bench.is_on_the_node());
        assert_eq!(bench.layers("k/t"), 1);
        let path = request().target;
        let unpublished = bench.run(bench.node.unpublish(soon(), path));
        unpublished.expect("unpublish");
        assert!(!bench.entry_of(&target).exists());
        bench.unstage("s").expect("unstage");
        bench.nothing_is_left(before);
    });
}

#[test]
fn after_a_reboot_the_volume_is_staged_anew() {
    guests(|bench| {
        let before = bench.mounts();
        bench.stage_for_guest(&bench.node).expect("stage");
        bench.publish_to_guest("t").expect("publish");
        // No mount outlives it, and neither does what is in memory; the folders of the kubelet do.
        for mounted in ["k/t", "k/s/block_device"] {
            crate::mount::unmount(&bench.path(mounted)).expect("unmount");
        }
        fs::remove_dir_all(bench.path("run")).expect("memory");
        bench.stage_for_guest(&bench.node).expect("stage");
        assert!(bench.is_on_the_node());
        bench.publish_to_guest("t").expect("publish");
        assert!(bench.written("t").is_some() && !bench.is_on_the_node());
        bench.unpublish("t").expect("unpublish");
        bench.unstage("s").expect("unstage");
        bench.nothing_is_left(before);
    });
}

/// The state of a volume before a publication that is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Staged,
    /// An earlier guest had it, and nothing stages it anew.
    Bare,
}

/// Kills a publication after each of its changes, and then does it again, or takes the volume away; that is killed,
/// too. At least `expected` changes are known.
fn at_every_change_of_a_publication(state: Before, expected: usize) {
    guests(move |bench| {
        let before = bench.mounts();
        let new = || node(of_guests(), &bench.storage, &bench.children);
        let mut after = 1;
        loop {
            let mut reached = false;
            for again in [true, false] {
                bench.stage_for_guest(&bench.node).expect("stage");
                if state == Before::Bare {
                    bench.publish_to_guest("t").expect("an earlier guest");
                    bench.unpublish("t").expect("unpublish");
                }
                let passed = kill(&new(), after, |doomed| {
                    bench.run(doomed.publish(soon(), bench.guest_request("t")))
                });
                reached |= passed.is_some();
                if again {
                    if state == Before::Staged {
                        bench.stage_for_guest(&bench.node).expect("stage");
                    }
                    let done = bench.publish_to_guest("t");
                    done.unwrap_or_else(|error| panic!("{passed:?}: {}", error.chain()));
                    assert!(bench.written("t").is_some() && !bench.is_on_the_node());
                }
                let _ = kill(&new(), after, |doomed| {
                    bench.run(doomed.unpublish(soon(), bench.target("t")))
                });
                let released = bench.unpublish("t");
                released.unwrap_or_else(|error| panic!("{passed:?}: {}", error.chain()));
                let _ = kill(&new(), after, |doomed| {
                    bench.run(doomed.unstage(soon(), bench.staging("s")))
                });
                let unstaged = bench.unstage("s");
                unstaged.unwrap_or_else(|error| panic!("{passed:?}: {}", error.chain()));
                assert!(!bench.entry("t").exists(), "{passed:?}");
                bench.nothing_is_left(before);
            }
            if !reached {
                break;
            }
            after += 1;
        }
        assert!(after > expected, "only {} changes", after - 1);
    });
}

#[test]
fn a_publication_for_a_guest_killed_after_any_change_is_completed_or_removed() {
    at_every_change_of_a_publication(Before::Staged, 6);
}

#[test]
fn one_for_the_next_guest_killed_after_any_change_is_completed_or_removed() {
    at_every_change_of_a_publication(Before::Bare, 8);
}

#[test]
fn the_runtime_is_asked_for_numbers_and_a_silent_one_is_not_waited_for() {
    guests(|bench| {
        bench.stage_for_guest(&bench.node).expect("stage");
        bench.publish_to_guest("t").expect("publish");
        // The runtime in Rust does not say which sandbox has it.
        let error = refused(bench.stats("k/t"), Kind::Unreachable);
        assert!(error.chain().contains("sandbox"), "{}", error.chain());
        let device = bench.storage.device("one");
        let numbers = "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n\
                       {\"usage\":[{\"available\":3,\"total\":5,\"used\":2,\"unit\":1}]}";
        let questions = bench.runtime_of("t", numbers);
        let stats = bench.stats("k/t").expect("stats");
        let bytes = stats.bytes.expect("bytes");
        assert_eq!((bytes.total, bytes.used, bytes.available), (5, 2, 3));
        let asked = questions.recv().expect("asked");
        let expected = format!(
            "GET /direct-volume/stats?path=%2Fdev%2F{} HTTP/1.0\r\n",
            device.name()
        );
        assert!(asked.starts_with(&expected), "{asked}");
        let refusing = bench.runtime_of("t", "HTTP/1.0 500 No\r\n\r\nno such mount");
        let error = refused(bench.stats("k/t"), Kind::Unreachable);
        assert!(error.chain().contains("no such mount"), "{}", error.chain());
        drop(refusing);

        let silent = bench.runtime_of("t", "");
        let began = Instant::now();
        let path = AbsolutePath::parse(&bench.text("k/t")).expect("path");
        let limits = Limits::until(began + Duration::from_millis(200));
        let error = bench.run(bench.node.stats(limits, path.clone()));
        let kind = error.expect_err("silent").kind();
        assert!(
            matches!(kind, Kind::Timeout | Kind::Unreachable),
            "{kind:?}"
        );
        assert!(began.elapsed() < Duration::from_secs(3));
        drop(silent);
        let health = bench.run(bench.node.conditions(soon(), &[path]));
        assert!(health.expect("conditions").is_healthy());
        bench.end_guest();
        bench.unpublish("t").expect("unpublish");
        bench.unstage("s").expect("unstage");
    });
}

#[test]
fn a_guest_that_runs_keeps_its_volume() {
    guests(|bench| {
        let before = bench.mounts();
        bench.stage_for_guest(&bench.node).expect("stage");
        bench.publish_to_guest("t").expect("publish");
        let _questions = bench.runtime_of("t", "HTTP/1.0 200 OK\r\n\r\n");
        // An earlier sandbox of the pod has ended.
        fs::write(bench.entry("t").join("07c3"), "").expect("the sandbox");
        let error = refused(bench.unpublish("t"), Kind::Busy);
        assert_eq!(error.effect(), Effect::None);
        assert!(error.chain().contains("`5a1b`"), "{}", error.chain());
        assert!(bench.written("t").is_some() && bench.layers("k/t") == 1);
        refused(bench.publish_to_guest("t2"), Kind::Busy);
        refused(bench.unstage("s"), Kind::Busy);
        assert!(!bench.is_on_the_node());
        bench.end_guest();
        bench.unpublish("t").expect("unpublish");
        bench.publish_to_guest("t2").expect("the next pod");
        bench.unpublish("t2").expect("unpublish");
        bench.unstage("s").expect("unstage");
        bench.nothing_is_left(before);
    });
}

#[test]
fn a_guest_hears_of_the_new_size_and_its_refusal_is_the_answer() {
    guests(|bench| {
        bench.stage_for_guest(&bench.node).expect("stage");
        bench.publish_to_guest("t").expect("publish");
        bench.storage.grow("one", 96 * MIB);
        let size = 96 * MIB;
        let error = refused(bench.expand("k/t", size), Kind::Busy);
        assert_eq!(error.effect(), Effect::None, "no guest was asked");
        refused(bench.expand("k/s", size), Kind::Busy);
        let refusing = bench.runtime_of("t", "HTTP/1.0 500 No\r\n\r\nnot implemented");
        let error = refused(bench.expand("k/t", size), Kind::Busy);
        assert!(error.chain().contains("not implemented"));
        drop(refusing);
        let questions = bench.runtime_of("t", "HTTP/1.0 200 OK\r\n\r\n");
        assert_eq!(bench.expand("k/t", size).expect("expand"), Some(size));
        let asked = questions.recv().expect("asked");
        assert!(asked.starts_with("POST /direct-volume/resize HTTP/1.0\r\n"));
        let body = asked.split("\r\n\r\n").nth(1).expect("a body");
        let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(body["Size"], size);
        let node = bench.storage.device("one").node(&Kernel::here());
        assert_eq!(body["VolumePath"], node.to_str().expect("text"));
        bench.end_guest();
        bench.unpublish("t").expect("unpublish");
        bench.unstage("s").expect("unstage");
    });
}
