//! Datasets by another backend, `zfs` over SSH, and exports through the API: what `freenas-nfs` and its kin are.
//!
//! A plan runs in parts, in the order of its steps: each part on the host or through the API. A zvol grows
//! through the API: only then does the NAS notify the initiators.
//!
//! Between two parts others have their turn. So each part of the host has the guards of what it changes, and
//! the host is asked for them before what removes an export.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use driver_core::config::Finding;
use driver_core::transfer::{Bookmark, Bytes};
use driver_core::{BackendIdentity, Call, Error};
use driver_zfs::backend::{
    Backend, Base, Incoming, Interrupted, ListQuery, Listed, Serves, Tried, without_first_try,
};
use driver_zfs::export::Opaque;
use driver_zfs::name::{Object, Since, SnapshotRef};
use driver_zfs::observed::{Observed, Request, VolumeKind};
use driver_zfs::property::{Property, PropertyName, PropertyValue};
use driver_zfs::step::{Failed, FirstTry, Guard, Node, Of, Plan, Step, Still};
use futures_util::future::join_all;
use serde_json::{Map, json};

use crate::api::dataset::UpdateDataset;
use crate::backend::{Nas, waves, worst};
use crate::command::{Answer, Change, Command, Made};
use crate::failure::failed;

/// A NAS by its shell and its API.
#[derive(Debug)]
pub(crate) struct Composed<B> {
    pub(crate) host: B,
    nas: Nas,
}

/// A part of a plan.
enum Part {
    /// Steps of the host.
    Host(Vec<Step>),
    /// Changes of exports.
    Exports(Vec<Export>),
    /// A zvol gets a size.
    Grow(String, u64),
}

/// A change of exports.
struct Export {
    change: Arc<dyn Change>,
    /// The name of what it makes.
    name: Option<Of>,
    /// Its place in the plan.
    places: BTreeSet<usize>,
    /// The places of what it waits for.
    after: BTreeSet<usize>,
}

/// The parts of a plan, in its order.
fn parts(steps: &[Node]) -> Vec<Part> {
    let mut parts = Vec::new();
    for (place, node) in steps.iter().enumerate() {
        if let Some(change) = Command::change_of(&node.step) {
            let export = Export {
                change: Arc::clone(change),
                name: node.name.clone(),
                places: BTreeSet::from([place]),
                after: node.after.clone(),
            };
            match parts.last_mut() {
                Some(Part::Exports(exports)) => exports.push(export),
                _ => parts.push(Part::Exports(vec![export])),
            }
            continue;
        }
        let step = match &node.step {
            Step::Set {
                object: Object::Dataset(name),
                properties,
            } => {
                let (size, rest): (Vec<_>, Vec<_>) = properties
                    .iter()
                    .cloned()
                    .partition(|property| property.name == PropertyName::VOLSIZE);
                let size = size
                    .first()
                    .and_then(|size| size.value.as_str().parse().ok());
                parts.extend(size.map(|size| Part::Grow(name.to_string(), size)));
                if rest.is_empty() {
                    continue;
                }
                Step::Set {
                    object: name.clone().into(),
                    properties: rest,
                }
            }
            other => other.clone(),
        };
        match parts.last_mut() {
            Some(Part::Host(steps)) => steps.push(step),
            _ => parts.push(Part::Host(vec![step])),
        }
    }
    parts
}

/// A step for the host, with what earlier steps were answered.
fn resolved(step: Step, made: &Made) -> Option<Step> {
    let Step::Record {
        object,
        property,
        of,
    } = step
    else {
        return Some(step);
    };
    let value = PropertyValue::parse(made.get(&of)?.to_string()).ok()?;
    let properties = vec![Property::new(property, value)];
    Some(Step::Set { object, properties })
}

