# shellcheck shell=bash
# The External Storage suite of Kubernetes. Each call of e2e says how many specs pass at least: an expression that no
# longer fits the names, and a capability that is gone, would leave some out in silence. Sourced, never run.

# A part of it, for each run of the tests: mounting, permissions and two pods.
cell_e2e_some() {
    e2e local 6 'provisioning should provision storage with mount options|subPath should support existing director|volumes should (store data|allow exec)|multiVolume.*should access to two volumes with the same volume mode and retain data across pod recreation on the same node'
}

# A few specs over real storage, in the lab's machine: there each takes minutes, and no more than two run at once.
cell_e2e_lab() {
    # shellcheck disable=SC2034  # for objects.sh
    PATIENCE=300
    E2E_AT_ONCE=2
    e2e nfs 4 "$NFS_SPECS"
    e2e iscsi 4 "$ISCSI_SPECS"
    e2e nvmeof 4 "$NVMEOF_SPECS"
}

# Groups of snapshots, and volumes that a VolumeAttributesClass changes, over real storage.
cell_e2e_groups_and_classes() {
    # shellcheck disable=SC2034  # for objects.sh
    PATIENCE=300
    E2E_AT_ONCE=2
    e2e nfs 6 "$GROUP_SPECS|default fs.* $CLASS_SPECS"
    e2e iscsi 6 "$GROUP_SPECS|block volmode.* $CLASS_SPECS"
}

GROUP_SPECS='VolumeGroupSnapshottable should create snapshots for StatefulSet volumes'
CLASS_SPECS='volume-modify .*(should create a volume with VAC|should modify volume (with no VAC|that already has a VAC)|should recover from invalid target VAC|should be protected by vac-protection finalizer)'
NFS_SPECS='Dynamic PV .*(default fs.* volumes should store data|default fs.* provision storage with snapshot data source .Feature|filesystem volmode.*multiVolume.*should concurrently access the single volume from pods on the same node$|fsgroupchangepolicy .OnRootMismatch..LinuxOnly., pod created with an initial fsgroup, new pod fsgroup applied)'
ISCSI_SPECS='Dynamic PV .*(default fs.* provision storage with pvc data source$|(xfs|block volmode).* volumes should store data|default fs.* should resize volume when PVC is edited while pod is using it)'
NVMEOF_SPECS='Dynamic PV .*(default fs.* provision storage with snapshot data source .Feature|block volmode.* (volumes should store data|provision storage with pvc data source$)|block volmode.*should resize volume when PVC is edited while pod is using it)'

cell_e2e_local() { e2e local 57; }
cell_e2e_proxy() { e2e proxy 62; }

# Regular expressions of what is left out, one with its reason on each line of e2e/skipped.
skipped() {
    sed -n 's/^\([^#\t][^\t]*\)\t.*/\1/p' "$CLUSTER/e2e/skipped" | paste -sd '|'
}

e2e() { # release, how many specs [what of it]
    local report=$OMNIBUS_LOGS/cluster-e2e-$1 status=0 passed failed focus='External.Storage'
    [ -z "${3:-}" ] || focus="External.Storage.*($3)"
    rm -rf "$report"
    mkdir -p "$report"
    # One snapshotter for all: those of the nodes care for snapshots only that were made there, and some
    # specs make the object by hand.
    export DISTRIBUTED_SNAPSHOTS=false
    service node-1 stop snapshot-controller
    snapshot_controller
    release_install "$1"
    in_node node-1 "$KUBERNETES_PROGRAMS/ginkgo" --procs="${E2E_AT_ONCE:-4}" --no-color --timeout=3h --silence-skips \
        --focus="$focus" --skip="$(skipped)" "$KUBERNETES_PROGRAMS/e2e.test" -- \
        --provider=skeleton --kubeconfig="$KUBECONFIG" --storage.testdriver="$CLUSTER/e2e/$1.yaml" \
        --report-dir="$report" --num-nodes=1 --disable-log-dump --kubectl-path="$KUBERNETES_PROGRAMS/kubectl" || status=$?
    passed=$(specs passed "$report")
    failed=$(specs failed "$report")
    say "omnibus: $passed specs passed, $failed failed"
    { [ "$status" -eq 0 ] && [ "$failed" -eq 0 ]; } || fail "failed: $(sed -n 's/.*<testcase name="\([^"]*\)".*status="failed".*/\1/p' "$report"/junit*.xml)"
    [ "$passed" -ge "$2" ] || fail "of $2 specs only $passed passed, and none failed: the others were left out"
    clean_up "$1"
}

specs() { # passed|failed report
    grep -h '<testcase' "$2"/junit*.xml | grep 'External Storage' | grep -c "status=\"$1\"" || true
}
