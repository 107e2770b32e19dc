//! Access per node: exports that only the nodes can reach to which a volume is published.
//!
//! A target knows a node by its own kind of name: an initiator, a host NQN, an address. The configuration
//! gives these names, by a template or one by one. The dataset remembers the access list, so that it
//! survives the loss of the host's configuration. compat: "Exports of a ZFS host", "TrueNAS".

mod access_list;
mod keys;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use crate::export::{Act, Subject};
use crate::property::{Property, PropertyName, PropertyValue};
use csi_types::attachment::{Host, Iqn, Nqn};
use driver_core::config::{ConfigError, scalar::unless_falsy};
use driver_core::template::Template;
use driver_core::{Error, Kind, NodeId};
use serde::{Deserialize, Serialize};

use access_list::NodeDigest;
pub use access_list::{AccessList, RevokedNode};
pub use keys::NodeKeys;

/// The property in which a dataset remembers its access list.
const PROPERTY: &str = "omnibus-csi:nodes";
/// A node that does not exist: a template that gives it the name of a node gives all nodes that name.
const ANY_NODE: &str = "no-node-is-called-so";

/// The names of nodes for one export.
#[derive(Debug, Clone)]
pub struct Nodes {
    form: Form,
    template: Option<Template>,
    names: BTreeMap<String, NodeName>,
    addresses: BTreeMap<String, Vec<IpAddr>>,
}

/// The section `nodes` of an export.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodesConfig {
    /// Makes the name from `node`, the id of the node.
    #[serde(default, deserialize_with = "unless_falsy")]
    name_template: Option<Template>,
    /// Names that the template does not give.
    #[serde(default)]
    names: Option<BTreeMap<String, String>>,
    /// The addresses of nodes, beside those that they report or are called by. Only fences ask for them.
    #[serde(default)]
    addresses: Option<BTreeMap<String, AddressesConfig>>,
    /// What becomes of entries that others have made.
    #[serde(default, deserialize_with = "unless_falsy")]
    mode: Option<NodesMode>,
}

/// The addresses of one node.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum AddressesConfig {
    One(String),
    Several(Vec<String>),
}

/// What becomes of those entries of an access list that are not of nodes with the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NodesMode {
    /// They stay: an administrator has made them.
    Additive,
    /// They are removed.
    Strict,
}

/// The name of a node for a target: one word of letters, digits and `-.:_[]`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeName(String);

/// The kind of the names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The name of an initiator.
    Initiator,
    /// The NQN of a host.
    Host,
    /// An address or a name of the network.
    Address,
}

/// A node with what finds it in access lists: made once for many of them.
#[derive(Debug, Clone)]
pub struct NamedNode {
    id: NodeId,
    digest: NodeDigest,
    name: Option<NodeName>,
}

/// The entries of an access list, compared with some nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedNodes {
    /// Those of them that are in it. Nodes of interrupted revocations are among them.
    pub nodes: BTreeSet<NodeId>,
    /// The names of all others.
    pub others: Vec<String>,
}

#[derive(Serialize)]
struct NameData<'a> {
    node: &'a str,
}

// === impl NodesConfig ===

impl NodesConfig {
    /// What becomes of entries that others have made, if it says so.
    pub fn mode(&self) -> Option<NodesMode> {
        self.mode
    }

    /// Checks the addresses of nodes in the section at `key`.
    fn addresses(&self, key: &str) -> Result<BTreeMap<String, Vec<IpAddr>>, ConfigError> {
        let parse = |node: &str, text: &String| {
            text.parse::<IpAddr>().map_err(|_| {
                let problem = format!("`{node}` has to have IP addresses");
                ConfigError::at(format!("{key}.addresses"), problem)
            })
        };
        let one = |(node, addresses): (&String, &AddressesConfig)| {
            let addresses = addresses.texts().iter().map(|text| parse(node, text));
            Ok((
                node.clone(),
                addresses.collect::<Result<Vec<_>, ConfigError>>()?,
            ))
        };
        self.addresses.iter().flatten().map(one).collect()
    }
}

// === impl AddressesConfig ===

impl AddressesConfig {
    fn texts(&self) -> &[String] {
        match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::Several(texts) => texts,
        }
    }
}

