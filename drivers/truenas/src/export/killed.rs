//! Every plan of every export, killed: after each prefix of it, and with all done but one step and what waits for
//! that. A retry leads to the same end, and a deletion leaves nothing. So it is with datasets through the API, and with
//! datasets of a host, in memory, beside exports through the API.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use csi_types::NodeIdentity;
use csi_types::capability::{Access, AccessMode, MountAccess, VolumeCapability};
use driver_core::config::{Document, Finding, NoEnvironment};
use driver_core::transfer::{Bookmark, Bytes};
use driver_core::{
    AdoptVolume, BackendIdentity, Call, CreateVolume, DeleteVolume, Driver, Effect, Error,
    ExpandVolume, Kind, MadeFor, NodeId, Parameters, PublishVolume, Secrets, SizeRange,
    TopologyRequirement, UnpublishVolume, VolumeId, VolumeName,
};
use driver_zfs::backend::{Backend, Base, Incoming, Interrupted, ListQuery, Listed, Serves, Tried};
use driver_zfs::name::{DatasetName, Object, Since, SnapshotRef};
use driver_zfs::observed::{Observed, Request, VolumeKind};
use driver_zfs::property::{Property, PropertyName};
use driver_zfs::step::{Failed, FirstTry, Node, Plan, Step};
use driver_zfs::testing::{MemoryHost, settings};
use driver_zfs::{Export, ZfsDriver};
use serde_json::{Value, json};
use truenas_sim::{Generation, Options, Simulator, exports};

use crate::backend::{Api, Nas};
use crate::command::{Answer, Command};
use crate::composed::Composed;
use crate::config;

/// The step at which a process ends. The steps of all plans of a verb are numbered.
#[derive(Debug, Clone, Copy)]
enum Kill {
    /// Before this step.
    Before(usize),
    /// When all is done but this step and what waits for it.
    But(usize),
}

/// A process that ends.
#[derive(Debug)]
struct Killed {
    inner: Arc<dyn Backend>,
    /// A NAS whose datasets are in memory.
    split: Option<(Arc<Simulator>, Arc<Composed<MemoryHost>>)>,
    kill: Option<Kill>,
    steps: AtomicUsize,
    is_dead: AtomicBool,
}

fn lost() -> Error {
    Error::new(Kind::Unreachable, "do what is planned").because("the process was killed")
}

async fn rows(nas: &Simulator, service: &str) -> Vec<Value> {
    let rows = nas.call(&format!("{service}.query"), vec![]).await;
    let rows = rows.unwrap_or_else(|failure| panic!("{service}: {failure:?}"));
    rows.as_array().expect("rows").clone()
}

/// The zvols in memory get the sizes that they were given through the API. Says whether one has grown.
async fn carry_sizes(nas: &Simulator, host: &MemoryHost) -> bool {
    let mut has_grown = false;
    for row in rows(nas, "pool.dataset").await {
        let Some(size) = row["volsize"]["parsed"].as_u64() else {
            continue;
        };
        let name = DatasetName::parse(row["id"].as_str().expect("a name")).expect("a name");
        let object = Object::from(name);
        let pool = &mut host.state().pool;
        let is_smaller = pool.things().get(&object).is_some_and(|zvol| {
            let before = zvol.own.get(&PropertyName::VOLSIZE);
            before.is_some_and(|before| before.parse::<u64>().expect("a size") < size)
        });
        if is_smaller {
            let properties = vec![Property::new(PropertyName::VOLSIZE, size.into())];
            let set = Step::Set { object, properties };
            pool.apply(&set).expect("a size");
            has_grown = true;
        }
    }
    has_grown
}

/// A plan without these of its steps.
fn without(plan: &Plan, gone: &BTreeSet<usize>) -> Plan {
    let place = |place: &usize| place - gone.range(..place).count();
    let mut left = plan.clone();
    left.steps.clear();
    for (at, node) in plan.steps.iter().enumerate() {
        if !gone.contains(&at) {
            let after = node.after.iter().map(place).collect();
            let node = node.clone();
            left.steps.push(Node { after, ..node });
        }
    }
    left
}

