//! What is to be done for messages that are known, by a part of them, and for the codes of the driver's errors.

use super::{Speaker, made_again};

const NOT_REGISTERED: &str = "the driver's pod on that node is not there, or is not registered: `kubectl get pods -A -o wide -l \
                              app.kubernetes.io/part-of=omnibus-csi` lists it, and its log says why";
const NO_MOUNT_PROGRAM: &str = "install the programs that mount such volumes on the node: \"Running it\" in docs/node-manual.md";
const NOT_ON_THAT_NODE: &str = "a volume of the pod can be used only on the nodes of its `nodeAffinity` (`kubectl describe pv`): let the pod go there";
/// The step for a volume without an access mode of its claim.
pub(crate) const OTHER_MODES: &str = "add the mode of the claim to `accessModes` of the volume, with `kubectl edit pv`, if the storage allows \
                                      it: that of a claim cannot be changed";

/// A part of a message about a claim that has no volume yet, and the step. The first that fits counts.
pub(super) const CLAIMS: &[(&str, &str)] = &[
    (
        "elector is not supported",
        "no volume is made for a claim with a `selector`: delete the claim, which has no data yet, and make it again without one. For a \
         volume made by hand, leave out the class as well: `storageClassName: \"\"`",
    ),
    (
        "requested PV is too small",
        "delete the claim, which has no data yet, and make it again with a size of at most that of the volume: `kubectl get pv`",
    ),
    (
        "storageClassName does not match",
        "set `storageClassName` of the volume to that of the claim, with `kubectl edit pv`: that of a claim cannot be changed",
    ),
    ("incompatible accessMode", OTHER_MODES),
    (
        "access mode ",
        "delete the claim, which has no data yet, and make it again with an access mode that the driver gives: for ReadWriteMany of files, \
         of a class of shares (NFS, SMB)",
    ),
    (
        "incompatible volumeMode",
        "delete the claim, which has no data yet, and make it again with the `volumeMode` of the volume: it cannot be changed in either",
    ),
    (
        "already bound to a different claim",
        "`kubectl get pv` names the claim of each volume. Delete this claim, which has no data yet, and make it again with another \
         `volumeName`, or without one",
    ),
    (
        "no persistent volumes available for this claim",
        "make a PersistentVolume that fits, or make the claim again with a class of `kubectl get storageclass`",
    ),
    (
        "storageclass.storage.k8s.io",
        "make the StorageClass that the message names, with `storageClasses` of the chart's values; the claim is then tried again by itself",
    ),
    (
        "modifies the mode of the source volume",
        "allow it for that snapshot: \"The other volumeMode\" in docs/groups-and-changes.md",
    ),
    (
        "error getting handle for DataSource",
        "the source of the claim is not there or not ready yet: `kubectl get pvc,volumesnapshot`. It is tried again by itself once it is. \
         For another source, delete the claim, which has no data yet, and make it again",
    ),
    (
        "is less than the size",
        "delete the claim, which has no data yet, and make it again with at least the size of its source",
    ),
    (
        "no available topology found",
        "the driver has to be registered on a node that the class allows (`allowedTopologies`): `kubectl get csinode -o yaml` lists the \
         drivers of each node, and `kubectl get pods -A -l app.kubernetes.io/part-of=omnibus-csi` their pods",
    ),
    (
        "exceeded quota",
        "raise the ResourceQuota of the namespace that the message names, or delete claims: `kubectl describe resourcequota`",
    ),
];

/// The same of other messages.
pub(super) const VOLUMES: &[(&str, &str)] = &[
    (
        "failed to get secret",
        "make the Secret that the message names, or correct the parameters `csi.storage.k8s.io/…-secret-name` of the class, which has to be \
         made again for that",
    ),
    (
        "not found in the list of registered CSI drivers",
        NOT_REGISTERED,
    ),
    ("does not contain driver", NOT_REGISTERED),
    (
        "Multi-Attach error",
        "another node has the volume: `kubectl get volumeattachments` names it. Delete the pod there; if that node is dead, give it the taint \
         `node.kubernetes.io/out-of-service`: \"A node is lost\" in docs/outages.md",
    ),
    (
        "waiting for external-attacher",
        "see that the container `external-attacher` of the controller's pod runs: its log says what it waits for",
    ),
    (
        "is specified in volumeMounts",
        "the claim has `volumeMode: Block`: name it in `volumeDevices` of the container, or make a claim with `volumeMode: Filesystem`",
    ),
    (
        "is specified in volumeDevices",
        "the claim has `volumeMode: Filesystem`: name it in `volumeMounts` of the container, or make a claim with `volumeMode: Block`",
    ),
    (
        "access denied by server",
        "the storage does not let this node in: add its address to the allowed networks of the share or of the connection",
    ),
    ("wrong fs type", NO_MOUNT_PROGRAM),
    ("might need a /sbin/mount", NO_MOUNT_PROGRAM),
    (
        "Unable to attach or mount volumes",
        "this only sums up: the events of the same pod before it name the cause, with `kubectl get events --sort-by=.lastTimestamp`; if there \
         are none, the log of the kubelet does: `journalctl -u kubelet` on the node",
    ),
];

/// The same of messages about pods of the driver that are not made.
pub(super) const PODS: &[(&str, &str)] = &[
    (
        "violates PodSecurity",
        "the pods of the driver on the nodes are privileged: `kubectl label namespace NAMESPACE pod-security.kubernetes.io/enforce=privileged \
         --overwrite`, with the namespace of the driver",
    ),
    (
        "exceeded quota",
        "raise the ResourceQuota that the message names, in the namespace of the driver: `kubectl -n NAMESPACE describe resourcequota`",
    ),
    (
        "denied the request",
        "a policy of the cluster refuses the pod: let it except the namespace of the driver, or correct what the message names in the \
         chart's values",
    ),
    (
        "service account",
        "`helm upgrade` puts the ServiceAccount back: `helm list -A` names the release",
    ),
];