// === impl Nodes ===

impl Nodes {
    /// Checks the section at `key`, of an export that lists exactly the nodes of a volume.
    ///
    /// Its list is not kept with the dataset. A configuration of the host that is restored may bring back the entry of a
    /// node that was revoked since, and nothing tells that from one that was made by hand.
    pub fn read(config: &NodesConfig, form: Form, key: &str) -> Result<Self, ConfigError> {
        if config.mode == Some(NodesMode::Additive) {
            let problem = "cannot be additive here: an entry that was made by hand looks like one that a restored \
                           configuration of the host brings back. Only lists in `sharenfs` can";
            return Err(ConfigError::at(format!("{key}.mode"), problem));
        }
        Self::read_names(config, form, key)
    }

    /// Checks the names in the section at `key`.
    pub fn read_names(config: &NodesConfig, form: Form, key: &str) -> Result<Self, ConfigError> {
        let one = |(node, name): (&String, &String)| {
            let name = form.parse(name).ok_or_else(|| {
                ConfigError::at(format!("{key}.names"), format!("`{node}` {}", form.rule()))
            })?;
            Ok((node.clone(), name))
        };
        let names = config.names.iter().flatten().map(one);
        let names: BTreeMap<_, _> = names.collect::<Result<_, ConfigError>>()?;
        let template = config.name_template.clone();
        if template.is_none() && names.is_empty() {
            let problem = "has to say what nodes are called: nameTemplate or names";
            return Err(ConfigError::at(key, problem));
        }
        Ok(Self {
            form,
            template,
            names,
            addresses: config.addresses(key)?,
        })
    }

    /// The name of a node.
    pub fn name(&self, node: &NodeId) -> Result<NodeName, Error> {
        let refused = || {
            Error::invalid(format!("name the node `{node}`"))
                .advise("see `nodes` in the configuration of the export")
        };
        if let Some(name) = self.names.get(node.as_str()) {
            return Ok(name.clone());
        }
        let Some(template) = &self.template else {
            return Err(refused().because("the configuration does not say what it is called"));
        };
        let node = node.as_str();
        let text = template
            .render(&NameData { node })
            .map_err(|error| refused().because(error))?;
        let name = self.form.parse(&text);
        name.ok_or_else(|| refused().because(format!("its name {}", self.form.rule())))
    }

    /// The addresses that the configuration gives a node, and the one that it is called by, if it is.
    pub fn addresses(&self, node: &NodeId) -> Vec<IpAddr> {
        let listed = self.addresses.get(node.as_str()).into_iter().flatten();
        let name = self.name(node).ok();
        let called = name.and_then(|name| {
            name.as_str()
                .trim_matches(['[', ']'])
                .parse::<IpAddr>()
                .ok()
        });
        listed.copied().chain(called).collect()
    }

    /// Adds nodes by the names that they have now. Answers these names.
    pub fn admit(
        &self,
        access_list: &mut AccessList,
        nodes: &[&NodeId],
    ) -> Result<Vec<NodeName>, Error> {
        let names = nodes.iter().map(|node| self.name(node));
        let names: Vec<NodeName> = names.collect::<Result<_, _>>()?;
        for (node, name) in nodes.iter().zip(&names) {
            access_list.admit(node, name, &|id| self.calls(id, name));
        }
        Ok(names)
    }

    /// Whether the dataset remembers that a node has access by the name that it has now.
    pub fn lets_in(&self, subject: &Subject<'_>, node: &NodeId) -> bool {
        let remembered = self.remembered(subject);
        let named = self.name(node);
        matches!((remembered, named), (Ok(list), Ok(name)) if list.lets_in(node, &name))
    }

    /// A node with the name that it has now, if any.
    pub fn named(&self, node: &NodeId) -> NamedNode {
        NamedNode {
            name: self.name(node).ok(),
            ..NamedNode::nameless(node)
        }
    }

    /// The entries of an access list, compared with these nodes.
    pub fn listed(&self, list: &AccessList, nodes: &[NamedNode]) -> ListedNodes {
        let mut listed = ListedNodes::default();
        if list.count() == 0 {
            return listed;
        }
        let mut left = list.clone();
        for node in nodes {
            self.revoking(node, |revoked| {
                if !list.names_of(Some(revoked)).is_empty() {
                    listed.nodes.insert(node.id.clone());
                    left = left.without(Some(revoked));
                }
            });
        }
        let others = left.names_of(None);
        listed.others = others.iter().map(|name| name.0.clone()).collect();
        listed
    }