/// The dataset or snapshot that a step changes and that was there before.
fn changed(step: &Step) -> Option<Object> {
    match step {
        Step::Set { object, .. } | Step::Inherit { object, .. } | Step::Record { object, .. } => {
            Some(object.clone())
        }
        Step::Rename { snapshot, .. } | Step::DestroySnapshot(snapshot) => {
            Some(snapshot.clone().into())
        }
        Step::Promote(dataset)
        | Step::DestroyDataset(dataset)
        | Step::DestroyEmpty(dataset)
        | Step::Abandon(dataset)
        | Step::GoOn { to: dataset, .. } => Some(dataset.clone().into()),
        _ => None,
    }
}

/// Whether a step gives a zvol a size, which the API does.
fn grows_zvol(step: &Step) -> bool {
    let Step::Set { properties, .. } = step else {
        return false;
    };
    let is_size = |property: &Property| property.name == PropertyName::VOLSIZE;
    properties.iter().any(is_size)
}

/// Guards by what tells objects apart. What a property was does not count here: an earlier part may have
/// set it.
fn identities(guards: &[Guard], counts: impl Fn(&Object) -> bool) -> Vec<Guard> {
    let same = |guard: &&Guard| matches!(guard.still, Still::Itself(_)) && counts(&guard.object);
    guards.iter().filter(same).cloned().collect()
}

/// A plan of these steps, in the turn of the whole plan.
fn part_of(plan: &Plan, guards: Vec<Guard>, steps: Vec<Step>) -> Plan {
    let mut part = Plan::about(plan.lock.clone());
    part.guards = guards;
    part.add(steps);
    part
}

fn of_host(request: &Request) -> Request {
    Request {
        queries: request.queries.clone(),
        properties: request.properties.clone(),
        ..Request::default()
    }
}

// === impl Composed ===

impl<B: Backend> Composed<B> {
    /// The NAS that `host` changes datasets on, and `nas` exports.
    pub(crate) fn new(host: B, nas: Nas) -> Self {
        Self { host, nas }
    }

    async fn answers(&self, call: &Call, request: &Request) -> Result<Vec<Opaque>, Error> {
        if request.export.is_empty() {
            return Ok(Vec::new());
        }
        let dialect = self.nas.dialect(call).await?;
        self.nas.answers(call, &dialect, &request.export).await
    }

    /// Changes exports: all at once that do not wait for each other.
    async fn exports(
        &self,
        call: &Call,
        exports: Vec<Export>,
        mut first: bool,
        made: &mut Made,
    ) -> Result<(), Failed> {
        for wave in waves(exports, |export| (&export.places, &export.after)) {
            let alone = first && wave.len() == 1;
            let known = &*made;
            let numbers = wave.iter().map(|Export { change, .. }| async move {
                let alone = alone && change.is_one_call();
                let changed = change.run(&self.nas, call, known).await;
                changed.map_err(|error| failed(change.doing(), &error, alone))
            });
            let mut failures = Vec::new();
            for (export, number) in wave.iter().zip(join_all(numbers).await) {
                match number {
                    Ok(number) => made.note(export.name.as_ref(), number),
                    Err(failed) => failures.push(Err(failed)),
                }
            }
            worst(failures)?;
            first = false;
        }
        Ok(())
    }

    async fn grow(&self, call: &Call, name: &str, size: u64, first: bool) -> Result<(), Failed> {
        let sizes = [("volsize", json!(size)), ("force_size", json!(true))];
        let update = UpdateDataset {
            id: name.to_owned(),
            properties: Map::from_iter(sizes.map(|(name, value)| (name.to_owned(), value))),
            ..UpdateDataset::default()
        };
        let grown = self.nas.write(call, &update).await;
        grown
            .map(drop)
            .map_err(|error| failed(format!("grow {name}"), &error, first))
    }

