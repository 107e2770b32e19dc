//! The parsed output of an observing script: lines of a word and a name.

use driver_core::{Error, Kind};
use driver_zfs_cli::exec::Output;

use driver_zfs::nodes::NodeName;

/// The attributes that let in every node: of a portal group of LIO, and of a subsystem of nvmet.
const OPENS: [&str; 2] = ["/attrib/generate_node_acls", "/attr_allow_any_host"];

/// A node in nvmet, and its key.
const HOST: &str = "hosts/";
const KEY: &str = "/dhchap_key";

/// The state of an export on its host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The parts that are missing.
    pub missing: Vec<String>,
    /// The missing parts that cannot be made until an administrator corrects the host.
    pub blocked: Vec<String>,
    /// The parts that exist.
    pub present: Vec<String>,
    /// Objects that have its name and belong to something else.
    pub foreign: Vec<String>,
    /// Attributes that are configured and that the kernel of the host does not have.
    pub unknown: Vec<String>,
    /// The nodes on the access list of the host.
    pub allowed: Vec<String>,
    /// The nodes with an incomplete access entry: an earlier change was interrupted.
    pub partial: Vec<String>,
    /// The connected nodes, once for each connection. Empty if the kernel does not show connections.
    pub sessions: Vec<String>,
    /// The connected nodes, as the kernel names them: `?` for one whose name is unusable. Unlike `sessions` it has those
    /// whose connection cannot be ended, too.
    pub connected: Vec<String>,
    /// What the kernel should show of connected nodes, and could not be read. As a fence asks it, why the host cannot
    /// end what a node has open.
    pub hidden: Vec<String>,
    /// Why the host cannot show who is connected to a share, or as an adoption asks it, what else shares the dataset.
    pub unseen: Vec<String>,
    /// What else has the dataset, as only an adoption asks.
    pub used: Vec<String>,
}

// === impl Facts ===

impl Facts {
    /// Parses the output of observing scripts.
    pub(crate) fn read(answers: &[Output]) -> Result<Self, Error> {
        let mut facts = Self::default();
        for answer in answers {
            facts.add(answer)?;
        }
        Ok(facts)
    }

    fn add(&mut self, answer: &Output) -> Result<(), Error> {
        for line in answer.text().lines().filter(|line| !line.is_empty()) {
            let (word, name) = line.split_once(' ').unwrap_or((line, ""));
            let list = match word {
                "missing" => &mut self.missing,
                "blocked" => &mut self.blocked,
                "present" => &mut self.present,
                "foreign" => &mut self.foreign,
                "unknown" => &mut self.unknown,
                "allowed" => &mut self.allowed,
                "partial" => &mut self.partial,
                "session" => &mut self.sessions,
                "connected" => &mut self.connected,
                "hidden" => &mut self.hidden,
                "unseen" => &mut self.unseen,
                "used" => &mut self.used,
                _ => {
                    let why = "the host answered something else";
                    return Err(Error::new(Kind::Internal, "observe an export").because(why));
                }
            };
            list.push(name.to_owned());
        }
        Ok(())
    }

    /// Whether this part of it exists.
    pub(crate) fn is_present(&self, what: &str) -> bool {
        self.present.iter().any(|name| name == what)
    }

    /// All nodes that have access, an incomplete access entry, or a connection.
    pub(crate) fn inside(&self) -> impl Iterator<Item = &String> {
        let named = self.allowed.iter().chain(&self.partial);
        named.chain(&self.sessions)
    }

    /// Whether exactly these nodes have access, each with a complete entry.
    pub(crate) fn allows_exactly(&self, nodes: &[NodeName]) -> bool {
        let is_listed = |name: &String| nodes.iter().any(|node| node.as_str() == name);
        self.partial.is_empty()
            && self.allowed.len() == nodes.len()
            && self.allowed.iter().all(is_listed)
    }

    /// Whether no other nodes than these have access, and none an incomplete entry.
    pub(crate) fn allows_only(&self, nodes: &[NodeName]) -> bool {
        let is_listed = |name: &String| nodes.iter().any(|node| node.as_str() == name);
        self.partial.is_empty() && self.allowed.iter().all(is_listed)
    }

    /// Whether this node gets in without the key by which it has to prove who it is.
    pub(crate) fn lacks_key_of(&self, node: &NodeName) -> bool {
        let keys = self
            .missing
            .iter()
            .filter_map(|what| what.strip_suffix(KEY));
        let mut nodes = keys.filter_map(|what| what.strip_prefix(HOST));
        nodes.any(|name| name == node.as_str())
    }

    /// Whether a part is missing besides keys of nodes.
    pub(crate) fn lacks_parts(&self) -> bool {
        self.missing.iter().any(|what| !what.ends_with(KEY))
    }

    /// Whether it exists and every node has access, where none should have it that is not listed.
    pub(crate) fn lets_in_all(&self) -> bool {
        let is_closed_by = |what: &str| OPENS.iter().any(|attribute| what.ends_with(attribute));
        let exists = self.is_present("target") || self.is_present("subsystem");
        exists && self.missing.iter().any(|what| is_closed_by(what))
    }

    /// Fails if an object that belongs to something else has the name.
    pub(crate) fn refuse_foreign(&self, name: &str) -> Result<(), Error> {
        match self.foreign.first() {
            None => Ok(()),
            Some(what) => Err(Error::new(Kind::Conflict, "export a volume")
                .because(format!("the {what} called `{name}` is of something else"))
                .advise("remove or rename it on the storage host, or see nameTemplate")),
        }
    }
}