    /// Calls `plan` with the revoked node, or with `None` for all nodes. A node that has no name any
    /// more is found by its id. Fails for such a node if the list has names without an id: one of them
    /// may be this node.
    pub fn with_revoked<T>(
        &self,
        access_list: &AccessList,
        node: Option<&NodeId>,
        plan: impl FnOnce(Option<RevokedNode<'_>>) -> T,
    ) -> Result<T, Error> {
        let Some(node) = node else {
            return Ok(plan(None));
        };
        let name = match self.name(node) {
            Ok(name) => Some(name),
            Err(error) if access_list.has_strangers() && !access_list.knows(node) => {
                return Err(error);
            }
            Err(_) => None,
        };
        let node = NamedNode {
            name,
            ..NamedNode::nameless(node)
        };
        Ok(self.revoking(&node, |revoked| plan(Some(revoked))))
    }

    fn revoking<T>(&self, node: &NamedNode, plan: impl FnOnce(RevokedNode<'_>) -> T) -> T {
        let name = node.name.as_ref();
        let shares = |id: &NodeDigest| name.is_some_and(|name| self.calls(id, name));
        plan(RevokedNode {
            id: &node.digest,
            name,
            shares: &shares,
        })
    }

    /// Whether the node of this id has this name by the present configuration: in the list, or by a
    /// template that gives it to all nodes.
    fn calls(&self, id: &NodeDigest, name: &NodeName) -> bool {
        let mut names = self.names.iter();
        if let Some((_, listed)) = names.find(|(node, _)| NodeDigest::of(node) == *id) {
            return listed == name;
        }
        let any = |template: &Template| template.render(&NameData { node: ANY_NODE });
        let text = self.template.as_ref().map(any);
        matches!(text, Some(Ok(text)) if text == name.as_str())
    }

    /// One of the names that a target shows. A host may use a name that is not a valid host name, and
    /// its access must be revoked by that name.
    pub fn shown(&self, text: &str) -> Option<NodeName> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-.:_".contains(c);
        let is_word = !text.is_empty() && text.chars().all(plain);
        let word = || is_word.then(|| NodeName(text.to_owned()));
        self.form.parse(text).or_else(word)
    }

    /// The valid names in a text, one per line.
    pub fn names(&self, text: &str) -> Vec<NodeName> {
        let mut names: Vec<NodeName> = Vec::new();
        for name in text.lines().filter_map(|text| self.form.parse(text)) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// The property in which a dataset remembers its access list.
    pub fn property() -> Result<PropertyName, Error> {
        PropertyName::parse(PROPERTY)
            .map_err(|error| Error::new(Kind::Internal, "remember nodes").because(error))
    }

    /// The access list that the dataset remembers.
    pub fn remembered(&self, subject: &Subject<'_>) -> Result<AccessList, Error> {
        let property = Self::property()?;
        let text = subject.remembered(&property).unwrap_or_default();
        Ok(AccessList::read(self.form, text))
    }

    /// Remembers an access list with a new node. Fails if the property has no space for the changes of
    /// later revocations: a revocation must always be possible.
    pub fn remember_new<R>(access_list: &AccessList) -> Result<Act<R>, Error> {
        if access_list.fit() {
            Self::remember(access_list)
        } else {
            Err(no_room(access_list.count(), "the dataset remembers"))
        }
    }

    /// Remembers an access list.
    pub fn remember<R>(access_list: &AccessList) -> Result<Act<R>, Error> {
        if access_list.is_empty() {
            return Ok(Act::Forget(Self::property()?));
        }
        let value = PropertyValue::parse(access_list.text())
            .map_err(|error| Error::invalid("let a node reach a volume").because(error))?;
        Ok(Act::Remember(Property::new(Self::property()?, value)))
    }
}

/// The error of a volume that is published to so many nodes that one of its lists is full.
pub fn no_room(count: usize, whose: &str) -> Error {
    Error::new(Kind::OutOfSpace, "let a node reach a volume")
        .because(format!(
            "{count} names are more than the list holds that {whose}"
        ))
        .advise("unpublish the volume from nodes, or give nodes shorter names: see `nodes`")
}

/// The names that the dataset remembers, also of nodes whose revocation is in progress, and without a
/// configuration that names nodes.
pub fn remembered_names(form: Form, subject: &Subject<'_>) -> Result<Vec<NodeName>, Error> {
    let property = Nodes::property()?;
    let text = subject.remembered(&property).unwrap_or_default();
    Ok(AccessList::read(form, text).names_of(None))
}

/// The names in one text.
pub fn joined(names: &[NodeName], between: &str) -> String {
    let names: Vec<&str> = names.iter().map(NodeName::as_str).collect();
    names.join(between)
}

// === impl NamedNode ===

impl NamedNode {
    /// A node that is found by its id alone.
    pub fn nameless(node: &NodeId) -> Self {
        Self {
            id: node.clone(),
            digest: NodeDigest::of(node.as_str()),
            name: None,
        }
    }

    /// Its id.
    pub fn id(&self) -> &NodeId {
        &self.id
    }
}

// === impl NodeName ===

impl NodeName {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl Form ===

impl Form {
    /// Checks a name: it becomes a folder, a word of a script and a part of JSON, or of a list with
    /// colons in it.
    fn parse(self, text: &str) -> Option<NodeName> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':' | '_');
        let good = match self {
            Self::Initiator => text.chars().all(plain) && Iqn::parse(text).is_ok(),
            Self::Host => text.chars().all(plain) && Nqn::parse(text).is_ok(),
            Self::Address => {
                let inner = text
                    .strip_prefix('[')
                    .and_then(|text| text.strip_suffix(']'));
                match inner {
                    Some(address) => matches!(Host::v6(address), Ok(Host::Ip(_))),
                    None => !text.starts_with('.') && Host::parse(text).is_ok(),
                }
            }
        };
        good.then(|| NodeName(text.to_owned()))
    }

    fn rule(self) -> &'static str {
        match self {
            Self::Initiator => "has to be the name of an initiator: iqn.…, eui.… or naa.…",
            Self::Host => "has to be the NQN of a host: nqn.…",
            Self::Address => "has to be a name, an IPv4 address or an IPv6 address in brackets",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(text: &str, form: Form) -> Result<Nodes, ConfigError> {
        Nodes::read(&serde_json::from_str(text).unwrap(), form, "k.nodes")
    }

    #[test]
    fn a_node_is_called_as_it_is_listed_or_as_the_template_says() {
        let text = r#"{"nameTemplate": "iqn.2004-10.org.x:{{node}}", "names": {"a": "iqn.old"}}"#;
        let nodes = nodes(text, Form::Initiator).unwrap();
        let name = |node: &str| nodes.name(&NodeId::parse(node).unwrap());
        assert_eq!(name("a").unwrap().as_str(), "iqn.old");
        assert_eq!(name("b.lan").unwrap().as_str(), "iqn.2004-10.org.x:b.lan");
        for hostile in [
            "b c", "b/../c", "b$(x)", "b;c", "b\nc", "b\"c", "b'", "b,c", "b\\",
        ] {
            let error = name(hostile).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{hostile:?}");
        }
        let listed = nodes.names("iqn.a\n../x\niqn.b\niqn.a\n");
        assert_eq!(joined(&listed, " "), "iqn.a iqn.b");
    }

    #[test]
    fn entries_of_others_stay_only_where_the_list_is_kept_with_the_dataset() {
        for (mode, is_read) in [
            (r#""strict""#, true),
            (r#""""#, true),
            ("null", true),
            (r#""additive""#, false),
        ] {
            let text = format!(r#"{{"nameTemplate": "{{{{node}}}}", "mode": {mode}}}"#);
            let read = nodes(&text, Form::Address);
            assert_eq!(read.is_ok(), is_read, "{mode}");
            if let Err(error) = read {
                assert_eq!(error.path(), Some("k.nodes.mode"));
            }
        }
        let wrong = serde_json::from_str::<NodesConfig>(r#"{"mode": "loose"}"#);
        assert!(wrong.is_err());
    }

    #[test]
    fn a_list_tells_some_nodes_from_all_others_also_in_an_interrupted_revocation() {
        let text = r#"{"nameTemplate": "iqn.2004-10.org.x:{{node}}"}"#;
        let nodes = nodes(text, Form::Initiator).unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|id| NodeId::parse(id).unwrap());
        let mut list = AccessList::default();
        let names = nodes.admit(&mut list, &[&a, &b]).unwrap();
        let names: Vec<String> = names.into_iter().map(|name| name.0).collect();
        let marked = |revoked: Option<RevokedNode<'_>>| list.clone().marked(revoked);
        let list = nodes.with_revoked(&list, Some(&b), marked).unwrap();
        let listed = |some: &[&NodeId]| {
            let some: Vec<NamedNode> = some.iter().map(|node| nodes.named(node)).collect();
            nodes.listed(&list, &some)
        };
        let cases: [(&[&NodeId], &[String]); 4] = [
            (&[], &names),
            (&[&b], &names[..1]),
            (&[&a], &names[1..]),
            (&[&a, &b], &[]),
        ];
        for (some, others) in cases {
            let found = listed(some);
            let all: BTreeSet<NodeId> = some.iter().map(|&node| node.clone()).collect();
            assert_eq!(found.nodes, all);
            assert_eq!(found.others, others);
        }
        assert_eq!(listed(&[&c]).others, names);
        assert!(listed(&[&c]).nodes.is_empty());
        assert_eq!(
            nodes.listed(&AccessList::default(), &[nodes.named(&a)]),
            ListedNodes::default()
        );
    }

    #[test]
    fn a_node_has_the_addresses_that_are_listed_and_the_one_that_it_is_called_by() {
        let text = r#"{"nameTemplate": "iqn.2004-10.org.x:{{node}}",
                       "addresses": {"a": "10.0.0.1", "b": ["10.0.0.2", "fd00::2"], "c": []}}"#;
        let initiators = nodes(text, Form::Initiator).unwrap();
        let text = r#"{"nameTemplate": "{{node}}", "names": {"d": "[fd00::4]"},
                       "addresses": {"10.0.0.3": "10.1.0.3"}}"#;
        let hosts = nodes(text, Form::Address).unwrap();
        for (nodes, id, wanted) in [
            (&initiators, "a", &["10.0.0.1"][..]),
            (&initiators, "b", &["10.0.0.2", "fd00::2"]),
            (&initiators, "c", &[]),
            (&initiators, "d", &[]),
            (&hosts, "10.0.0.3", &["10.1.0.3", "10.0.0.3"]),
            (&hosts, "d", &["fd00::4"]),
            (&hosts, "e.lan", &[]),
        ] {
            let found = nodes.addresses(&NodeId::parse(id).unwrap());
            let found: Vec<String> = found.iter().map(IpAddr::to_string).collect();
            assert_eq!(found, wanted, "{id}");
        }
        for bad in ["a.lan", "10.0.0.0/24", "[fd00::1]", ""] {
            let text = format!(r#"{{"names": {{"a": "iqn.a.b"}}, "addresses": {{"a": "{bad}"}}}}"#);
            let error = nodes(&text, Form::Initiator).unwrap_err();
            assert_eq!(error.path(), Some("k.nodes.addresses"), "{bad}");
        }
    }

    #[test]
    fn names_that_would_let_in_others_are_refused() {
        assert!(nodes("{}", Form::Host).is_err());
        assert!(nodes(r#"{"names": {"a": "iqn.a"}}"#, Form::Host).is_err());
        for good in ["a.lan", "10.0.0.1", "[2001:db8::1]"] {
            let text = format!(r#"{{"names": {{"a": "{good}"}}}}"#);
            assert!(nodes(&text, Form::Address).is_ok(), "{good}");
        }
        for bad in [
            "*",
            "*.lan",
            "@net",
            "a:b",
            "10.0.0.0/8",
            "a,rw",
            "2001:db8::1",
            ".lan",
            "a(rw)",
        ] {
            let text = format!(r#"{{"names": {{"a": "{bad}"}}}}"#);
            assert!(nodes(&text, Form::Address).is_err(), "{bad}");
        }
    }
}
