# shellcheck shell=bash
# Many old releases become one that keeps the names of their drivers. Sourced, never run.

# The node of the pods.
FLEET_NODE=node-1

# Ten releases with four volumes each, in pods that write beside fio, become one release with ten legacy names; and ten again.
# No pod is started again, fio meets no error, and no write is missing. Between the two, what was made before is grown and deleted.
cell_fleet() {
    local number old files=() folder=$CLUSTER_STATE/fleet
    # shellcheck disable=SC2034  # for objects.sh
    PATIENCE=240
    FLEET=${FLEET:-10}
    # In the memory of the node: for forty volumes it takes a quarter of a processor.
    fio_beside 4 /data/1 /data/2 /data/3 /data/4
    helm_and_images
    mkdir -p "$folder"
    for ((number = 1; number <= FLEET; number++)); do
        old_values "$number" >"$folder/old-$number.yaml"
        files+=("old-$number=$folder/old-$number.yaml")
    done
    old_releases install
    claims_of_fleet 1Mi
    snapshot before w-1-1 old-1
    snapshot_ready before
    pods_in_namespace >"$folder/pods"
    say "-- $FLEET releases are $(kubectl -n "$CHART_NAMESPACE" get pods -o name | wc -l) pods of $(containers) containers"

    say "-- one release"
    in_node node-1 "$OMNIBUS_CSI" migrate-values --csi-name org.omnibus.fleet --legacy-names "${files[@]}" >"$folder/fleet.yaml"
    old_releases uninstall
    kubectl wait --for=delete csidriver --all --timeout="${PATIENCE}s" >/dev/null || fail "the CSIDrivers stay"
    helm install fleet "$CHART" --values "$folder/fleet.yaml" --wait --timeout "${PATIENCE}s" >&2 ||
        { pods_said fleet; fail "the chart was not installed"; }
    wait_until 60 all_are_registered || fail "the node lacks a name: $(kubectl get csinode "$FLEET_NODE" -o 'jsonpath={.spec.drivers[*].name}')"
    say "-- one release is $(kubectl -n "$CHART_NAMESPACE" get pods -o name | wc -l) pods of $(containers) containers"
    all_write
    # Volumes of before live on, by their old names.
    k patch pvc w-1-1 -p '{"spec": {"resources": {"requests": {"storage": "2Mi"}}}}' >/dev/null
    wait_until "$PATIENCE" size_is w-1-1 2Mi || fail "the claim does not grow: $(k describe pvc w-1-1)"
    claim fresh old-2 1Mi
    pod fresh fresh
    ready fresh
    put fresh file fresh
    old=$(volume_of w-2-1)
    fio_ends w-2
    remove pod/w-2 pvc/w-2-1
    writer_of_four w-2 fresh w-2-2 w-2-3 w-2-4
    ready w-2
    wait_until "$PATIENCE" is_gone "$old" || fail "a volume of before was not deleted: $(directories)"

    say "-- and back"
    k delete pod w-2 fresh --timeout="${PATIENCE}s" >/dev/null
    remove pvc/fresh
    helm uninstall fleet --wait --timeout "${PATIENCE}s" >&2
    old_releases install
    for ((number = 1; number <= FLEET; number++)); do
        [ "$number" != 2 ] || continue
        all_of_pod_write "w-$number"
        fio_ends "w-$number"
    done
    pods_in_namespace | grep -v '^w-2 ' | diff - <(grep -v '^w-2 ' "$folder/pods") >&2 || fail "pods were started again"
    k delete pod,volumesnapshot,pvc --all --timeout="${PATIENCE}s" >/dev/null || fail "not all can be deleted"
    wait_until "$PATIENCE" nothing_of_fleet || fail "left: $(kubectl get pv -o name) $(directories)"
    old_releases uninstall
    say "omnibus: $FLEET releases with four claims each, under fio"
}

helm_and_images() {
    driver_program
    # shellcheck disable=SC2034  # for chart.sh
    HELM=$("$OMNIBUS_ROOT/scripts/tool" helm)
    import_images
}

