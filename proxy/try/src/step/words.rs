//! What is told about each step.

use super::{Step, Words};

const SERVE: Words = Words {
    name: "serve",
    title: "Serve on a unix socket",
    rpc: None,
    meaning: "The server did not come up, so nothing could be asked of it.",
    advice: "The folder for its socket has to be writable; TMPDIR chooses another one.",
};
const PROBE: Words = Words {
    name: "probe",
    title: "Ask whether it is ready",
    rpc: Some("Probe"),
    meaning: "kubelet and the sidecars would wait for this driver for ever.",
    advice: "`omnibus-csi check` looks at the same configuration more closely.",
};
const IDENTIFY: Words = Words {
    name: "identify",
    title: "Ask who it is",
    rpc: Some("GetPluginInfo"),
    meaning: "No sidecar would know which volumes are for this driver.",
    advice: "This call needs no storage: please report it as a defect.",
};
const CAPABILITIES: Words = Words {
    name: "capabilities",
    title: "Ask what it can do",
    rpc: Some("GetPluginCapabilities"),
    meaning: "No sidecar would know which calls this driver answers.",
    advice: "Look at `service.*.capabilities` in the configuration, and at --csi-version.",
};
const CAPACITY: Words = Words {
    name: "capacity",
    title: "Ask how much room there is",
    rpc: Some("GetCapacity"),
    meaning: "A scheduler that tracks storage capacity could not place pods by free space.",
    advice: "The storage has to be reachable from here, with rights to look at its free space.",
};
const CREATE: Words = Words {
    name: "create",
    title: "Create a volume",
    rpc: Some("CreateVolume"),
    meaning: "No volume could be made: every claim on this storage would stay Pending.",
    advice: "The place for volumes that the configuration names has to exist, have room, and be \
             writable by the user that this runs as.",
};
const ATTACH: Words = Words {
    name: "attach",
    title: "Attach it to this node",
    rpc: Some("ControllerPublishVolume"),
    meaning: "The volume exists, but no node is let in: pods would stay ContainerCreating.",
    advice: "Look at what the storage allows this node to reach: initiators, hosts, networks.",
};
const STAGE: Words = Words {
    name: "stage",
    title: "Stage it on this node",
    rpc: Some("NodeStageVolume"),
    meaning: "The volume exists, but this node cannot mount it: pods would stay ContainerCreating.",
    advice: "The node needs a way to the storage (network, portals, exports), the client tools of \
             its protocol, and the right to mount.",
};
const PUBLISH: Words = Words {
    name: "publish",
    title: "Publish it to a pod",
    rpc: Some("NodePublishVolume"),
    meaning: "The volume is on the node, but no pod would get it.",
    advice: "Look at the mount options in the configuration and at the rights of this process.",
};
const WRITE: Words = Words {
    name: "write",
    title: "Write to it as a pod would",
    rpc: None,
    meaning: "A pod would have the volume and could not write to it.",
    advice: "Look at owner and permissions of new volumes in the configuration \
             (dirPermissionsMode, datasetPermissionsUser and the like), and at root squashing.",
};
const STATS: Words = Words {
    name: "stats",
    title: "Measure it",
    rpc: Some("NodeGetVolumeStats"),
    meaning: "Pods would run, but kubelet would show no usage of their volumes.",
    advice: "The mounted volume has to answer; look at the node's kernel log if it does not.",
};
const SNAPSHOT: Words = Words {
    name: "snapshot",
    title: "Take a snapshot",
    rpc: Some("CreateSnapshot"),
    meaning: "Volumes would work, but VolumeSnapshots of them would never become ready.",
    advice: "Look at the parameters of the snapshot class (--snapshot-parameter), and at the room \
             and rights that a snapshot needs.",
};
const CHANGE: Words = Words {
    name: "change",
    title: "Change what was written",
    rpc: None,
    meaning: "After a snapshot a pod could no longer write to its volume.",
    advice: "A snapshot must leave its source writable: look at what the storage says of it.",
};
const RESTORE: Words = Words {
    name: "restore",
    title: "Restore the snapshot to a new volume",
    rpc: Some("CreateVolume"),
    meaning: "Snapshots could be taken, but nothing could be restored from them.",
    advice: "A restored volume needs as much room as its source, and the right to copy or clone.",
};
const USE_RESTORED: Words = Words {
    name: "use-restored",
    title: "Publish the restored volume",
    rpc: Some("NodePublishVolume"),
    meaning: "A volume can be restored, but no pod could use it.",
    advice: "The original was published in the same way: compare how the storage exports the two.",
};
const COMPARE_RESTORED: Words = Words {
    name: "compare-restored",
    title: "Compare it with what was first",
    rpc: None,
    meaning: "A restored volume does not hold what the snapshot should have kept. Do not rely on \
              snapshots of this storage.",
    advice: "Please report it, with the log (--log-level=debug).",
};
const CLONE: Words = Words {
    name: "clone",
    title: "Clone the volume",
    rpc: Some("CreateVolume"),
    meaning: "Claims with another claim as their dataSource would stay Pending.",
    advice: "A clone needs as much room as its source, and the right to copy or clone.",
};
const USE_CLONE: Words = Words {
    name: "use-clone",
    title: "Publish the clone",
    rpc: Some("NodePublishVolume"),
    meaning: "A volume can be cloned, but no pod could use the clone.",
    advice: "The original was published in the same way: compare how the storage exports the two.",
};
const COMPARE_CLONE: Words = Words {
    name: "compare-clone",
    title: "Compare it with what is now",
    rpc: None,
    meaning: "A clone does not hold what its source held. Do not rely on clones of this storage.",
    advice: "Please report it, with the log (--log-level=debug).",
};
const INDEPENDENT: Words = Words {
    name: "independent",
    title: "Write to the copies, not to it",
    rpc: None,
    meaning: "What is written to a copy shows in its source: two pods would share one volume.",
    advice: "Please report it, with the log (--log-level=debug).",
};
const EXPAND: Words = Words {
    name: "expand",
    title: "Expand the volume",
    rpc: Some("ControllerExpandVolume"),
    meaning: "Claims could not grow: a resize would be tried again and again.",
    advice: "Look at quotas and free space on the storage, and at the node's tools for growing a \
             filesystem.",
};
const HEALTH: Words = Words {
    name: "health",
    title: "Ask how it is",
    rpc: Some("ControllerGetVolume"),
    meaning: "Volumes would work, but their health could not be watched.",
    advice: "The storage has to be reachable, with rights to look at volumes.",
};
const LIST_VOLUMES: Words = Words {
    name: "list-volumes",
    title: "Find it in the list of volumes",
    rpc: Some("ListVolumes"),
    meaning: "Volumes would work, but whoever relies on their list would not see them.",
    advice: "The storage has to be reachable, with rights to list volumes.",
};
const LIST_SNAPSHOTS: Words = Words {
    name: "list-snapshots",
    title: "Find the snapshot in its list",
    rpc: Some("ListSnapshots"),
    meaning: "Snapshots would work, but those made outside the cluster could not be imported.",
    advice: "The storage has to be reachable, with rights to list snapshots.",
};
const UNPUBLISH: Words = Words {
    name: "unpublish",
    title: "Take them from their pods",
    rpc: Some("NodeUnpublishVolume"),
    meaning: "Pods that use this storage would hang in Terminating.",
    advice: "Something may still use the mount: a shell, a virus scanner, a backup.",
};
const UNSTAGE: Words = Words {
    name: "unstage",
    title: "Take them from this node",
    rpc: Some("NodeUnstageVolume"),
    meaning: "Volumes would stay on a node that no longer needs them, and not move elsewhere.",
    advice: "Something may still use the mount: a shell, a virus scanner, a backup.",
};
const DETACH: Words = Words {
    name: "detach",
    title: "Detach them from this node",
    rpc: Some("ControllerUnpublishVolume"),
    meaning: "Volumes would stay attached to a node, and not move elsewhere.",
    advice: "Look at what the storage says of sessions that are still open.",
};
const DELETE_COPIES: Words = Words {
    name: "delete-copies",
    title: "Delete the copies",
    rpc: Some("DeleteVolume"),
    meaning: "Deleted claims would leave their volumes behind, and fill the storage.",
    advice: "Something on the storage may depend on them or use them: snapshots, sessions, shares.",
};
const DELETE_SNAPSHOT: Words = Words {
    name: "delete-snapshot",
    title: "Delete the snapshot",
    rpc: Some("DeleteSnapshot"),
    meaning: "Deleted snapshots would stay on the storage, and fill it.",
    advice: "Something on the storage may depend on it: a clone, a hold, a replication.",
};
const DELETE_VOLUME: Words = Words {
    name: "delete-volume",
    title: "Delete the volume",
    rpc: Some("DeleteVolume"),
    meaning: "Deleted claims would leave their volumes behind, and fill the storage.",
    advice: "Something on the storage may depend on it or use it: snapshots, sessions, shares.",
};
const DELETE_AGAIN: Words = Words {
    name: "delete-again",
    title: "Delete all of it once more",
    rpc: Some("DeleteVolume"),
    meaning: "A sidecar repeats what it is not sure of; here a repeated delete fails, and a \
              PersistentVolume would stay in Released.",
    advice: "Deleting what is gone has to succeed: please report it as a defect.",
};
const NOTHING_LEFT: Words = Words {
    name: "nothing-left",
    title: "Prove that nothing is left",
    rpc: None,
    meaning: "Everything was deleted, and something is still there.",
    advice: "What is named can be removed by hand; please report it as a defect.",
};
const STOP: Words = Words {
    name: "stop",
    title: "Stop, and remove the folder",
    rpc: None,
    meaning: "The driver worked, but it left something in the temporary folder.",
    advice: "What is named can be removed by hand; please report it as a defect.",
};

