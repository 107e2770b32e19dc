//! The networks that are shut out from all volumes of a parent, as its dataset records them: one property, with a comma
//! after each.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;

use csi_types::{Network, NetworkError};
use driver_core::{Error, Kind};

use crate::observed::Dataset;
use crate::plan::listed;
use crate::property::{Property, PropertyName, PropertyValue};

/// The longest text of the record. The API of TrueNAS takes no longer one.
const LONGEST: usize = 1024;

/// The networks that are shut out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fenced(BTreeSet<Network>);

/// The side of a fence on which a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// It has an address in this network.
    In(Network),
    /// All of its addresses are known, and in none.
    Out,
    /// No address of it is known.
    Unknown,
}

// === impl Fenced ===

impl Fenced {
    /// The record of a parent. One that cannot be read is an error: who is shut out is not known then.
    pub fn of(parent: &Dataset) -> Result<Self, Error> {
        let text = parent.properties.own(&PropertyName::FENCED);
        let networks = text.unwrap_or_default().split_terminator(',');
        let networks = networks
            .map(str::parse)
            .collect::<Result<_, NetworkError>>();
        networks.map(Self).map_err(|error| {
            let (name, dataset) = (PropertyName::FENCED, &parent.name);
            Error::new(Kind::Busy, format!("read {name} of {dataset}"))
                .because(error)
                .advise(format!(
                    "write networks into it with a comma after each, or lift all fences: zfs inherit {name} {dataset}"
                ))
        })
    }

    /// These networks.
    pub fn these(networks: &[Network]) -> Self {
        Self(networks.iter().copied().collect())
    }

    /// With these.
    #[must_use]
    pub fn and(mut self, networks: &[Network]) -> Self {
        self.0.extend(networks);
        self
    }

    /// Without these.
    #[must_use]
    pub fn without(mut self, networks: &[Network]) -> Self {
        self.0.retain(|network| !networks.contains(network));
        self
    }

    /// Each of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Network> {
        self.0.iter()
    }

    /// The side of a node with these addresses.
    pub fn side(&self, addresses: &[IpAddr]) -> Side {
        let holding = |network: &&Network| addresses.iter().any(|one| network.holds(*one));
        match self.0.iter().find(holding) {
            Some(network) => Side::In(*network),
            None if addresses.is_empty() && !self.0.is_empty() => Side::Unknown,
            None => Side::Out,
        }
    }

    /// The property to be set; `None` if it is to be removed.
    pub fn property(&self) -> Result<Option<Property>, Error> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let mut text = String::new();
        for network in &self.0 {
            let _ = write!(text, "{network},");
        }
        if text.len() > LONGEST {
            let kept = listed(self.0.iter());
            return Err(Error::new(Kind::OutOfSpace, "fence networks")
                .because(format!(
                    "the storage keeps no more networks than these: {kept}"
                ))
                .advise("lift the fence of some, or fence one network that holds several"));
        }
        let value = PropertyValue::parse(text)
            .map_err(|error| Error::invalid("fence networks").because(error))?;
        Ok(Some(Property::new(PropertyName::FENCED, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::DatasetName;
    use crate::observed::{Guid, VolumeKind};
    use crate::property::{Origin, Properties, Value};

    fn networks(texts: &[&str]) -> Vec<Network> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn parent(value: Value) -> Dataset {
        Dataset {
            name: DatasetName::parse("tank/v").unwrap(),
            kind: VolumeKind::Filesystem,
            guid: Guid(1),
            properties: Properties::from_iter([(PropertyName::FENCED, value)]),
        }
    }

    #[test]
    fn what_is_recorded_is_read_back_and_an_inherited_record_is_of_another_parent() {
        let fenced = Fenced::these(&networks(&["fd00::/64", "10.0.0.9/8", "10.0.0.0/8"]));
        let text = fenced.property().unwrap().unwrap().value;
        assert_eq!(text.as_str(), "10.0.0.0/8,fd00::/64,");
        assert_eq!(
            Fenced::of(&parent(Value::own(text.as_str()))).unwrap(),
            fenced
        );
        let inherited = Value {
            text: text.as_str().to_owned(),
            origin: Origin::Inherited,
        };
        assert_eq!(Fenced::of(&parent(inherited)).unwrap(), Fenced::default());
        let lifted = fenced.without(&networks(&["10.0.0.0/8", "fd00::/64", "fd01::/64"]));
        assert_eq!(lifted.property().unwrap(), None);
    }

    #[test]
    fn a_record_that_cannot_be_read_shuts_out_everyone() {
        for text in ["10.0.0.0/8,x,", "10.0.0.0/8 ", ",", "10.0.0.1"] {
            let error = Fenced::of(&parent(Value::own(text))).unwrap_err();
            assert_eq!(error.kind(), Kind::Busy, "{text}");
            assert!(error.advice().unwrap().contains("zfs inherit"), "{text}");
        }
    }

    #[test]
    fn a_node_is_shut_out_by_any_of_its_addresses_and_one_without_is_not_judged() {
        let fenced = Fenced::these(&networks(&["10.0.0.0/24"]));
        let side = |addresses: &[&str]| {
            let addresses: Vec<_> = addresses.iter().map(|one| one.parse().unwrap()).collect();
            fenced.side(&addresses)
        };
        let network = "10.0.0.0/24".parse().unwrap();
        assert_eq!(side(&["192.0.2.1", "10.0.0.7"]), Side::In(network));
        assert_eq!(side(&["::ffff:10.0.0.7"]), Side::In(network));
        assert_eq!(side(&["10.0.1.7"]), Side::Out);
        assert_eq!(side(&[]), Side::Unknown);
        assert_eq!(Fenced::default().side(&[]), Side::Out);
    }

    #[test]
    fn a_record_that_does_not_fit_is_refused() {
        let many: Vec<Network> = (0..100)
            .map(|number| format!("fd00::{number:x}:0/112").parse().unwrap())
            .collect();
        let error = Fenced::these(&many).property().unwrap_err();
        assert_eq!(error.kind(), Kind::OutOfSpace);
    }
}
