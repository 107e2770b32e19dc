//! The client against a strict simulator of each generation.

use std::collections::BTreeMap;

use driver_truenas::api::dataset::{
    CreateDataset, CreateKind, Dataset, DeleteDataset, PromoteDataset, QueryDatasets, UpdateDataset,
};
use driver_truenas::api::filesystem::{SetPermissions, Stat};
use driver_truenas::api::replication::CopySnapshot;
use driver_truenas::api::resource::{QueryResourceSnapshots, QueryResources};
use driver_truenas::api::service::{ControlService, QueryServices, Verb};
use driver_truenas::api::snapshot::{
    CloneSnapshot, CreateSnapshot, DeleteSnapshot, HoldSnapshot, QuerySnapshots, ReleaseSnapshot,
};
use driver_truenas::api::system::GetVersion;
use driver_truenas::api::{Filter, iscsi, nfs, nvmet, pool, smb};
use driver_truenas::{Client, Effect, Error, Generation, HttpConnection, Kind};
use serde_json::{Map, json};
use truenas_sim::{Action, Options, Rule, Simulator};

use crate::catalogue::SIMULATED;

mod exports;

struct Appliance {
    nas: Simulator,
    client: Client,
    generation: Generation,
    /// 26's betas drop properties and answer success for what they did not do.
    beta: bool,
}

impl Appliance {
    async fn start(generation: truenas_sim::Generation) -> Self {
        let nas = Simulator::start(Options::new(generation))
            .await
            .expect("starts");
        let ours = SIMULATED.iter().find(|(_, theirs)| *theirs == generation);
        Self {
            // Where the login is not the question, it is the fastest one.
            client: client(&nas, "root", &json!({"apiKeyLogin": "plain"})),
            nas,
            generation: ours.expect("a generation").0,
            beta: generation == truenas_sim::Generation::V26Beta,
        }
    }

    async fn filesystem(&self, name: &str) -> Result<Dataset, Error> {
        let core = self.generation == Generation::Core;
        let user = [(
            "democratic-csi:managed_resource".to_owned(),
            "true".to_owned(),
        )];
        let create = CreateDataset {
            name: name.to_owned(),
            kind: CreateKind::Filesystem {
                share_type: Some("GENERIC".to_owned()),
            },
            create_ancestors: false,
            properties: Map::from_iter([("refquota".to_owned(), json!(1_u64 << 30))]),
            user_properties: user.into_iter().filter(|_| !core).collect(),
        };
        self.client.call(&create).await
    }

    async fn volume(&self, name: &str) -> Result<Dataset, Error> {
        let create = CreateDataset {
            name: name.to_owned(),
            kind: CreateKind::Volume {
                size: 1 << 30,
                block_size: Some("16K".to_owned()),
                sparse: true,
                force_size: false,
            },
            create_ancestors: false,
            properties: Map::new(),
            user_properties: BTreeMap::new(),
        };
        self.client.call(&create).await
    }

    async fn read(&self, name: &str) -> Option<Dataset> {
        let query = QueryDatasets {
            properties: vec![
                "refquota".to_owned(),
                "volsize".to_owned(),
                "mountpoint".to_owned(),
            ],
            ..QueryDatasets::by_id(name)
        };
        self.client.call(&query).await.expect("read").pop()
    }

    async fn snapshot(&self, dataset: &str, name: &str) -> Result<(), Error> {
        let create = CreateSnapshot {
            dataset: dataset.to_owned(),
            name: name.to_owned(),
            ..CreateSnapshot::default()
        };
        self.client.call(&create).await.map(drop)
    }

    async fn delete(&self, id: &str) -> Result<(), Error> {
        let delete = DeleteDataset {
            id: id.to_owned(),
            recursive: false,
            force: false,
        };
        self.client.call(&delete).await.map(drop)
    }

    async fn delete_snapshot(&self, id: &str) -> Result<(), Error> {
        let delete = DeleteSnapshot {
            id: id.to_owned(),
            defer: false,
        };
        self.client.call(&delete).await.map(drop)
    }
}

