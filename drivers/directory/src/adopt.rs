//! A directory that others made becomes a volume with a record.
//!
//! In the folder of volumes every directory with a fitting name is a volume already, as democratic-csi leaves them: it
//! is served, and nothing is known of it. An adoption writes its record, in one step, and touches nothing in it.

use std::time::SystemTime;

use async_trait::async_trait;
use driver_core::{
    AdoptVolume, Adopter, Adoption, AdoptionState, Call, Error, Kind, MadeFor, Parameters, Volume,
};

use crate::collection::Collection;
use crate::crash_points;
use crate::driver::DirectoryDriver;
use crate::failure::{change, failed};
use crate::id::{MAX_VOLUME, VolumeDir};
use crate::quota::Enforce;
use crate::record::{self, VolumeRecord};
use crate::volumes::Directories;

/// The parameters of an adopted volume: those of no class.
fn parameters() -> String {
    let mark = ("omnibus-csi/adopted".to_owned(), "true".to_owned());
    record::digest(&Parameters::new([mark].into()))
}

/// The outcome of a look at a directory.
struct Found {
    dir: VolumeDir,
    plan: Adoption,
    /// The directory, open, and the record that it gets.
    wanted: Option<(std::os::fd::OwnedFd, VolumeRecord)>,
}

impl Directories {
    /// The volume that a directory would be.
    fn place_of_source(&self, source: &str) -> Result<VolumeDir, Error> {
        let refused =
            |why: String| Error::invalid(format!("adopt {}", source.escape_debug())).because(why);
        let base = self.store.base.path().as_str().trim_end_matches('/');
        let folder = Collection::Volumes.dir();
        let below = match source.strip_prefix('/') {
            Some(_) => source
                .strip_prefix(base)
                .and_then(|rest| rest.strip_prefix('/')),
            None => Some(source),
        };
        let name = below
            .and_then(|below| below.strip_prefix(folder)?.strip_prefix('/'))
            .map(|name| name.trim_end_matches('/'));
        let Some(name) = name else {
            let own = source.trim_end_matches('/').rsplit('/').next();
            let own = own.unwrap_or_default().escape_debug();
            return Err(
                refused(format!("volumes of this connection are in {base}/{folder}")).advise(
                    format!("move it there, while nothing uses it, and name it as {folder}/{own}"),
                ),
            );
        };
        VolumeDir::new(name)
            .filter(|dir| dir.as_str().len() <= self.id_room.bytes())
            .ok_or_else(|| {
                let room = self.id_room.bytes().min(MAX_VOLUME);
                let name = name.escape_debug();
                refused(format!("no volume can be called `{name}`")).advise(format!(
                    "rename it: letters, digits and a few signs, at most {room} of them"
                ))
            })
    }

    fn adoption(&self, request: &AdoptVolume) -> Result<Found, Error> {
        let dir = self.place_of_source(&request.source)?;
        let doing = || format!("adopt {dir}");
        let found = self
            .store
            .look_for(Collection::Volumes, dir.as_str())?
            .ok_or_else(|| Error::not_found(doing()).because("there is no such directory"))?;
        let mut plan = Adoption {
            id: dir.id(),
            state: AdoptionState::Open,
            steps: Vec::new(),
            remarks: Vec::new(),
        };
        let record = VolumeRecord::read(&found);
        let adopted = parameters();
        let known = record.as_ref();
        if known.is_some_and(|record| record.parameters != adopted) {
            plan.state = AdoptionState::Volume;
            let wanted = None;
            return Ok(Found { dir, plan, wanted });
        }
        let size = match (known.map(|record| record.capacity), request.size) {
            (Some(now), Some(asked)) if now != asked => {
                let why = format!("it has {now} bytes, and --size says {asked}");
                return Err(Error::invalid(doing())
                    .because(why)
                    .advise("leave --size out; its claim can be expanded afterwards"));
            }
            (Some(size), _) | (None, Some(size)) => size,
            (None, None) => {
                return Err(Error::invalid(doing())
                    .because("nothing says its size")
                    .advise("say it by --size"));
            }
        };
        match self.layout.quotas.enforce {
            Enforce::None => {}
            Enforce::Require => {
                return Err(Error::invalid(doing()).because(
                    "its size cannot be enforced, which this connection requires: quotas are of new volumes",
                ));
            }
            Enforce::Try => plan
                .remarks
                .push("its size is not enforced: quotas are of new volumes".to_owned()),
        }
        if known.is_none() && !record::can_be_kept(&found) {
            plan.remarks.push(
                "the filesystem keeps no record: the volume is served, its size and its claim are in its objects alone"
                    .to_owned(),
            );
        }
        let before = known.map(|record| record.made_for.clone());
        let before = before.unwrap_or_default();
        let asked = &request.made_for;
        let wanted = VolumeRecord {
            capacity: size,
            source: None,
            parameters: adopted,
            created: known.map_or_else(SystemTime::now, |record| record.created),
            made_for: MadeFor {
                claim: asked.claim.clone().or(before.claim),
                persistent_volume: asked.persistent_volume.clone().or(before.persistent_volume),
            },
        };
        if known == Some(&wanted) {
            plan.state = AdoptionState::Done;
        } else {
            plan.steps.push(format!("record its size, {size} bytes"));
        }
        let wanted = Some((found, wanted));
        Ok(Found { dir, plan, wanted })
    }

    fn adopt(&self, call: &Call, request: &AdoptVolume) -> Result<Volume, Error> {
        let Found { dir, plan, wanted } = self.adoption(request)?;
        let doing = format!("adopt {dir}");
        let Some((found, record)) = wanted else {
            let why = format!("it is the volume `{dir}` already");
            return Err(Error::new(Kind::Conflict, doing)
                .because(why)
                .advise("`omnibus-csi export-pvs` writes its objects"));
        };
        if plan.state == AdoptionState::Open {
            change(call, || record.write(&found)).map_err(|errno| failed(doing, errno))?;
            crash_points::mark("record");
        }
        Ok(self.volume(&dir, Some(record)))
    }
}

#[async_trait]
impl Adopter for DirectoryDriver {
    async fn plan_adoption(&self, call: &Call, request: &AdoptVolume) -> Result<Adoption, Error> {
        let request = request.clone();
        self.run(call, "looking at a directory", move |directories, _| {
            directories.adoption(&request).map(|found| found.plan)
        })
        .await
    }

    async fn adopt_volume(&self, call: &Call, request: &AdoptVolume) -> Result<Volume, Error> {
        let request = request.clone();
        self.run(call, "adopting a directory", move |directories, call| {
            directories.adopt(call, &request)
        })
        .await
    }
}
