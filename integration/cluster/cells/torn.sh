# shellcheck shell=bash
# Volumes that are deleted together with the pods that write to them: the storage must not go before the node has let
# go of it. Sourced, never run.

# Of one snapshot. CLONES at once, ROUNDS times.
CLONES=${CLONES:-24}
ROUNDS=${ROUNDS:-2}

cell_torn_iscsi() { torn iscsi; }
cell_torn_nvmeof() { torn nvmeof; }
cell_torn_nfs() { torn nfs; }
cell_torn_smb() { torn smb; }
# Kubernetes attaches nothing, so nothing but what the storage knows of its clients says that a node still has a volume.
cell_torn_unattached_iscsi() { CHART_SET=csiDriver.attachRequired=false torn iscsi; }
cell_torn_unattached_nvmeof() { CHART_SET=csiDriver.attachRequired=false torn nvmeof; }
cell_torn_unattached_nfs() { CHART_SET=csiDriver.attachRequired=false torn nfs; }
cell_torn_unattached_smb() { CHART_SET=csiDriver.attachRequired=false torn smb; }

torn() { # release
    local round number names=() both=()
    export RELEASE_BY=chart
    # An emulated machine attaches the clones one after the other.
    # shellcheck disable=SC2034  # for objects.sh
    PATIENCE=1800
    release_install "$1"
    claim first "$1" 1Gi
    pod writer first
    ready writer
    run_in writer 'dd if=/dev/urandom of=/data/content bs=1M count=64 2>/dev/null; sync /data/content'
    snapshot moment first "$1"
    snapshot_ready moment
    # What the kernel says from here on is of the clones.
    in_node lab dmesg --clear
    in_node lab sh -c 'echo the cell begins >/dev/kmsg'
    for number in $(seq "$CLONES"); do
        names+=("clone-$number")
        both+=("pvc/clone-$number" "pod/clone-$number")
    done
    for round in $(seq "$ROUNDS"); do
        for number in "${names[@]}"; do
            claim "$number" "$1" 1Gi VolumeSnapshot moment
            pod "$number" "$number"
        done
        for number in "${names[@]}"; do ready "$number"; done
        # It is written again and again, so that the node still has to write when the volume is deleted: the first of
        # them would be done before the last one has started. Not by `cat`: it lets a server of NFS copy by itself.
        for number in "${names[@]}"; do
            run_in "$number" '(while dd if=/data/content of=/data/dirty bs=1M; do sleep 3; done) >/dev/null 2>&1 </dev/null &'
        done
        wait_until "$PATIENCE" has_much_to_write || fail "nothing is left to be written"
        k delete --wait=false "${both[@]}" >/dev/null
        wait_until "$PATIENCE" only_the_first "$1" || fail "round $round: left: $(volumes_of_driver "$1")"
        kernel_is_silent "$round"
        say "round $round of $ROUNDS: $CLONES clones are gone, no error of a disk"
    done
    clean_up "$1"
    kernel_is_silent "end"
}

# Ten megabytes that are not on the storage. A client of NFS sends them at once: then they are under writeback.
has_much_to_write() {
    # shellcheck disable=SC2016  # for the awk of the machine
    in_node lab awk '$1 == "Dirty:" || $1 == "Writeback:" { sum += $2 } END { exit sum < 10000 }' /proc/meminfo
}

only_the_first() { # release
    [ "$(volumes_of_driver "$1" | wc -w)" = 1 ]
}

# Nothing that says that a disk, a filesystem or a share went away under what used it.
kernel_is_silent() { # round
    local log said
    log=$(in_node lab dmesg) || fail "the kernel of the machine cannot be asked"
    grep -q "the cell begins" <<<"$log" || fail "the kernel has forgotten what it said"
    said=$(grep -iE 'conn error|recovery timed out|I/O error|critical .* error|EXT4-fs.*(error|remount)|XFS.*(error|shut)|JBD2.*error|lost .*write|nfs:.*not responding|rejecting I/O|Stale|CIFS:.*(has not responded|BAD_NETWORK_NAME|error|No writable handle)|nvme.*Connect Invalid Data Parameter' <<<"$log" || true)
    [ -z "$said" ] || fail "round $1: the kernel says: $said"
}
