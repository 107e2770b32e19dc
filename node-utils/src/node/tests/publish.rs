//! The table of `NodePublishVolume`, flags, and targets that are not what they should be.

use std::fmt::Write as _;
use std::os::unix::fs::symlink;

use rustix::fs::StatVfsMountFlags;

use super::*;

fn mode(bench: &Bench, target: &str, mode: AccessMode) -> PublishRequest {
    PublishRequest {
        capability: capability(mode, ""),
        ..bench.request(target)
    }
}

#[test]
fn read_only_is_read_only_for_each_pod_that_asks_for_it() {
    bench(|bench| {
        bench.stage("one", "s").expect("stage");
        let read_only = PublishRequest {
            readonly: true,
            ..bench.request("flag")
        };
        bench.publish(read_only).expect("publish");
        let by_option = PublishRequest {
            capability: capability(AccessMode::SingleNodeMultiWriter, "ro,rw,ro"),
            ..bench.request("option")
        };
        bench.publish(by_option).expect("publish");
        for (target, access) in [
            ("single", AccessMode::SingleNodeReaderOnly),
            ("multi", AccessMode::MultiNodeReaderOnly),
        ] {
            bench.publish(mode(bench, target, access)).expect("publish");
        }
        for target in ["k/flag", "k/option", "k/single", "k/multi"] {
            assert!(is_read_only(&bench.path(target)), "{target}");
        }
        bench.publish(bench.request("rw")).expect("publish");
        assert!(!is_read_only(&bench.path("k/rw")) && !is_read_only(&bench.path("k/s")));
    });
}

#[test]
fn a_wish_to_write_does_not_lift_read_only() {
    bench(|bench| {
        bench.stage("one", "s").expect("stage");
        let request = PublishRequest {
            capability: capability(AccessMode::SingleNodeMultiWriter, "rw"),
            readonly: true,
            ..bench.request("t")
        };
        bench.publish(request.clone()).expect("publish");
        bench.publish(request).expect("again");
        assert!(is_read_only(&bench.path("k/t")));
    });
}

#[test]
fn the_same_target_with_other_arguments_is_a_conflict_and_stays() {
    bench(|bench| {
        bench.stage("one", "s").expect("stage");
        bench.stage("two", "s2").expect("stage");
        bench.publish(bench.request("t")).expect("publish");
        let read_only = PublishRequest {
            readonly: true,
            ..bench.request("t")
        };
        let error = refused(bench.publish(read_only.clone()), Kind::Conflict);
        assert!(
            error.chain().contains("missing there: ro"),
            "{}",
            error.chain()
        );
        assert!(!is_read_only(&bench.path("k/t")));
        let other = PublishRequest {
            staging: bench.staging("s2"),
            attachment: bench.attachment("two"),
            ..bench.request("t")
        };
        refused(bench.publish(other), Kind::Conflict);
        let flags = PublishRequest {
            capability: capability(AccessMode::SingleNodeMultiWriter, "noexec"),
            ..bench.request("t")
        };
        refused(bench.publish(flags), Kind::Conflict);
        let no_links = PublishRequest {
            capability: capability(AccessMode::SingleNodeMultiWriter, "nosymfollow"),
            ..bench.request("links")
        };
        bench.publish(no_links.clone()).expect("publish");
        bench.publish(no_links).expect("the same again");
        refused(bench.publish(bench.request("links")), Kind::Conflict);

        bench.unpublish("t").expect("unpublish");
        bench.publish(read_only).expect("publish");
        refused(bench.publish(bench.request("t")), Kind::Conflict);
        assert!(is_read_only(&bench.path("k/t")));
        assert_eq!(bench.layers("k/t"), 1);
    });
}

#[test]
fn a_single_writer_has_one_target_and_the_error_names_it() {
    bench(|bench| {
        let only = |target: &str| mode(bench, target, AccessMode::SingleNodeSingleWriter);
        bench.stage("one", "s").expect("stage");
        bench.stage("two", "s2").expect("stage");
        bench.publish(only("t")).expect("publish");
        bench.publish(only("t")).expect("the same again");
        let error = refused(bench.publish(only("other")), Kind::Busy);
        assert!(
            error.chain().contains(&bench.text("k/t")),
            "{}",
            error.chain()
        );
        assert!(!bench.path("k/other").exists());
        let second = PublishRequest {
            staging: bench.staging("s2"),
            attachment: bench.attachment("two"),
            ..only("second-volume")
        };
        bench
            .publish(second)
            .expect("another volume is another matter");
        bench.unpublish("t").expect("unpublish");
        bench.publish(only("other")).expect("publish");
    });
}

#[test]
fn every_other_mode_allows_several_targets() {
    let single = [AccessMode::SingleNodeSingleWriter];
    for access in AccessMode::ALL
        .into_iter()
        .filter(|mode| !single.contains(mode))
    {
        bench(move |bench| {
            bench.stage("one", "s").expect("stage");
            bench.publish(mode(bench, "t", access)).expect("publish");
            bench.publish(mode(bench, "t2", access)).expect("publish");
        });
    }
}

