//! What the look of a script has shown: lines of a word and a name each.

use driver_core::{Error, Kind};
use driver_zfs_cli::exec::Output;

use crate::nodes::NodeName;

/// How things stand with an export on its host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// What is missing until all is as it is wanted.
    pub missing: Vec<String>,
    /// What of that nobody can make before somebody has put the host right.
    pub blocked: Vec<String>,
    /// What of it is there.
    pub present: Vec<String>,
    /// What has its name and is of something else.
    pub foreign: Vec<String>,
    /// Attributes that are configured and that the kernel of the host does not have.
    pub unknown: Vec<String>,
    /// The nodes that are let in by name.
    pub allowed: Vec<String>,
    /// The nodes that are half let in: somebody was cut.
    pub partial: Vec<String>,
    /// The nodes that are connected, once for each connection; nobody where the kernel does not show it.
    pub sessions: Vec<String>,
}

// === impl Facts ===

impl Facts {
    /// Reads the output of a look.
    pub(crate) fn read(answers: &[Output]) -> Result<Self, Error> {
        let strange = |why: String| Error::new(Kind::Internal, "look at an export").because(why);
        let [answer] = answers else {
            return Err(strange(format!("{} answers to one look", answers.len())));
        };
        let mut facts = Self::default();
        for line in answer.text().lines().filter(|line| !line.is_empty()) {
            let (word, name) = line.split_once(' ').unwrap_or((line, ""));
            let list = match word {
                "missing" => &mut facts.missing,
                "blocked" => &mut facts.blocked,
                "present" => &mut facts.present,
                "foreign" => &mut facts.foreign,
                "unknown" => &mut facts.unknown,
                "allowed" => &mut facts.allowed,
                "partial" => &mut facts.partial,
                "session" => &mut facts.sessions,
                _ => return Err(strange("the host answered something else".to_owned())),
            };
            list.push(name.to_owned());
        }
        Ok(facts)
    }

    /// Whether this part of it is there.
    pub(crate) fn is_present(&self, what: &str) -> bool {
        self.present.iter().any(|name| name == what)
    }

    /// Whoever is in, or half in, or still connected.
    pub(crate) fn inside(&self) -> impl Iterator<Item = &String> {
        let named = self.allowed.iter().chain(&self.partial);
        named.chain(&self.sessions)
    }

    /// Whether these nodes get in, each wholly, and nobody else.
    pub(crate) fn lets_in(&self, nodes: &[NodeName]) -> bool {
        let is_listed = |name: &String| nodes.iter().any(|node| node.as_str() == name);
        self.partial.is_empty()
            && self.allowed.len() == nodes.len()
            && self.allowed.iter().all(is_listed)
    }

    /// Refuses to go on where something of somebody else has the name.
    pub(crate) fn refuse_foreign(&self, name: &str) -> Result<(), Error> {
        match self.foreign.first() {
            None => Ok(()),
            Some(what) => Err(Error::new(Kind::Conflict, "export a volume")
                .because(format!("the {what} called `{name}` is of something else"))
                .advise("remove or rename it on the storage host, or see nameTemplate")),
        }
    }
}
