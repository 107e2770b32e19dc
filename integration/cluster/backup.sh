# shellcheck shell=bash
# Programs of backups in the cluster: an S3 server and VolSync's manager as services of node-1, Velero in pods. integration/cluster/programs
# builds them, integration/cluster/images packs what runs in pods. Sourced, never run.

GOFAKES3=v1.2.0
VOLSYNC=v0.14.0
# The one that VolSync's own image has: Debian 12 has one that does not know all its flags.
RESTIC=v0.18.0
VELERO=v1.18.3
VELERO_PLUGIN_FOR_AWS=v1.14.3

S3_PROGRAMS=$OMNIBUS_CACHE/cluster/gofakes3-$GOFAKES3
VOLSYNC_PROGRAMS=$OMNIBUS_CACHE/cluster/volsync-$VOLSYNC-restic-$RESTIC
VELERO_PROGRAMS=$OMNIBUS_CACHE/cluster/velero-$VELERO-aws-$VELERO_PLUGIN_FOR_AWS
VOLSYNC_IMAGE=quay.io/backube/volsync:${VOLSYNC#v}
VELERO_IMAGE=docker.io/velero/velero:$VELERO
VELERO_PLUGIN_IMAGE=docker.io/velero/velero-plugin-for-aws:$VELERO_PLUGIN_FOR_AWS

# An address of node-1, which its pods reach: the cluster has no names. Any key is good for this server.
S3_HOST=10.77.0.1
S3_PORT=9000
S3_KEY=backups
S3_SECRET=backups-secret

listens() { in_node node-1 bash -c "exec 3<>/dev/tcp/$1/$2"; } # host port

# It keeps everything in memory, and forgets it when it ends.
s3_start() { # bucket
    service node-1 start s3 "$S3_PROGRAMS/gofakes3" -backend memory -initialbucket "$1" -host "$S3_HOST:$S3_PORT"
    wait_until 30 listens "$S3_HOST" "$S3_PORT" || die "the S3 server does not answer: see $CLUSTER_STATE/node-1/services/s3.log"
}

s3_stop() { service node-1 stop s3; }

backup_images() { # volsync|velero
    local archive
    archive=$("$CLUSTER/images" "$1")
    in_node node-1 ctr -n k8s.io images import "$archive" >>"$CLUSTER_STATE/node-1/images.log" 2>&1 ||
        die "$archive cannot be imported: see $CLUSTER_STATE/node-1/images.log"
}

volsync_install() {
    backup_images volsync
    kubectl apply --server-side -f "$VOLSYNC_PROGRAMS/files/crds" >/dev/null
    established crd replicationsources.volsync.backube replicationdestinations.volsync.backube
    VOLSYNC_NAMESPACE=default service node-1 start volsync "$VOLSYNC_PROGRAMS/volsync" --kubeconfig="$KUBECONFIG" \
        --health-probe-bind-address=127.0.0.1:8481 --metrics-bind-address=0 \
        --restic-container-image="$VOLSYNC_IMAGE" --rsync-tls-container-image="$VOLSYNC_IMAGE"
    wait_until 60 listens 127.0.0.1 8481 || die "VolSync does not start: see $CLUSTER_STATE/node-1/services/volsync.log"
}

volsync_uninstall() {
    service node-1 stop volsync
    kubectl delete --timeout=90s -f "$VOLSYNC_PROGRAMS/files/crds" >/dev/null
}

velero() { in_node node-1 env KUBECONFIG="$KUBECONFIG" "$VELERO_PROGRAMS/velero" --namespace velero "$@"; }

velero_is() { # kind name phase
    [ "$(velero_phase "$1" "$2")" = "$3" ]
}

velero_phase() { # kind name
    kubectl -n velero get "$1.velero.io" "$2" -o 'jsonpath={.status.phase}'
}

# What Velero's pods and objects say, for one who looks why it failed.
velero_said() {
    local kind
    kubectl -n velero get all,pvc,backups.velero.io,restores.velero.io,datauploads.velero.io,datadownloads.velero.io >&2 || true
    kubectl -n velero describe pods >&2 || true
    kubectl -n velero get backupstoragelocations.velero.io,backuprepositories.velero.io,datauploads.velero.io,datadownloads.velero.io -o yaml >&2 || true
    for kind in backup restore; do velero "$kind" describe --details >&2 || true; done
    for kind in upload download; do
        kubectl -n velero logs -l "velero.io/data-$kind" --all-containers --prefix --tail=60 >&2 || true
    done
    kubectl -n velero logs --tail=60 deployment/velero >&2 || true
    kubectl -n velero logs --tail=60 daemonset/node-agent >&2 || true
    tail -n 40 "$CLUSTER_STATE/node-1/services/s3.log" >&2 || true
}

velero_install() { # bucket
    local name log=$CLUSTER_STATE/velero.log keys=$CLUSTER_STATE/velero-keys
    backup_images velero
    printf '[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n' "$S3_KEY" "$S3_SECRET" >"$keys"
    # The server has no checksums in trailers, which the plugin sends otherwise. The node is small.
    velero install --provider aws --bucket "$1" --secret-file "$keys" --image "$VELERO_IMAGE" --plugins "$VELERO_PLUGIN_IMAGE" \
        --backup-location-config "region=us-east-1,s3ForcePathStyle=true,s3Url=http://$S3_HOST:$S3_PORT,checksumAlgorithm=" \
        --use-volume-snapshots=false --features=EnableCSI --use-node-agent \
        --velero-pod-cpu-request=0 --velero-pod-mem-request=0 --velero-pod-cpu-limit=0 --velero-pod-mem-limit=0 >"$log" 2>&1 ||
        die "Velero cannot be installed: $(tail -n 5 "$log")"
    for name in deployment/velero daemonset/node-agent; do
        kubectl -n velero rollout status --timeout=180s "$name" >/dev/null || { velero_said; die "Velero's $name does not start"; }
    done
    wait_until 120 velero_is backupstoragelocations default Available || { velero_said; die "Velero does not reach the S3 server"; }
}

velero_uninstall() {
    local log=$CLUSTER_STATE/velero.log
    velero uninstall --force >>"$log" 2>&1 || die "Velero cannot be uninstalled: $(tail -n 5 "$log")"
}
