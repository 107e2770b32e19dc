# shellcheck shell=bash
# Releases: our driver and its sidecars as services of each node, with the flags of docs/local-hostpath-reference.md, and
# the objects in objects/; or by the chart (chart.sh), with RELEASE_BY=chart; or in the
# layout of democratic-csi's chart, with RELEASE_BY=layout. Services can be killed as often as
# a test likes, a container's kubelet waits longer each time. The cells know a release by the name of its
# CSIDriver and by its classes only. Sourced, never run.
#
# local    local-hostpath alone; driver org.omnibus.local, class and snapshot class local
# proxy    the proxy over two local-hostpath connections; driver org.omnibus.proxy, classes near and far for
#          one connection each, both for a class over both; snapshot class proxy
# zones    the proxy with a connection for each zone; node-1 is in zone-1, node-2 in zone-2; classes zone-1,
#          zone-2 and zones (over both)
# nfs, smb, iscsi, nvmeof, scratch, mixed, truenas  network.sh
# images   by the chart only: containerd-oci-ephemeral-inline
# central  by the chart only: one controller for all nodes, class and snapshot class central

. "$CLUSTER/chart.sh"
. "$CLUSTER/network.sh"
. "$CLUSTER/truenas.sh"

nodes_up() {
    local node
    for node in node-1 node-2; do
        if node_pid "$node" >/dev/null; then printf '%s\n' "$node"; fi
    done
}

in_services() { # node command...
    local node=$1
    shift
    in_node "$node" env SERVICES="$CLUSTER_STATE/$node/services" "$@"
}

service() { # node start|stop|kill|pid name [command...]
    local node=$1
    shift
    in_services "$node" "$CLUSTER/service" "$@"
}

# Snapshot objects and their controller, which looks for those of groups when it starts; apply is server-side because the definitions are too large for
# an annotation.
snapshot_controller() {
    kubectl apply --server-side -f "$SIDECAR_PROGRAMS/snapshot-crds" >/dev/null
    established crd \
        volumesnapshots.snapshot.storage.k8s.io volumesnapshotcontents.snapshot.storage.k8s.io \
        volumesnapshotclasses.snapshot.storage.k8s.io volumegroupsnapshots.groupsnapshot.storage.k8s.io \
        volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io volumegroupsnapshotclasses.groupsnapshot.storage.k8s.io
    service node-1 start snapshot-controller "$SIDECAR_PROGRAMS/snapshot-controller" --kubeconfig="$KUBECONFIG" \
        --leader-election=false --enable-distributed-snapshotting="${DISTRIBUTED_SNAPSHOTS:-true}" --v=2
}

driver_program() {
    if [ -z "${OMNIBUS_CSI:-}" ]; then
        cargo build --locked --quiet -p omnibus-csi
        OMNIBUS_CSI=$OMNIBUS_TARGET/debug/omnibus-csi
    fi
    [ -x "$OMNIBUS_CSI" ] || die "there is no program $OMNIBUS_CSI"
}

write_configuration() { # release
    local folder=$CLUSTER_STATE/releases/$1 connection
    mkdir -p "$folder/connections"
    case $1 in
        local) directory "$VOLUMES/local" >"$folder/driver.yaml" ;;
        proxy)
            for connection in near far; do directory "$VOLUMES/$connection" >"$folder/connections/$connection.yaml"; done
            cat >"$folder/driver.yaml" <<END
driver: proxy
proxy:
  configFolder: $folder/connections/
  nodeTopology: {type: [cluster, node]}
END
            ;;
        zones)
            for connection in zone-1 zone-2; do
                {
                    directory "$VOLUMES/$connection"
                    printf 'proxy: {perDriver: {topology: [{requirements: {zone: %s}}]}}\n' "$connection"
                } >"$folder/connections/$connection.yaml"
            done
            cat >"$folder/driver.yaml" <<END
driver: proxy
proxy:
  configFolder: $folder/connections/
  nodeTopology:
    type: [node, zone]
    fromRegexp:
    - {topologyKey: zone, source: nodeName, regex: "node-([0-9]+)", template: "zone-{match:1}"}
END
            ;;
        *) die "there is no release $1: local, proxy, zones, nfs, smb, iscsi, nvmeof" ;;
    esac
}

