//! The `DaemonSets` and Deployments of omnibus-csi. They are asked for only where a pod of the driver is missing.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodTemplateSpec};
use kube::core::ObjectMeta;

use crate::ours::DriverPod;

/// One of them, with its pods as they are to be.
#[derive(Debug, Clone)]
pub(crate) struct Workload {
    /// Its pod, under the name and in the namespace of the object.
    pub(crate) pod: DriverPod,
    pub(crate) spec: PodSpec,
    /// The number of pods of a Deployment; none of a `DaemonSet`.
    pub(crate) replicas: Option<i32>,
}

// === impl Workload ===

impl Workload {
    pub(crate) fn of_daemon_set(one: &DaemonSet) -> Option<Self> {
        let spec = one.spec.as_ref()?;
        Self::of(&one.metadata, &spec.template, None)
    }

    pub(crate) fn of_deployment(one: &Deployment) -> Option<Self> {
        let spec = one.spec.as_ref()?;
        let replicas = spec.replicas.unwrap_or(1);
        Self::of(&one.metadata, &spec.template, Some(replicas))
    }

    fn of(object: &ObjectMeta, template: &PodTemplateSpec, replicas: Option<i32>) -> Option<Self> {
        let spec = template.spec.clone()?;
        let labels = template.metadata.as_ref()?.labels.clone();
        let pod = Pod {
            metadata: ObjectMeta {
                name: object.name.clone(),
                namespace: object.namespace.clone(),
                labels,
                ..ObjectMeta::default()
            },
            spec: Some(spec.clone()),
            status: None,
        };
        Some(Self {
            pod: DriverPod::of(&pod)?,
            spec,
            replicas,
        })
    }

    /// The object for people, with its kind.
    pub(crate) fn shown(&self) -> String {
        let kind = match self.replicas {
            Some(_) => "Deployment",
            None => "DaemonSet",
        };
        format!("the {kind} {}", self.pod.shown())
    }
}
