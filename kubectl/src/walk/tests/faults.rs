//! The faults that are tried, each with the link that it breaks, and parts of what is said of it.

use serde_json::{Value, json};

use super::missing::{chosen, daemon_set, on_each_node, refusal};
use super::{
    connection, crashing, event, fails, image_missing, placed, read_by_pod, read_only, says, set,
    unbound, waiting_pod,
};

pub(super) struct Fault {
    pub(super) name: &'static str,
    /// The change that makes it of a sound claim.
    pub(super) make: fn(&mut Value),
    pub(super) link: &'static str,
    /// Parts of the text and of the remedy.
    pub(super) says: [&'static str; 2],
}

const fn fault(
    name: &'static str,
    make: fn(&mut Value),
    link: &'static str,
    says: [&'static str; 2],
) -> Fault {
    Fault {
        name,
        make,
        link,
        says,
    }
}

#[rustfmt::skip]
pub(super) const OF_CLAIMS: &[Fault] = &[
    fault("no such claim", |w| set(w, "/claim", Value::Null), "claim", ["no claim `data` in the namespace shop", "-n"]),
    fault("claim in deletion, in use", |w| set(w, "/claim/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")),
        "claim", ["waits for the pods", "web-0"]),
    fault("no class and no default", |w| { unbound(w); set(w, "/claim/spec", json!({})); }, "class", ["no default", "is-default-class"]),
    fault("a class that is not there", |w| { unbound(w); set(w, "/class", Value::Null); }, "class", ["no StorageClass `fast`", "storageClasses"]),
    fault("a class of another driver", |w| { unbound(w); set(w, "/class/provisioner", json!("ebs.example")); },
        "class", ["`ebs.example`", "org.example.csi"]),
    fault("a class of a driver that is not installed", |w| {
        unbound(w); set(w, "/drivers", json!([])); set(w, "/ours", json!([]));
    }, "class", ["no driver of omnibus-csi", "install the driver"]),
    fault("provisioning fails", |w| {
        unbound(w);
        set(w, "/events", json!([event("Normal", "Provisioning", "asked"), event("Warning", "ProvisioningFailed", "nas: pool is full")]));
    }, "bound", ["the provisioner says: ProvisioningFailed: nas: pool is full", "kubectl -n storage logs csi-controller -c csi-driver"]),
    fault("provisioning fails, and the driver says what to do", |w| fails(w, "rpc error: code = ResourceExhausted desc = nas: full (delete old snapshots)"),
        "bound", ["nas: full", "delete old snapshots; the provisioner tries again"]),
    fault("provisioning fails for the room", |w| fails(w, "rpc error: code = ResourceExhausted desc = nas: full"),
        "bound", ["nas: full", "kubectl omnibus connections"]),
    fault("a driver of disks is asked for ReadWriteMany", |w| {
        fails(w, "rpc error: code = InvalidArgument desc = invalid capability: access mode MULTI_NODE_MULTI_WRITER is not supported, only \
                  SINGLE_NODE_WRITER, MULTI_NODE_READER_ONLY, SINGLE_NODE_SINGLE_WRITER");
        set(w, "/claim/spec/accessModes", json!(["ReadWriteMany"]));
    }, "bound", ["the claim asks for ReadWriteMany, and the driver gives ReadWriteOnce, ReadWriteOncePod, ReadOnlyMany: the provisioner says: ",
        "make it again with an access mode that the driver gives"]),
    fault("a selector of a claim with a class", |w| fails(w, "claim Selector is not supported"), "bound", ["Selector", "without one"]),
    fault("a selector of a claim for a volume by hand", |w| {
        unbound(w); set(w, "/claim/spec", json!({"storageClassName": "", "selector": {"matchLabels": {"disk": "fast"}}}));
    }, "bound", ["no event says", "kubectl label pv"]),
    fault("no provisioner takes it", |w| { unbound(w); set(w, "/events", json!([event("Normal", "ExternalProvisioning", "waits")])); },
        "bound", ["no event says that one is being made", "logs csi-controller -c csi-provisioner"]),
    fault("a class names a connection that is not there", |w| connection(w, "other", "good"),
        "connection", ["no connection `nas`", "connections"]),
    fault("the file of its connection is wrong", |w| connection(w, "nas", "invalid"), "connection", ["192.0.2.7", "kubectl omnibus check"]),
    fault("its storage is down", |w| connection(w, "nas", "bad"), "storage", ["192.0.2.7", "storage runs"]),
    fault("one of several storages is down", |w| {
        connection(w, "nas", "bad"); set(w, "/class/parameters", json!({"connections": "nas, nas"}));
    }, "storage", ["192.0.2.7", "storage runs"]),
    fault("its storage is well, and refuses", |w| connection(w, "nas", "good"), "bound", ["no available topology", "allowedTopologies"]),
    fault("a driver without names of connections", |w| { connection(w, "nas", "good"); set(w, "/connections", Value::Null); },
        "bound", ["no available topology", "allowedTopologies"]),
    fault("its pod gets no node", |w| {
        let pods = json!([{"metadata": {"name": "web-0"}, "spec": {"containers": []}, "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "message": "0/3 nodes have enough free storage"}]}}]);
        unbound(w); set(w, "/pods", pods); set(w, "/class/volumeBindingMode", json!("WaitForFirstConsumer"));
    }, "bound", ["the scheduler says: 0/3 nodes have enough free storage", "describe pod web-0"]),
    fault("the chosen node does not exist", |w| chosen(w, "three"),
        "bound", ["node three was chosen for its volume, and there is none of that name: the nodes are one, two",
            "`kubectl -n shop annotate pvc data volume.kubernetes.io/selected-node-`"]),
    fault("the chosen node has no provisioner", |w| { chosen(w, "two"); on_each_node(w); },
        "bound", ["the node two was chosen for its volume, and no pod of the driver is there", "selected-node-"]),
    fault("the DaemonSet does not fit the chosen node", |w| {
        chosen(w, "two"); on_each_node(w); daemon_set(w, &json!({"nodeSelector": {"disk": "ssd"}}));
    }, "bound", ["asks for the label disk=ssd (`nodeSelector`), and two has no label disk", "To have it on two: `kubectl label node two disk=ssd`"]),
    fault("the driver is not registered on the chosen node", |w| {
        chosen(w, "one"); on_each_node(w); set(w, "/csiNodes/one/spec/drivers", json!([]));
    }, "bound", ["the kubelet there does not know `org.example.csi`", "delete pod csi-node-1"]),
    fault("its pod passes the scheduler by", |w| {
        let pods = w["pods"].clone(); unbound(w); set(w, "/pods", pods); set(w, "/pods/0/status/phase", json!("Pending"));
        set(w, "/class/volumeBindingMode", json!("WaitForFirstConsumer"));
    }, "bound", ["the pod web-0 has `nodeName: one`", "`nodeSelector: {kubernetes.io/hostname: one}`"]),
    fault("growth fails", |w| set(w, "/claim/status/conditions", json!([
        {"type": "ControllerResizeError", "status": "True", "message": "quota"}])), "size", ["the resizer says: quota", "resizer tries again"]),
    fault("growth fails, and is below the size", |w| set(w, "/claim/status/conditions", json!([
        {"type": "ControllerResizeError", "status": "True", "message": "requested size is less than the size of the volume"}])),
        "size", ["less than the size", "kubectl omnibus check"]),
    fault("the volume that the claim names is not there", |w| {
        set(w, "/claim/status/phase", json!("Pending")); set(w, "/volume", Value::Null);
    }, "persistent-volume", ["names the volume `pvc-claim-1`, and there is none", "cannot be changed"]),
    fault("the volume that the claim names does not fit", |w| {
        set(w, "/claim/status/phase", json!("Pending")); set(w, "/volume/spec/claimRef", Value::Null);
        set(w, "/events", json!([event("Warning", "VolumeMismatch", "Cannot bind to requested volume: requested PV is too small")]));
    }, "persistent-volume", ["volume controller of Kubernetes says: VolumeMismatch", "at most that of the volume"]),
    fault("the volume that the claim names lacks its access mode", |w| {
        set(w, "/claim/status/phase", json!("Pending")); set(w, "/volume/spec/claimRef", Value::Null);
        set(w, "/claim/spec/accessModes", json!(["ReadWriteMany"])); set(w, "/volume/spec/accessModes", json!(["ReadWriteOnce", "ReadOnlyMany"]));
    }, "persistent-volume", ["not bound to `pvc-claim-1`: the claim asks for ReadWriteMany, and the volume gives ReadWriteOnce, ReadOnlyMany",
        "add the mode of the claim to `accessModes`"]),
    fault("the volume is lost", |w| { set(w, "/claim/status/phase", json!("Lost")); set(w, "/volume", Value::Null); },
        "persistent-volume", ["is gone", "may still be on the storage"]),
    fault("the volume is of another driver", |w| set(w, "/volume/spec/csi/driver", json!("ebs.example")),
        "persistent-volume", ["`ebs.example`", "makers"]),
    fault("the volume is of no CSI driver", |w| set(w, "/volume/spec", json!({"nfs": {"server": "a", "path": "/b"}})),
        "persistent-volume", ["no volume of a CSI driver", "alone"]),
    fault("the volume belongs to another claim", |w| set(w, "/volume/spec/claimRef/uid", json!("claim-0")),
        "persistent-volume", ["another claim: to shop/data, one that was there before", "claimRef/uid"]),
    fault("the volume belongs to a claim of another name", |w| set(w, "/volume/spec/claimRef", json!({"name": "old", "namespace": "bar", "uid": "claim-0"})),
        "persistent-volume", ["another claim: to bar/old", "kubectl -n bar get pvc old"]),
    fault("the volume is kept for a claim of another name", |w| set(w, "/volume/spec/claimRef", json!({"name": "old", "namespace": "bar"})),
        "persistent-volume", ["another claim: to bar/old", "volumeName"]),
    fault("no node has the place of the volume", |w| { waiting_pod(w); placed(w, "zone", "In", "c"); },
        "persistent-volume", ["no node is fit for the volume: `pvc-claim-1` can be used only on nodes with `zone` in (c); one has zone=a, two has zone=b", "kubectl label node"]),
    fault("no node has the place of a volume that no pod uses", |w| { set(w, "/pods", json!([])); placed(w, "rack", "Exists", ""); },
        "persistent-volume", ["a label `rack`; one has no label rack", "Retain"]),
    fault("the pod is on a node that is not of the volume", |w| { waiting_pod(w); placed(w, "zone", "In", "b"); },
        "persistent-volume", ["the pod web-0 is on a node that is not fit for the volume: `pvc-claim-1` can be used only on nodes with `zone` in (b); one has zone=a", "go to two"]),
    fault("the pod may not go to the node of the volume", |w| {
        waiting_pod(w); placed(w, "disk", "Gt", "8"); set(w, "/pods/0/spec/nodeName", Value::Null);
        set(w, "/pods/0/spec/nodeSelector", json!({"zone": "b"}));
    }, "persistent-volume", ["keeps it away from the volume: `pvc-claim-1` can be used only on nodes with `disk` Gt 8 (one)", "`nodeSelector` or `affinity` of the pod"]),
    fault("the volume is being deleted", |w| set(w, "/volume/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")),
        "persistent-volume", ["being deleted", "restore it"]),
    fault("the volume failed", |w| set(w, "/volume/status", json!({"phase": "Failed", "message": "has snapshots"})),
        "persistent-volume", ["the provisioner says: has snapshots", "kubectl omnibus check"]),
];

#[rustfmt::skip]
pub(super) const OF_THE_DRIVER: &[Fault] = &[
    fault("no controller", |w| { w["ours"].as_array_mut().unwrap().remove(0); }, "controller", ["no pod of the controller", "scaled to 0"]),
    fault("the controller is scaled to 0", |w| {
        let template = json!({"metadata": {}, "spec": w["ours"][0]["spec"]});
        w["ours"].as_array_mut().unwrap().remove(0); set(w, "/daemonSets", json!([]));
        set(w, "/deployments", json!([{"metadata": {"name": "csi-controller", "namespace": "storage"},
            "spec": {"replicas": 0, "selector": {}, "template": template}}]));
    }, "controller", ["the Deployment storage/csi-controller is scaled to 0", "`kubectl -n storage scale deploy csi-controller --replicas=1`"]),
    fault("the controller was deleted", |w| { w["ours"].as_array_mut().unwrap().remove(0); set(w, "/daemonSets", json!([])); },
        "controller", ["no Deployment or DaemonSet of it is there", "helm upgrade"]),
    fault("no controller on the node of the volume", |w| { on_each_node(w); placed(w, "node", "In", "two"); },
        "controller", ["no pod of the controller of `org.example.csi` is on two, the node of the volume", "kubectl describe node two"]),
    fault("no controller on the node that the volume names", |w| {
        let named = json!({"key": "metadata.name", "operator": "In", "values": ["two"]});
        on_each_node(w); placed(w, "node", "NotIn", "one");
        set(w, "/volume/spec/nodeAffinity/required/nodeSelectorTerms/0/matchFields", json!([named]));
    }, "controller", ["is on two, the node of the volume", "kubectl describe node two"]),
    fault("no controller on the node of the pod, which the volume's place does not name", |w| {
        on_each_node(w); placed(w, "node", "NotIn", "one"); set(w, "/pods/0/spec/nodeName", json!("two"));
    }, "controller", ["is on two, the node of its pod", "kubectl describe node two"]),
    fault("the DaemonSet asks for a label", |w| {
        on_each_node(w); placed(w, "node", "In", "two"); daemon_set(w, &json!({"nodeSelector": {"zone": "a"}, "tolerations": [{"operator": "Exists"}]}));
    }, "controller", ["the DaemonSet storage/csi-node asks for the label zone=a (`nodeSelector`), and two has zone=b",
        "`kubectl label node two zone=a --overwrite`"]),
    fault("the DaemonSet does not tolerate a taint", |w| { on_each_node(w); placed(w, "node", "In", "two"); daemon_set(w, &json!({})); },
        "controller", ["has no toleration for the taint backup=yes:NoSchedule of two", "`kubectl taint node two backup:NoSchedule-`"]),
    fault("the affinity of the DaemonSet leaves the node out", |w| {
        let term = json!({"matchExpressions": [{"key": "disk", "operator": "Exists"}]});
        let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}});
        on_each_node(w); placed(w, "node", "In", "two"); daemon_set(w, &json!({"affinity": {"nodeAffinity": required}}));
    }, "controller", ["asks for nodes with a label `disk` (`affinity`), and two has no label disk", "node.affinity"]),
    fault("the pods of the DaemonSet are refused", |w| {
        on_each_node(w); placed(w, "node", "In", "two"); daemon_set(w, &json!({"tolerations": [{"operator": "Exists"}]}));
        let why = "Error creating: pods \"csi-node-\" is forbidden: violates PodSecurity \"baseline:latest\"";
        set(w, "/refusals", json!([refusal("csi-node", "FailedCreate", why)]));
    }, "controller", ["fits the labels and taints of the node; the DaemonSet controller of Kubernetes says: FailedCreate: Error creating",
        "pod-security.kubernetes.io/enforce=privileged"]),
    fault("the controller's configuration is wrong", |w| set(w, "/ours/0/status/containerStatuses", crashing(64)),
        "controller", ["exit code 64", "configuration is wrong"]),
    fault("the controller crashes, and the claim waits", |w| { unbound(w); set(w, "/ours/0/status/containerStatuses", crashing(1)); },
        "controller", ["7 times", "--previous"]),
    fault("a sidecar does not run", |w| set(w, "/ours/0/status/containerStatuses/1/ready", json!(false)),
        "controller", ["csi-provisioner is not ready", "logs csi-controller -c csi-provisioner"]),
    fault("the connection is gone", |w| says(w, "/storage/links", "connection"), "connection", ["missing", "kubectl omnibus exports --connection=nas"]),
    fault("the storage is silent", |w| says(w, "/storage/links", "storage"), "storage", ["missing", "repair"]),
    fault("the pool is gone", |w| says(w, "/storage/links", "parent"), "parent", ["missing", "repair"]),
    fault("the dataset is gone", |w| says(w, "/storage/links", "volume"), "volume", ["missing", "repair"]),
    fault("the export is gone", |w| says(w, "/storage/links", "export"), "export", ["missing", "`kubectl omnibus exports --connection=nas --repair` puts"]),
    fault("no pod of the driver on the node", |w| { w["ours"].as_array_mut().unwrap().pop(); }, "node-pod", ["one", "node.tolerations"]),
    fault("no such pod beside a controller that mounts for itself", |w| {
        w["ours"].as_array_mut().unwrap().pop();
        set(w, "/ours/0/metadata/labels", json!({"app.kubernetes.io/component": "controller"}));
        set(w, "/ours/0/spec/nodeName", json!("one"));
        w["ours"][0]["spec"]["containers"][0]["args"].as_array_mut().unwrap().push(json!("--csi-mode=node"));
    }, "node-pod", ["no pod of the driver", "node.tolerations"]),
    fault("the node's pod crashes", |w| set(w, "/ours/1/status/containerStatuses", crashing(137)),
        "node-pod", ["exit code 137", "--previous"]),
    fault("the node has no image", |w| set(w, "/ours/1/status/containerStatuses", image_missing()),
        "node-pod", ["ImagePullBackOff", "docs/install.md"]),
    fault("the driver is not registered", |w| set(w, "/csiNodes/one/spec/drivers", json!([])),
        "registered", ["does not list it", "kubeletHostPath"]),
    fault("the node is gone", |w| set(w, "/csiNodes/one", Value::Null), "registered", ["no CSINode", "kubectl get node"]),
    fault("it cannot be attached", |w| set(w, "/attachments/0/status", json!({"attached": false, "attachError": {"message": "no login"}})),
        "attached", ["the attacher says: no login", "attacher tries again"]),
    fault("its detachment hangs", |w| {
        set(w, "/attachments/0/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"));
        set(w, "/attachments/0/status/detachError", json!({"message": "silent"}));
    }, "attached", ["stays; the attacher says: silent", "out-of-service"]),
    fault("its detachment hangs without a word", |w| set(w, "/attachments/0/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")),
        "attached", ["and stays", "external-attacher"]),
    fault("another node has it", |w| set(w, "/attachments/0/spec/nodeName", json!("two")), "attached", ["but to two", "one node at a time"]),
    fault("no attachment is made", |w| set(w, "/attachments", json!([])), "attached", ["no VolumeAttachment", "controller manager"]),
    fault("the session is down", |w| says(w, "/nodes/one/links", "mount"), "mount", ["missing", "repair"]),
    fault("the staging mount is read-only", |w| read_only(w, 2), "mount", ["neither the PersistentVolume nor a pod", "staged anew"]),
    fault("the pod's mount is read-only", |w| read_only(w, 3), "published", ["neither the PersistentVolume nor a pod", "kernel's log"]),
    fault("the staging mount is read-only, and the pod alone reads", |w| {
        read_only(w, 2); read_by_pod(w);
    }, "mount", ["one: mounted, read-only, which", "staged anew"]),
    fault("the pod's mount fails", |w| {
        waiting_pod(w); set(w, "/warnings", json!([event("Warning", "FailedMount", "access denied by server")]));
    }, "pod", ["the kubelet says: FailedMount: access denied", "allowed networks"]),
    fault("the pod's mount fails, and the kubelet sums up later", |w| {
        waiting_pod(w);
        let mut sum = event("Warning", "FailedMount", "Unable to attach or mount volumes: timed out");
        sum["lastTimestamp"] = json!("2026-01-01T00:01:00Z");
        set(w, "/warnings", json!([event("Warning", "FailedMount", "it broke"), sum]));
    }, "pod", ["FailedMount: it broke", "kubectl -n storage logs csi-node-1 -c csi-driver"]),
    fault("another volume of the pod is not mounted", |w| {
        waiting_pod(w);
        set(w, "/warnings", json!([event("Warning", "FailedMount", "MountVolume.SetUp failed for volume \"conf\" : no such map")]));
    }, "pod", ["no such map", "another volume of this pod: see to `conf` first"]),
    fault("the pod's mount fails, and another volume of it later", |w| {
        waiting_pod(w);
        let mut other = event("Warning", "FailedMount", "MountVolume.SetUp failed for volume \"conf\" : no such map");
        other["lastTimestamp"] = json!("2026-01-01T00:01:00Z");
        let own = event("Warning", "FailedMount", "MountVolume.SetUp failed for volume \"pvc-claim-1\" : it broke");
        set(w, "/warnings", json!([own, other]));
    }, "pod", ["it broke", "kubectl -n storage logs csi-node-1 -c csi-driver"]),
    fault("the pod gets no node", |w| {
        waiting_pod(w); set(w, "/pods/0/spec/nodeName", Value::Null); set(w, "/attachments", json!([]));
        set(w, "/warnings", json!([event("Warning", "FailedScheduling", "0/1 nodes are available: 1 Insufficient cpu.")]));
    }, "pod", ["web-0 waits; the scheduler says: FailedScheduling: 0/1 nodes", "resources.requests"]),
    fault("two causes: the first is named", |w| {
        waiting_pod(w); set(w, "/warnings", json!([event("Warning", "FailedMount", "no such file")])); says(w, "/storage/links", "export");
    }, "export", ["missing", "repair"]),
];