directory() { # base
    printf 'driver: local-hostpath\nlocal-hostpath: {shareBasePath: %s, controllerBasePath: %s}\n' "$1" "$1"
}

csi_name() { printf 'org.omnibus.%s' "$1"; }

start_driver() { # release node [program]
    local name folder=$CLUSTER_STATE/releases/$1 plugin
    name=$(csi_name "$1")
    plugin=/var/lib/kubelet/plugins/$name
    in_node "$2" mkdir -p "$plugin"
    CSI_NODE_ID=$2 service "$2" start "$1-driver" "${3:-$OMNIBUS_CSI}" \
        --driver-config-file="$folder/driver.yaml" --csi-name="$name" --csi-version=1.12.0 \
        --csi-mode=controller --csi-mode=node --server-socket="$plugin/csi.sock" --log-level=info
}

driver_answers() { # release node
    in_node "$2" "$OMNIBUS_CSI" liveness-probe --csi-address="/var/lib/kubelet/plugins/$(csi_name "$1")/csi.sock"
}

# The resizer runs once: it has no mode in which it cares for the volumes of its own node only.
start_sidecars() { # release node
    local socket common
    socket=/var/lib/kubelet/plugins/$(csi_name "$1")/csi.sock
    common=(--csi-address="$socket" --kubeconfig="$KUBECONFIG" --leader-election=false --timeout=60s --v=5)
    service "$2" start "$1-registrar" "$KUBERNETES_PROGRAMS/registrar" --csi-address="$socket" \
        --kubelet-registration-path="$socket" --plugin-registration-path=/var/lib/kubelet/plugins_registry
    NODE_NAME=$2 NAMESPACE=kube-system POD_NAME=$1-$2 service "$2" start "$1-provisioner" "$SIDECAR_PROGRAMS/csi-provisioner" \
        "${common[@]}" --feature-gates=Topology=true --strict-topology=true --node-deployment=true --extra-create-metadata \
        --enable-capacity=true --capacity-ownerref-level=-1 --capacity-poll-interval=15s \
        --kube-api-capacity-qps=20 --kube-api-capacity-burst=40
    NODE_NAME=$2 service "$2" start "$1-snapshotter" "$SIDECAR_PROGRAMS/csi-snapshotter" \
        "${common[@]}" --node-deployment="${DISTRIBUTED_SNAPSHOTS:-true}"
    [ "$2" != node-1 ] || service "$2" start "$1-resizer" "$SIDECAR_PROGRAMS/csi-resizer" "${common[@]}"
}

is_registered() { # release node
    kubectl get csinode "$2" -o 'jsonpath={.spec.drivers[*].name}' | grep -qw "$(csi_name "$1")"
}

release_install() { # release
    local node
    driver_program
    case ${RELEASE_BY:-services} in
        services) ;;
        chart | layout)
            "${RELEASE_BY}_install" "$1"
            return
            ;;
        *) die "RELEASE_BY is services, chart or layout" ;;
    esac
    if is_of_network "$1"; then
        network_install "$1"
        return
    fi
    write_configuration "$1"
    kubectl apply -f "$CLUSTER/objects/$1.yaml" >/dev/null
    for node in $(nodes_up); do
        start_driver "$1" "$node"
        wait_until 30 driver_answers "$1" "$node" || die "the driver of $1 does not answer: see $CLUSTER_STATE/$node/services/$1-driver.log"
        start_sidecars "$1" "$node"
    done
    for node in $(nodes_up); do
        wait_until 60 is_registered "$1" "$node" || die "$1 is not registered on $node: see $CLUSTER_STATE/$node/services/$1-registrar.log"
    done
}

# The sidecars first: each call that they have made is then answered.
release_uninstall() { # release
    local node part
    for part in chart layout; do
        [ -e "$CLUSTER_STATE/releases/$1/by-$part" ] || continue
        "${part}_uninstall" "$1"
        rm -r "$CLUSTER_STATE/releases/$1"
        return
    done
    if is_of_network "$1"; then
        network_uninstall "$1"
        return
    fi
    for node in $(nodes_up); do
        for part in provisioner snapshotter resizer registrar driver; do service "$node" stop "$1-$part"; done
    done
    kubectl delete --ignore-not-found -f "$CLUSTER/objects/$1.yaml" >/dev/null
}
