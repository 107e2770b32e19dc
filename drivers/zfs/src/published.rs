//! The nodes that a volume is published to, as its dataset records them.
//!
//! One property has all of them. Each entry ends with a comma: the id that the node reports, and after a `|` what the
//! backend calls the node, if that is something else. `%` and two digits are a byte that would end either.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use csi_types::NodeIdentity;
use driver_core::{Error, NodeId};

use crate::observed::Dataset;
use crate::property::{Property, PropertyName, PropertyValue};

/// The longest text of the record. The API of TrueNAS takes no longer one.
const LONGEST: usize = 1024;

/// Bytes that would end an id.
const ENDS: [char; 3] = ['%', ',', '|'];

/// The nodes by the ids that they report, each with the id that its backend knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublishedNodes(BTreeMap<NodeId, NodeId>);

// === impl PublishedNodes ===

impl PublishedNodes {
    /// The record of a dataset. An entry that is not one of ours is left out.
    pub fn of(dataset: &Dataset) -> Self {
        let text = dataset.properties.own(&PropertyName::PUBLISHED);
        let entries = text.unwrap_or_default().split_terminator(',');
        Self(entries.filter_map(read).collect())
    }

    /// Adds a node. Returns `false`, and leaves it out, if the property has no room for it.
    #[must_use]
    pub fn add(&mut self, node: &NodeIdentity) -> bool {
        let mut more = self.clone();
        more.0.insert(node.reported.clone(), node.id.clone());
        let fits = more.text().len() <= LONGEST;
        if fits {
            *self = more;
        }
        fits
    }

    /// Removes a node, also under an id that it has reported before, or all of them.
    pub fn remove(&mut self, node: Option<&NodeIdentity>) {
        match node {
            Some(node) => self
                .0
                .retain(|reported, id| *reported != node.reported && *id != node.id),
            None => self.0.clear(),
        }
    }

    /// Each node: the id that it reports, and the one that its backend knows.
    pub fn iter(&self) -> impl Iterator<Item = (&NodeId, &NodeId)> {
        self.0.iter()
    }

    /// Whether a node is in it, also under an id that it has reported before.
    pub fn has(&self, node: &NodeIdentity) -> bool {
        let mut entries = self.0.iter();
        entries.any(|(reported, id)| *reported == node.reported || *id == node.id)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The property to be set; `None` if it is to be removed.
    pub fn property(&self) -> Result<Option<Property>, Error> {
        if self.is_empty() {
            return Ok(None);
        }
        let value = PropertyValue::parse(self.text())
            .map_err(|error| Error::invalid("record the nodes of a volume").because(error))?;
        Ok(Some(Property::new(PropertyName::PUBLISHED, value)))
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (reported, id) in &self.0 {
            write(&mut text, reported);
            if id != reported {
                text.push('|');
                write(&mut text, id);
            }
            text.push(',');
        }
        text
    }
}

fn write(text: &mut String, id: &NodeId) {
    for c in id.as_str().chars() {
        if ENDS.contains(&c) {
            // Writing to a text does not fail.
            let _ = write!(text, "%{:02x}", u32::from(c));
        } else {
            text.push(c);
        }
    }
}

fn read(entry: &str) -> Option<(NodeId, NodeId)> {
    let (reported, id) = entry.split_once('|').unwrap_or((entry, entry));
    Some((id_of(reported)?, id_of(id)?))
}

fn id_of(text: &str) -> Option<NodeId> {
    let mut id = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        let code = u8::from_str_radix(after.get(..2)?, 16).ok()?;
        let ended = ENDS.into_iter().find(|c| *c == char::from(code))?;
        id.push_str(before);
        id.push(ended);
        rest = &after[2..];
    }
    id.push_str(rest);
    NodeId::parse(&id).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::DatasetName;
    use crate::observed::{Guid, VolumeKind};
    use crate::property::{Properties, Value};

    fn node(reported: &str, id: &str) -> NodeIdentity {
        NodeIdentity {
            reported: NodeId::parse(reported).unwrap(),
            ..NodeIdentity::of(NodeId::parse(id).unwrap())
        }
    }

    fn dataset(record: &str) -> Dataset {
        Dataset {
            name: DatasetName::parse("tank/v").unwrap(),
            kind: VolumeKind::Filesystem,
            guid: Guid(1),
            properties: Properties::from_iter([(PropertyName::PUBLISHED, Value::own(record))]),
        }
    }

    #[test]
    fn whatever_a_node_is_called_is_read_back_as_it_was() {
        let nodes = [
            node("-", "-"),
            node("n=a/a=10.0.0.1,fd00::1", "a"),
            node("%2c,|", "x%,y|z"),
            node("a b", "ü=;'\"$(x)"),
        ];
        let mut record = PublishedNodes::default();
        for node in &nodes {
            assert!(record.add(node));
        }
        let text = record.property().unwrap().unwrap().value;
        let again = PublishedNodes::of(&dataset(text.as_str()));
        assert_eq!(again, record);
        assert_eq!(again.iter().count(), nodes.len());
        for node in &nodes {
            record.remove(Some(node));
        }
        assert_eq!(record.property().unwrap(), None);
        let strange = PublishedNodes::of(&dataset("a%zz,b%,%41,|,,c|d|e%,f,"));
        let left: Vec<_> = strange.iter().map(|(node, _)| node.as_str()).collect();
        assert_eq!(left, ["f"]);
    }

    #[test]
    fn a_record_never_outgrows_its_property() {
        let mut record = PublishedNodes::default();
        let long = |number: u32| node(&format!("{number:0>256}"), &format!("{number:0>256}"));
        let added = (0..100).filter(|number| record.add(&long(*number))).count();
        assert_eq!(added, LONGEST / 257);
        assert!(record.property().is_ok());
        assert!(record.add(&long(0)), "it is there");
    }
}
