# shellcheck shell=bash
# A cluster that is lost while its storage is not. Sourced, never run.

# What each pod does, before the loss and after it: an empty volume would get another content.
WORKLOAD='[ -e /data/content ] || { dd if=/dev/urandom of=/data/new bs=64k count=4 2>/dev/null; sync /data/new; mv /data/new /data/content; }'

# Forty claims of two connections, and snapshots of four; beside them five volumes as democratic-csi makes them. A new cluster,
# which knows of none of them, gets the objects that export-pvs writes (docs/lost-cluster.md); the same pods run with what
# they had, the snapshots are restored, and what is deleted goes.
cell_lost_cluster_40() {
    local number name old claims=() storage=$CLUSTER_STATE.storage kept=$CLUSTER_STATE.kept
    # shellcheck disable=SC2034  # for objects.sh
    PATIENCE=240
    export RELEASE_BY=chart
    explain_program
    rm -rf "$storage" "$kept"
    mkdir "$kept"
    release_install proxy
    for number in $(seq 40); do claim "c-$number" "$(connection_of "$number")" 1Mi; done
    workloads
    for number in $(seq 40); do printf 'c-%s %s\n' "$number" "$(content_of "c-$number")"; done >"$kept/contents"
    [ "$(grep -oE ' [0-9a-f]{64}$' "$kept/contents" | sort -u | wc -l)" = 40 ] || fail "the contents are not forty: $(cat "$kept/contents")"
    for number in 1 2 21 22; do snapshot "s-$number" "c-$number" proxy; done
    for number in 1 2 21 22; do
        snapshot_ready "s-$number"
        printf 'c-%s %s\n' "$number" "$(handle_of_snapshot "s-$number")"
        put "c-$number" later later
    done >"$kept/snapshots"
    for number in 1 2 3 4 5; do
        name=$(name_of_theirs "$number")
        content_of_theirs "$name" >>"$kept/theirs"
        claims+=("--claim=v:near/$name=$NS/theirs-$number")
    done
    [ "$(sort -u "$kept/theirs" | grep -cE '^[0-9a-f]{64}$')" = 5 ] || fail "the contents are not five: $(cat "$kept/theirs")"
    directories | sort >"$kept/directories"
    say "-- $(wc -l <"$kept/contents") claims, $(wc -l <"$kept/snapshots") snapshots and five volumes of democratic-csi are $(wc -l <"$kept/directories") directories"

    say "-- the cluster is lost"
    mv "$CLUSTER_STATE/node-1/volumes" "$storage"
    "$CLUSTER/cluster" down
    "$CLUSTER/cluster" up
    find "$storage" -mindepth 1 -maxdepth 1 -exec mv -t "$CLUSTER_STATE/node-1/volumes" {} +
    rmdir "$storage"
    [ -z "$(kubectl get pv -o name)" ] || fail "the new cluster is not new"

    say "-- its objects are written again"
    release_install proxy
    export_of far >"$kept/far.yaml"
    # The storage does not say whose those of democratic-csi are.
    export_of near --reclaim-policy=delete >"$kept/unnamed.yaml"
    [ "$(grep -c '^kind: PersistentVolume$' "$kept/unnamed.yaml") $(grep -c '^kind: PersistentVolumeClaim$' "$kept/unnamed.yaml")" = "25 20" ] ||
        fail "there are not 25 volumes and 20 claims: $(cat "$kept/unnamed.yaml")"
    export_of near --reclaim-policy=delete "${claims[@]}" >"$kept/near.yaml"
    grep -q "^# Namespaces that have to exist first: $NS\$" "$kept/near.yaml" || fail "the namespace is not named: $(head "$kept/near.yaml")"
    kubectl create namespace "$NS" >/dev/null
    wait_until 60 k get serviceaccount default || fail "the namespace gets no account"
    kubectl create -f "$kept/near.yaml" -f "$kept/far.yaml" >/dev/null || fail "the objects cannot be created"
    for number in $(seq 40); do bound "c-$number"; done
    workloads
    while read -r name old <&3; do
        [ "$(content_of "$name")" = "$old" ] || fail "$name has another content: $(run_in "$name" 'ls -la /data')"
    done 3<"$kept/contents"
    for number in 1 2 3 4 5; do
        bound "theirs-$number"
        pod "theirs-$number" "theirs-$number" '' "$WORKLOAD"
    done
    for number in 1 2 3 4 5; do
        ready "theirs-$number"
        [ "$(content_of "theirs-$number")" = "$(sed -n "${number}p" "$kept/theirs")" ] ||
            fail "theirs-$number has another content: $(run_in "theirs-$number" 'ls -la /data')"
    done
    directories | sort | diff "$kept/directories" - >&2 || fail "something was made or deleted"
    say "-- 40 of 40 pods have their content, and 5 of 5 with volumes of democratic-csi"

    while read -r name old <&3; do restored "$name" "$old"; done 3<"$kept/snapshots"
    say "-- the snapshots are restored"

    # As the objects say: one volume goes with its claim, one stays.
    old=$(folder_of c-1)
    remove pod/c-1 pvc/c-1
    wait_until "$PATIENCE" is_no_folder "$old" || fail "the volume was not deleted: $(kubectl describe pv)"
    name=$(volume_of c-40)
    remove pod/c-40 pvc/c-40
    wait_until "$PATIENCE" is_released "$name" || fail "the volume of a claim that is gone is: $(kubectl describe pv "$name")"
    in_node node-1 test -e "$(base_of far)/v/$name/content" || fail "a volume that is retained is gone"

    # What was retained is deleted like any other when its object says so.
    for name in $(volumes_of_driver proxy); do
        kubectl patch pv "$name" -p '{"spec": {"persistentVolumeReclaimPolicy": "Delete"}}' >/dev/null
    done
    for name in $(contents_of_driver proxy); do
        kubectl patch volumesnapshotcontent "$name" --type merge -p '{"spec": {"deletionPolicy": "Delete"}}' >/dev/null
    done
    clean_up proxy
    rm -r "$kept"
}