// === impl Killed ===

impl Killed {
    /// The part of a plan that is done before the process ends; `None` if it lives on.
    fn part(&self, plan: &Plan) -> Option<Plan> {
        let first = self.steps.fetch_add(plan.steps.len(), Ordering::Relaxed);
        let (Kill::Before(at) | Kill::But(at)) = self.kill?;
        let at = at.checked_sub(first);
        let at = at.filter(|at| *at < plan.steps.len())?;
        let mut gone = BTreeSet::new();
        for (place, node) in plan.steps.iter().enumerate() {
            let goes = match self.kill {
                Some(Kill::Before(_)) => place >= at,
                _ => place == at || !node.after.is_disjoint(&gone),
            };
            gone.extend(Some(place).filter(|_| goes));
        }
        Some(without(plan, &gone))
    }

    fn check(&self) -> Result<(), Error> {
        if self.is_dead.load(Ordering::Relaxed) {
            return Err(lost());
        }
        Ok(())
    }

    async fn carry_sizes(&self) -> bool {
        match &self.split {
            Some((nas, composed)) => carry_sizes(nas, &composed.host).await,
            None => false,
        }
    }
}

impl Serves for Killed {
    type Command = Command;
    type Output = Answer;
}

#[async_trait]
impl Backend for Killed {
    fn identity(&self) -> BackendIdentity {
        self.inner.identity()
    }

    async fn describe(&self, call: &Call, kind: VolumeKind) -> Vec<Finding> {
        self.inner.describe(call, kind).await
    }

    async fn observe(&self, call: &Call, request: &Request) -> Result<Observed, Error> {
        self.check()?;
        self.inner.observe(call, request).await
    }

    async fn apply(&self, call: &Call, plan: &Plan, then: &Request) -> Result<Observed, Failed> {
        self.check().map_err(Failed::terminal)?;
        let Some(part) = self.part(plan) else {
            let seen = self.inner.apply(call, plan, then).await?;
            if self.carry_sizes().await {
                return self.observe(call, then).await.map_err(Failed::terminal);
            }
            return Ok(seen);
        };
        let done = self.inner.apply(call, &part, &Request::of([])).await;
        self.carry_sizes().await;
        self.is_dead.store(true, Ordering::Relaxed);
        done?;
        Err(Failed::terminal(lost().with_effect(Effect::Possible)))
    }

    async fn try_first(
        &self,
        call: &Call,
        request: &Request,
        first: &FirstTry,
    ) -> Result<Tried, Failed> {
        self.check().map_err(Failed::terminal)?;
        self.inner.try_first(call, request, first).await
    }

    fn asks_one_by_one(&self) -> bool {
        self.inner.asks_one_by_one()
    }

    fn reserves_by_size(&self) -> bool {
        self.inner.reserves_by_size()
    }

    fn refuses_groups(&self) -> Option<&'static str> {
        self.inner.refuses_groups()
    }

    fn streams(&self) -> bool {
        self.inner.streams()
    }

    async fn send(
        &self,
        call: &Call,
        of: &SnapshotRef,
        since: Option<&Base>,
        resume: Option<&Bookmark>,
    ) -> Result<Box<dyn Bytes>, Error> {
        self.check()?;
        self.inner.send(call, of, since, resume).await
    }

    fn lists_blocks(&self) -> bool {
        self.inner.lists_blocks()
    }

    async fn send_records(
        &self,
        call: &Call,
        of: &SnapshotRef,
        since: Option<&Since>,
    ) -> Result<Box<dyn Bytes>, Error> {
        self.check()?;
        self.inner.send_records(call, of, since).await
    }

    async fn freed_since(
        &self,
        call: &Call,
        of: &SnapshotRef,
        txg: u64,
        block: u64,
    ) -> Result<Vec<Range<u64>>, Error> {
        self.check()?;
        self.inner.freed_since(call, of, txg, block).await
    }

    async fn receive(
        &self,
        call: &Call,
        incoming: &Incoming,
        stream: &mut dyn Bytes,
    ) -> Result<(), Interrupted> {
        let is_alive = self.check().map_err(Failed::terminal);
        is_alive.map_err(Interrupted::Here)?;
        self.inner.receive(call, incoming, stream).await
    }

    async fn list(&self, call: &Call, query: &ListQuery) -> Result<Listed, Error> {
        self.check()?;
        self.inner.list(call, query).await
    }
}

