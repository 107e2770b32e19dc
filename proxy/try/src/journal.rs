//! What a trial has asked for, until it is gone again: in memory, and as lines of a file in its folder,
//! from which the next run cleans up after one that was killed.
//!
//! A living trial holds a lock on its file. Everything is noted before it is asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::PathBuf;

use csi_proto::v1::Volume;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::client::{Answer, Failure};
use crate::folder::Folder;

/// The objects, in this order.
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
    /// The objects that were there before: never touched, whatever a driver answers.
    pub(crate) foreign: BTreeSet<String>,
    made: Vec<Made>,
    #[serde(skip)]
    file: Option<File>,
}

/// Something that was asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Made {
    pub(crate) role: Role,
    /// Its id; empty as long as it is not known.
    pub(crate) id: String,
    /// It was deleted, or never was there.
    pub(crate) gone: bool,
    #[serde(skip)]
    pub(crate) volume: Volume,
    #[serde(skip)]
    pub(crate) publish_context: BTreeMap<String, String>,
}

// === impl Role ===

impl Role {
    /// The end of its name, and the name of its folder.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Original => "original",
            Self::Snapshot => "snapshot",
            Self::Restored => "restored",
            Self::Clone => "clone",
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
        let mut journal = Self {
            config,
            size,
            foreign: BTreeSet::new(),
            made: Vec::new(),
            file: Some(file),
        };
        journal.write()?;
        fs::rename(new, folder.journal())?;
        Ok(journal)
    }

    /// The journal of a trial that was killed.
    pub(crate) fn of_the_dead(folder: &Folder) -> Option<Self> {
        let mut options = File::options();
        let file = options.read(true).append(true).open(folder.journal());
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

    fn write(&mut self) -> io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        file.write_all(&line)?;
        file.sync_data()
    }

    /// Notes that something is going to be asked for.
    pub(crate) fn ask(&mut self, role: Role) -> Answer<()> {
        self.made.push(Made {
            role,
            id: String::new(),
            gone: false,
            volume: Volume::default(),
            publish_context: BTreeMap::new(),
        });
        self.note(role, |_| ())
    }

    /// Notes a change.
    pub(crate) fn note(&mut self, role: Role, note: impl FnOnce(&mut Made)) -> Answer<()> {
        let mut made = self.made.iter_mut();
        made.find(|made| made.role == role).map(note);
        let failed = |error| Failure::seen(format!("write the journal of this trial: {error}"));
        self.write().map_err(failed)
    }

    /// The object that was asked for in that role, and is not gone.
    pub(crate) fn there(&self, role: Role) -> Answer<Made> {
        let mut made = self.made.iter();
        let made = made.find(|made| made.role == role && !made.gone).cloned();
        made.ok_or_else(|| Failure::seen(format!("the {} is not there", role.suffix())))
    }

    /// The roles of what was asked for, the last one first: copies go before what they are of.
    pub(crate) fn backwards(&self) -> Vec<Role> {
        self.made.iter().rev().map(|made| made.role).collect()
    }

    /// Everything that has or had an id.
    pub(crate) fn known(&self) -> impl Iterator<Item = &Made> {
        self.made.iter().filter(|made| !made.id.is_empty())
    }

    /// The objects that may be there still, in words. `name` is what all names begin with.
    pub(crate) fn remains(&self, name: &str) -> Vec<String> {
        let there = self.made.iter().filter(|made| !made.gone);
        there.map(|made| made.in_words(name)).collect()
    }
}

// === impl Made ===

impl Made {
    /// The kind in words. `name` is what all names begin with.
    pub(crate) fn in_words(&self, name: &str) -> String {
        let (role, suffix) = (self.role, self.role.suffix());
        let kind = if role == Role::Snapshot {
            "snapshot"
        } else {
            "volume"
        };
        match self.id.as_str() {
            "" => format!("perhaps the {kind} `{name}-{suffix}`"),
            id => format!("the {kind} `{id}`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_read_when_its_writer_is_dead_even_if_its_last_line_was_cut() {
        let folder = Folder::make(&format!("omnibus-try-test-{}", std::process::id())).unwrap();
        // Of a storage that no other run has: none touches it.
        let config = Some(PathBuf::from("/none"));
        let mut journal = Journal::begin(&folder, config, 1).unwrap();
        journal.ask(Role::Original).unwrap();
        assert!(Journal::of_the_dead(&folder).is_none(), "it is alive");
        drop(journal);
        let file = File::options().append(true).open(folder.journal());
        file.unwrap().write_all(b"{\"config\":").unwrap();
        let left = Journal::of_the_dead(&folder).unwrap().remains("name");
        assert_eq!(left, ["perhaps the volume `name-original`"]);
        folder.remove().unwrap();
    }
}
