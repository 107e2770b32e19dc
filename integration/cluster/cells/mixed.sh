# shellcheck shell=bash
# One release over several kinds of storage: the proxy, by the chart, in the lab's machine. Sourced, never run.

mixed_install() { # connection...
    # shellcheck disable=SC2034  # for objects.sh
    PATIENCE=300
    # shellcheck disable=SC2034  # for life.sh
    FULL_SIZE=1
    export RELEASE_BY=chart
    # With parents that stay, the storage is compared with what it was before the first volume.
    # shellcheck disable=SC2016  # for the machine's shell
    in_node lab sh -c 'for dataset in nfs nfs-2 iscsi nvmeof; do
        zfs create -p tank/$dataset/volumes && zfs create -p tank/$dataset/snapshots || exit; done' || fail "the parents cannot be made"
    MIXED=$* release_install mixed
}

# Not recursively: what is left makes it fail.
mixed_uninstall() {
    release_uninstall mixed
    # shellcheck disable=SC2016  # for the machine's shell
    in_node lab sh -c 'for dataset in nfs nfs-2 iscsi nvmeof; do
        zfs destroy tank/$dataset/volumes && zfs destroy tank/$dataset/snapshots && zfs destroy tank/$dataset || exit; done' || fail "something is left of the datasets"
}

cell_chart_proxy_network() {
    local connection pods
    mixed_install nfs iscsi
    for connection in nfs iscsi; do
        say "-- $connection"
        life_of_claim "mixed-$connection" mixed
        clean_up mixed
    done
    controller_is_unprivileged mixed

    say "-- nvmeof, which is added"
    writer stays mixed-iscsi
    kubectl apply -f - >/dev/null <<END
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: early}
provisioner: org.omnibus.mixed
parameters: {connection: nvmeof}
END
    claim early early 1Gi
    wait_until "$PATIENCE" lacks_connection early nvmeof || fail "the claim does not say what it lacks: $(k describe pvc early)"
    # The provisioner would ask for it again after eight minutes only.
    remove pvc/early
    kubectl delete storageclass early >/dev/null
    pods=$(chart_pods mixed)
    MIXED='nfs iscsi nvmeof' chart_upgrade mixed
    wait_until "$PATIENCE" serves nvmeof || fail "the connection nvmeof does not come"
    life_of_claim mixed-nvmeof mixed
    [ "$(chart_pods mixed)" = "$pods" ] || fail "pods were started again, before: $pods, now: $(chart_pods mixed)"
    still_writes stays
    clean_up mixed
    mixed_uninstall
}

serves() { # connection
    kubectl -n "$CHART_NAMESPACE" exec deploy/mixed-omnibus-csi-controller -c csi-driver -- \
        omnibus-csi connections --driver-config-file=/config/driver-config-file.yaml | grep "^$1 "
}

lacks_connection() { # claim connection
    [ "$(k get pvc "$1" -o 'jsonpath={.status.phase}')" = Pending ] &&
        k get events --field-selector "involvedObject.name=$1" -o 'jsonpath={.items[*].message}' | grep -q "connection .$2.* does not exist"
}

# The machine is both the node and the storage host. Its power is cut under pods that write; the pods run again, with
# what they had stored.
cell_reboot_node() {
    local kind before
    mixed_install nfs iscsi
    for kind in nfs iscsi; do
        writer "$kind" "mixed-$kind"
    done
    # The node itself loses nothing, such as what it knows of the networks of its pods; volumes keep what pods have synced.
    in_node lab sync
    for kind in nfs iscsi; do
        put "$kind" file "of $kind"
    done
    before=$(in_node lab cat /proc/sys/kernel/random/boot_id)
    lab restart
    [ "$(in_node lab cat /proc/sys/kernel/random/boot_id)" != "$before" ] || fail "the machine was not restarted"
    for kind in nfs iscsi; do
        wait_until "$PATIENCE" runs_again "$kind" || { k describe pod >&2; fail "the pod $kind does not run again"; }
        holds "$kind" file "of $kind"
        writes_again "$kind"
        say "-- $kind runs again"
    done
    clean_up mixed
    mixed_uninstall
}

# Since the kubelet is back: what the API server knows of a pod is old until then.
runs_again() { # pod
    k get pod "$1" -o 'jsonpath={.status.containerStatuses[0].restartCount} {.status.conditions[?(@.type=="Ready")].status}' |
        grep -q '^[1-9][0-9]* True$' &&
        run_in "$1" true
}

writes_again() { # pod
    local count
    count=$(written "$1")
    wait_until 30 has_written "$1" $((count + 10)) || fail "$1 does not write any more"
    run_in "$1" '[ ! -e /tmp/failed ]' || fail "writes of $1 fail"
}
