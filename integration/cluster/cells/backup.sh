# shellcheck shell=bash
# Many snapshots at once, and programs of backups (integration/cluster/backup.sh). Sourced, never run.

# Files of several sizes, the first of them empty.
fill() { # pod folder
    run_in "$1" "mkdir -p $2/d && cd $2/d && n=0 && while [ \$n -lt 20 ]; do head -c \$((n * 10007)) /dev/urandom >\$n; n=\$((n + 1)); done && sync -f ."
}

# With these files, by the pod `writer`.
written_claim() { # claim
    claim "$1" local 1Gi
    pod writer "$1"
    ready writer
    fill writer /data
}

# One SHA-256 over the names and the SHA-256 of these files.
sum_of_files() { # pod folder
    run_in "$1" "cd $2/d && find . -type f | sort | xargs sha256sum | sha256sum | cut -d ' ' -f 1"
}

same_files() { # pod folder sum
    local sum
    sum=$(sum_of_files "$1" "$2")
    [ "$sum" = "$3" ] || fail "in pod $1 the files in $2 have the SHA-256 '$sum', not '$3'"
}

# Fifty snapshots of one claim at once, then five of each of ten claims at once: all become ready, each is another one on
# the storage, and each restored one has what its claim had. All are deleted at once, and nothing is left.
cell_snapshot_storm() {
    local number name began many=() sums=() restored=()
    # The snapshotter and the snapshot controller ask the API server five times a second.
    # shellcheck disable=SC2034  # for objects.sh
    PATIENCE=300
    release_install local
    claim one local 1Gi
    pod one one
    for number in {1..10}; do
        claim "many-$number" local 1Gi
        many+=("many-$number")
    done
    pod_of_many many : "${many[@]}"
    ready one
    ready many
    fill one /data
    sums[0]=$(sum_of_files one /data)
    for number in {1..10}; do
        fill many "/data/$number"
        sums[number]=$(sum_of_files many "/data/$number")
    done
    [ "$(printf '%s\n' "${sums[@]}" | sort -u | wc -l)" = 11 ] || fail "two claims have the same content: this proves nothing"

    # shellcheck disable=SC2046  # one word each
    storm one $(printf 'one %.0s' {1..50})
    storm many "${many[@]}" "${many[@]}" "${many[@]}" "${many[@]}" "${many[@]}"
    [ "$(handles_of_snapshots | sort -u | wc -l)" = 100 ] || fail "there are not a hundred snapshots: $(handles_of_snapshots | sort)"

    run_in one 'rm -r /data/d; echo later >/data/later'
    run_in many 'rm -r /data/3/d /data/8/d'
    for name in one-1 one-25 one-50 many-3 many-48; do
        claim "restored-$name" local 1Gi VolumeSnapshot "$name"
        restored+=("restored-$name")
    done
    pod_of_many restored : "${restored[@]}"
    ready restored
    for number in 1 2 3; do same_files restored "/data/$number" "${sums[0]}"; done
    same_files restored /data/4 "${sums[3]}"
    same_files restored /data/5 "${sums[8]}"
    ! run_in restored 'ls /data/1/later' 2>/dev/null || fail "a snapshot has what was written after it"

    began=$SECONDS
    k delete volumesnapshot --all --timeout="${PATIENCE}s" >/dev/null || fail "the snapshots cannot be deleted"
    wait_until "$PATIENCE" no_contents local || fail "contents of snapshots are left: $(contents_of_driver local)"
    say "a hundred snapshots were gone after $((SECONDS - began)) s"
    same_files restored /data/1 "${sums[0]}"
    clean_up local
    tested_with "snapshot-controller" "$(sidecar_version external-snapshotter)"
}

# The n-th snapshot, called <name>-<n>, is of the n-th claim.
storm() { # name claim...
    local name=$1 claim number=0 began=$SECONDS
    shift
    for claim in "$@"; do
        number=$((number + 1))
        cat <<END_OF_OBJECT
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: $name-$number, labels: {storm: $name}}
spec: {volumeSnapshotClassName: local, source: {persistentVolumeClaimName: $claim}}
END_OF_OBJECT
    done | k create -f - >/dev/null
    k wait --for=jsonpath='{.status.readyToUse}'=true --timeout="${PATIENCE}s" volumesnapshot -l "storm=$name" >/dev/null || {
        k get volumesnapshot >&2
        fail "the snapshots $name do not all become ready"
    }
    say "$# snapshots ($name) were ready after $((SECONDS - began)) s"
}

handles_of_snapshots() {
    kubectl get volumesnapshotcontents -o 'jsonpath={range .items[*]}{.status.snapshotHandle}{"\n"}{end}' | grep .
}

no_contents() { [ -z "$(contents_of_driver "$1")" ]; } # release

