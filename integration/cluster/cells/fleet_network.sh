# shellcheck shell=bash
# The fleet over NFS and iSCSI, in the lab's machine, while fio writes. Sourced, never run.

# Two releases over NFS and two over iSCSI (or half of FLEET each), four volumes each, become one with their names under fio, and
# four again. No pod is started again, fio and the kernel see no error, and no write is missing.
cell_fleet_network() {
    local number files=() folder=$CLUSTER_STATE/fleet
    # shellcheck disable=SC2034  # for objects.sh
    PATIENCE=900
    FLEET=${FLEET:-4}
    # shellcheck disable=SC2034  # for fleet.sh
    FLEET_NODE=lab
    # More volumes than sixteen get fewer writes each: the processors of the machine are emulated.
    DIRECT=1 fio_beside $((FLEET < 20 ? 20 / FLEET : 1)) /data/1 /data/2 /data/3 /data/4
    helm_and_images
    (umask 077; mkdir -p "$folder")
    place_of_controller >"$folder/place.yaml"
    for ((number = 1; number <= FLEET; number++)); do
        in_node lab sh -c "zfs create -p tank/fleet-$number/volumes && zfs create tank/fleet-$number/snapshots" || fail "the parents cannot be made"
        network_old_values "$number" >"$folder/old-$number.yaml"
        files+=("old-$number=$folder/old-$number.yaml")
    done
    machine_storage >"$folder/storage"
    old_releases install
    claims_of_fleet 64Mi
    pods_in_namespace >"$folder/pods"
    # What the kernel says from here on is of the change.
    in_node lab dmesg --clear
    in_node lab sh -c 'echo the cell begins >/dev/kmsg'

    say "-- one release"
    in_node node-1 "$OMNIBUS_CSI" migrate-values --csi-name org.omnibus.fleet --legacy-names "${files[@]}" >"$folder/fleet.yaml"
    old_releases uninstall
    kubectl wait --for=delete csidriver --all --timeout="${PATIENCE}s" >/dev/null || fail "the CSIDrivers stay"
    helm install fleet "$CHART" --values "$folder/fleet.yaml" --values "$folder/place.yaml" --wait --timeout "${PATIENCE}s" >&2 ||
        { pods_said fleet; fail "the chart was not installed"; }
    wait_until "$PATIENCE" all_are_registered || fail "the node lacks a name: $(kubectl get csinode lab -o 'jsonpath={.spec.drivers[*].name}')"
    all_write
    # A volume of before grows under it.
    k patch pvc "w-$FLEET-1" -p '{"spec": {"resources": {"requests": {"storage": "96Mi"}}}}' >/dev/null
    wait_until "$PATIENCE" size_is "w-$FLEET-1" 96Mi || fail "the claim does not grow: $(k describe pvc "w-$FLEET-1")"

    say "-- and back"
    helm uninstall fleet --wait --timeout "${PATIENCE}s" >&2
    old_releases install
    all_write
    for ((number = 1; number <= FLEET; number++)); do fio_ends "w-$number"; done
    kernel_is_silent fleet
    k delete pod,pvc --all --timeout="${PATIENCE}s" >/dev/null || fail "not all can be deleted"
    wait_until "$PATIENCE" nothing_of_network_fleet || fail "left: $(kubectl get pv -o name) $(machine_storage | diff "$folder/storage" -)"
    old_releases uninstall
    # Not recursively: what is left makes it fail.
    for ((number = 1; number <= FLEET; number++)); do
        in_node lab sh -c "zfs destroy tank/fleet-$number/volumes && zfs destroy tank/fleet-$number/snapshots && zfs destroy tank/fleet-$number" ||
            fail "something is left of tank/fleet-$number"
    done
    say "omnibus: $FLEET releases with four claims each, under fio"
}

# On the control plane, from where alone the machine can be reached.
place_of_controller() {
    cat <<END
controller:
  nodeSelector: {kubernetes.io/hostname: node-1}
  tolerations: [{key: node-role.kubernetes.io/control-plane, operator: Exists, effect: NoSchedule}]
END
}

# In the form that a values file for democratic-csi's chart has.
network_old_values() { # number
    local kind=nfs parameters='{}'
    if [ "$1" -gt $((FLEET / 2)) ]; then kind=iscsi parameters='{fsType: ext4}'; fi
    place_of_controller
    cat <<END
csiDriver: {name: org.omnibus.old-$1, fsGroupPolicy: File}
storageClasses: [{name: old-$1, allowVolumeExpansion: true, parameters: $parameters}]
volumeSnapshotClasses: [{name: old-$1}]
driver:
  config:
END
    network_configuration "$kind" "tank/fleet-$1" | sed 's/^/    /'
}

nothing_of_network_fleet() {
    [ -z "$(kubectl get pv -o name)" ] && machine_storage | diff "$CLUSTER_STATE/fleet/storage" -
}