    /// Applies a plan in parts; `done` says whether one of them was done.
    async fn applied(
        &self,
        call: &Call,
        plan: &Plan,
        then: &Request,
        done: &mut bool,
    ) -> Result<Observed, Failed> {
        let host = of_host(then);
        let nothing = Request::of([]);
        let mut parts = parts(&plan.steps).into_iter().peekable();
        let itself = Object::from(plan.lock.clone());
        // All of them before the first part.
        let mut guards = plan.guards.clone();
        let mut seen = None;
        let mut made = Made::default();
        // Whether the host was asked for the guards since it was changed last.
        let mut is_checked = true;
        let about = |guards, steps| part_of(plan, guards, steps);
        // Its turn, and what has to be true, also where the first part is none of the host.
        if !matches!(parts.peek(), Some(Part::Host(_))) {
            let first = about(std::mem::take(&mut guards), Vec::new());
            let then = if parts.peek().is_none() {
                &host
            } else {
                &nothing
            };
            let looked = self.host.apply(call, &first, then).await?;
            if parts.peek().is_none() {
                seen = Some(looked);
            }
        }
        while let Some(part) = parts.next() {
            let outcome = match part {
                Part::Host(steps) => {
                    if *done {
                        let touched: Vec<Object> = steps.iter().filter_map(changed).collect();
                        guards = identities(&plan.guards, |object| touched.contains(object));
                    }
                    is_checked = false;
                    let steps = steps.into_iter().filter_map(|step| resolved(step, &made));
                    let part = about(std::mem::take(&mut guards), steps.collect());
                    let last = parts.peek().is_none();
                    let then = if last { &host } else { &nothing };
                    let applied = self.host.apply(call, &part, then).await;
                    applied.map(|looked| seen = Some(looked).filter(|_| last))
                }
                Part::Exports(exports) => {
                    let removes = exports.iter().any(|export| export.change.removes());
                    let still = if removes && !is_checked {
                        is_checked = true;
                        let guards = identities(&plan.guards, |object| *object == itself);
                        let still = about(guards, Vec::new());
                        self.host.apply(call, &still, &nothing).await.map(drop)
                    } else {
                        Ok(())
                    };
                    match still {
                        Ok(()) => self.exports(call, exports, !*done, &mut made).await,
                        Err(failed) => Err(failed),
                    }
                }
                Part::Grow(name, size) => self.grow(call, &name, size, !*done).await,
            };
            outcome?;
            *done = true;
        }
        let looked = async {
            match seen {
                Some(seen) => Ok(seen.pool),
                None => self.host.observe(call, &host).await.map(|seen| seen.pool),
            }
        };
        let (pool, export) =
            tokio::try_join!(looked, self.answers(call, then)).map_err(Failed::terminal)?;
        Ok(Observed {
            pool,
            export,
            kept: None,
        })
    }
}

impl<B: Backend> Serves for Composed<B> {
    type Command = Command;
    type Output = Answer;
}

#[async_trait]
impl<B: Backend> Backend for Composed<B> {
    fn identity(&self) -> BackendIdentity {
        self.host.identity()
    }

    async fn describe(&self, call: &Call, kind: VolumeKind) -> Vec<Finding> {
        let mut all = self.nas.describe(call).await;
        all.extend(self.host.describe(call, kind).await);
        all
    }

    fn reserves_by_size(&self) -> bool {
        self.host.reserves_by_size()
    }

