//! Everything that was read of a cluster about one claim. The walk judges it, and asks nothing itself.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment};
use kube::core::PartialObjectMeta;
use serde::Deserialize;

use crate::chain::Link;
use crate::ours::{DriverPod, serving};
use crate::workload::Workload;

/// The outcome of one question.
#[derive(Debug, Clone)]
pub(crate) enum Answer<T> {
    There(T),
    /// The API server says that there is none of that name.
    Missing,
    /// It is not known, with the reason: a right that is missing, or silence.
    Unknown(String),
}

/// The answer of `omnibus-csi explain --json`, run in a pod of the driver.
#[derive(Debug, Deserialize)]
pub(crate) struct Explained {
    pub(crate) links: Vec<Link>,
}

/// The answer of `omnibus-csi connections --json`, run in the controller's pod.
#[derive(Debug, Deserialize)]
pub(crate) struct Connections {
    pub(crate) connections: Vec<Connection>,
}

/// One connection of the configuration.
#[derive(Debug, Deserialize)]
pub(crate) struct Connection {
    pub(crate) name: String,
    pub(crate) driver: Option<String>,
    /// `good`, `bad`, `invalid` or `unknown`.
    pub(crate) health: String,
    pub(crate) error: Option<String>,
}

/// The answers that claims of one namespace have in common.
#[derive(Debug, Clone)]
pub(crate) struct Around {
    /// Warnings of the pods of the namespace.
    pub(crate) warnings: Answer<Vec<Event>>,
    /// All pods of the namespace.
    pub(crate) pods: Answer<Vec<Pod>>,
    pub(crate) drivers: Answer<Vec<CSIDriver>>,
    /// Pods of omnibus-csi.
    pub(crate) ours: Answer<Vec<DriverPod>>,
    pub(crate) attachments: Answer<Vec<VolumeAttachment>>,
    /// Names and labels of all nodes.
    pub(crate) machines: Answer<Vec<PartialObjectMeta<Node>>>,
}

/// All answers. `None`: there was nothing to ask, such as the volume of a claim that has none.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) claim: Answer<PersistentVolumeClaim>,
    /// Events of the claim.
    pub(crate) events: Answer<Vec<Event>>,
    /// Warnings of the pods of the namespace.
    pub(crate) warnings: Answer<Vec<Event>>,
    pub(crate) class: Option<Answer<StorageClass>>,
    pub(crate) volume: Option<Answer<PersistentVolume>>,
    /// Pods that use the claim, and have not ended.
    pub(crate) pods: Answer<Vec<Pod>>,
    pub(crate) drivers: Answer<Vec<CSIDriver>>,
    /// Pods of omnibus-csi.
    pub(crate) ours: Answer<Vec<DriverPod>>,
    pub(crate) attachments: Answer<Vec<VolumeAttachment>>,
    /// Names and labels of all nodes.
    pub(crate) machines: Answer<Vec<PartialObjectMeta<Node>>>,
    /// By the name of the node.
    pub(crate) csi_nodes: BTreeMap<String, Answer<CSINode>>,
    /// What is to run the driver's pods, where one is missing.
    pub(crate) workloads: Option<Answer<Vec<Workload>>>,
    /// Warnings of `DaemonSets`, where one is missing.
    pub(crate) refusals: Answer<Vec<Event>>,
    /// The nodes where one is missing, by their names.
    pub(crate) bare: BTreeMap<String, Answer<Node>>,
    /// Of a claim that has no volume yet. Missing where the driver has a single storage, and so no names.
    pub(crate) connections: Option<Answer<Connections>>,
    pub(crate) storage: Option<Answer<Explained>>,
    /// By the name of the node.
    pub(crate) nodes: BTreeMap<String, Answer<Explained>>,
}

// === impl Answer ===

impl<T> Answer<T> {
    pub(crate) fn there(&self) -> Option<&T> {
        match self {
            Self::There(value) => Some(value),
            _ => None,
        }
    }

    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U) -> Answer<U> {
        match self {
            Self::There(value) => Answer::There(change(value)),
            Self::Missing => Answer::Missing,
            Self::Unknown(why) => Answer::Unknown(why),
        }
    }
}

impl<T> Answer<Vec<T>> {
    /// The objects that were listed; nothing where it could not be.
    pub(crate) fn all(&self) -> &[T] {
        self.there().map_or(&[], Vec::as_slice)
    }

    /// Why a list is not known.
    pub(crate) fn why_not(&self) -> Option<&str> {
        match self {
            Self::There(_) => None,
            Self::Missing => Some("the API server does not know this kind of object"),
            Self::Unknown(why) => Some(why),
        }
    }
}

// === impl Found ===

impl Found {
    /// The own name of the driver that serves this one.
    pub(crate) fn serving<'a>(&'a self, driver: &'a str) -> &'a str {
        serving(self.ours.all(), self.drivers.all(), driver)
    }

    /// The nodes of the pods that use the claim, each once, those first where a pod does not run yet.
    pub(crate) fn nodes_of_pods(&self) -> Vec<String> {
        nodes_of(self.pods.all())
    }
}

/// The nodes of pods, each once, those first where one does not run yet.
pub(crate) fn nodes_of(pods: &[Pod]) -> Vec<String> {
    let mut pods: Vec<_> = pods.iter().collect();
    pods.sort_by_key(|pod| runs(pod));
    let mut nodes = Vec::new();
    for pod in pods {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        if let Some(node) = node.filter(|node| !nodes.contains(*node)) {
            nodes.push(node.clone());
        }
    }
    nodes
}

/// Whether the containers of a pod were started.
pub(crate) fn runs(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_ref());
    phase.is_some_and(|phase| phase == "Running")
}