/// A verb that changes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Create,
    Allow,
    Revoke,
    Grow,
    Delete,
    /// Of a dataset that was made by hand.
    Adopt,
}

/// The life of a volume that a class makes.
const VERBS: [Verb; 5] = [
    Verb::Create,
    Verb::Allow,
    Verb::Revoke,
    Verb::Grow,
    Verb::Delete,
];

impl Verb {
    async fn run(self, driver: &ZfsDriver, name: &str) -> Result<(), Error> {
        let call = Call::within(Duration::from_mins(1));
        let id = VolumeId::parse(name).expect("an id");
        let node = NodeId::parse(&format!("node-of-{name}")).expect("an id");
        let block = driver.access_rules().block;
        let capability = VolumeCapability {
            access: if block {
                Access::Block
            } else {
                Access::Mount(MountAccess::default())
            },
            mode: AccessMode::SingleNodeWriter,
        };
        let publisher = driver.publisher();
        match self {
            Self::Create => {
                let asked = CreateVolume {
                    id,
                    name: VolumeName::parse(name).expect("a name"),
                    size: SizeRange::new(1 << 30, 0).expect("a size"),
                    capabilities: vec![capability],
                    parameters: Parameters::default(),
                    secrets: Secrets::new(),
                    source: None,
                    topology: TopologyRequirement::default(),
                };
                driver.create_volume(&call, &asked).await.map(drop)
            }
            Self::Allow => {
                let Some(publisher) = publisher else {
                    return Ok(());
                };
                let node = NodeIdentity::of(node);
                let asked = PublishVolume::new(&id, &node, &capability, false);
                publisher.publish_volume(&call, asked).await.map(drop)
            }
            Self::Revoke => match publisher {
                Some(publisher) => {
                    publisher
                        .unpublish_volume(
                            &call,
                            UnpublishVolume::new(&id, Some(&NodeIdentity::of(node))),
                        )
                        .await
                }
                None => Ok(()),
            },
            Self::Grow => {
                let expander = driver.expander().expect("it grows");
                let size = SizeRange::new(2 << 30, 0).expect("a size");
                expander
                    .expand_volume(&call, ExpandVolume::new(&id, size))
                    .await
                    .map(drop)
            }
            Self::Delete => driver.delete_volume(&call, DeleteVolume::new(&id)).await,
            Self::Adopt => {
                let adopter = driver.adopter().expect("it adopts");
                let asked = AdoptVolume {
                    source: format!("tank/csi/v/{name}"),
                    size: (!block).then_some(1 << 30),
                    made_for: MadeFor::read(Some("shop/data"), None),
                };
                adopter.adopt_volume(&call, &asked).await.map(drop)
            }
        }
    }
}

/// The properties that have the number of a row, by its service.
static NUMBERS: [(&str, PropertyName); 7] = [
    ("sharing.nfs", PropertyName::FREENAS_NFS_SHARE),
    ("sharing.smb", PropertyName::FREENAS_SMB_SHARE),
    ("iscsi.target", PropertyName::FREENAS_ISCSI_TARGET),
    ("iscsi.extent", PropertyName::FREENAS_ISCSI_EXTENT),
    ("iscsi.targetextent", PropertyName::FREENAS_ISCSI_LINK),
    ("nvmet.subsys", PropertyName::FREENAS_NVMEOF_SUBSYSTEM),
    ("nvmet.namespace", PropertyName::FREENAS_NVMEOF_NAMESPACE),
];