    fn refuses_groups(&self) -> Option<&'static str> {
        self.host.refuses_groups()
    }

    async fn observe(&self, call: &Call, request: &Request) -> Result<Observed, Error> {
        let host = of_host(request);
        let (seen, export) =
            tokio::try_join!(self.host.observe(call, &host), self.answers(call, request))?;
        Ok(Observed {
            pool: seen.pool,
            export,
            kept: None,
        })
    }

    async fn apply(&self, call: &Call, plan: &Plan, then: &Request) -> Result<Observed, Failed> {
        let mut done = false;
        let applied = Box::pin(self.applied(call, plan, then, &mut done)).await;
        applied.map_err(|failed| failed.after_change(done))
    }

    async fn try_first(
        &self,
        call: &Call,
        request: &Request,
        first: &FirstTry,
    ) -> Result<Tried, Failed> {
        let is_of_host = request.export.is_empty() && !grows_zvol(&first.step);
        if is_of_host {
            self.host.try_first(call, request, first).await
        } else {
            without_first_try(self, call, request).await
        }
    }

    fn asks_one_by_one(&self) -> bool {
        self.host.asks_one_by_one()
    }

    fn streams(&self) -> bool {
        self.host.streams()
    }

    async fn send(
        &self,
        call: &Call,
        of: &SnapshotRef,
        since: Option<&Base>,
        resume: Option<&Bookmark>,
    ) -> Result<Box<dyn Bytes>, Error> {
        self.host.send(call, of, since, resume).await
    }

    fn lists_blocks(&self) -> bool {
        self.host.lists_blocks()
    }

    async fn send_records(
        &self,
        call: &Call,
        of: &SnapshotRef,
        since: Option<&Since>,
    ) -> Result<Box<dyn Bytes>, Error> {
        self.host.send_records(call, of, since).await
    }

    async fn freed_since(
        &self,
        call: &Call,
        of: &SnapshotRef,
        txg: u64,
        block: u64,
    ) -> Result<Vec<Range<u64>>, Error> {
        self.host.freed_since(call, of, txg, block).await
    }

    async fn receive(
        &self,
        call: &Call,
        incoming: &Incoming,
        stream: &mut dyn Bytes,
    ) -> Result<(), Interrupted> {
        self.host.receive(call, incoming, stream).await
    }

    async fn list(&self, call: &Call, query: &ListQuery) -> Result<Listed, Error> {
        self.host.list(call, query).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use csi_types::capability::{Access, AccessMode, VolumeCapability};
    use driver_core::config::{Document, NoEnvironment};
    use driver_core::{
        CreateVolume, DeleteVolume, Driver, Parameters, PublishVolume, Secrets, SizeRange,
        TopologyRequirement, UnpublishVolume, VolumeName,
    };
    use driver_zfs::name::DatasetName;
    use driver_zfs::observed::Query;
    use driver_zfs::testing::{MemoryHost, settings};
    use driver_zfs::{Export, ZfsDriver};
    use serde_json::Value;
    use truenas_sim::{Action, Generation, Options, Rule, Simulator};

    use super::*;
    use crate::api::Enable;
    use crate::command::Look;
    use crate::config;

    fn document(nas: &Simulator, section: &str) -> Document {
        let text = format!(
            "driver: freenas-nfs
httpConnection: {{protocol: https, host: 127.0.0.1, port: {}, username: root, apiKey: {}, \
             apiKeyLogin: plain, allowInsecure: true}}
{section}
",
            nas.https().port(),
            nas.api_key(),
        );
        Document::parse(&text, &NoEnvironment).expect("a document")
    }

    fn request(driver: &dyn Driver) -> CreateVolume {
        let name = VolumeName::parse("pvc-1").expect("a name");
        let parameters = Parameters::default();
        CreateVolume {
            id: driver.name_volume(&name, &parameters).expect("an id"),
            name,
            size: SizeRange::new(1 << 30, 0).expect("a size"),
            capabilities: vec![VolumeCapability {
                access: Access::Block,
                mode: AccessMode::SingleNodeWriter,
            }],
            parameters,
            secrets: Secrets::new(),
            source: None,
            topology: TopologyRequirement::default(),
        }
    }

    async fn rows(nas: &Simulator, service: &str) -> Vec<Value> {
        let rows = nas.call(&format!("{service}.query"), vec![]).await;
        rows.expect(service).as_array().expect("rows").clone()
    }

    fn composed<E>(document: &Document, kind: VolumeKind, export: E) -> ZfsDriver
    where
        E: Export<Command = Command, Output = Answer>,
    {
        let nas = Nas::new(config::connection(document).expect("a connection")).expect("a NAS");
        let backend = Composed::new(MemoryHost::new(), nas);
        ZfsDriver::new(settings(kind, "").expect("settings"), backend, export)
    }

    /// A driver of zvols in memory with targets on a NAS that has a zvol of this name, too.
    async fn zvols(nas: &Simulator, more: &str) -> ZfsDriver {
        let run = async |method: &str, params: Value| {
            let params = params.as_array().expect("arguments").clone();
            nas.call(method, params).await.expect(method)
        };
        let listen = if nas.generation().is_core() {
            json!({"ip": "10.0.0.5", "port": 3260})
        } else {
            json!({"ip": "10.0.0.5"})
        };
        run("iscsi.portal.create", json!([{"listen": [listen]}])).await;
        let user = json!([{
            "tag": 1,
            "user": "user",
            "secret": "secret-secret",
            "peeruser": "nas",
            "peersecret": "another-secret",
        }]);
        run("iscsi.auth.create", user).await;
        for parent in ["tank/csi", "tank/csi/v"] {
            run("pool.dataset.create", json!([{"name": parent}])).await;
        }
        let zvol = json!([{
            "name": "tank/csi/v/pvc-1",
            "type": "VOLUME",
            "volsize": 1 << 30,
            "sparse": true,
        }]);
        run("pool.dataset.create", zvol).await;
        let chap = "targetGroupAuthType: CHAP Mutual, targetGroupAuthGroup: 1";
        let groups = format!("targetGroups: [{{targetGroupPortalGroup: 1, {chap}}}]");
        let section = format!("iscsi: {{targetPortal: '10.0.0.5:3260', {groups}{more}}}");
        let document = document(nas, &section);
        let export = config::iscsi(&document).expect("an export");
        composed(&document, VolumeKind::Zvol, export)
    }

    #[tokio::test]
    async fn a_target_of_a_zvol_made_elsewhere_comes_and_goes() {
        for generation in [Generation::Core13, Generation::V24_10, Generation::V25_10] {
            target_comes_and_goes(generation).await;
        }
    }

    async fn target_comes_and_goes(generation: Generation) {
        let nas = Simulator::start(Options::new(generation)).await;
        let nas = nas.expect("an appliance");
        let driver = zvols(&nas, "").await;
        let call = Call::within(Duration::from_mins(1));
        let asked = request(&driver);
        let made = driver.create_volume(&call, &asked).await;
        let made = made.unwrap_or_else(|error| panic!("{}", error.chain()));
        let context = made.attachment.to_context();
        assert_eq!(context["iqn"], "iqn.2005-10.org.freenas.ctl:pvc-1");
        assert_eq!(rows(&nas, "iscsi.targetextent").await.len(), 1);
        let group = &rows(&nas, "iscsi.target").await[0]["groups"][0];
        assert_eq!(group["authmethod"], "CHAP_MUTUAL", "{generation}");
        assert_eq!(group["auth"], 1, "{generation}");
        driver
            .delete_volume(&call, DeleteVolume::new(&asked.id))
            .await
            .expect("deleted");
        for service in ["iscsi.target", "iscsi.extent", "iscsi.targetextent"] {
            assert!(rows(&nas, service).await.is_empty(), "{service}");
        }
    }

    #[tokio::test]
    async fn a_node_gets_in_and_out_of_the_target_of_a_zvol_made_elsewhere() {
        for generation in [Generation::Core13, Generation::V24_10] {
            node_gets_in_and_out(generation).await;
        }
    }

    async fn node_gets_in_and_out(generation: Generation) {
        let nas = Simulator::start(Options::new(generation)).await;
        let nas = nas.expect("an appliance");
        let nodes = ", nodes: {nameTemplate: 'iqn.2004-10.org.x:{{node}}'}";
        let driver = zvols(&nas, nodes).await;
        let call = Call::within(Duration::from_mins(1));
        let asked = request(&driver);
        let made = driver.create_volume(&call, &asked).await;
        made.unwrap_or_else(|error| panic!("{}", error.chain()));
        let publisher = driver.publisher().expect("it publishes");
        let id = driver_core::NodeId::parse("a").expect("an id");
        let node = csi_types::NodeIdentity::of(id);
        let publish = PublishVolume::new(&asked.id, &node, &asked.capabilities[0], false);
        let published = publisher.publish_volume(&call, publish).await;
        published.unwrap_or_else(|error| panic!("{}", error.chain()));
        let list = rows(&nas, "iscsi.initiator").await.remove(0);
        assert_eq!(list["initiators"], json!(["iqn.2004-10.org.x:a"]));
        let target = rows(&nas, "iscsi.target").await.remove(0);
        assert_eq!(target["groups"][0]["initiator"], list["id"]);
        let gone = publisher
            .unpublish_volume(&call, UnpublishVolume::new(&asked.id, Some(&node)))
            .await;
        gone.unwrap_or_else(|error| panic!("{}", error.chain()));
        let list = rows(&nas, "iscsi.initiator").await.remove(0);
        assert_ne!(list["initiators"], json!(["iqn.2004-10.org.x:a"]));
        let gone = driver
            .delete_volume(&call, DeleteVolume::new(&asked.id))
            .await;
        gone.unwrap_or_else(|error| panic!("{}", error.chain()));
        assert!(rows(&nas, "iscsi.initiator").await.is_empty());
    }

    /// CORE and 22.02 have no filter that ignores case, and say so once they look at a row.
    #[tokio::test]
    async fn a_second_share_of_smb_is_looked_for_on_core() {
        let nas = Simulator::start(Options::new(Generation::Core13)).await;
        let nas = nas.expect("an appliance");
        second_share_is_looked_for(&nas, crate::Generation::Core).await;
    }

    #[tokio::test]
    async fn a_second_share_of_smb_is_looked_for_on_22_02() {
        // The filters of both are the same code.
        let nas = Simulator::start(Options::new(Generation::Core13)).await;
        let nas = nas.expect("an appliance");
        let version = Action::Answer(json!("TrueNAS-SCALE-22.02.4"));
        nas.faults().add(Rule::new("system.version", version));
        second_share_is_looked_for(&nas, crate::Generation::V22_02).await;
    }

    async fn second_share_is_looked_for(nas: &Simulator, generation: crate::Generation) {
        for name in ["a", "b"] {
            let params = vec![json!({"name": format!("tank/{name}")})];
            nas.call("pool.dataset.create", params).await.expect(name);
        }
        let share = vec![json!({"path": "/mnt/tank/a", "name": "A"})];
        nas.call("sharing.smb.create", share)
            .await
            .expect("a share");
        let document = document(nas, "smb: {shareHost: 10.0.0.5}");
        let settings = config::connection(&document).expect("a connection");
        let driver = Nas::new(settings).expect("a NAS");
        let call = Call::within(Duration::from_mins(1));
        let dialect = driver.dialect(&call).await.expect("a dialect");
        assert_eq!(dialect.generation(), generation);
        for (path, name, known) in [("b", "b", 0), ("b", "a", 1), ("a", "b", 1)] {
            let look = Look::Smb {
                path: format!("/mnt/tank/{path}"),
                name: name.to_owned(),
                users: false,
            };
            let seen = driver.look(&call, &dialect, &look).await;
            let seen = seen.unwrap_or_else(|error| panic!("{path} {name}: {}", error.chain()));
            let Answer::Smb(shares) = seen else {
                panic!("{path} {name}: no shares");
            };
            assert_eq!(shares.rows.len(), known, "{path} {name}");
        }
    }

    /// A zvol that others have made in its place since then is theirs.
    #[tokio::test]
    async fn a_zvol_that_was_replaced_while_its_export_went_is_not_destroyed() {
        let nas = Simulator::start(Options::new(Generation::V24_10)).await;
        let nas = nas.expect("an appliance");
        let driver = zvols(&nas, "").await;
        let call = Call::within(Duration::from_mins(1));
        let asked = request(&driver);
        let made = driver.create_volume(&call, &asked).await;
        made.unwrap_or_else(|error| panic!("{}", error.chain()));
        let name = DatasetName::parse("tank/csi/v/pvc-1").expect("a name");
        let composed: &Composed<MemoryHost> = driver.storage().of().expect("composed");
        let host = &composed.host;
        let held = Rule::new("iscsi.extent.delete", Action::Hold).times(1);
        nas.faults().add(held);
        let replace = async {
            while nas.faults().holding() == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let pool = &mut host.state().pool;
            let gone = pool.apply(&Step::DestroyDataset(name.clone()));
            gone.expect("destroyed");
            pool.insert(&name, VolumeKind::Zvol, &[], None);
            nas.faults().release();
        };
        let (deleted, ()) = tokio::join!(
            driver.delete_volume(&call, DeleteVolume::new(&asked.id)),
            replace
        );
        let refused = deleted.expect_err("it is of another");
        assert_eq!(
            refused.kind(),
            driver_core::Kind::Busy,
            "{}",
            refused.chain()
        );
        assert!(host.state().pool.things().contains_key(&name.into()));
    }

    /// The NAS tells initiators of a new size only if it has set it itself.
    #[tokio::test]
    async fn a_first_try_is_one_of_the_host_but_not_if_it_grows_a_zvol() {
        let nas = Simulator::start(Options::new(Generation::V24_10)).await;
        let nas = nas.expect("an appliance");
        let settings = config::connection(&document(&nas, "")).expect("a connection");
        let host = MemoryHost::new();
        host.state().tries_first = true;
        let composed = Composed::new(host, Nas::new(settings).expect("a NAS"));
        let call = Call::within(Duration::from_mins(1));
        let name = DatasetName::parse("tank/csi/v/pvc-1").expect("a name");
        let kind = VolumeKind::Filesystem;
        composed.host.state().pool.insert(&name, kind, &[], None);
        let request = Request::of([Query::Dataset(name.clone())]);
        for (size, is_done) in [
            (PropertyName::REFQUOTA, true),
            (PropertyName::VOLSIZE, false),
        ] {
            let step = Step::Set {
                object: name.clone().into(),
                properties: vec![Property::new(size.clone(), 2_u64.into())],
            };
            let first = FirstTry::of(name.clone(), step);
            let tried = composed.try_first(&call, &request, &first).await;
            let tried = tried.expect("a try");
            assert_eq!(matches!(tried, Tried::Done(_)), is_done, "{size}");
        }
    }

    #[test]
    fn a_zvol_grows_through_the_api_and_everything_else_goes_to_the_host() {
        let name = driver_zfs::name::DatasetName::parse("tank/v").expect("a name");
        let property = |name: PropertyName, value: u64| {
            driver_zfs::property::Property::new(name, value.into())
        };
        let mut plan = Plan::about(name.clone());
        plan.step(Step::Set {
            object: name.clone().into(),
            properties: vec![
                property(PropertyName::VOLSIZE, 2),
                property(PropertyName::REFRESERVATION, 0),
            ],
        });
        let change: Arc<dyn Change> = Arc::new(Enable::NfsShare(7));
        plan.step(Step::Export(Opaque::new(Command::Change(change))));
        plan.step(Step::DestroyDataset(name));
        let parts = parts(&plan.steps);
        assert!(matches!(
            parts.as_slice(),
            [
                Part::Grow(_, 2),
                Part::Host(set),
                Part::Exports(_),
                Part::Host(destroy),
            ] if set.len() == 1 && destroy.len() == 1
        ));
    }
}
