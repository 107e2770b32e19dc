//! The list of nodes in `sharenfs`, as ZFS on Linux takes it: `rw=` and names with colons between.
//!
//! The property is both the memory and the action: ZFS exports again when it is set, and the kernel checks
//! for each request whether its export still exists. Only the ids of the nodes are remembered elsewhere,
//! because a configured name may change.

use std::net::IpAddr;

use driver_core::config::ConfigError;
use driver_core::{Error, Kind, NodeId};
use driver_zfs::export::{Act, Subject};
use driver_zfs::property::{Property, PropertyName, PropertyValue};

use driver_zfs::nodes::{
    Form, ListedNodes, NamedNode, NodeName, Nodes, NodesConfig, NodesMode, joined, no_room,
};

/// The longest list that any ZFS keeps in a property of its own; since 2.3 it would be twice as long.
const MAX_LIST: usize = 4095;

/// The access of nodes, and the options of their export.
#[derive(Debug)]
pub(super) struct Access {
    nodes: Nodes,
    /// Whether names that the dataset does not remember are removed.
    is_strict: bool,
    options: Vec<String>,
    /// The property of a dataset that no node may reach.
    closed: Property,
}

/// The nodes with access, as the property of a dataset lists them.
pub(super) struct Listed {
    pub(super) names: Vec<NodeName>,
    /// Whether the property has exactly the value of the current configuration.
    pub(super) is_so: bool,
}

// === impl Access ===

impl Access {
    /// Checks the section at `key`, and the options of the property, which must not open it to all nodes.
    pub(super) fn read(
        config: &NodesConfig,
        properties: &[Property],
        key: &str,
    ) -> Result<Self, ConfigError> {
        let nodes = Nodes::read_names(config, Form::Address, key)?;
        let options = options(properties).map_err(|problem| ConfigError::at(key, problem))?;
        let off = PropertyValue::parse("off");
        let off = off.map_err(|error| ConfigError::at(key, error.to_string()))?;
        Ok(Self {
            nodes,
            is_strict: config.mode() == Some(NodesMode::Strict),
            options,
            closed: Property::new(PropertyName::SHARENFS, off),
        })
    }

    /// Whether the dataset remembers that a node has access.
    pub(super) fn lets_in(&self, subject: &Subject<'_>, node: &NodeId) -> bool {
        self.nodes.lets_in(subject, node)
    }

    /// A node with the name that it has now, if any.
    pub(super) fn named(&self, node: &NodeId) -> NamedNode {
        self.nodes.named(node)
    }

    /// What the property and the dataset's memory have of these nodes.
    pub(super) fn listed_nodes(&self, subject: &Subject<'_>, some: &[NamedNode]) -> ListedNodes {
        let remembered = self.nodes.remembered(subject).unwrap_or_default();
        let list = remembered.and(&self.seen(subject));
        self.nodes.listed(&list, some)
    }

    /// Whether it has a name for this node.
    pub(super) fn names(&self, node: &NodeId) -> bool {
        self.nodes.name(node).is_ok()
    }

    /// The known addresses of a node.
    pub(super) fn addresses(&self, node: &NodeId) -> Vec<IpAddr> {
        self.nodes.addresses(node)
    }

    /// Whether the property is open to all nodes.
    pub(super) fn is_open(&self, subject: &Subject<'_>) -> bool {
        let own = subject.remembered(&PropertyName::SHARENFS);
        let is_shared = own.is_some_and(|text| text != self.closed.value.as_str());
        is_shared && self.seen(subject).is_empty()
    }