fn client(nas: &Simulator, user: &str, more: &serde_json::Value) -> Client {
    let mut block = json!({
        "protocol": "https",
        "host": "127.0.0.1",
        "port": nas.https().port(),
        "username": user,
        "tls": {"ca": nas.certificate_pem(), "serverName": "localhost"},
    });
    let more = more.as_object().expect("an object").clone();
    if !more.contains_key("password") {
        block["apiKey"] = json!(nas.api_key());
    }
    block.as_object_mut().expect("an object").extend(more);
    let block: HttpConnection = serde_json::from_value(block).expect("a block");
    Client::new(block.check().expect("settings")).expect("a client")
}

fn kind<T: std::fmt::Debug>(outcome: Result<T, Error>) -> Kind {
    outcome.expect_err("an error").kind()
}

#[tokio::test]
async fn every_login_works_on_every_generation_that_has_it() {
    for (ours, theirs) in SIMULATED {
        let nas = Simulator::start(Options::new(theirs))
            .await
            .expect("starts");
        for more in [
            json!({}),
            json!({"username": null}),
            json!({"password": "sesame-for-root"}),
            json!({"apiKeyLogin": "plain"}),
        ] {
            let dialect = client(&nas, "root", &more).dialect().await;
            let dialect = dialect.unwrap_or_else(|error| panic!("{ours} {more}: {error}"));
            assert_eq!(dialect.generation(), ours);
        }
        let scram = client(&nas, "root", &json!({"apiKeyLogin": "scram"}))
            .dialect()
            .await;
        // Up to 24.10 there is no choice.
        let offered = ours == Generation::V26 || ours <= Generation::V24_10;
        assert_eq!(scram.is_ok(), offered, "{ours}");
        let wrong = client(&nas, "root", &json!({"password": "wrong"}))
            .dialect()
            .await;
        assert_eq!(kind(wrong), Kind::Login, "{ours}");
    }
}

#[tokio::test]
async fn filesystems_live_and_die() {
    for (ours, theirs) in SIMULATED {
        let on = Appliance::start(theirs).await;
        let created = on.filesystem("tank/a").await.expect("created");
        assert_eq!((created.id.as_str(), created.is_volume), ("tank/a", false));
        assert_eq!(kind(on.filesystem("tank/a").await), Kind::Exists, "{ours}");
        assert_eq!(
            kind(on.filesystem("tank/no/a").await),
            Kind::Invalid,
            "{ours}"
        );
        let read = on.read("tank/a").await.expect("there");
        assert_eq!(read.number("refquota"), Some(1 << 30));
        assert_eq!(read.mountpoint.as_deref(), Some("/mnt/tank/a"));
        let kept = read
            .user_properties
            .contains_key("democratic-csi:managed_resource");
        assert_eq!(kept, ours != Generation::Core && !on.beta, "{ours}");
        let mut update = UpdateDataset {
            id: "tank/a".to_owned(),
            properties: Map::from_iter([("refquota".to_owned(), json!(2_u64 << 30))]),
            user_properties: BTreeMap::new(),
        };
        if ours != Generation::Core {
            update
                .user_properties
                .insert("x:y".to_owned(), Some("z".to_owned()));
        }
        on.client.call(&update).await.expect("updated");
        let read = on.read("tank/a").await.expect("there");
        assert_eq!(read.number("refquota"), Some(2 << 30));
        let property = read.user_properties.get("x:y").map(String::as_str);
        assert_eq!(property, (ours != Generation::Core).then_some("z"));
        on.snapshot("tank/a", "s").await.expect("taken");
        assert_eq!(kind(on.delete("tank/a").await), Kind::Dependents, "{ours}");
        on.delete_snapshot("tank/a@s").await.expect("deleted");
        on.delete("tank/a").await.expect("deleted");
        assert_eq!(kind(on.delete("tank/a").await), Kind::NotFound, "{ours}");
        assert_eq!(on.read("tank/a").await, None);
        update.id = "tank/gone".to_owned();
        assert_eq!(
            kind(on.client.call(&update).await),
            Kind::NotFound,
            "{ours}"
        );
    }
}