pub(super) fn of(step: Step) -> &'static Words {
    match step {
        Step::Serve => &SERVE,
        Step::Probe => &PROBE,
        Step::Identify => &IDENTIFY,
        Step::Capabilities => &CAPABILITIES,
        Step::Capacity => &CAPACITY,
        Step::Create => &CREATE,
        Step::Attach => &ATTACH,
        Step::Stage => &STAGE,
        Step::Publish => &PUBLISH,
        Step::Write => &WRITE,
        Step::Stats => &STATS,
        Step::Snapshot => &SNAPSHOT,
        Step::Change => &CHANGE,
        Step::Restore => &RESTORE,
        Step::UseRestored => &USE_RESTORED,
        Step::CompareRestored => &COMPARE_RESTORED,
        Step::Clone => &CLONE,
        Step::UseClone => &USE_CLONE,
        Step::CompareClone => &COMPARE_CLONE,
        Step::Independent => &INDEPENDENT,
        Step::Expand => &EXPAND,
        Step::Health => &HEALTH,
        Step::ListVolumes => &LIST_VOLUMES,
        Step::ListSnapshots => &LIST_SNAPSHOTS,
        Step::Unpublish => &UNPUBLISH,
        Step::Unstage => &UNSTAGE,
        Step::Detach => &DETACH,
        Step::DeleteCopies => &DELETE_COPIES,
        Step::DeleteSnapshot => &DELETE_SNAPSHOT,
        Step::DeleteVolume => &DELETE_VOLUME,
        Step::DeleteAgain => &DELETE_AGAIN,
        Step::NothingLeft => &NOTHING_LEFT,
        Step::Stop => &STOP,
    }
}
