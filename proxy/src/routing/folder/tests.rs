//! A folder of files and what is served of it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use driver_core::VolumeId;
use driver_core::config::NoEnvironment;

mod missing;
mod model;

use super::*;
use crate::routing::connections::{Bare, Names, VolumeHandle};
use crate::telemetry::metrics::Metrics;
use crate::testing::log;

/// Longer than any scan takes here.
const TEST_TIMEOUT: Duration = Duration::from_mins(1);

struct Place {
    dir: tempfile::TempDir,
    watch: Watch,
    connections: Connections,
    metrics: Metrics,
    now: Instant,
}

impl Place {
    fn new(names: Names, no_local: Option<&'static str>) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let section = format!(
            "{{driver: proxy, proxy: {{configFolder: {}}}, instance_id: shared}}",
            dir.path().display()
        );
        let base = Document::parse(&section, &NoEnvironment).expect("yaml");
        let mut settings = ProxySettings::read(&base).expect("settings");
        settings.names = names.clone();
        let context = ConnectionContext {
            no_local,
            ..ConnectionContext::for_tests()
        };
        let connections = Connections::named(names);
        let metrics = Metrics::new();
        let folder = Folder::new(
            &settings,
            Arc::new(base),
            Arc::new(context),
            connections.clone(),
        );
        Self {
            watch: Watch::new(folder, &States::default(), &metrics, Duties::default()),
            dir,
            connections,
            metrics,
            now: Instant::now(),
        }
    }

    async fn write(&mut self, name: &str, text: &str) {
        fs::write(self.dir.path().join(name), text).expect("a file");
        self.scans().await;
    }

    /// As many scans as a change needs.
    async fn scans(&mut self) {
        for _ in 0..2 {
            self.watch.scan(self.now, TEST_TIMEOUT).await;
        }
        self.watch.settle(TEST_TIMEOUT).await;
    }

    /// Lets the grace time of a missing file pass.
    async fn grace(&mut self) {
        self.scans().await;
        self.now += scan::GRACE;
        self.scans().await;
    }

    /// The base directory that a connection has now.
    async fn base(&self, name: &str) -> Option<String> {
        let handle = VolumeHandle::parse(&format!("v:{name}/a")).expect("a handle");
        let (connection, _) = self.connections.of_volume(&handle).await.ok()?;
        Some(connection.driver().backend_identity().0)
    }

    fn counts(&self, line: &str) -> bool {
        self.metrics
            .encode()
            .expect("text")
            .lines()
            .any(|found| found == line)
    }
}

fn hostpath(base: &str) -> String {
    format!(
        "{{driver: local-hostpath, local-hostpath: {{shareBasePath: {base}, controllerBasePath: {base}}}}}"
    )
}

#[tokio::test]
async fn a_zfs_host_stands_beside_directories_of_the_node_and_volumes_made_by_hand() {
    let mut place = Place::new(Names::default(), None);
    place.write("disk.yaml", &hostpath("/one")).await;
    place.write("hand.yaml", "driver: node-manual").await;
    let nas = "
        driver: zfs-generic-nfs
        sshConnection: {host: nas.example, username: csi, password: x}
        zfs: {datasetParentName: tank/v, detachedSnapshotsDatasetParentName: tank/s}
        nfs:
          shareHost: nas.example
          shareStrategy: setDatasetProperties
          shareStrategySetDatasetProperties: {properties: {sharenfs: rw}}";
    place.write("nas.yaml", nas).await;
    place.write("twin.yaml", nas).await;
    place
        .write("other.yaml", &nas.replace("tank/v", "tank/w"))
        .await;
    for (name, kind) in [
        ("disk", "local-hostpath"),
        ("hand", "node-manual"),
        ("nas", "zfs-generic-nfs"),
    ] {
        let info =
            format!("omnibus_csi_connection_info{{connection=\"{name}\",driver=\"{kind}\"}} 1");
        assert!(place.counts(&info), "{info}");
        let valid = format!("omnibus_csi_connection_config_valid{{connection=\"{name}\"}} 1");
        assert!(place.counts(&valid), "{valid}");
    }
    assert_eq!(place.base("nas").await, place.base("twin").await);
    assert_ne!(
        place.base("nas").await,
        place.base("other").await,
        "ids mean other datasets"
    );
}