/// A part of a message of the scheduler, and the step. A message may have several.
pub(super) const NODES: &[(&str, &str)] = &[
    ("volume node affinity", NOT_ON_THAT_NODE),
    ("PersistentVolume's node affinity", NOT_ON_THAT_NODE),
    (
        "Pod's node affinity",
        "compare `nodeSelector` and `affinity` of the pod with the labels of the nodes: `kubectl get nodes --show-labels`",
    ),
    (
        "untolerated taint",
        "give the pod a toleration for the taint that the message names, or take it off the node: `kubectl taint node NODE KEY-`",
    ),
    (
        "were unschedulable",
        "let pods onto the node again: `kubectl uncordon NODE`",
    ),
    (
        "Insufficient ",
        "lower `resources.requests` of the pod, or end other pods: `kubectl describe node` lists what takes the room",
    ),
    (
        "max volume count",
        "the node has as many volumes of a driver as it can take: end a pod there that has some, or let this one go to another node",
    ),
    (
        "enough free storage",
        "free space on the storage (`kubectl omnibus connections`), or make the claim that waits again with a smaller size; `kubectl get csistoragecapacities -A` is what the scheduler knows of it",
    ),
    (
        "unbound immediate PersistentVolumeClaims",
        "a claim of the pod has no volume yet: `kubectl omnibus explain` without a name lists those of the namespace",
    ),
    (
        "find available persistent volumes to bind",
        "no node fits both the pod and `allowedTopologies` of the class; for a claim without a class, make a PersistentVolume that fits",
    ),
    (
        "persistentvolumeclaim",
        "make the claim that the message names, or correct the name in the pod",
    ),
    (
        "anti-affinity",
        "`podAntiAffinity` of the pod leaves no node: loosen it, or add a node",
    ),
    (
        "topology spread",
        "`topologySpreadConstraints` of the pod leave no node: loosen them, or add a node",
    ),
    (
        "free ports",
        "another pod has the `hostPort` of this one on each node: end it, or take another port",
    ),
];

/// The step for an error of the driver that has this code.
pub(super) fn codes(speaker: Speaker, code: &str) -> Option<String> {
    let step = match (code, speaker) {
        ("InvalidArgument", Speaker::Provisioner) => {
            "correct the parameter of the class or the key of the configuration that the message names: `kubectl omnibus check` checks the \
             latter; a class cannot be changed, and has to be deleted and made again"
        }
        ("InvalidArgument", _) => {
            return Some(format!(
                "correct what the message names, in the configuration, which `kubectl omnibus check` checks, or in the PersistentVolume. {}",
                made_again("The source")
            ));
        }
        ("NotFound", Speaker::Provisioner) => {
            "the source of the claim is gone on the storage: delete the claim, which has no data yet, and make it again with another source"
        }
        ("NotFound", _) => {
            "the volume is not there: see whether it was moved or renamed on the storage, and put it back. Only where its data is really gone, \
             delete the claim and its PersistentVolume"
        }
        ("AlreadyExists", Speaker::Provisioner) => {
            "the storage has something else under the name of this volume: delete the claim, which has no data yet, and make it again, and its \
             volume gets another name"
        }
        ("AlreadyExists", _) => {
            "something else is in the place of the volume, or it is there in another way than asked for: delete the pod, and it is published \
             anew for the next one"
        }
        ("OutOfRange", Speaker::Provisioner) => {
            "delete the claim, which has no data yet, and make it again with a size that the message allows"
        }
        ("OutOfRange", _) => {
            "ask for a size that the message allows: `kubectl edit pvc`; it cannot become smaller than the volume is"
        }
        ("ResourceExhausted", Speaker::Provisioner) => {
            "free space on the storage (`kubectl omnibus connections` shows it), or delete the claim, which has no data yet, and make it again \
             with a smaller size"
        }
        ("ResourceExhausted", _) => {
            "free space on the storage: `kubectl omnibus connections` shows it"
        }
        ("FailedPrecondition", _) => {
            "end or delete what the message says that still uses the volume: a pod, a node, a snapshot or a clone; \"A volume that is in use\" \
             in docs/troubleshooting.md. If it names a connection that does not exist, put its file back"
        }
        ("Aborted", _) => "wait: another call works on the same volume, such as a long copy",
        ("DeadlineExceeded", Speaker::Kubelet) => {
            "see whether the node reaches the storage: on the node `nc -z SERVER 2049` for NFS, `nc -z SERVER 3260` for iSCSI, port 445 for \
             SMB, 4420 for NVMe over TCP"
        }
        ("Unavailable" | "DeadlineExceeded", _) => {
            "see whether the storage runs and is reached: `kubectl omnibus connections` asks each"
        }
        ("Unauthenticated" | "PermissionDenied", _) => {
            "the storage refuses the login of the connection, or the login lacks a right: `kubectl omnibus check` names which"
        }
        ("Unimplemented", Speaker::Provisioner) => {
            "the driver of this class cannot do that: delete the claim, which has no data yet, and make it again with another class or source"
        }
        ("Unimplemented", _) => {
            "the driver of this volume cannot do that: use a volume of another class"
        }
        _ => return None,
    };
    Some(step.to_owned())
}