/// A NAS with volumes of one kind, whose exports let in only nodes that a volume was published to where they can.
struct World {
    nas: Arc<Simulator>,
    /// Kept, so that all processes have one login.
    client: Nas,
    kind: &'static str,
    document: Document,
    /// Where datasets are in memory.
    composed: Option<Arc<Composed<MemoryHost>>>,
}

impl World {
    async fn new(generation: Generation, kind: &'static str) -> Self {
        let nas = Simulator::start(Options::new(generation)).await;
        let nas = nas.expect("an appliance");
        let is_set_up = nas.set_up("10.0.0.5").await;
        is_set_up.unwrap_or_else(|failure| panic!("{failure:?}"));
        let section = match kind {
            "nfs" => "nfs: {shareHost: 10.0.0.5, nodes: {nameTemplate: '{{node}}.lan'}}",
            "smb" => "smb: {shareHost: 10.0.0.5}",
            "iscsi" => {
                "iscsi:
  targetPortal: 10.0.0.5:3260
  targetGroups: [{targetGroupPortalGroup: 1}]
  nodes: {nameTemplate: 'iqn.2004-10.org.x:{{node}}'}"
            }
            _ => {
                "nvmeof:
  transports: ['tcp://10.0.0.5:4420']
  ports: [1]
  nodes: {nameTemplate: 'nqn.2014-08.org.x:{{node}}'}"
            }
        };
        let text = format!(
            "driver: truenas-api-{kind}
httpConnection: {{protocol: https, host: 127.0.0.1, port: {}, username: root, apiKey: {}, \
             apiKeyLogin: plain, allowInsecure: true}}
{section}
",
            nas.https().port(),
            nas.api_key(),
        );
        let document = Document::parse(&text, &NoEnvironment).expect("a document");
        let connection = config::connection(&document).expect("a connection");
        Self {
            client: Nas::new(connection).expect("a NAS"),
            nas: Arc::new(nas),
            kind,
            document,
            composed: None,
        }
    }

    /// The same with datasets in memory.
    async fn composed(generation: Generation, kind: &'static str) -> Self {
        let world = Self::new(generation, kind).await;
        let host = MemoryHost::new();
        "/mnt".clone_into(&mut host.state().pool.altroot);
        let composed = Composed::new(host, world.client.clone());
        Self {
            composed: Some(Arc::new(composed)),
            ..world
        }
    }

    fn driver(&self, kill: Option<Kill>) -> ZfsDriver {
        let document = &self.document;
        match self.kind {
            "nfs" => self.with(kill, config::nfs(document).expect("an export")),
            "smb" => self.with(kill, config::smb(document).expect("an export")),
            "iscsi" => self.with(kill, config::iscsi(document).expect("an export")),
            _ => self.with(kill, config::nvmeof(document).expect("an export")),
        }
    }

    fn with<E>(&self, kill: Option<Kill>, export: E) -> ZfsDriver
    where
        E: Export<Command = Command, Output = Answer>,
    {
        let more = match export.kind() {
            VolumeKind::Filesystem => {
                "  datasetEnableQuotas: true\n  datasetPermissionsMode: '0777'\n"
            }
            VolumeKind::Zvol => "",
        };
        let settings = settings(export.kind(), more).expect("settings");
        let split = self.composed.as_ref();
        let split = split.map(|composed| (Arc::clone(&self.nas), Arc::clone(composed)));
        let inner: Arc<dyn Backend> = if let Some((_, composed)) = split.clone() {
            composed
        } else {
            let identity = BackendIdentity(self.kind.to_owned());
            Arc::new(Api::new(self.client.clone(), identity))
        };
        let killed = Killed {
            inner,
            split,
            kill,
            steps: AtomicUsize::new(0),
            is_dead: AtomicBool::new(false),
        };
        ZfsDriver::new(settings, killed, export)
    }