#[tokio::test]
async fn files_are_served_swapped_and_gone_and_a_bad_one_keeps_the_last_good_one() {
    let mut place = Place::new(Names::default(), None);
    place.scans().await;
    assert!(place.connections.is_empty(), "an empty folder works");
    place.write("a.yaml", &hostpath("/one")).await;
    place.write("b.yaml", &hostpath("/other")).await;
    assert!(place.base("a").await.expect("served").ends_with("/one"));
    assert!(place.counts("omnibus_csi_connections 2"));
    assert!(
        place.counts("omnibus_csi_connection_info{connection=\"a\",driver=\"local-hostpath\"} 1")
    );
    let other = VolumeHandle::parse("v:b/x").expect("a handle");
    let (before, _) = place.connections.of_volume(&other).await.expect("served");

    place.write("a.yaml", &hostpath("/two")).await;
    assert!(place.base("a").await.expect("served").ends_with("/two"));
    for bad in [
        "driver: [",
        "driver: carrier-pigeon",
        "{}",
        "driver: proxy\nproxy: {configFolder: /x}",
    ] {
        place.write("a.yaml", bad).await;
        assert!(
            place
                .base("a")
                .await
                .expect("the last good one")
                .ends_with("/two"),
            "{bad}"
        );
        assert!(
            place.counts("omnibus_csi_connection_config_valid{connection=\"a\"} 0"),
            "{bad}"
        );
    }
    place.write("a.yaml", &hostpath("/three")).await;
    assert!(place.counts("omnibus_csi_connection_config_valid{connection=\"a\"} 1"));
    assert!(place.base("a").await.expect("served").ends_with("/three"));

    let (after, _) = place.connections.of_volume(&other).await.expect("served");
    assert!(
        Arc::ptr_eq(&before, &after),
        "a change to one rebuilds only that one"
    );
    fs::remove_file(place.dir.path().join("a.yaml")).expect("removed");
    place.scans().await;
    assert!(place.base("a").await.is_some(), "an editor may put it back");
    place.grace().await;
    assert_eq!(place.base("a").await, None);
    assert!(
        !place
            .metrics
            .encode()
            .expect("text")
            .contains("connection=\"a\"")
    );
}

#[tokio::test]
async fn what_goes_on_without_a_connection_is_said_when_it_is_removed() {
    let mut place = Place::new(Names::default(), None);
    place.write("one.yaml", &hostpath("/one")).await;
    fs::remove_file(place.dir.path().join("one.yaml")).expect("removed");
    log::listen();
    place.grace().await;
    let heard = log::heard();
    let said = "its volumes can still be mounted and unmounted, and nothing else connection=one\n";
    assert!(heard.contains(said), "{heard}");
}

#[tokio::test]
async fn a_file_takes_defaults_from_the_main_one_and_its_name_from_its_own() {
    let renamed = Names {
        aliases: [("old", "a")]
            .map(|(old, new)| (parse(old), parse(new)))
            .into(),
        ..Names::default()
    };
    let mut place = Place::new(renamed, None);
    place.write("a.yaml", &hostpath("/one")).await;
    place.write("old.yaml", &hostpath("/two")).await;
    assert!(
        place
            .base("old")
            .await
            .expect("the alias")
            .ends_with("/one")
    );
    let id = VolumeId::parse("x").expect("an id");
    let lazy = place.connections.all().remove(0);
    let connection = lazy.open().await.expect("there");
    assert_eq!(connection.volume_handle(&id), "v:a/x");
    let attachment = csi_types::Attachment::Hostpath(csi_types::attachment::Hostpath {
        path: csi_types::AbsolutePath::parse("/one").expect("a path"),
    });
    let context = connection.context(&attachment);
    assert_eq!(context["provisioner_driver_instance_id"], "shared");
    assert!(!context.contains_key("omnibus-csi/node"));
}

#[tokio::test]
async fn where_none_means_no_owner_no_connection_has_that_name() {
    for (bare, is_served) in [(Bare::Nobodys, false), (Bare::Unsaid, true)] {
        let names = Names {
            bare,
            ..Names::default()
        };
        let mut place = Place::new(names, None);
        place.write("none.yaml", &hostpath("/one")).await;
        assert_eq!(place.base("none").await.is_some(), is_served);
    }
}

#[tokio::test]
async fn a_call_for_a_connection_whose_file_was_never_usable_gets_the_reason() {
    let mut place = Place::new(Names::default(), None);
    place.write("a.yaml", "driver: carrier-pigeon").await;
    let handle = VolumeHandle::parse("v:a/x").expect("a handle");
    let error = place
        .connections
        .of_volume(&handle)
        .await
        .expect_err("refused");
    assert_eq!(error.kind(), driver_core::Kind::Busy);
    assert!(
        error.chain().contains("carrier-pigeon"),
        "{}",
        error.chain()
    );
    assert!(place.connections.is_empty() && place.counts("omnibus_csi_connections 0"));
    place.write("a.yaml", &hostpath("/one")).await;
    assert!(place.base("a").await.is_some());
}