# The restic mover: a snapshot of a claim into a repository in S3; the namespace is deleted, and a new claim gets it all.
cell_backup_volsync() {
    local sum
    begin_backup
    s3_start volsync
    volsync_install
    privileged_movers
    repository
    written_claim data
    sum=$(sum_of_files writer /data)

    k apply -f - >/dev/null <<END_OF_OBJECT
apiVersion: volsync.backube/v1alpha1
kind: ReplicationSource
metadata: {name: data}
spec:
  sourcePVC: data
  trigger: {manual: once}
  restic: {repository: restic, copyMethod: Snapshot, storageClassName: local, volumeSnapshotClassName: local, cacheStorageClassName: local}
END_OF_OBJECT
    synchronized replicationsource/data
    run_in writer 'rm -r /data/d'
    wait_until "$PATIENCE" no_contents local || fail "VolSync keeps snapshots: $(contents_of_driver local)"

    namespace_anew local
    privileged_movers
    repository
    claim data local 1Gi
    k apply -f - >/dev/null <<END_OF_OBJECT
apiVersion: volsync.backube/v1alpha1
kind: ReplicationDestination
metadata: {name: data}
spec:
  trigger: {manual: once}
  restic: {repository: restic, destinationPVC: data, copyMethod: Direct, cacheStorageClassName: local}
END_OF_OBJECT
    synchronized replicationdestination/data
    pod reader data
    ready reader
    same_files reader /data "$sum"

    end_volsync
    s3_stop
    tested_with "VolSync with restic" "${VOLSYNC#v}, restic ${RESTIC#v}, gofakes3 ${GOFAKES3#v}"
}

# The rsync mover over TLS: a snapshot of a claim into a claim of another namespace, which outlives that of the first. A Service
# would need kube-proxy, so the source is given the address of the destination's pod.
cell_backup_volsync_rsync() {
    local there=$NS-there sum psk
    begin_backup
    volsync_install
    privileged_movers
    NS=$there create_namespace
    NS=$there privileged_movers
    NS=$there claim there local 1Gi
    written_claim here
    sum=$(sum_of_files writer /data)

    NS=$there k apply -f - >/dev/null <<END_OF_OBJECT
apiVersion: volsync.backube/v1alpha1
kind: ReplicationDestination
metadata: {name: there}
spec:
  trigger: {manual: once}
  rsyncTLS: {destinationPVC: there, copyMethod: Direct}
END_OF_OBJECT
    NS=$there wait_until "$PATIENCE" destination_runs || { NS=$there volsync_said; fail "no pod receives what rsync sends"; }
    psk=$(NS=$there k get secret "$(NS=$there destination_key)" -o 'jsonpath={.data.psk\.txt}' | base64 -d)
    k create secret generic key --from-literal="psk.txt=$psk" >/dev/null
    k apply -f - >/dev/null <<END_OF_OBJECT
apiVersion: volsync.backube/v1alpha1
kind: ReplicationSource
metadata: {name: here}
spec:
  sourcePVC: here
  trigger: {manual: once}
  rsyncTLS: {copyMethod: Snapshot, storageClassName: local, volumeSnapshotClassName: local, keySecret: key, address: $(NS=$there destination_address), port: 8000}
END_OF_OBJECT
    synchronized replicationsource/here
    NS=$there synchronized replicationdestination/there

    kubectl delete namespace "$NS" --timeout="${PATIENCE}s" >/dev/null || fail "the namespace cannot be deleted"
    NS=$there wait_until "$PATIENCE" only_volume_of there local ||
        fail "of the namespace that is deleted, or of VolSync, there is left: volumes '$(volumes_of_driver local)', snapshots '$(contents_of_driver local)'"
    NS=$there pod reader there
    NS=$there ready reader
    NS=$there same_files reader /data "$sum"
    NS=$there delete_namespace local
    create_namespace
    end_volsync
    tested_with "VolSync with rsync over TLS" "${VOLSYNC#v}, rsync and stunnel of $(debian_version)"
}

only_volume_of() { # claim release
    [ "$(volumes_of_driver "$2")" = "$(volume_of "$1") " ] && no_contents "$2"
}

destination_key() { k get replicationdestination there -o 'jsonpath={.status.rsyncTLS.keySecret}'; }

# Pods that failed before it are left beside it.
destination_address() {
    k get pod -l job-name=volsync-rsync-tls-dst-there --field-selector=status.phase=Running -o 'jsonpath={.items[0].status.podIP}'
}

destination_runs() {
    [ -n "$(destination_address)" ] && [ -n "$(destination_key)" ]
}

# Velero with its node agent and its own data mover of CSI snapshots: the data goes to S3, the snapshot goes away. The namespace
# is deleted and restored.
cell_backup_velero() {
    local sum
    begin_backup
    kubectl label volumesnapshotclass local velero.io/csi-volumesnapshot-class=true >/dev/null
    s3_start velero
    velero_install velero
    written_claim data
    sum=$(sum_of_files writer /data)

    velero backup create first --include-namespaces "$NS" --snapshot-move-data >/dev/null
    velero_completes backups first
    moved datauploads
    wait_until "$PATIENCE" velero_keeps_nothing || { velero_said; fail "Velero keeps snapshots or claims after the backup"; }

    delete_namespace local
    velero restore create again --from-backup first >/dev/null
    velero_completes restores again
    moved datadownloads
    ready writer
    same_files writer /data "$sum"
    wait_until "$PATIENCE" velero_keeps_nothing || { velero_said; fail "Velero keeps snapshots or claims after the restore"; }

    velero backup delete first --confirm >/dev/null
    wait_until "$PATIENCE" no_backup first || { velero_said; fail "the backup cannot be deleted"; }
    velero_uninstall
    clean_up local
    s3_stop
    tested_with "Velero with node agent and data mover" "${VELERO#v}, velero-plugin-for-aws ${VELERO_PLUGIN_FOR_AWS#v}, gofakes3 ${GOFAKES3#v}"
}

