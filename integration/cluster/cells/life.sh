# shellcheck shell=bash
# The life of a claim. Sourced, never run.

cell_life_local() { life local local; }
cell_life_proxy() { life proxy near; }
cell_chart_local() { RELEASE_BY=chart life local local; }
cell_chart_central() { RELEASE_BY=chart life central central; }
cell_old_layout() { RELEASE_BY=layout life local local; }
cell_chart_proxy() { RELEASE_BY=chart life proxy near; }
cell_life_nfs() { network_life nfs; }
cell_life_iscsi() { network_life iscsi; }
cell_life_nvmeof() { network_life nvmeof; }

cell_chart_nfs() { network_by_chart nfs; }
cell_chart_smb() { network_by_chart smb; }
cell_chart_iscsi() { network_by_chart iscsi; }
cell_chart_nvmeof() { network_by_chart nvmeof; }

network_by_chart() { # release
    RELEASE_BY=chart network_life "$1"
    controller_is_unprivileged "$1"
}

# In the lab's machine, where the node's and the storage's part is real.
network_life() { # release
    PATIENCE=300
    FULL_SIZE=1
    life "$1" "$1"
}

# FULL_SIZE: a pod sees how large its volume is.
life() { # release class
    release_install "$1"
    life_of_claim "$2" "$1"
    clean_up "$1"
}

life_of_claim() { # class, snapshot class
    claim first "$1" 1Gi
    pod writer first
    ready writer
    put writer file first

    snapshot moment first "$2"
    snapshot_ready moment
    put writer file later
    claim restored "$1" 1Gi VolumeSnapshot moment
    pod reader restored
    claim cloned "$1" 1Gi PersistentVolumeClaim first
    pod cloner cloned
    ready reader
    ready cloner
    holds reader file first
    holds cloner file later

    # Each is a volume of its own.
    put cloner file cloned
    holds writer file later
    holds reader file first

    k patch pvc first -p '{"spec": {"resources": {"requests": {"storage": "2Gi"}}}}' >/dev/null
    wait_until "$PATIENCE" size_is first 2Gi || fail "the claim does not grow: $(k describe pvc first)"
    if [ -n "${FULL_SIZE:-}" ]; then
        wait_until "$PATIENCE" has_megabytes writer 1800 || fail "the pod does not see the growth: $(run_in writer 'df -m /data')"
    fi
    holds writer file later

    # The source goes first; what was made of it stays.
    remove pod/writer pvc/first
    remove volumesnapshot/moment
    holds reader file first
    holds cloner file cloned
}

has_megabytes() { # pod size
    [ "$(run_in "$1" "df -Pm /data | awk 'NR == 2 { print \$2 }'")" -ge "$2" ]
}

# As the kernel sees its process.
controller_is_unprivileged() { # release
    local id pid seen
    id=$(kubectl -n "$CHART_NAMESPACE" get pod -l "app.kubernetes.io/instance=$1,app.kubernetes.io/component=controller" \
        -o 'jsonpath={.items[0].status.containerStatuses[?(@.name=="csi-driver")].containerID}')
    pid=$(in_node node-1 ctr -n k8s.io task ls | awk -v id="${id#*//}" '$1 == id { print $2 }')
    [ -n "$pid" ] || fail "the controller has no process"
    seen=$(in_node node-1 sh -c "grep -E '^(Uid|Gid|Cap...|NoNewPrivs):' /proc/$pid/status | tr -s '\t' ' '
        awk '\$5 == \"/\" { print \"root \" substr(\$6, 1, 2) }' /proc/$pid/mountinfo")
    [ "$seen" = "Uid: 65532 65532 65532 65532
Gid: 65532 65532 65532 65532
CapInh: 0000000000000000
CapPrm: 0000000000000000
CapEff: 0000000000000000
CapBnd: 0000000000000000
CapAmb: 0000000000000000
NoNewPrivs: 1
root ro" ] || fail "the controller has rights: $seen"
}