fn parse(name: &str) -> ConnectionName {
    ConnectionName::parse(name).expect("a name")
}

#[tokio::test]
async fn volumes_of_a_node_are_not_served_by_a_controller_that_stands_for_all() {
    let mut place = Place::new(
        Names::default(),
        Some("this controller stands for all nodes"),
    );
    place.write("a.yaml", &hostpath("/one")).await;
    assert_eq!(place.base("a").await, None);
    let survey = Folder::new(
        &ProxySettings::read(&document(place.dir.path())).expect("settings"),
        Arc::new(document(place.dir.path())),
        Arc::new(ConnectionContext {
            no_local: Some("this controller stands for all nodes"),
            ..ConnectionContext::for_tests()
        }),
        place.connections.clone(),
    )
    .survey();
    let error = survey.all[0].opened.as_ref().expect_err("refused");
    let config = error.config().expect("a configuration");
    assert!(
        config.advice().expect("advice").contains("nodeTopology"),
        "{config}"
    );
}

fn document(folder: &Path) -> Document {
    let text = format!(
        "{{driver: proxy, proxy: {{configFolder: {}}}}}",
        folder.display()
    );
    Document::parse(&text, &NoEnvironment).expect("yaml")
}

#[tokio::test]
async fn a_change_to_one_of_many_takes_two_scans_and_builds_only_that_one() {
    let mut place = Place::new(Names::default(), None);
    for n in 0..100 {
        let file = place.dir.path().join(format!("nas-{n:04}.yaml"));
        fs::write(file, hostpath(&format!("/base/{n}"))).expect("a file");
    }
    place.scans().await;
    let before = place.connections.all();
    assert_eq!(place.connections.len(), 100);
    place.write("nas-0050.yaml", &hostpath("/changed")).await;
    let served = place.base("nas-0050").await.expect("served");
    assert!(served.ends_with("/changed"), "{served}");
    let after = place.connections.all();
    let same = before.iter().zip(&after).filter(|(a, b)| Arc::ptr_eq(a, b));
    assert_eq!(same.count(), 99);
}

#[tokio::test]
async fn what_is_there_when_the_process_begins_is_served_from_the_first_call_on() {
    let mut place = Place::new(Names::default(), None);
    fs::write(place.dir.path().join("a.yaml"), hostpath("/one")).expect("a file");
    place.watch.first().await;
    assert!(place.base("a").await.expect("served").ends_with("/one"));
}

#[tokio::test]
async fn what_was_found_and_not_made_yet_is_neither_missing_nor_left_out() {
    let mut place = Place::new(Names::default(), None);
    place.write("b.yaml", &hostpath("/other")).await;
    for name in ["a", "c"] {
        let file = place.dir.path().join(format!("{name}.yaml"));
        fs::write(file, hostpath("/one")).expect("a file");
    }
    let class = [("connections".to_owned(), "a,b".to_owned())].into();
    let class = driver_core::Parameters::new(class);
    for scan in 0..2 {
        place.watch.scan(place.now, TEST_TIMEOUT).await;
        let handle = VolumeHandle::parse("v:a/x").expect("a handle");
        for error in [
            place
                .connections
                .of_volume(&handle)
                .await
                .expect_err("not yet"),
            place
                .connections
                .for_new(&class)
                .await
                .expect_err("it may be a's"),
        ] {
            let found = (error.kind(), error.chain());
            assert_eq!(found.0, driver_core::Kind::Pending, "{found:?}");
            assert!(found.1.contains("being read"), "{found:?}");
        }
        assert_eq!(place.connections.listed().len(), 3 - scan, "lists miss it");
        if scan == 0 {
            fs::remove_file(place.dir.path().join("c.yaml")).expect("removed");
        }
    }
    place.watch.settle(TEST_TIMEOUT).await;
    assert_eq!(
        place.connections.for_new(&class).await.expect("both").len(),
        2
    );
    let handle = VolumeHandle::parse("v:c/x").expect("a handle");
    let error = place
        .connections
        .of_volume(&handle)
        .await
        .expect_err("gone");
    assert!(
        error.chain().contains("does not exist"),
        "{}",
        error.chain()
    );
}

