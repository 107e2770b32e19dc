//! Figures about the volumes that are staged on this node. Their labels are words of the program.

use std::collections::BTreeMap;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{Metrics, Outcome};

/// The counts about staged volumes.
#[derive(Debug, Default)]
pub(super) struct OfStaged {
    volumes: Family<In, Gauge>,
    repairs: Family<Ended, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct In {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    outcome: &'static str,
}

// === impl OfStaged ===

impl OfStaged {
    pub(super) fn register(&self, to: &mut Registry) {
        to.register(
            "omnibus_csi_node_volumes",
            "Mounted volumes that are staged on this node, by the worst that was wrong when each was last looked at",
            self.volumes.clone(),
        );
        to.register(
            "omnibus_csi_node_repairs",
            "Missing sessions and connections of staged volumes that were to be opened again, by volume",
            self.repairs.clone(),
        );
    }
}

// === impl Metrics ===

impl Metrics {
    /// How many staged volumes are in each state.
    pub(crate) fn node_volumes(&self, states: &BTreeMap<&'static str, usize>) {
        for (&state, &count) in states {
            let volumes = self.inner.staged.volumes.get_or_create(&In { state });
            volumes.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// A repair of a staged volume has ended.
    pub(crate) fn node_repair(&self, outcome: Outcome) {
        let outcome = outcome.as_str();
        let repairs = &self.inner.staged.repairs;
        repairs.get_or_create(&Ended { outcome }).inc();
    }
}
