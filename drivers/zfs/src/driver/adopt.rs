//! Datasets that lie on the storage already become volumes.

use async_trait::async_trait;
use csi_types::Attachment;
use driver_core::{
    AdoptVolume, Adopter, Adoption, AdoptionState, Call, CreateVolume, Error, Kind, MadeFor,
    Secrets, SizeRange, TopologyRequirement, Volume, VolumeId, VolumeName,
};

use super::{ASKED, ZfsDriver};
use crate::export::Asked;
use crate::name::DatasetName;
use crate::observed::{Dataset, Query, Request, State};
use crate::plan::adopt::{self, Adopt, Known};
use crate::plan::{ExportRef, Outcome, Verb, is_complete};
use crate::property::PropertyName;

/// A dataset, and the request that would have created it.
struct Candidate {
    dataset: DatasetName,
    request: CreateVolume,
    size: Option<u64>,
}

fn refused(source: &str, why: impl Into<String>) -> Error {
    Error::invalid(format!("adopt {}", source.escape_debug())).because(why.into())
}

impl ZfsDriver {
    /// The volume that a dataset would be.
    fn place_of_source(&self, source: &str) -> Result<(DatasetName, VolumeId), Error> {
        let name = DatasetName::parse(source).map_err(|error| {
            refused(source, error.to_string())
                .advise("name a dataset or a zvol as `zfs list` does, with its pool")
        })?;
        let parent = &self.layout().volumes;
        if name.below(parent).is_none() {
            let why = format!("volumes of this connection are in {parent}");
            let own = name.as_str().rsplit('/').next().unwrap_or_default();
            return Err(
                refused(source, why).advise(if name.pool() == parent.pool() {
                    format!(
                        "move it there, while nothing uses it: `zfs rename {name} {parent}/{own}`"
                    )
                } else {
                    format!("send it there: it is in another pool, {}", name.pool())
                }),
            );
        }
        let above = name.parent();
        let mut parents = self.layout().parents();
        if !parents.any(|parent| above.as_ref() == Some(parent)) {
            return Err(refused(
                source,
                format!("a volume is right below {parent}, not deeper"),
            )
            .advise("zfs.datasetChildren lists the datasets below it that hold volumes"));
        }
        if self.layout().parents().any(|parent| *parent == name) {
            let why = "it is one of zfs.datasetChildren, and holds volumes";
            return Err(refused(source, why));
        }
        let leaf = name.leaf();
        let id = self.layout().volume_id(&name);
        let room = self.settings.id_room.bytes();
        let id = id.filter(|id| id.as_str().len() <= room).ok_or_else(|| {
            let why = format!("no volume can be called `{}`", leaf.escape_debug());
            // The name of a child is part of the id.
            let above = name.as_str().len() - parent.as_str().len() - "/".len() - leaf.len();
            let room = room.saturating_sub(above);
            let form = format!("letters, digits, `-` and `_`, at most {room} of them");
            refused(source, why).advise(format!("rename it on the storage host: {form}"))
        })?;
        Ok((name, id))
    }

    async fn adoptable(&self, call: &Call, request: &AdoptVolume) -> Result<Candidate, Error> {
        let source = request.source.as_str();
        let (dataset, id) = self.place_of_source(source)?;
        let asked = Request {
            queries: vec![Query::Dataset(dataset.clone())],
            properties: adopt::reads(),
            ..Request::default()
        };
        let seen = self.backend.observe(call, &asked).await?;
        self.heard();
        let found = seen.pool.dataset(&dataset).ok_or_else(|| {
            Error::not_found(format!("adopt {dataset}")).because("there is no such dataset")
        })?;
        let known = Known::of(found).made_for;
        let wanted = &request.made_for;
        let made_for = MadeFor {
            claim: wanted.claim.clone().or(known.claim),
            persistent_volume: wanted.persistent_volume.clone().or(known.persistent_volume),
        };
        let failed = |error: String| refused(source, error);
        // The last part of its dataset, as for a volume that was created.
        let name = VolumeName::parse(dataset.leaf()).map_err(|error| failed(error.to_string()))?;
        Ok(Candidate {
            dataset,
            request: CreateVolume {
                name,
                id,
                size: SizeRange::ANY,
                capabilities: Vec::new(),
                parameters: made_for.to_parameters(),
                secrets: Secrets::new(),
                source: None,
                topology: TopologyRequirement::default(),
            },
            size: request.size,
        })
    }