#[test]
fn a_volume_that_is_not_staged_is_not_published() {
    bench(|bench| {
        let unstaged = |bench: &Bench| {
            refused(bench.publish(bench.request("t")), Kind::Busy);
            assert!(!bench.path("k/t").exists());
        };
        unstaged(bench);
        fs::create_dir(bench.path("k/s")).expect("dir");
        unstaged(bench);
        bench.stage("two", "s").expect("stage");
        unstaged(bench);
        refused(bench.publish(bench.request("s")), Kind::Invalid);
        refused(bench.publish(bench.request("s/inside")), Kind::Invalid);
        assert!(!bench.path("v/two/inside").exists());
    });
}

#[test]
fn a_target_that_is_a_link_or_a_file_is_refused_and_unchanged() {
    bench(|bench| {
        bench.stage("one", "s").expect("stage");
        fs::create_dir(bench.path("k/elsewhere")).expect("dir");
        symlink(bench.path("k/elsewhere"), bench.path("k/link")).expect("link");
        symlink(bench.path("k/nowhere"), bench.path("k/dangling")).expect("link");
        fs::write(bench.path("k/file"), "data").expect("file");
        let before = bench.mounts();
        for target in ["link", "dangling", "file"] {
            let error = refused(bench.publish(bench.request(target)), Kind::Busy);
            assert_eq!(error.effect(), Effect::None);
        }
        assert_eq!(bench.mounts(), before);
        assert!(bench.path("k/link").is_symlink() && bench.path("k/dangling").is_symlink());
        assert_eq!(fs::read(bench.path("k/file")).expect("read"), b"data");
        assert!(!bench.path("k/nowhere").exists());
        fs::write(bench.path("k/elsewhere/f"), "").expect("nothing is mounted there");
    });
}

#[test]
fn flags_of_the_mount_are_applied_and_flags_of_filesystems_left_out() {
    let config = NodeConfig {
        mount_flags: MountFlags::parse(["nodev", "discard"]).expect("flags"),
        ..NodeConfig::default()
    };
    bench_with(config, |bench| {
        bench.stage("one", "s").expect("stage");
        let options = "noexec,nosuid,noatime,nodiratime,vers=4.1,_netdev,sync,rshared";
        let request = PublishRequest {
            capability: capability(AccessMode::SingleNodeMultiWriter, options),
            ..bench.request("t")
        };
        bench.publish(request.clone()).expect("publish");
        bench.publish(request).expect("the same again");
        let flags = rustix::fs::statvfs(bench.path("k/t"))
            .expect("statvfs")
            .f_flag;
        let expected = StatVfsMountFlags::NOEXEC
            | StatVfsMountFlags::NOSUID
            | StatVfsMountFlags::NODEV
            | StatVfsMountFlags::NOATIME
            | StatVfsMountFlags::NODIRATIME;
        assert!(flags.contains(expected), "{flags:?}");
        assert!(!is_read_only(&bench.path("k/t")));
    });
}

#[test]
fn flags_that_an_older_driver_did_not_know_of_are_no_conflict() {
    let config = NodeConfig {
        mount_flags: MountFlags::parse(["nodev"]).expect("flags"),
        ..NodeConfig::default()
    };
    bench_with(config, |bench| {
        bench.bind("v/one", "k/s");
        bench.bind("k/s", "k/t");
        bench.publish(bench.request("t")).expect("publish");
        assert_eq!(bench.layers("k/t"), 1);
    });
}

#[test]
fn a_refused_publication_leaves_a_directory_that_was_there() {
    bench(|bench| {
        bench.stage("one", "s").expect("stage");
        bench.publish(bench.request("t")).expect("publish");
        fs::create_dir(bench.path("k/mine")).expect("dir");
        let only = mode(bench, "mine", AccessMode::SingleNodeSingleWriter);
        refused(bench.publish(only), Kind::Busy);
        assert!(bench.path("k/mine").exists());
    });
}

/// Collects log events as text.
struct Log(std::sync::Mutex<String>);

impl tracing::Subscriber for &'static Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Fields<'a>(&'a mut String);
        impl tracing::field::Visit for Fields<'_> {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                let _ = write!(self.0, " {field}={value:?}");
            }
        }
        let mut text = self.0.lock().expect("lock");
        text.push_str(event.metadata().level().as_str());
        event.record(&mut Fields(&mut text));
        text.push('\n');
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn options_that_do_not_apply_to_a_directory_are_named_in_a_warning_without_their_values() {
    static LOG: Log = Log(std::sync::Mutex::new(String::new()));
    bench(|bench| {
        bench.stage("one", "s").expect("stage");
        let request = PublishRequest {
            capability: capability(
                AccessMode::SingleNodeMultiWriter,
                "noexce,password=hunter2,noatime",
            ),
            ..bench.request("t")
        };
        tracing::subscriber::with_default(&LOG, || {
            super::super::publish::publish(&bench.node.context, &request).expect("publish");
        });
        let text = LOG.0.lock().expect("lock");
        let line = text.lines().find(|line| line.contains("noexce"));
        let line = line.expect("a line that names it");
        assert!(line.starts_with("WARN"), "{line}");
        assert!(line.contains("noexce,password"), "{line}");
        assert!(
            !text.contains("hunter2") && !line.contains("noatime"),
            "{text}"
        );
    });
}