    /// Runs verbs without a disturbance, and answers the number of their steps.
    async fn run(&self, verbs: &[Verb], name: &str) -> usize {
        let driver = self.driver(None);
        for verb in verbs {
            let done = verb.run(&driver, name).await;
            done.unwrap_or_else(|e| panic!("{} {verb:?} {name}: {}", self.kind, e.chain()));
        }
        let killed: &Killed = driver.storage().of().expect("a process");
        killed.steps.load(Ordering::Relaxed)
    }

    /// Makes all that a verb of this volume needs. A NAS exports only what it has.
    async fn prepare(&self, before: &[Verb], verb: Verb, name: &str) {
        let dataset = format!("tank/csi/v/{name}");
        let is_zvol = !matches!(self.kind, "nfs" | "smb");
        if verb == Verb::Adopt || self.composed.is_some() {
            let new = if is_zvol {
                json!({"name": dataset, "type": "VOLUME", "volsize": 1 << 30})
            } else {
                json!({"name": dataset})
            };
            let made = self.nas.call("pool.dataset.create", vec![new]).await;
            made.unwrap_or_else(|failure| panic!("{failure:?}"));
        }
        self.run(before, name).await;
        if let (Verb::Adopt, Some(composed)) = (verb, &self.composed) {
            let dataset = DatasetName::parse(&dataset).expect("a name");
            let size = Property::new(PropertyName::VOLSIZE, (1_u64 << 30).into());
            let (kind, properties) = if is_zvol {
                (VolumeKind::Zvol, vec![size])
            } else {
                (VolumeKind::Filesystem, Vec::new())
            };
            let pool = &mut composed.host.state().pool;
            pool.insert(&dataset, kind, &properties, None);
        }
    }

    /// Removes what the NAS has beside a dataset in memory.
    async fn clear(&self, name: &str) {
        if self.composed.is_some() {
            let dataset = vec![json!(format!("tank/csi/v/{name}"))];
            let gone = self.nas.call("pool.dataset.delete", dataset).await;
            gone.unwrap_or_else(|failure| panic!("{failure:?}"));
        }
    }

    /// The own properties of a volume, and its sizes.
    async fn properties(&self, name: &str) -> Vec<(String, String)> {
        let mut all = Vec::new();
        if let Some(composed) = &self.composed {
            let things = composed.host.state().pool.things();
            for (object, thing) in things {
                if object.to_string().contains(name) {
                    all.push(("name".to_owned(), object.to_string()));
                    let own = thing.own.into_iter();
                    all.extend(own.map(|(key, value)| (key.to_string(), value)));
                }
            }
            return all;
        }
        for dataset in rows(&self.nas, "pool.dataset").await {
            if !dataset["id"].to_string().contains(name) {
                continue;
            }
            let own = dataset["user_properties"].as_object().expect("properties");
            for (key, value) in own {
                let value = value["value"].as_str().expect("a text");
                all.push((key.clone(), value.to_owned()));
            }
            for key in ["volsize", "refquota"] {
                all.push((key.to_owned(), dataset[key]["parsed"].to_string()));
            }
        }
        all
    }