#[tokio::test]
async fn snapshots_are_held_cloned_and_promoted() {
    for (ours, theirs) in SIMULATED {
        let on = Appliance::start(theirs).await;
        on.filesystem("tank/a").await.expect("created");
        on.snapshot("tank/a", "s").await.expect("taken");
        assert_eq!(
            kind(on.snapshot("tank/a", "s").await),
            Kind::Exists,
            "{ours}"
        );
        assert_eq!(
            kind(on.snapshot("tank/gone", "s").await),
            Kind::NotFound,
            "{ours}"
        );
        let found = on
            .client
            .call(&QuerySnapshots::by_id("tank/a@s"))
            .await
            .expect("read");
        assert_eq!(found.len(), 1, "{ours}");
        assert_eq!(
            (found[0].dataset.as_str(), found[0].name.as_str()),
            ("tank/a", "s")
        );
        assert!(found[0].txg > 0, "{ours}");
        let of = on
            .client
            .call(&QuerySnapshots::of("tank/a"))
            .await
            .expect("read");
        assert_eq!(of, found, "{ours}");
        if ours >= Generation::V22_12 {
            let id = || "tank/a@s".to_owned();
            on.client
                .call(&HoldSnapshot { id: id() })
                .await
                .expect("held");
            assert!(
                matches!(
                    kind(on.delete_snapshot("tank/a@s").await),
                    Kind::Dependents | Kind::Busy
                ),
                "{ours}"
            );
            let query = QuerySnapshots {
                holds: true,
                ..QuerySnapshots::by_id("tank/a@s")
            };
            let held = on.client.call(&query).await.expect("read");
            assert_eq!(held[0].holds, Some(vec!["truenas".into()]), "{ours}");
            on.client
                .call(&ReleaseSnapshot { id: id() })
                .await
                .expect("released");
        }
        let clone = CloneSnapshot {
            snapshot: "tank/a@s".to_owned(),
            dataset: "tank/c".to_owned(),
            properties: BTreeMap::new(),
        };
        on.client.call(&clone).await.expect("cloned");
        assert_eq!(kind(on.client.call(&clone).await), Kind::Exists, "{ours}");
        assert_eq!(
            kind(on.delete_snapshot("tank/a@s").await),
            Kind::Dependents,
            "{ours}"
        );
        let promote = PromoteDataset {
            id: "tank/c".to_owned(),
        };
        on.client.call(&promote).await.expect("promoted");
        on.delete("tank/a").await.expect("deleted");
        on.delete_snapshot("tank/c@s").await.expect("deleted");
        assert_eq!(
            kind(on.delete_snapshot("tank/c@s").await),
            Kind::NotFound,
            "{ours}"
        );
    }
}

#[tokio::test]
async fn snapshots_keep_the_properties_of_users() {
    for (ours, theirs) in SIMULATED {
        if ours == Generation::Core {
            continue;
        }
        let on = Appliance::start(theirs).await;
        on.filesystem("tank/a").await.expect("created");
        let create = CreateSnapshot {
            dataset: "tank/a".to_owned(),
            name: "s".to_owned(),
            user_properties: BTreeMap::from([("x:y".to_owned(), "z".to_owned())]),
            ..CreateSnapshot::default()
        };
        on.client.call(&create).await.expect("taken");
        let found = if ours >= Generation::V26 {
            let query = QueryResourceSnapshots {
                paths: vec!["tank/a@s".to_owned()],
                ..QueryResourceSnapshots::default()
            };
            on.client.call(&query).await
        } else {
            on.client.call(&QuerySnapshots::by_id("tank/a@s")).await
        };
        let found = found.expect("read").pop().expect("there");
        let property = found.user_properties.get("x:y").map(String::as_str);
        assert_eq!(property, Some("z"), "{ours}");
    }
}

