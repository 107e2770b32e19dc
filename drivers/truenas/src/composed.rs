//! Datasets by `zfs` over SSH, and exports through the API: what `freenas-nfs` and its kin are.
//!
//! A plan runs in parts, each by whom it is for, in the order of its steps. A zvol grows through the API:
//! only then does the NAS tell the initiators.

use async_trait::async_trait;
use driver_core::transfer::{Bookmark, Bytes};
use driver_core::{BackendIdentity, Call, Effect, Error};
use driver_zfs::backend::{Backend, Incoming, Interrupted, ListQuery, Listed};
use driver_zfs::name::{Object, SnapshotRef};
use driver_zfs::observed::{Observed, Request};
use driver_zfs::property::PropertyName;
use driver_zfs::step::{Failed, Next, Plan, Step};
use driver_zfs_cli::Cli;
use driver_zfs_cli::exec::{Command as HostCommand, Runner};
use futures_util::future::try_join_all;
use serde_json::{Map, json};

use crate::api::dataset::UpdateDataset;
use crate::api::iscsi::DeleteTarget;
use crate::backend::Nas;
use crate::command::{Answer, Change, Command};
use crate::error::{Error as ApiError, Kind as ApiKind};
use crate::failure::failed;

/// A NAS by its shell and its API.
#[derive(Debug)]
pub(crate) struct Composed<R> {
    cli: Cli<R>,
    nas: Nas,
}

/// A part of a plan.
enum Part {
    /// Steps of the host.
    Host(Vec<Step<HostCommand>>),
    /// A change of exports.
    Export(Box<Change>),
    /// A zvol gets a size.
    Grow(String, u64),
}

/// The parts of a plan, in its order.
fn parts(steps: &[Step<Command>]) -> Vec<Part> {
    let mut parts = Vec::new();
    for step in steps {
        let step = match step {
            Step::Export(Command::Change(change)) => {
                parts.push(Part::Export(Box::new(change.clone())));
                continue;
            }
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
        let Some(step) = step.without_export() else {
            continue;
        };
        match parts.last_mut() {
            Some(Part::Host(steps)) => steps.push(step),
            _ => parts.push(Part::Host(vec![step])),
        }
    }
    parts
}

fn of_host(request: &Request<Command>) -> Request<HostCommand> {
    Request {
        queries: request.queries.clone(),
        properties: request.properties.clone(),
        export: Vec::new(),
    }
}

// === impl Composed ===

impl<R: Runner> Composed<R> {
    /// The NAS that `cli` and `nas` are.
    pub(crate) fn new(cli: Cli<R>, nas: Nas) -> Self {
        Self { cli, nas }
    }

    async fn answers(&self, call: &Call, request: &Request<Command>) -> Result<Vec<Answer>, Error> {
        if request.export.is_empty() {
            return Ok(Vec::new());
        }
        let dialect = self.nas.dialect(call).await?;
        let looks = request.export.iter().map(|command| {
            let dialect = &dialect;
            async move {
                match command {
                    Command::Look(look) => self.nas.look(call, dialect, look).await,
                    Command::Change(_) => Ok(Answer::Done),
                }
            }
        });
        try_join_all(looks).await
    }

    async fn export(&self, call: &Call, change: &Change, first: bool) -> Result<(), Failed> {
        let told = |error: ApiError| failed(change.doing(), &error, first);
        if change.makes() {
            return self.nas.make(call, change).await.map(drop).map_err(told);
        }
        let target = self.nas.remove(call, change).await.map_err(told)?;
        let Some(id) = target else { return Ok(()) };
        let delete = DeleteTarget { id, force: false };
        match self.nas.write(call, &delete).await {
            Err(error) if error.kind() != ApiKind::NotFound => Err(told(error)),
            _ => Ok(()),
        }
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
}

#[async_trait]
impl<R: Runner> Backend for Composed<R> {
    type Command = Command;
    type Output = Answer;

    fn identity(&self) -> BackendIdentity {
        self.cli.identity()
    }

    async fn observe(
        &self,
        call: &Call,
        request: &Request<Command>,
    ) -> Result<Observed<Answer>, Error> {
        let host = of_host(request);
        let (seen, export) =
            tokio::try_join!(self.cli.observe(call, &host), self.answers(call, request))?;
        Ok(Observed {
            pool: seen.pool,
            export,
        })
    }

    async fn apply(
        &self,
        call: &Call,
        plan: &Plan<Command>,
        then: &Request<Command>,
    ) -> Result<Observed<Answer>, Failed> {
        let host = of_host(then);
        let nothing = Request::of([]);
        let mut parts = parts(&plan.steps).into_iter().peekable();
        let mut guards = plan.guards.clone();
        let mut done = false;
        let mut seen = None;
        let about = |guards, steps| Plan {
            lock: plan.lock.clone(),
            guards,
            steps,
        };
        // Its turn, and what has to be true, also where the first part is none of the host.
        if !matches!(parts.peek(), Some(Part::Host(_))) {
            let first = about(std::mem::take(&mut guards), Vec::new());
            let then = if parts.peek().is_none() {
                &host
            } else {
                &nothing
            };
            let looked = self.cli.apply(call, &first, then).await?;
            if parts.peek().is_none() {
                seen = Some(looked);
            }
        }
        while let Some(part) = parts.next() {
            let outcome = match part {
                Part::Host(steps) => {
                    let part = about(std::mem::take(&mut guards), steps);
                    let last = parts.peek().is_none();
                    let then = if last { &host } else { &nothing };
                    let applied = self.cli.apply(call, &part, then).await;
                    applied.map(|looked| seen = Some(looked).filter(|_| last))
                }
                Part::Export(change) => self.export(call, &change, !done).await,
                Part::Grow(name, size) => self.grow(call, &name, size, !done).await,
            };
            outcome.map_err(|failed| Failed {
                error: if done {
                    failed.error.with_effect(Effect::Possible)
                } else {
                    failed.error
                },
                ..failed
            })?;
            done = true;
        }
        let after = |error: Error| Failed {
            next: Next::Tell,
            error: error.with_effect(if done { Effect::Possible } else { Effect::None }),
        };
        let looked = async {
            match seen {
                Some(seen) => Ok(seen.pool),
                None => self.cli.observe(call, &host).await.map(|seen| seen.pool),
            }
        };
        let (pool, export) = tokio::try_join!(looked, self.answers(call, then)).map_err(after)?;
        Ok(Observed { pool, export })
    }

    fn streams(&self) -> bool {
        self.cli.streams()
    }

    async fn send(
        &self,
        call: &Call,
        from: &SnapshotRef,
        resume: Option<&Bookmark>,
    ) -> Result<Box<dyn Bytes>, Error> {
        self.cli.send(call, from, resume).await
    }

    async fn receive(
        &self,
        call: &Call,
        incoming: &Incoming,
        stream: &mut dyn Bytes,
    ) -> Result<(), Interrupted> {
        self.cli.receive(call, incoming, stream).await
    }

    async fn list(&self, call: &Call, query: &ListQuery) -> Result<Listed, Error> {
        self.cli.list(call, query).await
    }
}
