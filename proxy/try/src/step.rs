//! The steps of a volume's life, in their order: what each is called, and what it means if it fails.
//!
//! The names of steps are part of the JSON report and do not change.

/// The words about a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Words {
    /// Its name for machines.
    pub(crate) name: &'static str,
    /// Its name for people, at most 36 characters.
    pub(crate) title: &'static str,
    /// The call that it consists of, or nothing.
    pub(crate) rpc: &'static str,
    /// The calls of which one has to be offered.
    pub(crate) needs: &'static [&'static str],
    /// The meaning of the failure to a cluster.
    pub(crate) meaning: &'static str,
    /// The place to look.
    pub(crate) advice: &'static str,
}

macro_rules! steps {
    ($($step:ident $name:literal $title:literal $rpc:literal [$($needs:literal)*]
        $meaning:literal $advice:literal;)*) => {
        /// One step.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Step {
            $($step,)*
        }

        impl Step {
            /// Every step.
            pub(crate) const ALL: &[Self] = &[$(Self::$step,)*];

            /// The words about it.
            pub(crate) fn words(self) -> Words {
                match self {
                    $(Self::$step => Words {
                        name: $name,
                        title: $title,
                        rpc: $rpc,
                        needs: &[$($needs,)*],
                        meaning: $meaning,
                        advice: $advice,
                    },)*
                }
            }
        }
    };
}