    fn adoption<'a>(&'a self, wanted: &'a Candidate) -> Adopt<'a> {
        Adopt {
            layout: self.layout(),
            policy: &self.settings.policy,
            export_ref: ExportRef {
                export: self.export.as_ref(),
                id: &wanted.request.id,
                dataset: &wanted.dataset,
                asked: Some(Asked {
                    name: &wanted.request.name,
                    parameters: &wanted.request.parameters,
                }),
                chosen: None,
            },
            request: &wanted.request,
            size: wanted.size,
        }
    }
}

/// Notes for the operator about a dataset that becomes a volume.
fn remarks(dataset: &Dataset, snapshots: usize, attachment: Option<&Attachment>) -> Vec<String> {
    let mut all = Vec::new();
    let is = |name, value| dataset.properties.get(&name) == Some(value);
    if let (Some(Attachment::ZfsLocal(_)), Some(path), true) = (
        attachment,
        dataset.mountpoint(),
        is(PropertyName::MOUNTED, "yes"),
    ) {
        all.push(format!(
            "it is mounted at {path}, and no more as soon as the first pod uses it: nodes give it mountpoint=legacy"
        ));
    }
    if let Some(quota) = dataset.properties.number(&PropertyName::QUOTA)
        && quota > 0
    {
        all.push(format!(
            "its quota of {quota} bytes stays: growth beyond it needs `zfs set quota=none {}`",
            dataset.name
        ));
    }
    if let Some(choice) = dataset.properties.own(&PropertyName::SHARE_OPTIONS) {
        all.push(format!(
            "its share gets the options `{}`, which a class chose when it was a volume before: to have none, \
             `zfs inherit {} {}`",
            choice.escape_debug(),
            PropertyName::SHARE_OPTIONS,
            dataset.name
        ));
    }
    if snapshots > 0 {
        all.push(format!(
            "its {snapshots} snapshots stay, and are no VolumeSnapshots; they go when the volume is deleted, unless \
             zfs.deletion.keepForeignSnapshots is set"
        ));
    }
    all
}

#[async_trait]
impl Adopter for ZfsDriver {
    async fn plan_adoption(&self, call: &Call, request: &AdoptVolume) -> Result<Adoption, Error> {
        let wanted = self.adoptable(call, request).await?;
        let verb = self.adoption(&wanted);
        let id = wanted.request.id.clone();
        let mut asked = State::default();
        for _ in 0..ASKED {
            let seen = self.backend.observe(call, &verb.request(&asked)?).await?;
            self.heard();
            let found = seen.pool.dataset(&wanted.dataset);
            if let Some(found) = found
                && is_complete(found)
                && !adopt::is_adopted(found)
                && found.kind == self.kind()
                && !self.settings.policy.owner().is_another(found)
            {
                return Ok(Adoption {
                    id,
                    state: AdoptionState::Volume,
                    steps: Vec::new(),
                    remarks: Vec::new(),
                });
            }
            let outcome = verb.plan(&asked, &seen, 0)?;
            let Some(found) = found else { break };
            let (state, steps) = match &outcome {
                Outcome::Ask => {
                    asked = seen.pool;
                    continue;
                }
                Outcome::Do(plan) | Outcome::End(plan, _) => {
                    (AdoptionState::Open, verb.explained(plan, found))
                }
                Outcome::Done(_) | Outcome::InUse(_) => (AdoptionState::Done, Vec::new()),
            };
            let shown = self
                .export
                .current_attachment(&verb.export_ref.subject(&seen.pool));
            let snapshots = seen.pool.snapshots_of(&wanted.dataset).len();
            let status = verb.export_ref.status(&asked, &seen)?;
            let unseen = status.map_or_else(Vec::new, |status| status.unseen_users());
            let unseen = unseen.into_iter().map(|why| {
                format!("its host did not show all that may use it, so see to that yourself: {why}")
            });
            let remarks = match state {
                AdoptionState::Open => remarks(found, snapshots, shown.as_ref())
                    .into_iter()
                    .chain(unseen)
                    .collect(),
                AdoptionState::Done | AdoptionState::Volume => Vec::new(),
            };
            return Ok(Adoption {
                id,
                state,
                steps,
                remarks,
            });
        }
        Err(Error::new(Kind::Pending, verb.doing()).because("it keeps changing"))
    }

    async fn adopt_volume(&self, call: &Call, request: &AdoptVolume) -> Result<Volume, Error> {
        let wanted = self.adoptable(call, request).await?;
        let verb = self.adoption(&wanted);
        self.shown(call, &verb, |made| self.volume(made)).await
    }
}