    /// Gives nodes access, in addition to the present ones.
    pub(super) fn allow<R>(
        &self,
        subject: &Subject<'_>,
        nodes: &[&NodeId],
    ) -> Result<Vec<Act<R>>, Error> {
        let mut names = self.listed(subject).names;
        let before = self.nodes.remembered(subject)?;
        let mut access_list = before.clone();
        let more = self.nodes.admit(&mut access_list, nodes)?;
        let mut acts = Vec::new();
        if access_list != before {
            // Before it gets access, so that a later call can revoke it.
            acts.push(Nodes::remember_new(&access_list)?);
        }
        let count = names.len();
        for name in more {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if names.len() > count {
            if self.text(&names).len() > MAX_LIST {
                return Err(no_room(names.len(), "`sharenfs` is"));
            }
            acts.push(Act::Remember(self.to(&names)?));
        }
        Ok(acts)
    }

    /// Revokes a node, or all nodes.
    pub(super) fn revoke<R>(
        &self,
        subject: &Subject<'_>,
        node: Option<&NodeId>,
    ) -> Result<Vec<Act<R>>, Error> {
        let listed = self.listed(subject);
        let before = self.nodes.remembered(subject)?;
        let access_list = before.clone().and(&listed.names);
        let left = self
            .nodes
            .with_revoked(&access_list, node, |revoked| access_list.without(revoked))?;
        let stay = left.names();
        let mut names = listed.names.clone();
        names.retain(|name| stay.contains(name));
        let mut acts = Vec::new();
        if !listed.is_so || names.len() < listed.names.len() {
            acts.push(Act::Remember(self.to(&names)?));
        }
        let left = left.known();
        if left != before {
            acts.push(Nodes::remember(&left)?);
        }
        Ok(acts)
    }

    /// The property of a dataset that no node may reach.
    pub(super) fn closed(&self) -> Property {
        self.closed.clone()
    }

    /// The property that gives access to these nodes.
    pub(super) fn to(&self, names: &[NodeName]) -> Result<Property, Error> {
        if names.is_empty() {
            return Ok(self.closed());
        }
        let value = PropertyValue::parse(self.text(names))
            .map_err(|error| Error::new(Kind::Invalid, "share with nodes").because(error))?;
        Ok(Property::new(PropertyName::SHARENFS, value))
    }

    fn text(&self, names: &[NodeName]) -> String {
        let list = format!("rw={}", joined(names, ":"));
        let all: Vec<&str> = std::iter::once(list.as_str())
            .chain(self.options.iter().map(String::as_str))
            .collect();
        all.join(",")
    }

    /// The names that the property lists. A property that is open to all nodes lists none.
    fn seen(&self, subject: &Subject<'_>) -> Vec<NodeName> {
        let own = subject.remembered(&PropertyName::SHARENFS);
        let mut list = own.unwrap_or_default().split(',');
        let list = list.find_map(|option| option.strip_prefix("rw="));
        self.nodes.names(&lines(list.unwrap_or_default()))
    }

    /// The names that the property lists, without those that are not to stay.
    pub(super) fn listed(&self, subject: &Subject<'_>) -> Listed {
        let own = subject.remembered(&PropertyName::SHARENFS);
        let mut names = self.seen(subject);
        if self.is_strict {
            let remembered = self.nodes.remembered(subject).unwrap_or_default().names();
            names.retain(|name| remembered.contains(name));
        }
        let wanted = if names.is_empty() {
            self.closed.value.as_str().to_owned()
        } else {
            self.text(&names)
        };
        let is_so = own == Some(wanted.as_str());
        Listed { names, is_so }
    }
}

/// The names of a list, one per line. Colons inside brackets belong to an address.
fn lines(list: &str) -> String {
    let mut inside = false;
    let split = list.chars().map(|c| {
        inside = (inside || c == '[') && c != ']';
        if c == ':' && !inside { '\n' } else { c }
    });
    split.collect()
}

/// The export options of each node.
fn options(properties: &[Property]) -> Result<Vec<String>, &'static str> {
    let none = "needs the options of nodes in `sharenfs`, and no `share`";
    let [property] = properties else {
        return Err(none);
    };
    let text = property.value.as_str();
    if property.name != PropertyName::SHARENFS || text == "off" {
        return Err(none);
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '=' | '-' | ':' | '/');
    let mut options = Vec::new();
    for option in text.split(',').map(str::trim) {
        let lists = ["rw=", "ro=", "access="];
        match option {
            "" | "on" | "rw" => {}
            "ro" => return Err("lets nodes read and write; `ro` in `sharenfs` says otherwise"),
            option if lists.iter().any(|list| option.starts_with(list)) => {
                return Err("lists nodes itself; `sharenfs` has a list already");
            }
            // FreeBSD begins its own with a dash; they know no list.
            option if !option.starts_with('-') && option.chars().all(plain) => {
                options.push(option.to_owned());
            }
            _ => return Err("takes options of NFS on Linux, with commas between them"),
        }
    }
    Ok(options)
}
