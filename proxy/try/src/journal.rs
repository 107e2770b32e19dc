//! What a trial has asked for, until it is gone again: in memory, and as lines of a file in its folder,
//! from which the next run cleans up after one that was killed.
//!
//! A living trial holds a lock on its file. Everything is noted before it is asked for.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::PathBuf;

use csi_proto::v1::Volume;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::client::{Answer, Failure};
use crate::folder::Folder;

/// What is made, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    Original,
    Snapshot,
    Restored,
    Clone,
}

/// Everything that a trial has asked for.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Journal {
    /// The configuration of the storage, if it is not in the folder.
    pub(crate) config: Option<PathBuf>,
    /// The size that is asked for.
    pub(crate) size: i64,
    made: Vec<Made>,
    #[serde(skip)]
    file: Option<File>,
}

/// Something that was asked for.
#[derive(Debug, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each has a call that undoes it"
)]
pub(crate) struct Made {
    pub(crate) role: Role,
    /// Its id, once that is known.
    pub(crate) id: Option<String>,
    /// It was deleted, or never was there.
    pub(crate) gone: bool,
    pub(crate) attached: bool,
    pub(crate) staged: bool,
    pub(crate) published: bool,
    #[serde(skip)]
    pub(crate) volume: Volume,
    #[serde(skip)]
    pub(crate) publish_context: BTreeMap<String, String>,
}

// === impl Role ===

impl Role {
    /// What its name ends with, and its folder is called.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Original => "original",
            Self::Snapshot => "snapshot",
            Self::Restored => "restored",
            Self::Clone => "clone",
        }
    }

    /// What it is, in words.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshot",
            Self::Original | Self::Restored | Self::Clone => "volume",
        }
    }
}

// === impl Journal ===

impl Journal {
    /// Begins one. Others see it when it is locked.
    pub(crate) fn begin(folder: &Folder, config: Option<PathBuf>, size: i64) -> io::Result<Self> {
        let new = folder.journal().with_extension("new");
        let file = File::options().append(true).create_new(true).open(&new)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let (made, file) = (Vec::new(), Some(file));
        let mut journal = Self {
            config,
            size,
            made,
            file,
        };
        journal.write()?;
        fs::rename(new, folder.journal())?;
        Ok(journal)
    }

    /// The journal of a trial that is dead, but for one that has ended.
    pub(crate) fn of_the_dead(folder: &Folder) -> Option<Self> {
        let file = File::options()
            .read(true)
            .append(true)
            .open(folder.journal());
        let mut file = file.ok()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        let mut text = String::new();
        file.read_to_string(&mut text).ok()?;
        // The last line may have been cut.
        let mut lines = text.lines().rev();
        let journal: Self = lines.find_map(|line| serde_json::from_str(line).ok())?;
        let file = Some(file);
        Some(Self { file, ..journal })
    }

    /// Ends it: what there is now is not to be cleaned up.
    pub(crate) fn end(&self, folder: &Folder) -> io::Result<()> {
        fs::remove_file(folder.journal())
    }

    fn write(&mut self) -> io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        match &mut self.file {
            Some(file) => file.write_all(&line).and_then(|()| file.sync_data()),
            None => Ok(()),
        }
    }

    /// Notes that something is going to be asked for.
    pub(crate) fn ask(&mut self, role: Role) -> Answer<()> {
        self.made.push(Made {
            role,
            id: None,
            gone: false,
            attached: false,
            staged: false,
            published: false,
            volume: Volume::default(),
            publish_context: BTreeMap::new(),
        });
        self.note(role, |_| ())
    }

    /// Notes a change.
    pub(crate) fn note(&mut self, role: Role, note: impl FnOnce(&mut Made)) -> Answer<()> {
        if let Some(made) = self.made.iter_mut().find(|made| made.role == role) {
            note(made);
        }
        let failed = |error| Failure::seen(format!("write the journal of this trial: {error}"));
        self.write().map_err(failed)
    }

    /// What was asked for in that role, and is not gone.
    pub(crate) fn there(&self, role: Role) -> Option<&Made> {
        self.made
            .iter()
            .find(|made| made.role == role && !made.gone)
    }

    /// Its id, if it is there and that holds.
    pub(crate) fn id_if(&self, role: Role, holds: impl Fn(&Made) -> bool) -> Option<String> {
        self.there(role).filter(|made| holds(made))?.id.clone()
    }

    /// Its id, if it is there.
    pub(crate) fn id(&self, role: Role) -> Answer<String> {
        let id = self.id_if(role, |_| true);
        id.ok_or_else(|| Failure::seen(format!("the {} is not there", role.suffix())))
    }

    /// The roles of what was asked for, the last one first: copies go before what they are of.
    pub(crate) fn backwards(&self) -> Vec<Role> {
        self.made.iter().rev().map(|made| made.role).collect()
    }

    /// Everything that has or had an id.
    pub(crate) fn ids(&self) -> impl Iterator<Item = (&Made, &String)> {
        self.made
            .iter()
            .filter_map(|made| Some((made, made.id.as_ref()?)))
    }

    /// What may be there still, in words. `name` is what all names begin with.
    pub(crate) fn remains(&self, name: &str) -> Vec<String> {
        let there = self.made.iter().filter(|made| !made.gone);
        let words = there.map(|made| match (&made.id, made.role) {
            (Some(id), role) => format!("the {} `{id}`", role.kind()),
            (None, role) => format!("perhaps the {} `{name}-{}`", role.kind(), role.suffix()),
        });
        words.collect()
    }
}