#[tokio::test]
async fn resources_are_read_by_their_paths() {
    for (ours, theirs) in SIMULATED {
        let on = Appliance::start(theirs).await;
        on.volume("tank/v").await.expect("created");
        let query = |path: &str| QueryResources {
            paths: vec![path.to_owned()],
            properties: vec!["volsize".to_owned()],
            depth: None,
        };
        let read = on.client.call(&query("tank/v")).await;
        if ours < Generation::V25_10 {
            assert_eq!(kind(read), Kind::Unsupported);
            continue;
        }
        let read = read.expect("read").pop().expect("there").0;
        assert!(read.is_volume, "{ours}");
        assert_eq!(read.number("volsize"), Some(1 << 30), "{ours}");
        let missing = on.client.call(&query("tank/gone")).await;
        match ours {
            Generation::V25_10 => assert_eq!(kind(missing), Kind::NotFound),
            _ => assert_eq!(missing, Ok(vec![])),
        }
    }
}

#[tokio::test]
async fn jobs_run_to_their_end() {
    for (ours, theirs) in SIMULATED {
        let on = Appliance::start(theirs).await;
        on.filesystem("tank/a").await.expect("created");
        let path = || "/mnt/tank/a".to_owned();
        let permissions = SetPermissions {
            path: path(),
            mode: Some("0770".to_owned()),
            uid: Some(1000),
            gid: Some(1000),
            ..SetPermissions::default()
        };
        on.client.run(&permissions).await.expect("set");
        let stat = on.client.call(&Stat { path: path() }).await.expect("read");
        assert_eq!(
            (stat.mode & 0o777, stat.uid, stat.gid),
            (0o770, 1000, 1000),
            "{ours}"
        );
        let empty = SetPermissions {
            path: path(),
            ..SetPermissions::default()
        };
        assert_eq!(kind(on.client.run(&empty).await), Kind::Invalid, "{ours}");
        let reload = ControlService {
            verb: Verb::Start,
            service: "nfs".to_owned(),
        };
        on.client.control(reload).await.expect("started");
        let query = QueryServices {
            names: vec!["nfs".to_owned()],
        };
        let services = on.client.call(&query).await.expect("read");
        assert_eq!(
            (services.len(), services[0].state.as_str()),
            (1, "RUNNING"),
            "{ours}"
        );
        on.snapshot("tank/a", "s").await.expect("taken");
        let copy = CopySnapshot {
            source: "tank/a".to_owned(),
            snapshot: "s".to_owned(),
            target: "tank/copy".to_owned(),
            properties: false,
            only_from_scratch: true,
        };
        let copied = on.client.run(&copy).await;
        if ours == Generation::Core {
            assert_eq!(kind(copied), Kind::Unsupported);
        } else {
            copied.expect("copied");
            assert!(on.read("tank/copy").await.is_some(), "{ours}");
        }
    }
}
#[tokio::test]
async fn a_job_survives_a_lost_connection_and_odd_events() {
    for (ours, theirs) in SIMULATED {
        let on = Appliance::start(theirs).await;
        on.filesystem("tank/a").await.expect("created");
        let permissions = SetPermissions {
            path: "/mnt/tank/a".to_owned(),
            mode: Some("0770".to_owned()),
            ..SetPermissions::default()
        };
        for action in [
            Action::JobEventTwice,
            Action::JobEventWithoutRunning,
            Action::CutAfter,
        ] {
            on.nas
                .faults()
                .add(Rule::new("filesystem.setperm", action.clone()).times(1));
            let done = on.client.run(&permissions).await;
            done.unwrap_or_else(|error| panic!("{ours} {action:?}: {error}"));
        }
        on.nas
            .faults()
            .add(Rule::new("filesystem.setperm", Action::JobAborts).times(1));
        let aborted = on.client.run(&permissions).await.expect_err("aborted");
        assert_eq!(
            (aborted.kind(), aborted.effect()),
            (Kind::Refused, Effect::Possible)
        );
    }
}