# Four of each release, in one pod, which writes.
claims_of_fleet() { # size
    local number volume
    for ((number = 1; number <= FLEET; number++)); do
        for volume in 1 2 3 4; do claim "w-$number-$volume" "old-$number" "$1"; done
        writer_of_four "w-$number"
    done
    for ((number = 1; number <= FLEET; number++)); do
        ready "w-$number"
        wait_until "$PATIENCE" fio_runs "w-$number" || fail "fio does not run in w-$number: $(fio_said "w-$number")"
    done
}

# In the form that a values file for democratic-csi's chart has.
old_values() { # number
    cat <<END
csiDriver: {name: org.omnibus.old-$1, attachRequired: false, storageCapacity: true, fsGroupPolicy: File}
controller: {enabled: true, strategy: node, externalAttacher: {enabled: false}}
driver:
  config:
    driver: local-hostpath
    local-hostpath: {shareBasePath: $VOLUMES/old-$1, controllerBasePath: $VOLUMES/old-$1}
storageClasses: [{name: old-$1, allowVolumeExpansion: true, volumeBindingMode: WaitForFirstConsumer}]
volumeSnapshotClasses: [{name: old-$1}]
END
}

old_releases() { # install|uninstall
    local number
    for ((number = 1; number <= FLEET; number++)); do
        case $1 in
            install)
                helm install "old-$number" "$CHART" --create-namespace --values "$CLUSTER_STATE/fleet/old-$number.yaml" \
                    --wait --timeout "${PATIENCE}s" >/dev/null || { pods_said "old-$number"; fail "old-$number was not installed"; }
                ;;
            uninstall) helm uninstall "old-$number" --wait --timeout "${PATIENCE}s" >/dev/null || fail "old-$number stays" ;;
        esac
    done
    [ "$1" = uninstall ] || wait_until 60 all_are_registered || fail "the node lacks a name"
}

all_are_registered() {
    [ "$(kubectl get csinode "$FLEET_NODE" -o 'jsonpath={.spec.drivers[*].name}' | grep -o 'org.omnibus.old-[0-9]*' | sort -u | wc -l)" = "$FLEET" ]
}

containers() {
    kubectl -n "$CHART_NAMESPACE" get pods -o 'jsonpath={range .items[*].spec.containers[*]}{.name}{"\n"}{end}' | wc -l
}

pods_in_namespace() {
    k get pods -o 'jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.status.containerStatuses[*].restartCount}{"\n"}{end}' | sort
}

# A pod that writes ten numbers a second into each of four claims, beside fio.
writer_of_four() { # name [claim...]
    local name=$1
    shift
    [ $# -gt 0 ] || set -- "$name-1" "$name-2" "$name-3" "$name-4"
    # shellcheck disable=SC2016  # for the shell of the pod
    pod_of_many "$name" "$BESIDE"'n=0; while echo $n | tee -a /data/1/log /data/2/log /data/3/log /data/4/log >/dev/null; do n=$((n + 1)); sleep 0.1; done; touch /tmp/failed' "$@"
}

all_of_pod_write() { # pod
    local volume count
    count=$(run_in "$1" 'wc -l </data/4/log')
    wait_until "$PATIENCE" run_in "$1" "[ \$(wc -l </data/4/log) -ge $((count + 10)) ]" || fail "$1 does not write any more"
    fio_runs "$1" || fail "fio has ended in $1: $(fio_said "$1")"
    run_in "$1" '[ ! -e /tmp/failed ]' || fail "a write of $1 failed"
    for volume in 1 2 3 4; do
        run_in "$1" "awk 'NR - 1 != \$1 { exit 1 }' /data/$volume/log" || fail "writes of $1 are missing"
    done
}

all_write() {
    local number
    for ((number = 1; number <= FLEET; number++)); do all_of_pod_write "w-$number"; done
    pods_in_namespace | diff - "$CLUSTER_STATE/fleet/pods" >&2 || fail "pods were started again"
}

is_gone() { ! directories | grep -q "/v/$1\$"; } # volume

nothing_of_fleet() {
    [ -z "$(kubectl get pv,volumesnapshotcontents -o name)" ] && [ -z "$(directories)" ]
}