    /// All that is there of a volume, without its name and the numbers of its rows.
    async fn shape(&self, name: &str) -> BTreeSet<String> {
        let mut shape = BTreeSet::new();
        let mut numbers: BTreeMap<(&str, i64), String> = BTreeMap::new();
        for service in exports::services(self.nas.generation()) {
            for row in rows(&self.nas, service).await {
                // Links have the numbers of what they link, and no names.
                let linked = ["target", "extent"].iter().any(|end| {
                    let number = row[*end].as_i64();
                    let service = format!("iscsi.{end}");
                    number.is_some_and(|n| numbers.contains_key(&(service.as_str(), n)))
                });
                if !linked && !row.to_string().contains(name) {
                    continue;
                }
                let said = json!(exports::said(&row));
                let groups = row["groups"].as_array().map(Vec::len);
                let text = format!("{service} {said}, groups {groups:?}");
                let number = row["id"].as_i64().expect("a number");
                numbers.insert((service, number), text.clone());
                shape.insert(text);
            }
        }
        for (key, mut value) in self.properties(name).await {
            let mut of = NUMBERS.iter();
            let of = of.find(|(_, of)| of.as_str() == key);
            if let Some((service, _)) = of {
                let number: i64 = value.parse().expect("a number");
                let row = numbers.get(&(*service, number));
                value = row
                    .unwrap_or_else(|| panic!("{name}: {key} is {number}"))
                    .clone();
            }
            // The mark of a node is a hash of its name.
            let value = value.split('#').next().unwrap_or_default();
            shape.insert(format!("{key}={value}"));
        }
        shape
            .into_iter()
            .map(|text| text.replace(name, "NAME"))
            .collect()
    }
}

/// The number of kills.
async fn survives(world: World) -> usize {
    let (kind, generation) = (world.kind, world.nas.generation());
    let mut kills = 0;
    let adopts = (VERBS.len(), Verb::Adopt);
    for (place, verb) in VERBS.into_iter().enumerate().chain([adopts]) {
        let before = &VERBS[..place % VERBS.len()];
        let name = format!("v{place}-whole");
        world.prepare(before, verb, &name).await;
        let steps = world.run(&[verb], &name).await;
        let end = world.shape(&name).await;
        let all = |at| {
            // What is composed does one part after the other.
            let but = world.composed.is_none().then_some(Kill::But(at));
            [Some(Kill::Before(at)), but].into_iter().flatten()
        };
        for (number, kill) in (0..steps).flat_map(all).enumerate() {
            let what = format!("{kind} on {generation}: {verb:?} of {steps} steps, {kill:?}");
            let name = format!("v{place}-{number}-killed");
            world.prepare(before, verb, &name).await;
            let outcome = verb.run(&world.driver(Some(kill)), &name).await;
            let outcome = outcome.map_err(|error| error.kind());
            assert_eq!(outcome, Err(Kind::Unreachable), "{what}");
            let retried = verb.run(&world.driver(None), &name).await;
            retried.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
            assert_eq!(world.shape(&name).await, end, "{what}");
            world.run(&[Verb::Delete], &name).await;
            assert!(world.shape(&name).await.is_empty(), "{what}");
            world.clear(&name).await;
            kills += 1;
        }
    }
    kills
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_killed_plan_of_an_nfs_share_leads_to_the_same_end() {
    assert!(survives(World::new(Generation::V24_10, "nfs").await).await >= 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_killed_plan_of_an_smb_share_leads_to_the_same_end() {
    assert!(survives(World::new(Generation::V25_10, "smb").await).await >= 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_killed_plan_of_an_iscsi_target_leads_to_the_same_end() {
    assert!(survives(World::new(Generation::V24_10, "iscsi").await).await >= 30);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_killed_plan_of_an_nvmeof_subsystem_leads_to_the_same_end() {
    assert!(survives(World::new(Generation::V25_10, "nvmeof").await).await >= 30);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_prefix_of_every_plan_of_an_nfs_share_of_a_composed_nas_leads_to_the_same_end() {
    assert!(survives(World::composed(Generation::V24_10, "nfs").await).await >= 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_prefix_of_every_plan_of_an_smb_share_of_a_composed_nas_leads_to_the_same_end() {
    assert!(survives(World::composed(Generation::V25_10, "smb").await).await >= 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_prefix_of_every_plan_of_an_iscsi_target_of_a_composed_nas_leads_to_the_same_end() {
    assert!(survives(World::composed(Generation::V24_10, "iscsi").await).await >= 15);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_prefix_of_every_plan_of_an_nvmeof_subsystem_of_a_composed_nas_leads_to_the_same_end()
{
    assert!(survives(World::composed(Generation::V25_10, "nvmeof").await).await >= 15);
}
