# shellcheck shell=bash
# The examples of the chart, each installed. Sourced, never run.

# Folders of a node that examples name. Here each is one in memory, which only the node sees.
FOLDERS_OF_EXAMPLES=(/etc/iscsi /etc/nvme /mnt/disk /srv/volumes /usr/local/etc/iscsi /var/lib/csi-local /var/lib/scratch /var/snap)
KUBELET_OF_MICROK8S=/var/snap/microk8s/common/var/lib/kubelet

# One file of deploy/chart/ci after the other: the API server takes every object, the containers run, the driver answers and is
# registered under each of its names; then it is taken away, and nothing is left. The storages that they name do not exist.
# Sidecars that are no Go modules are played by a program that waits.
cell_chart_examples() {
    local values count=0 image
    # shellcheck disable=SC2034  # for objects.sh
    PATIENCE=180
    # The leases of the sidecars, which no release takes away, go with the namespace of the cell.
    # shellcheck disable=SC2034  # for chart.sh
    CHART_NAMESPACE=$NS
    EXAMPLES=$CLUSTER_STATE/examples
    helm_and_images
    mkdir -p "$EXAMPLES"
    trap 'ended; folders_of_examples_go' EXIT
    folders_of_examples
    images_of_examples
    objects_of_examples
    for values in "$CHART"/ci/*.yaml; do
        example "$values"
        count=$((count + 1))
    done
    [ "$count" -ge 15 ] || fail "only $count examples"
    # What migrate-values makes of a file for the old chart.
    in_node node-1 "$OMNIBUS_CSI" migrate-values "ci=$CHART/ci/as-for-democratic-csi.yaml" >"$EXAMPLES/migrated.yaml" || fail "the values are not migrated"
    example "$EXAMPLES/migrated.yaml"
    say "omnibus: $count examples, and one that migrate-values made"

    kubectl delete -f "$CLUSTER/objects/chart-examples.yaml" --timeout="${PATIENCE}s" >/dev/null || fail "the definitions stay"
    kubectl label node node-1 storage- node-role.kubernetes.io/control-plane- >/dev/null
    while read -r image <&3; do in_node node-1 ctr -n k8s.io images rm "$image" >/dev/null; done 3<"$EXAMPLES/played"
    in_node node-1 find /var/lib/kubelet/plugins -mindepth 1 -maxdepth 1 \
        \( -name 'org.example.*' -o -name 'org.democratic-csi.*' \) -exec rm -r {} +
    folders_of_examples_go
    trap ended EXIT
}

example() { # values
    local workload name local=()
    name=$(basename "$1" .yaml)
    say "-- $name"
    # Its image would always be asked of a registry, and none has it.
    [ "$name" != as-for-democratic-csi ] || local=(--set controller.driver.image.pullPolicy=IfNotPresent)
    helm upgrade --install ci "$CHART" --values "$1" "${local[@]}" >"$EXAMPLES/$name.log" || fail "$name was not installed: $(cat "$EXAMPLES/$name.log")"
    helm get manifest ci >"$EXAMPLES/manifest"
    kubectl get -f "$EXAMPLES/manifest" -o name >"$EXAMPLES/objects" || fail "$name: the API server lacks objects: $(cat "$EXAMPLES/objects")"
    [ "$(wc -l <"$EXAMPLES/objects")" = "$(grep -c '^kind: ' "$EXAMPLES/manifest")" ] || fail "$name has other objects: $(cat "$EXAMPLES/objects")"
    case $name in
        # A sidecar that is played is never ready where the chart asks for its health.
        changed-blocks | everything) wait_until "$PATIENCE" all_are_running || { pods_said ci; fail "$name: containers do not run"; } ;;
        # Its controller waits for the share.
        nfs-client)
            rolled_out daemonset/ci-omnibus-csi-node
            wait_until "$PATIENCE" waits_for_share || { pods_said ci; fail "$name: the controller does not wait for its share"; }
            ;;
        *) for workload in $(k get daemonsets,deployments -o name); do rolled_out "$workload"; done ;;
    esac
    wait_until "$PATIENCE" drivers_answer || { pods_said ci; fail "$name: a driver does not answer"; }
    names_of_example "$1" >"$EXAMPLES/names"
    [ -s "$EXAMPLES/names" ] || fail "$name has no driver"
    # The kubelet of microk8s would look into another folder.
    [ "$name" = microk8s ] || wait_until "$PATIENCE" example_is_registered || { pods_said ci; fail "$name is not registered: $(registered)"; }

    helm uninstall ci --wait --timeout "${PATIENCE}s" >/dev/null || fail "$name stays"
    wait_until "$PATIENCE" nothing_of_example ||
        fail "$name: left: $(kubectl get --ignore-not-found -f "$EXAMPLES/manifest" -o name) $(k get pods,csistoragecapacities -o name) $(registered)"
}

rolled_out() { # workload
    k rollout status --timeout="${PATIENCE}s" "$1" >/dev/null || { pods_said ci; fail "$1 is not rolled out"; }
}

# As many pods as are wanted, and each of their containers.
all_are_running() {
    k get daemonsets,deployments,pods -o json | python3 -c '
import json, sys
items = json.load(sys.stdin)["items"]
pods = [item for item in items if item["kind"] == "Pod"]
wanted = sum(item["spec"].get("replicas", item["status"].get("desiredNumberScheduled", 0)) for item in items if item["kind"] != "Pod")
running = [sum("running" in one["state"] for one in pod["status"].get("containerStatuses", [])) for pod in pods]
sys.exit(not (0 < len(pods) == wanted and running == [len(pod["spec"]["containers"]) for pod in pods]))'
}

waits_for_share() {
    k get events --field-selector reason=FailedMount -o 'jsonpath={.items[*].message}' | grep -q 'volume "storage"'
}

# That of each pod that runs; one at least.
drivers_answer() {
    local pod pods
    pods=$(k get pods --field-selector=status.phase=Running -o name)
    [ -n "$pods" ] || return 1
    for pod in $pods; do
        k exec "$pod" -c csi-driver -- omnibus-csi liveness-probe --csi-address=/csi-data/csi.sock || return 1
    done
}

# The name of the driver, and its legacy names.
names_of_example() { # values
    sed -n -e '/^csiDriver:$/,/^[^ ]/s/^  name: //p' -e '/^legacyNames:$/,/^[^ ]/s/^  \([a-z][a-z.-]*\):$/\1/p' "$1"
}

registered() { kubectl get csinode node-1 -o 'jsonpath={range .spec.drivers[*]}{.name}{"\n"}{end}'; }

example_is_registered() { [ "$(registered | grep -cxF -f "$EXAMPLES/names")" = "$(wc -l <"$EXAMPLES/names")" ]; }

nothing_of_example() {
    [ -z "$(kubectl get --ignore-not-found -f "$EXAMPLES/manifest" -o name)" ] &&
        [ -z "$(k get pods,csistoragecapacities -o name)" ] && ! registered | grep -qxF -f "$EXAMPLES/names"
}

folders_of_examples() {
    # shellcheck disable=SC2016  # for the node's shell
    in_node node-1 sh -ec 'made=$1; shift
        for folder in "$@"; do
            [ -d "$folder" ] || { mkdir -p "$folder"; echo "$folder" >>"$made"; }
            mount -t tmpfs tmpfs "$folder"
        done' sh "$EXAMPLES/made" "${FOLDERS_OF_EXAMPLES[@]}" || fail "the folders of the node cannot be made"
    in_node node-1 mkdir -p "$KUBELET_OF_MICROK8S"
}

# What was made on the host for a node to mount on.
folders_of_examples_go() {
    # shellcheck disable=SC2016  # for the node's shell
    in_node node-1 sh -c 'made=$1; shift
        for folder in "$@"; do umount -l "$folder"; done
        [ ! -e "$made" ] || xargs rmdir <"$made"
        rm -f "$made"' sh "$EXAMPLES/made" "${FOLDERS_OF_EXAMPLES[@]}" || true
}

# Each image that the chart or an example names and no program here is packed as.
images_of_examples() {
    local image there
    there=$(in_node node-1 ctr -n k8s.io images ls -q)
    {
        sed -n 's|.*image: {registry: \([^,]*\), tag: \([^}]*\)}.*|\1:\2|p' "$CHART/values.yaml"
        sed -n 's|^    image: \([a-z]*:[0-9.]*\)$|docker.io/library/\1|p' "$CHART"/ci/*.yaml
    } | sort -u | grep -vxF "$there" >"$EXAMPLES/played" || fail "no image is missing"
    while read -r image <&3; do
        in_node node-1 ctr -n k8s.io images tag omnibus.test/pause:1 "$image" >/dev/null || fail "$image cannot be played"
    done 3<"$EXAMPLES/played"
    ! grep -E '/csi-(provisioner|attacher|resizer|snapshotter|node-driver-registrar):' "$EXAMPLES/played" >&2 || fail "a sidecar that is built has no image"
    say "played: $(tr '\n' ' ' <"$EXAMPLES/played")"
}

# What examples expect in the cluster.
objects_of_examples() {
    kubectl apply -f "$CLUSTER/objects/chart-examples.yaml" >/dev/null
    established -f "$CLUSTER/objects/chart-examples.yaml"
    kubectl label node node-1 storage= node-role.kubernetes.io/control-plane= >/dev/null
    k create secret generic my-connections --from-literal="nas.yaml=$(sed -n '/^  fast-1:$/,/^  disks:$/s/^    //p' "$CHART/ci/connections.yaml")" >/dev/null
    k create secret generic nas --from-literal=password=secret >/dev/null
    k create secret generic nvme-keys --from-literal=node-1=none >/dev/null
    k create secret generic tls --type=kubernetes.io/tls --from-literal=tls.crt=none --from-literal=tls.key=none >/dev/null
}
