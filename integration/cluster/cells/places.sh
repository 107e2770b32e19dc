# shellcheck shell=bash
# Where volumes are, and how much space is there. Sourced, never run.

# A claim goes to the node of its pod and stays there; every node has a capacity for every class.
cell_capacity() {
    local node free reported
    release_install local
    wait_until 90 has_capacities 2 || fail "there are not two capacities: $(kubectl get csistoragecapacities -A)"
    for node in node-1 node-2; do
        reported=$(capacity_of "$node")
        free=$(($(in_node "$node" stat -f -c '%a * %S' "$VOLUMES") / 1048576))
        # Other work on this machine uses the same disk.
        [ $(((reported - free) * (reported - free))) -lt $((4096 * 4096)) ] ||
            fail "$node: the capacity is $reported MiB, the disk has $free MiB free"
    done
    # More than there is: it stays with the scheduler, and no driver is asked.
    claim huge local 900Ti
    pod huge huge
    wait_until 60 has_event huge FailedScheduling || fail "the scheduler does not say that there is no space"
    k get events --field-selector involvedObject.name=huge -o 'jsonpath={.items[*].message}' |
        grep -q 'did not have enough free storage' || fail "the scheduler gives another reason: $(k get events)"
    [ -z "$(directories)" ] || fail "something was made: $(directories)"
    clean_up local
}

has_capacities() { # count
    [ "$(kubectl get csistoragecapacities -A -o name | wc -l)" = "$1" ] &&
        ! kubectl get csistoragecapacities -A -o 'jsonpath={.items[*].capacity}' | grep -qw 0
}

# In MiB; Kubernetes writes a number of bytes with one of several suffixes.
capacity_of() { # node
    kubectl get csistoragecapacities -A -o go-template='{{range .items}}{{index .nodeTopology.matchLabels "org.democratic-csi.topology/node"}} {{.capacity}}{{"\n"}}{{end}}' |
        sed -n "s/^$1 //p" |
        awk '/Ki$/ { print int($1 / 1024); next } /Mi$/ { print int($1); next } /Gi$/ { print $1 * 1024; next } { print int($1 / 1048576) }'
}

has_event() { # object reason
    k get events --field-selector "involvedObject.name=$1" -o 'jsonpath={.items[*].reason}' | grep -qw "$2"
}

# The volume follows the first pod; a class says where; a connection that a node does not reach is not used.
cell_topology() {
    local name
    release_install zones
    [ "$(kubectl get csinode node-2 -o 'jsonpath={.spec.drivers[?(@.name=="org.omnibus.zones")].topologyKeys}')" = \
        '["org.democratic-csi.topology/node","org.democratic-csi.topology/zone"]' ] ||
        fail "the topology keys are others: $(kubectl get csinode node-2 -o yaml)"
    # The connection is reached from zone-2 only, the class lets the pod be anywhere.
    claim follows zone-2 1Gi
    pod follows follows
    # The class lets every connection be used, in one zone.
    claim placed placed 1Gi
    pod placed placed
    # The pod says where, the class has a connection there.
    for name in node-1 node-2; do
        claim "on-$name" zones 1Gi
        pod "on-$name" "on-$name" "$name"
    done
    for name in follows placed on-node-1 on-node-2; do ready "$name" 120; done
    [ "$(node_of follows)" = node-2 ] || fail "the pod is on $(node_of follows), its storage in zone-2"
    [ "$(node_of placed)" = node-2 ] || fail "the pod is on $(node_of placed), its class says zone-2"
    for name in node-1 node-2; do
        case $(kubectl get pv "$(volume_of "on-$name")" -o 'jsonpath={.spec.csi.volumeHandle}') in
            "v:zone-${name#node-}/"*) ;;
            *) fail "the volume of a pod on $name is elsewhere: $(kubectl get pv -o yaml)" ;;
        esac
        kubectl get pv "$(volume_of "on-$name")" -o 'jsonpath={.spec.nodeAffinity}' | grep -q "\"$name\"" ||
            fail "the volume of a pod on $name may be used elsewhere"
    done
    # A pod that must run where its storage is not is never given a volume.
    claim never zone-1 1Gi
    pod never never node-2
    wait_until 90 has_event never FailedScheduling || wait_until 60 has_event never ProvisioningFailed || fail "nothing is said of a pod without a place"
    [ "$(k get pvc never -o 'jsonpath={.status.phase}')" = Pending ] || fail "a volume was made where its storage is not"
    clean_up zones
}
