# shellcheck shell=bash
# Releases of storage in a network: the controller and its sidecars are services of node-1, the lab's machine
# is the storage host and the node, whose driver registers itself. Sourced, never run.
#
# nfs, smb, iscsi, nvmeof    zfs-generic of that name; driver org.omnibus.<name>, class and snapshot class <name>;
#                            smb by the chart only
# scratch                    by the chart only: zfs-local-ephemeral-inline of the machine
# mixed                      by the chart only: the proxy over zfs-generic of each of MIXED, with datasets of its own for
#                            each; classes mixed-<connection>, snapshot class mixed
# truenas                    by the chart only: truenas.sh

is_of_network() { case $1 in nfs | smb | iscsi | nvmeof | scratch | mixed | truenas) ;; *) return 1 ;; esac; }

# ACCESS_NODES: what nodes are called at the storage, for access per node over NFS, iSCSI and NVMe over fabrics: the value
# of `nodes`.
network_configuration() { # release [parent of its datasets]
    local parent=${2:-tank/csi}
    cat <<END
driver: zfs-generic-$1
sshConnection:
  host: $MACHINE_ADDRESS
  port: 22
  username: root
  privateKey: |
$(sed 's/^/    /' "$(lab path)/key")
zfs:
  datasetParentName: $parent/volumes
  detachedSnapshotsDatasetParentName: $parent/snapshots
  datasetEnableQuotas: true
  datasetPermissionsMode: '0777'
  volumeParameters: [compression, sync]
END
    case $1 in
        nfs)
            cat <<END
nfs:
  shareHost: $MACHINE_ADDRESS
  shareStrategy: setDatasetProperties
  shareStrategySetDatasetProperties:
    properties: {sharenfs: 'rw,no_subtree_check,no_root_squash'}
END
            ;;
        smb)
            cat <<END
smb:
  shareHost: $MACHINE_ADDRESS
  shareStrategy: setDatasetProperties
  shareStrategySetDatasetProperties: {properties: {sharesmb: true}}
END
            ;;
        iscsi)
            cat <<END
iscsi:
  targetPortal: $MACHINE_ADDRESS:3260
  shareStrategy: lio
  shareStrategyLio:
    basename: iqn.2026-01.lab.cluster
    block: {attributes: {emulate_tpu: 1}}
END
            ;;
        nvmeof)
            cat <<END
nvmeof:
  transport: tcp://$MACHINE_ADDRESS:4420
  shareStrategy: nvmet
  shareStrategyNvmet:
    basename: nqn.2026-01.lab.cluster
    ports: [{id: 1, traddr: 0.0.0.0}]
END
            ;;
    esac
    case $1 in
        # It belongs to the last section above.
        nfs | iscsi | nvmeof) [ -z "${ACCESS_NODES:-}" ] || printf '    nodes: %s\n' "$ACCESS_NODES" ;;
    esac
}

# The same as values of the chart. MIXED: the connections of the release mixed; nfs-2 is a second one of the kind nfs.
network_values() { # release
    local connection
    case $1 in
        truenas) truenas_values ;;
        mixed)
            echo 'connections:'
            for connection in $MIXED; do
                printf '  %s:\n' "$connection"
                network_configuration "${connection%-*}" "tank/$connection" | sed 's/^/    /'
            done
            # The chart refuses a class without its connection.
            echo 'storageClasses:'
            for connection in $MIXED; do
                printf -- '- {name: mixed-%s, allowVolumeExpansion: true, ' "$connection"
                case $connection in
                    nfs*) printf 'mountOptions: [noatime], parameters: {connection: %s}}\n' "$connection" ;;
                    *) printf 'parameters: {connection: %s, fsType: ext4}}\n' "$connection" ;;
                esac
            done
            ;;
        scratch) ;;
        *)
            printf 'driver:\n  config:\n'
            network_configuration "$1" | sed 's/^/    /'
            ;;
    esac
}

network_install() { # release
    local folder=$CLUSTER_STATE/releases/$1 name socket plugin common
    machine_is_up || die "the release $1 needs the lab's machine: cluster up --lab"
    name=$(csi_name "$1")
    socket=$folder/csi.sock
    plugin=/var/lib/kubelet/plugins/$name
    mkdir -p "$folder"
    machine_storage >"$folder/storage"
    network_configuration "$1" >"$folder/driver.yaml"
    kubectl apply -f "$CLUSTER/objects/$1.yaml" >/dev/null

    service node-1 start "$1-driver" "$OMNIBUS_CSI" --driver-config-file="$folder/driver.yaml" --csi-name="$name" \
        --csi-version=1.12.0 --csi-mode=controller --server-socket="$socket" --log-level=info
    push_program
    in_node lab mkdir -p "$plugin"
    in_node lab tee "$MACHINE_FOLDER/$1.yaml" <"$folder/driver.yaml" >/dev/null
    in_node lab systemd-run --quiet --unit "$1-driver" --collect -p Restart=always -p RestartSec=0.5 \
        -p StartLimitIntervalSec=0 -p KillMode=process -E CSI_NODE_ID=lab -E PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        "$MACHINE_FOLDER/${OMNIBUS_CSI##*/}" --driver-config-file="$MACHINE_FOLDER/$1.yaml" --csi-name="$name" \
        --csi-version=1.12.0 --csi-mode=node --server-socket="$plugin/csi.sock" --log-level=info \
        --kubelet-registration-path="$plugin/csi.sock" --plugin-registration-path=/var/lib/kubelet/plugins_registry

    wait_until 30 in_node node-1 "$OMNIBUS_CSI" liveness-probe --csi-address="$socket" ||
        die "the controller of $1 does not answer: see $CLUSTER_STATE/node-1/services/$1-driver.log"
    # As the chart starts them beside a controller of the whole cluster.
    common=(--csi-address="$socket" --kubeconfig="$KUBECONFIG" --leader-election=false --timeout=60s --v=5)
    NAMESPACE=kube-system POD_NAME=$1 service node-1 start "$1-provisioner" "$SIDECAR_PROGRAMS/csi-provisioner" \
        "${common[@]}" --extra-create-metadata
    service node-1 start "$1-snapshotter" "$SIDECAR_PROGRAMS/csi-snapshotter" "${common[@]}"
    service node-1 start "$1-resizer" "$SIDECAR_PROGRAMS/csi-resizer" "${common[@]}"
    wait_until 120 is_registered "$1" lab || die "$1 is not registered on lab: see 'journalctl -u $1-driver' there"
}

# It is large: once is enough.
push_program() {
    local mark
    mark=$MACHINE_STATE/pushed-$(key "$OMNIBUS_CSI")
    [ ! -e "$mark" ] || return 0
    lab push "$OMNIBUS_CSI"
    touch "$mark"
}

network_uninstall() { # release
    local part
    for part in provisioner snapshotter resizer driver; do service node-1 stop "$1-$part"; done
    in_node lab systemctl stop "$1-driver"
    kubectl delete --ignore-not-found -f "$CLUSTER/objects/$1.yaml" >/dev/null
}

# How the storage, its exports and the sessions differ from what they were when the release was installed.
storage_left() { # release
    local now
    [ -e "$CLUSTER_STATE/releases/$1/storage" ] || return 0
    if now=$(machine_storage); then
        diff "$CLUSTER_STATE/releases/$1/storage" - <<<"$now" || true
    else
        echo "the machine does not answer"
    fi
}
