//! The connection that made something, by the marks that it has from its first moment.
//!
//! Connections may share parents: two exports of zvols, or two clusters with one pool. The location
//! of a dataset then does not identify its owner; the `driver:` and `instance_id` of the connection
//! that made it do. compat: "ZFS".

use crate::observed::Dataset;
use crate::policy::value_of;
use crate::property::{Properties, Property, PropertyName, PropertyValue};

/// A connection, as recorded on its objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner<'a> {
    /// The value of `driver:`.
    pub provisioner: &'a str,
    /// The `instance_id`.
    pub instance: Option<&'a str>,
}

// === impl Owner ===

impl Owner<'_> {
    /// The marks.
    pub fn marks(&self) -> Vec<Property> {
        let text = |name, text| Property::new(name, value_of(text));
        let instance = self.instance.map(|id| text(PropertyName::INSTANCE, id));
        std::iter::once(text(PropertyName::PROVISIONER, self.provisioner))
            .chain(instance)
            .collect()
    }

    /// Whether the marks prove that this connection created a dataset. No mark is no proof.
    pub fn made(&self, dataset: &Dataset) -> bool {
        self.is_marked_by(|name| dataset.properties.own(name))
    }

    /// The same for a snapshot, which shows the properties of its dataset.
    pub fn made_what_shows(&self, snapshot: &Properties) -> bool {
        self.is_marked_by(|name| snapshot.get(name))
    }

    fn is_marked_by<'p>(&self, mark: impl Fn(&PropertyName) -> Option<&'p str>) -> bool {
        let instance = self.recorded_instance();
        mark(&PropertyName::PROVISIONER) == Some(self.provisioner)
            && mark(&PropertyName::INSTANCE) == instance.as_ref().map(PropertyValue::as_str)
    }

    fn recorded_instance(&self) -> Option<PropertyValue> {
        self.instance.map(value_of)
    }

    /// Whether the marks of a dataset name another owner. A dataset without marks may belong to
    /// anyone.
    pub fn is_another(&self, dataset: &Dataset) -> bool {
        let own = |name| dataset.properties.own(&name);
        let provisioner = own(PropertyName::PROVISIONER);
        let (instance, ours) = (own(PropertyName::INSTANCE), self.recorded_instance());
        provisioner.is_some_and(|by| by != self.provisioner)
            || instance.is_some_and(|id| ours.is_none_or(|ours| id != ours.as_str()))
    }
}
