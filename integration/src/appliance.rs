//! The suites against a TrueNAS that is there, an appliance or a virtual machine: in datasets of their own, with
//! names of their own, and with a look at what they left.
//!
//! The simulator is one, too: that is how these suites are tested themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, anyhow, bail};
use driver_core::config::{self, Document, Environment};
use driver_core::contract::{Fresh, keep_contract};
use driver_core::{Call, DeleteSnapshot, DeleteVolume, Driver, PageRequest, SnapshotFilter};
use driver_truenas::api::dataset::{CreateDataset, CreateKind, DeleteDataset, QueryDatasets};
use driver_truenas::api::{Filter, Request, iscsi, nfs, nvmet, smb};
use driver_truenas::{Client, HttpConnection, Kind, from_document};
use futures_util::FutureExt as _;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::place::Place;
use crate::sanity::{self, ANY_NODE, Questions, Spec};
use crate::server::{Launch, log_of};
use crate::tools;

/// As small as TrueNAS makes a share with a quota.
const SIZE: i64 = 1 << 30;

/// A NAS, and the part of it that belongs to one run.
pub struct Appliance {
    config: Value,
    /// In each name that a run makes.
    tag: String,
    /// The dataset of the run.
    own: String,
    environment: Arc<dyn Environment + Send + Sync>,
    /// One session for all that is done past the drivers: a NAS limits the rate of logins.
    client: Client,
}

impl fmt::Debug for Appliance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Appliance")
            .field("own", &self.own)
            .finish_non_exhaustive()
    }
}

// === impl Appliance ===

impl Appliance {
    /// The NAS of a configuration, which stays as it is. `tag` is in each name of the run.
    ///
    /// # Errors
    /// If it is not of TrueNAS, or cannot be used.
    pub fn new(
        text: &str,
        tag: &str,
        environment: Arc<dyn Environment + Send + Sync>,
    ) -> Result<Self> {
        let mut config = config::plain_yaml(text)?;
        let kind = config["driver"].as_str().unwrap_or_default().to_owned();
        if !driver_truenas::KINDS.contains(&kind.as_str()) {
            bail!("driver: {kind:?} is not of TrueNAS");
        }
        let parent = config["zfs"]["datasetParentName"]
            .as_str()
            .context("zfs.datasetParentName is missing")?;
        let own = format!("{parent}/omnibus-test-{tag}");
        let protocol = kind.rsplit('-').next().unwrap_or_default();
        if protocol != "nfs" {
            config[protocol]["namePrefix"] = json!(format!("omnibus-test-{tag}-"));
            // Names of shares and targets are short, those of the suites are not.
            config["_private"] = json!({"csi": {"volume": {"idHash": {"strategy": "md5"}}}});
        }
        let document = Document::parse(&config.to_string(), &*environment)?;
        let connection: HttpConnection = document.section("httpConnection")?;
        let this = Self {
            config,
            tag: tag.to_owned(),
            own,
            environment,
            client: Client::new(connection.check()?)?,
        };
        this.driver("0")?;
        Ok(this)
    }

    /// The configuration with volumes in a part of the dataset of the run.
    fn text(&self, part: &str) -> String {
        let mut config = self.config.clone();
        config["zfs"]["datasetParentName"] = json!(format!("{}/{part}/v", self.own));
        config["zfs"]["detachedSnapshotsDatasetParentName"] =
            json!(format!("{}/{part}/s", self.own));
        config.to_string()
    }

    fn document(&self, part: &str) -> Result<Document> {
        Ok(Document::parse(&self.text(part), &*self.environment)?)
    }

    fn driver(&self, part: &str) -> Result<Arc<dyn Driver>> {
        Ok(from_document(&self.document(part)?)?)
    }