steps! {
    Serve "serve" "Serve on a unix socket" "" []
        "The server did not come up, so nothing could be asked of it."
        "The folder for its socket has to be writable; TMPDIR chooses another one.";
    Probe "probe" "Ask whether it is ready" "Probe" []
        "kubelet and the sidecars would wait for this driver for ever."
        "`omnibus-csi check` looks at the same configuration more closely.";
    Identify "identify" "Ask who it is" "GetPluginInfo" []
        "No sidecar would know which volumes are for this driver."
        "This call needs no storage: please report it as a defect.";
    Capabilities "capabilities" "Ask what it can do" "GetPluginCapabilities" []
        "No sidecar would know which calls this driver answers."
        "Look at `service.*.capabilities` in the configuration, and at --csi-version.";
    Reach "reach" "Ask whether the storage answers" "" ["ListVolumes" "GetCapacity"]
        "The storage cannot be reached: nothing was made on it."
        "Look at its address, port, login and firewall, and whether its service runs; `omnibus-csi check` looks at the same \
         configuration more closely.";
    Recover "recover" "Clean up after killed runs" "" []
        "A run that was killed left something on this storage, and it could not be removed."
        "Remove what is named by hand, then the folder: what is tried again comes from there.";
    Capacity "capacity" "Ask how much room there is" "GetCapacity" ["GetCapacity"]
        "A scheduler that tracks storage capacity could not place pods by free space."
        "The storage has to be reachable from here, with rights to look at its free space.";
    Create "create" "Create a volume" "CreateVolume" ["CreateVolume"]
        "No volume could be made: every claim on this storage would stay Pending."
        "The place for volumes that the configuration names has to exist, have room, and be \
         writable by the user that this runs as.";
    Attach "attach" "Attach it to this node" "ControllerPublishVolume" ["ControllerPublishVolume"]
        "The volume exists, but no node is let in: pods would stay ContainerCreating."
        "Look at what the storage allows this node to reach: initiators, hosts, networks.";
    Stage "stage" "Stage it on this node" "NodeStageVolume" ["NodeStageVolume"]
        "The volume exists, but this node cannot mount it: pods would stay ContainerCreating."
        "The node needs a way to the storage (network, portals, exports), the client tools of \
         its protocol, and the right to mount.";
    Publish "publish" "Publish it to a pod" "NodePublishVolume" ["CreateVolume"]
        "The volume is on the node, but no pod would get it."
        "Look at the mount options in the configuration and at the rights of this process.";
    Write "write" "Write to it as a pod would" "" ["CreateVolume"]
        "A pod would have the volume and could not write to it."
        "Look at owner and permissions of new volumes in the configuration \
         (dirPermissionsMode, datasetPermissionsUser and the like), and at root squashing.";
    Stats "stats" "Measure it" "NodeGetVolumeStats" ["NodeGetVolumeStats"]
        "Pods would run, but kubelet would show no usage of their volumes."
        "The mounted volume has to answer; look at the node's kernel log if it does not.";
    Snapshot "snapshot" "Take a snapshot" "CreateSnapshot" ["CreateSnapshot"]
        "Volumes would work, but VolumeSnapshots of them would never become ready."
        "Look at the parameters of the snapshot class (--snapshot-parameter), and at the room \
         and rights that a snapshot needs.";
    Change "change" "Change what was written" "" ["CreateVolume"]
        "After a snapshot a pod could no longer write to its volume."
        "A snapshot must leave its source writable: look at what the storage says of it.";
    Restore "restore" "Restore the snapshot to a new volume" "CreateVolume" ["CreateSnapshot"]
        "Snapshots could be taken, but nothing could be restored from them."
        "A restored volume needs as much room as its source, and the right to copy or clone.";
    UseRestored "use-restored" "Publish the restored volume" "NodePublishVolume" ["CreateSnapshot"]
        "A volume can be restored, but no pod could use it."
        "The original was published in the same way: compare how the storage exports the two.";
    CompareRestored "compare-restored" "Compare it with what was first" "" ["CreateSnapshot"]
        "A restored volume does not hold what the snapshot should have kept. Do not rely on \
         snapshots of this storage."
        "Please report it, with the log (--log-level=debug).";
    Clone "clone" "Clone the volume" "CreateVolume" ["clone"]
        "Claims with another claim as their dataSource would stay Pending."
        "A clone needs as much room as its source, and the right to copy or clone.";
    UseClone "use-clone" "Publish the clone" "NodePublishVolume" ["clone"]
        "A volume can be cloned, but no pod could use the clone."
        "The original was published in the same way: compare how the storage exports the two.";
    CompareClone "compare-clone" "Compare it with what is now" "" ["clone"]
        "A clone does not hold what its source held. Do not rely on clones of this storage."
        "Please report it, with the log (--log-level=debug).";
    Independent "independent" "Write to the copies, not to it" "" ["CreateSnapshot" "clone"]
        "What is written to a copy shows in its source: two pods would share one volume."
        "Please report it, with the log (--log-level=debug).";
    Expand "expand" "Expand the volume" "ControllerExpandVolume" ["ControllerExpandVolume" "NodeExpandVolume"]
        "Claims could not grow: a resize would be tried again and again."
        "Look at quotas and free space on the storage, and at the node's tools for growing a \
         filesystem.";
    Health "health" "Ask how it is" "ControllerGetVolume" ["ControllerGetVolume"]
        "Volumes would work, but their health could not be watched."
        "The storage has to be reachable, with rights to look at volumes.";
    ListVolumes "list-volumes" "Find it in the list of volumes" "ListVolumes" ["ListVolumes"]
        "Volumes would work, but a client that relies on their list would not see them."
        "The storage has to be reachable, with rights to list volumes.";
    ListSnapshots "list-snapshots" "Find the snapshot in its list" "ListSnapshots" ["ListSnapshots"]
        "Snapshots would work, but those made outside the cluster could not be imported."
        "The storage has to be reachable, with rights to list snapshots.";
    Unpublish "unpublish" "Take them from their pods" "NodeUnpublishVolume" ["CreateVolume"]
        "Pods that use this storage would hang in Terminating."
        "Something may still use the mount: a shell, a virus scanner, a backup.";
    Unstage "unstage" "Take them from this node" "NodeUnstageVolume" ["NodeStageVolume"]
        "Volumes would stay on a node that no longer needs them, and not move elsewhere."
        "Something may still use the mount: a shell, a virus scanner, a backup.";
    Detach "detach" "Detach them from this node" "ControllerUnpublishVolume" ["ControllerPublishVolume"]
        "Volumes would stay attached to a node, and not move elsewhere."
        "Look at what the storage says of sessions that are still open.";
    DeleteCopies "delete-copies" "Delete the copies" "DeleteVolume" ["CreateSnapshot" "clone"]
        "Deleted claims would leave their volumes behind, and fill the storage."
        "Something on the storage may depend on them or use them: snapshots, sessions, shares.";
    DeleteSnapshot "delete-snapshot" "Delete the snapshot" "DeleteSnapshot" ["CreateSnapshot"]
        "Deleted snapshots would stay on the storage, and fill it."
        "Something on the storage may depend on it: a clone, a hold, a replication.";
    DeleteVolume "delete-volume" "Delete the volume" "DeleteVolume" ["CreateVolume"]
        "Deleted claims would leave their volumes behind, and fill the storage."
        "Something on the storage may depend on it or use it: snapshots, sessions, shares.";
    DeleteAgain "delete-again" "Delete all of it once more" "DeleteVolume" ["CreateVolume"]
        "A sidecar repeats what it is not sure of; here a repeated delete fails, and a \
         PersistentVolume would stay in Released."
        "Deleting what is gone has to succeed: please report it as a defect.";
    NothingLeft "nothing-left" "Prove that nothing is left" "" []
        "Everything was deleted, and something is still there."
        "What is named can be removed by hand; please report it as a defect.";
    Stop "stop" "Stop, and remove the folder" "" []
        "The driver worked, but it left something in the temporary folder."
        "What is named can be removed by hand; please report it as a defect.";
}

// === impl Step ===

impl Step {
    /// The heading that begins with this step.
    pub(crate) fn chapter(self) -> Option<&'static str> {
        match self {
            Self::Serve => Some("The driver"),
            Self::Create => Some("A volume"),
            Self::Snapshot => Some("Its copies"),
            Self::Expand => Some("Its growth"),
            Self::Unpublish => Some("Its end"),
            _ => None,
        }
    }
}