no_backup() { [ -z "$(kubectl -n velero get backups.velero.io "$1" --ignore-not-found -o name)" ]; } # name

velero_completes() { # kind name
    wait_until 600 velero_ended "$1" "$2" || { velero_said; fail "Velero's $1 $2 does not end"; }
    velero_is "$1" "$2" Completed || { velero_said; fail "Velero's $1 $2 ended as $(velero_phase "$1" "$2")"; }
}

velero_ended() { # kind name
    case $(velero_phase "$1" "$2") in Completed | PartiallyFailed | Failed | FailedValidation) ;; *) return 1 ;; esac
}

# Of each claim: otherwise the backup has only its objects.
moved() { # kind
    local claims phases
    claims=$(k get pvc -o name | wc -l)
    phases=$(kubectl -n velero get "$1.velero.io" -o 'jsonpath={range .items[*]}{.status.phase}{"\n"}{end}' | sort | uniq -c | xargs)
    [ "$claims" -gt 0 ] || fail "there are no claims to be moved"
    [ "$phases" = "$claims Completed" ] || { velero_said; fail "of $claims claims Velero has these $1: '$phases'"; }
}

velero_keeps_nothing() {
    no_contents local && [ -z "$(kubectl -n velero get persistentvolumeclaims,volumesnapshots -o name)" ]
}

# The row of the table in docs/backup-velero.md.
tested_with() { # program versions
    local cell=${NS#cell-}
    say "| $1 | $2 | ${KUBERNETES#v} | $(sidecar_version external-provisioner), $(sidecar_version external-snapshotter) | \`${cell//-/_}\` | passed on $(date -u +%F) |"
}

sidecar_version() { # module
    sed -n "s,^\tgithub.com/kubernetes-csi/$1/v[0-9]* v\([0-9.]*\)\$,\1,p" "$CLUSTER/sidecars/go.mod" | grep .
}

debian_version() { sed -n 's/^VERSION_ID="\(.*\)"$/Debian \1/p' /etc/os-release; }

begin_backup() {
    # Movers are pods that are made one after the other.
    # shellcheck disable=SC2034  # for objects.sh
    PATIENCE=240
    release_install local
}

# The files are those of root, and only a mover with rights may keep that.
privileged_movers() { kubectl annotate --overwrite namespace "$NS" volsync.backube/privileged-movers=true >/dev/null; }

repository() {
    k create secret generic restic --from-literal="RESTIC_REPOSITORY=s3:http://$S3_HOST:$S3_PORT/volsync/data" \
        --from-literal=RESTIC_PASSWORD=password --from-literal="AWS_ACCESS_KEY_ID=$S3_KEY" \
        --from-literal="AWS_SECRET_ACCESS_KEY=$S3_SECRET" --from-literal=AWS_DEFAULT_REGION=us-east-1 >/dev/null
}

synchronized() { # kind/name
    k wait --for=jsonpath='{.status.lastManualSync}'=once --timeout="${PATIENCE}s" "$1" >/dev/null && return
    volsync_said
    fail "VolSync's $1 does not end"
}

volsync_said() {
    k get pod,pvc,volumesnapshot >&2 || true
    k describe pod -l app.kubernetes.io/created-by=volsync >&2 || true
    k logs -l app.kubernetes.io/created-by=volsync --all-containers --prefix --tail=60 >&2 || true
    k get replicationsource,replicationdestination -o yaml >&2 || true
    tail -n 40 "$CLUSTER_STATE/node-1/services/volsync.log" >&2 || true
}

# What VolSync made belongs to its objects: it goes with them.
end_volsync() {
    remove replicationsource,replicationdestination --all
    clean_up local
    volsync_uninstall
}

# The whole namespace, and with it every volume.
delete_namespace() { # release
    kubectl delete namespace "$NS" --timeout="${PATIENCE}s" >/dev/null || fail "the namespace cannot be deleted"
    wait_until "$PATIENCE" nothing_left "$1" ||
        fail "left of the namespace: volumes '$(volumes_of_driver "$1")', snapshots '$(contents_of_driver "$1")', directories '$(directories)'"
}

namespace_anew() { # release
    delete_namespace "$1"
    create_namespace
}

create_namespace() {
    kubectl create namespace "$NS" >/dev/null
    wait_until 60 k get serviceaccount default || fail "the namespace gets no account"
}