connection_of() { # number
    if [ "$1" -le 20 ]; then echo near; else echo far; fi
}

# As the provisioner names a volume.
name_of_theirs() { printf 'pvc-00000000-0000-4000-8000-00000000000%s' "$1"; } # number

# A directory and no record, which is all that democratic-csi's local-hostpath makes. Prints the SHA-256 of what is in it.
content_of_theirs() { # name
    # shellcheck disable=SC2016  # for the node's shell
    in_node node-1 sh -ec 'mkdir "$1"; dd if=/dev/urandom of="$1/content" bs=64k count=4 2>/dev/null; sha256sum <"$1/content"' \
        sh "$(base_of near)/v/$1" | cut -d ' ' -f 1
}

# The pods of all claims, made together.
workloads() {
    local number
    for number in $(seq 40); do pod "c-$number" "c-$number" '' "$WORKLOAD"; done
    for number in $(seq 40); do ready "c-$number"; done
}

content_of() { # pod
    # shellcheck disable=SC2016  # for the pod's shell
    run_in "$1" 'n=0; until [ -e /data/content ] || [ $n = 300 ]; do n=$((n + 1)); sleep 0.1; done; sha256sum </data/content' | cut -d ' ' -f 1
}

handle_of_snapshot() { # snapshot
    local content
    content=$(k get volumesnapshot "$1" -o 'jsonpath={.status.boundVolumeSnapshotContentName}')
    kubectl get volumesnapshotcontent "$content" -o 'jsonpath={.status.snapshotHandle}'
}

# By the plugin, from the pod of the node. What is missing ends the cell.
export_of() { # connection [flag...]
    local connection=$1
    shift
    in_node node-1 "$KUBECTL_OMNIBUS" export-pvs --driver "$(csi_name proxy)" --node node-1 -- --connection="$connection" \
        --storage-class="$connection" --snapshot-class=proxy "$@" || fail "the objects of $connection are not whole"
}

# A claim of the snapshot with this handle has what its source had then, and nothing of later.
restored() { # claim handle
    local snapshot number=${1#c-}
    snapshot=$(kubectl get volumesnapshotcontents -o "jsonpath={.items[?(@.spec.source.snapshotHandle==\"$2\")].spec.volumeSnapshotRef.name}")
    [ -n "$snapshot" ] || fail "the snapshot $2 has no object: $(kubectl get volumesnapshotcontents -o yaml)"
    snapshot_ready "$snapshot"
    claim "restored-$number" "$(connection_of "$number")" 1Mi VolumeSnapshot "$snapshot"
    pod "restored-$number" "restored-$number" '' "$WORKLOAD"
    ready "restored-$number"
    [ "$(content_of "restored-$number")" = "$(sed -n "s/^$1 //p" "$CLUSTER_STATE.kept/contents")" ] ||
        fail "the snapshot of $1 has another content"
    run_in "restored-$number" '[ ! -e /data/later ]' || fail "the snapshot of $1 has what was written later"
}

is_no_folder() { in_node node-1 test ! -e "$1"; } # path

is_released() { [ "$(kubectl get pv "$1" -o 'jsonpath={.status.phase}')" = Released ]; } # volume