    /// Makes the parent of volumes of a part, as an administrator does.
    async fn make_parent(&self, part: &str) -> Result<()> {
        let create = CreateDataset {
            name: format!("{}/{part}/v", self.own),
            kind: CreateKind::Filesystem { share_type: None },
            create_ancestors: true,
            properties: serde_json::Map::new(),
            user_properties: BTreeMap::new(),
        };
        match self.client.call(&create).await {
            Err(error) if error.kind() != Kind::Exists => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// The findings of the check of the program.
    ///
    /// # Errors
    /// If it finds anything.
    pub async fn is_checked(&self) -> Result<()> {
        let problems = self.driver("0")?.examine(&call()).await;
        let problems: Vec<_> = problems.iter().map(driver_core::Error::chain).collect();
        if problems.is_empty() {
            return Ok(());
        }
        bail!("the check finds: {}", problems.join("; "))
    }

    /// The contract suite, each part of it on empty datasets.
    ///
    /// # Errors
    /// If a promise is broken.
    ///
    /// # Panics
    /// Never: a panic of the suite is caught, and is the error.
    pub async fn keeps_the_contract(&self) -> Result<()> {
        let suite = async {
            let parts = AtomicUsize::new(0);
            let last: Mutex<Option<Arc<dyn Driver>>> = Mutex::default();
            keep_contract(|| async {
                let part = parts.fetch_add(1, Ordering::Relaxed).to_string();
                let driver = self.driver(&part).expect("it was read before");
                self.make_parent(&part).await.expect("its parent");
                // What the part before has made may have the same names.
                if let Some(before) = last.lock().await.replace(Arc::clone(&driver)) {
                    clear(before.as_ref()).await.expect("cleared");
                }
                Fresh::new(driver, ()).with_callers(3)
            })
            .await;
            if let Some(last) = last.into_inner() {
                clear(last.as_ref()).await.expect("cleared");
            }
        };
        // What is left has to be looked for after a failure, too.
        let ended = AssertUnwindSafe(suite).catch_unwind().await;
        ended.map_err(|_| anyhow!("a promise is broken: see the panic above"))
    }

    /// `omnibus-csi try`: volumes that are mounted here, written, restored, cloned and compared. Needs root and the
    /// programs of a node. `secrets` are lines of `KEY=VALUE`.
    ///
    /// # Errors
    /// What it prints if it fails.
    pub async fn is_tried(&self, secrets: Option<&str>) -> Result<()> {
        self.make_parent("try").await?;
        let place = Place::new();
        fs::write(place.config(), self.text("try"))?;
        let mut words = vec![
            "try".to_owned(),
            format!("--driver-config-file={}", place.config().display()),
            format!("--size={SIZE}"),
        ];
        if let Some(secrets) = secrets {
            let file = place.path().join("secrets");
            fs::write(&file, secrets)?;
            words.push(format!("--secrets-file={}", file.display()));
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let all: Vec<(String, String)> = std::env::vars().collect();
        let environment: Vec<_> = all.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let output = tools::omnibus(&words, &environment).await;
        if output.status.success() {
            return Ok(());
        }
        let said = [output.stdout, output.stderr].concat();
        bail!("omnibus-csi try: {}", String::from_utf8_lossy(&said))
    }

    /// csi-sanity, with volumes that are mounted here.
    ///
    /// # Errors
    /// The specs that fail.
    pub async fn is_sane(&self, program: &std::path::Path, secrets: Option<&str>) -> Result<()> {
        self.make_parent("sanity").await?;
        let place = Place::new();
        let mut launch = Launch::new(self.text("sanity"));
        launch.environment.extend(std::env::vars());
        let secrets = secrets.map(|lines| {
            let pairs = lines.lines().filter_map(|line| line.split_once('='));
            let pairs: Value = pairs
                .map(|(key, value)| (key.to_owned(), json!(value)))
                .collect::<serde_json::Map<_, _>>()
                .into();
            json!({"NodeStageVolumeSecret": pairs}).to_string()
        });
        let questions = Questions {
            size: Some(SIZE),
            secrets: secrets.as_deref(),
            ..Questions::default()
        };
        let (specs, output) = sanity::run(program, &launch, &place, &questions).await;
        let failed: Vec<_> = specs.iter().filter_map(Spec::failed).collect();
        let known = |name: &str| ANY_NODE.iter().any(|words| name.ends_with(words));
        if failed.iter().all(|(name, _)| known(name))
            && output.status.success() == failed.is_empty()
        {
            return Ok(());
        }
        bail!("csi-sanity: {failed:#?}\n{}", log_of(&place))
    }

    /// The leftovers of the run. If that is nothing, its dataset is removed, too.
    ///
    /// # Errors
    /// If the NAS does not answer.
    pub async fn leaks(&self) -> Result<BTreeSet<String>> {
        let client = &self.client;
        let below = QueryDatasets {
            filters: vec![Filter::starts_with("id", &self.own)],
            ..QueryDatasets::default()
        };
        // Its parts, and in these the parents of volumes and of snapshots.
        let is_parent = |name: &str| name[self.own.len()..].split('/').count() <= 3;
        let datasets = client.call(&below).await?;
        let is_own = |name: &str| {
            let below = name.strip_prefix(self.own.as_str());
            below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
        };
        let (mut parents, others): (Vec<_>, Vec<_>) = datasets
            .into_iter()
            .filter(|dataset| is_own(&dataset.id))
            .partition(|dataset| is_parent(&dataset.id));
        let others = others.into_iter();
        let mut left: BTreeSet<_> = others.map(|it| format!("dataset {}", it.id)).collect();
        for rows in [
            self.rows(client, "NFS share", &nfs::QueryNfsShares(vec![]))
                .await?,
            self.rows(client, "SMB share", &smb::QuerySmbShares(vec![]))
                .await?,
            self.rows(client, "target", &iscsi::QueryTargets(vec![]))
                .await?,
            self.rows(client, "extent", &iscsi::QueryExtents(vec![]))
                .await?,
            self.rows(client, "initiators", &iscsi::QueryInitiators(vec![]))
                .await?,
            self.rows(client, "subsystem", &nvmet::QuerySubsystems(vec![]))
                .await?,
            self.rows(client, "namespace", &nvmet::QueryNamespaces(vec![]))
                .await?,
        ] {
            left.extend(rows);
        }
        // TrueNAS takes exports away before it finds that a dataset has children: what was left would be gone.
        if left.is_empty() {
            parents.sort_by_key(|dataset| std::cmp::Reverse(dataset.id.len()));
            for dataset in parents {
                let delete = DeleteDataset {
                    id: dataset.id,
                    recursive: false,
                    force: false,
                };
                client.call(&delete).await?;
            }
        }
        Ok(left)
    }

    /// The rows of the run.
    async fn rows<R, T>(&self, client: &Client, what: &str, query: &R) -> Result<Vec<String>>
    where
        R: Request<Answer = Vec<T>>,
        T: std::fmt::Debug,
    {
        let rows = match client.call(query).await {
            // Up to 25.04 there is no NVMe-oF.
            Err(error) if error.kind() == Kind::Unsupported => Vec::new(),
            rows => rows?,
        };
        let rows = rows.iter().map(|row| format!("{what} {row:?}"));
        Ok(rows.filter(|row| row.contains(&self.tag)).collect())
    }
}

fn call() -> Call {
    Call::within(Duration::from_mins(10))
}

/// Deletes each volume, each snapshot, and what interrupted calls have left.
async fn clear(driver: &dyn Driver) -> Result<()> {
    let well = |error: driver_core::Error| anyhow!("{}", error.chain());
    let all = PageRequest::default();
    let (Some(lister), Some(snapshots)) = (driver.lister(), driver.snapshots()) else {
        bail!("it lists nothing");
    };
    // A volume with clones is deleted after them.
    for _ in 0..4 {
        let filter = SnapshotFilter::default();
        let cut = snapshots.list_snapshots(&call(), &filter, &all).await;
        for snapshot in cut.map_err(well)?.entries {
            let _ = snapshots
                .delete_snapshot(&call(), DeleteSnapshot::new(&snapshot.id))
                .await;
        }
        let made = lister.list_volumes(&call(), &all).await.map_err(well)?;
        for volume in made.entries {
            let _ = driver
                .delete_volume(&call(), DeleteVolume::new(&volume.id))
                .await;
        }
    }
    let maintenance = driver.maintenance().context("it knows no orphans")?;
    let now = SystemTime::now() + Duration::from_hours(1);
    for orphan in maintenance
        .orphans(&call(), now, &all)
        .await
        .map_err(well)?
        .entries
    {
        let gone = maintenance.remove_orphan(&call(), now, &orphan).await;
        gone.map_err(well)?;
    }
    Ok(())
}
