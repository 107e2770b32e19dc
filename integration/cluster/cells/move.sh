# shellcheck shell=bash
# A volume that moves to another connection (docs/move.md). Sourced, never run.

# Rounds go while a pod writes beside fio. Then the pod is stopped, the last round goes, the objects are those of the new
# volume, and the pod runs again, with all that it wrote. Measures for how long it did not.
cell_move_nfs() {
    local handle old name count began moved=$CLUSTER_STATE/moved
    mixed_install nfs nfs-2
    explain_program
    DIRECT=1 fio_beside 10 /data
    writer data mixed-nfs
    # More than a round that is the last one.
    run_in data 'dd if=/dev/urandom of=/data/content bs=1M count=80 2>/dev/null; mkdir /data/folder; ln -s ../content /data/folder/link; chmod 0640 /data/content; sync'
    handle=$(handle_of data)
    name=$(volume_of data)
    old=tank/nfs/volumes/${handle##*/}
    [ "$handle" = "v:nfs/${handle##*/}" ] || fail "the volume is elsewhere: $handle"
    kubectl patch pv "$name" -p '{"spec": {"persistentVolumeReclaimPolicy": "Retain"}}' >/dev/null

    say "-- rounds"
    moves "$handle" --to=nfs-2 >&2 2>"$moved.rounds" || fail "no round: $(cat "$moved.rounds")"
    grep -q '^round 2: ' "$moved.rounds" || fail "there are no two rounds: $(cat "$moved.rounds")"
    cat "$moved.rounds" >&2
    still_writes data
    ! moves "$handle" --to=nfs-2 --finish >"$moved.yaml" 2>"$moved.refused" || fail "it was finished under its pod: $(cat "$moved.yaml")"
    grep -q 'it is attached to [a-z]*=*lab' "$moved.refused" || fail "it is not refused as attached: $(cat "$moved.refused")"
    still_writes data
    # What was written since, as on the day of the switch.
    moves "$handle" --to=nfs-2 >&2 || fail "no further round"

    fio_ends data

    say "-- the switch"
    count=$(written data)
    began=${EPOCHREALTIME/./}
    remove pod/data
    wait_until "$PATIENCE" is_detached "$name" || fail "the volume stays attached: $(kubectl get volumeattachments -o yaml)"
    passed "$began" "the pod is stopped, and the volume is detached"
    moves "$handle" --to=nfs-2 --finish --storage-class=mixed-nfs-2 --reclaim-policy=delete --mount-option=noatime >"$moved.yaml" ||
        fail "the move is not finished"
    passed "$began" "the last round has gone, and the volume is made"
    remove pvc/data
    kubectl delete pv "$name" --timeout="${PATIENCE}s" >/dev/null || fail "the old object of the volume stays"
    kubectl create -f "$moved.yaml" >/dev/null || fail "the objects cannot be created: $(cat "$moved.yaml")"
    bound data
    passed "$began" "the claim is bound to the new volume"
    # One that adds nothing, to be compared.
    pod again data
    ready again
    passed "$began" "the pod runs"
    say "omnibus: $(passed "$began" downtime 2>&1)"

    say "-- the content"
    [ "$(handle_of data)" = "v:nfs-2/${handle##*/}" ] || fail "the claim has $(handle_of data)"
    run_in again 'grep -q "/tank/nfs-2/volumes/" /proc/mounts' || fail "the pod has another volume: $(run_in again 'cat /proc/mounts')"
    run_in again "awk 'NR - 1 != \$1 { exit 1 }' /data/log && [ \$(wc -l </data/log) -ge $count ]" || fail "writes are missing"
    fio_reads again
    [ -n "$(tree_of "$old")" ] || fail "the old volume cannot be read"
    diff <(tree_of "$old") <(tree_of "tank/nfs-2/volumes/${handle##*/}") >&2 || fail "the new volume has another content"
    run_in again 'echo later >>/data/log && sync' || fail "the new volume cannot be written"
    # Nothing of the move stays at the old one, so it goes without -r.
    in_node lab zfs destroy "$old" || fail "something is left at the old volume: $(in_node lab zfs list -r -t all "$old")"
    clean_up mixed
    mixed_uninstall
}

# By the plugin, as a user does.
moves() { # handle flag...
    in_node node-1 "$KUBECTL_OMNIBUS" move --driver "$(csi_name mixed)" -- "$@"
}

is_detached() { # volume
    ! kubectl get volumeattachments -o 'jsonpath={.items[*].spec.source.persistentVolumeName}' | grep -qw "$1"
}

passed() { # since, in microseconds; what
    local now=${EPOCHREALTIME/./}
    say "$2 $(((now - $1) / 1000000)).$(((now - $1) / 100000 % 10)) s"
}

# Each file of a dataset with its rights and its SHA-256.
tree_of() { # dataset
    in_node lab sh -c "cd '/$1' && find . -printf '%p %y %m %U:%G %l\n' | sort && find . -type f -exec sha256sum {} + | sort"
}