#[tokio::test]
async fn drivers_that_only_queries_have_built_are_dropped_after_a_while_and_not_probed() {
    let mut place = Place::new(Names::default(), None);
    place.write("a.yaml", &hostpath("/one")).await;
    let lazy = place.connections.all().remove(0);
    assert!(lazy.peek_in_use().is_some(), "it was just loaded");
    tokio::time::pause();
    tokio::time::advance(Duration::from_hours(1)).await;
    let is_let_go = async |place: &mut Place| {
        while lazy.peek().is_some() {
            place.watch.let_go();
            tokio::task::yield_now().await;
        }
    };
    is_let_go(&mut place).await;
    for _ in 0..2 {
        drop(lazy.look().await.expect("built"));
        assert!(lazy.peek_in_use().is_none());
        assert!(!lazy.let_go(Duration::from_hours(1)), "another scan comes");
        tokio::time::advance(Duration::from_mins(5)).await;
        is_let_go(&mut place).await;
    }
}

/// How fast is a matter of the constants; that nothing stands still is seen here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_to_one_of_a_thousand_is_served_while_the_watch_runs() {
    let place = Place::new(Names::default(), None);
    let file = |n: usize| place.dir.path().join(format!("nas-{n:04}.yaml"));
    for n in 0..1000 {
        fs::write(file(n), hostpath(&format!("/base/{n}"))).expect("a file");
    }
    let (connections, dir) = (place.connections.clone(), place.dir.path().to_owned());
    let _running = place.watch.begin();
    let served = async |name: &str, base: &str| {
        let handle = VolumeHandle::parse(&format!("v:{name}/a")).expect("a handle");
        loop {
            let found = connections.of_volume(&handle).await;
            if found.is_ok_and(|(one, _)| one.driver().backend_identity().0.ends_with(base)) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    let all = async {
        served("nas-0999", "/base/999").await;
        fs::write(dir.join("nas-0500.yaml"), hostpath("/changed")).expect("a file");
        served("nas-0500", "/changed").await;
        fs::write(dir.join("new.yaml"), hostpath("/new")).expect("a file");
        served("new", "/new").await;
    };
    tokio::time::timeout(TEST_TIMEOUT, all)
        .await
        .expect("served");
}

#[tokio::test]
async fn of_a_folder_that_could_never_be_read_nothing_is_said_not_to_exist() {
    let mut place = Place::new(Names::default(), None);
    let dir = place.dir.path().to_owned();
    fs::remove_dir(&dir).expect("removed");
    place.watch.first().await;
    assert!(place.counts("omnibus_csi_connection_folders_unread 1"));
    let error_text = async |place: &Place| {
        let handle = VolumeHandle::parse("v:a/x").expect("a handle");
        let error = place
            .connections
            .of_volume(&handle)
            .await
            .expect_err("no file");
        error.chain()
    };
    assert!(
        error_text(&place).await.contains("cannot be read"),
        "{}",
        error_text(&place).await
    );
    assert!(place.connections.unknown().is_some(), "lists say so too");
    fs::create_dir(&dir).expect("a folder");
    place.scans().await;
    assert!(
        error_text(&place).await.contains("does not exist"),
        "{}",
        error_text(&place).await
    );
    assert!(place.connections.unknown().is_none());
    assert!(place.counts("omnibus_csi_connection_folders_unread 0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_go_on_while_files_are_swapped_under_them() {
    let mut place = Place::new(Names::default(), None);
    let base = tempfile::tempdir().expect("a folder");
    let at = |n: usize| {
        let folder = base.path().join(n.to_string());
        fs::create_dir_all(&folder).expect("a folder");
        hostpath(folder.to_str().expect("text"))
    };
    place.write("a.yaml", &at(0)).await;
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let (connections, stop) = (place.connections.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut calls = 0_u32;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let handle = VolumeHandle::parse("v:a/x").expect("a handle");
                    let found = connections.of_volume(&handle).await;
                    let (connection, _) = found.expect("always there");
                    let call = driver_core::Call::within(std::time::Duration::from_mins(1));
                    let page = driver_core::PageRequest::default();
                    let listed = connection.driver().list_volumes(&call, &page).await;
                    listed.expect("a list");
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    for n in 1..200 {
        place.write("a.yaml", &at(n % 2)).await;
        for lazy in place.connections.all() {
            lazy.let_go(Duration::ZERO);
        }
        tokio::task::yield_now().await;
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    for caller in callers {
        assert!(caller.await.expect("no call failed") > 0);
    }
}