#[tokio::test]
async fn an_upgrade_in_the_middle_changes_nothing_for_the_caller() {
    let on = Appliance::start(truenas_sim::Generation::V24_10).await;
    on.filesystem("tank/a").await.expect("created");
    for (number, theirs) in [
        truenas_sim::Generation::V25_04,
        truenas_sim::Generation::V25_10,
        truenas_sim::Generation::V26Rc,
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("s{number}");
        on.snapshot("tank/a", &name).await.expect("taken");
        on.nas.upgrade(theirs);
        // The call that finds the connection ended may fail; the next one goes on.
        let id = format!("tank/a@{name}");
        let found = loop {
            match on.client.call(&QuerySnapshots::by_id(&id)).await {
                Ok(found) => break found,
                Err(error) => assert!(
                    matches!(
                        error.kind(),
                        Kind::NotSent | Kind::UnknownOutcome | Kind::Unreachable
                    ),
                    "{error}"
                ),
            }
        };
        assert_eq!(found.len(), 1, "{theirs:?}");
        on.delete_snapshot(&id).await.expect("deleted");
        let version = on.client.call(&GetVersion).await;
        assert_eq!(version.as_deref(), Ok(theirs.version()));
    }
}

#[tokio::test]
async fn an_expired_session_is_renewed_without_a_trace() {
    for (ours, theirs) in SIMULATED {
        let on = Appliance::start(theirs).await;
        on.client.dialect().await.expect("connects");
        on.nas.expire_sessions();
        on.filesystem("tank/a")
            .await
            .unwrap_or_else(|error| panic!("{ours}: {error}"));
        assert_eq!(on.nas.connections(), 1, "{ours}");
    }
}

#[tokio::test]
async fn sixty_four_calls_at_once_are_all_answered() {
    for (ours, theirs) in SIMULATED {
        let on = Appliance::start(theirs).await;
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..64 {
            let client = on.client.clone();
            calls.spawn(async move {
                client
                    .call(&pool::QueryPools(vec![Filter::eq("name", "tank")]))
                    .await
            });
        }
        while let Some(pools) = calls.join_next().await {
            let pools = pools
                .expect("joins")
                .unwrap_or_else(|error| panic!("{ours}: {error}"));
            assert_eq!(pools.len(), 1);
        }
        assert_eq!(on.nas.connections(), 1, "{ours}");
    }
}

#[tokio::test]
async fn what_was_cut_before_and_after_its_execution_looks_the_same() {
    let on = Appliance::start(truenas_sim::Generation::V25_10).await;
    for (action, exists) in [(Action::CutBefore, false), (Action::CutAfter, true)] {
        on.nas
            .faults()
            .add(Rule::new("pool.dataset.create", action).times(1));
        let error = on.filesystem("tank/a").await.expect_err("cut");
        assert_eq!(
            (error.kind(), error.effect()),
            (Kind::UnknownOutcome, Effect::Possible)
        );
        assert_eq!(on.read("tank/a").await.is_some(), exists);
    }
}

#[tokio::test]
async fn answers_with_more_and_other_than_we_know_are_read() {
    for (ours, theirs) in SIMULATED {
        let on = Appliance::start(theirs).await;
        on.nas.faults().set(|settings| settings.oddities = true);
        on.filesystem("tank/a")
            .await
            .unwrap_or_else(|error| panic!("{ours}: {error}"));
        assert!(on.read("tank/a").await.is_some(), "{ours}");
        on.snapshot("tank/a", "s")
            .await
            .unwrap_or_else(|error| panic!("{ours}: {error}"));
    }
}

#[tokio::test]
async fn a_nas_that_restarts_is_reached_again() {
    let on = Appliance::start(truenas_sim::Generation::V25_10).await;
    on.filesystem("tank/a").await.expect("created");
    on.nas.faults().set(|settings| settings.bad_gateway = true);
    on.nas.restart();
    let error = loop {
        match on.client.call(&QueryDatasets::by_id("tank/a")).await {
            // The end of the connection is noticed by a call.
            Ok(_) => {}
            Err(error) if error.kind() == Kind::Unreachable => break error,
            Err(error) => assert!(
                matches!(error.kind(), Kind::NotSent | Kind::UnknownOutcome),
                "{error}"
            ),
        }
    };
    assert_eq!(error.effect(), Effect::None);
    assert!(
        error.message().contains("middleware is not running"),
        "{error}"
    );
    on.nas.faults().set(|settings| settings.bad_gateway = false);
    assert!(
        on.read("tank/a").await.is_some(),
        "the next attempt is waited for"
    );
}
