# shellcheck shell=bash
# What cells make and look at. Each cell has a namespace of its own, $NS. Sourced, never run.

# For how many seconds a cell waits for what it asked for. An emulated machine needs longer.
PATIENCE=90

# What a pod does that writes ten numbers a second, until one cannot be written.
# shellcheck disable=SC2016,SC2034  # for the pod's shell, by other files
WRITES='n=0; while echo $n >>/data/log; do n=$((n + 1)); sleep 0.1; done; touch /tmp/failed'

fail() {
    say "cell: $*"
    exit 1
}

k() { kubectl -n "$NS" "$@"; }

# A claim; its source is a snapshot or another claim: `claim b local 1Gi VolumeSnapshot s`.
claim() { # name class size [source kind, source name] ; MODE is its access mode
    local source=''
    case ${4:-} in
        '') ;;
        VolumeSnapshot) source="dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: $5}" ;;
        *) source="dataSource: {kind: $4, name: $5}" ;;
    esac
    k apply -f - >/dev/null <<END
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: $1}
spec:
  accessModes: [${MODE:-ReadWriteOnce}]
  storageClassName: $2
  resources: {requests: {storage: $3}}
  $source
END
}

# A pod with a claim at /data that runs a shell command and then waits. MORE_MOUNTS and MORE_VOLUMES are added.
pod() { # name claim [node] [command]
    local where=''
    [ -z "${3:-}" ] || where="nodeSelector: {kubernetes.io/hostname: $3}"
    k apply -f - >/dev/null <<END
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  terminationGracePeriodSeconds: 1
  $where
  containers:
  - name: shell
    image: omnibus.test/shell:1
    imagePullPolicy: Never
    command: [sh, -c, "trap exit TERM; ${4:-:}; while :; do sleep 3600 & wait; done"]
    volumeMounts: [{name: data, mountPath: /data}, ${MORE_MOUNTS:-}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: $2}}, ${MORE_VOLUMES:-}]
END
}

# The same with several claims, at /data/1, /data/2 and so on.
pod_of_many() { # name command claim...
    local name=$1 command=$2 claim number=0 mounts='' parts=''
    shift 2
    for claim in "$@"; do
        number=$((number + 1))
        mounts+="{name: v$number, mountPath: /data/$number}, "
        parts+="{name: v$number, persistentVolumeClaim: {claimName: $claim}}, "
    done
    k apply -f - >/dev/null <<END
apiVersion: v1
kind: Pod
metadata: {name: $name}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: shell
    image: omnibus.test/shell:1
    imagePullPolicy: Never
    command: [sh, -c, "trap exit TERM; $command; while :; do sleep 3600 & wait; done"]
    volumeMounts: [$mounts${MORE_MOUNTS:-}]
  volumes: [$parts${MORE_VOLUMES:-}]
END
}

snapshot() { # name claim class
    k apply -f - >/dev/null <<END
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: $1}
spec: {volumeSnapshotClassName: $3, source: {persistentVolumeClaimName: $2}}
END
}

# What did not become ready is described: an event says why.
ready() { # pod [seconds]
    k wait --for=condition=Ready --timeout="${2:-$PATIENCE}s" "pod/$1" >/dev/null && return
    k describe pod,pvc >&2
    fail "the pod $1 does not become ready"
}

snapshot_ready() { # snapshot [seconds]
    k wait --for=jsonpath='{.status.readyToUse}'=true --timeout="${2:-$PATIENCE}s" "volumesnapshot/$1" >/dev/null && return
    k describe volumesnapshot,volumesnapshotcontent >&2
    fail "the snapshot $1 does not become ready"
}

bound() { # claim [seconds]
    k wait --for=jsonpath='{.status.phase}'=Bound --timeout="${2:-$PATIENCE}s" "pvc/$1" >/dev/null && return
    k describe pvc "$1" >&2
    fail "the claim $1 is not bound"
}

run_in() { # pod command
    k exec "$1" -- sh -c "$2"
}

# On the storage, not only in the memory of the node: a snapshot of a disk has no more than that.
put() { # pod file content
    run_in "$1" "echo '$3' >/data/$2; sync /data/$2"
}

holds() { # pod file content
    local content
    content=$(run_in "$1" "cat /data/$2")
    [ "$content" = "$3" ] || fail "in pod $1 the file $2 holds '$content', not '$3'"
}

remove() { # kind/name...
    k delete --timeout="${PATIENCE}s" "$@" >/dev/null || fail "cannot be deleted within $PATIENCE s: $*"
}

volume_of() { # claim
    k get pvc "$1" -o 'jsonpath={.spec.volumeName}'
}

node_of() { # pod
    k get pod "$1" -o 'jsonpath={.spec.nodeName}'
}

size_is() { # claim size
    [ "$(k get pvc "$1" -o 'jsonpath={.status.capacity.storage}')" = "$2" ]
}

# The directories of volumes and snapshots on all nodes.
directories() {
    local node
    for node in $(nodes_up); do
        in_node "$node" find "$VOLUMES" -mindepth 3 -maxdepth 3 -path '*/[vs]/*' ! -name '.*' -printf "$node %p\n"
    done
}

volumes_of_driver() { # release
    kubectl get pv -o "jsonpath={range .items[?(@.spec.csi.driver==\"$(csi_name "$1")\")]}{.metadata.name} {end}"
}

contents_of_driver() { # release
    kubectl get volumesnapshotcontents,volumegroupsnapshotcontents -o "jsonpath={range .items[?(@.spec.driver==\"$(csi_name "$1")\")]}{.metadata.name} {end}"
}

mounts_of_driver() { # release
    local node
    for node in $(nodes_up); do
        in_node "$node" grep -c "/$(csi_name "$1")/\|~csi" /proc/mounts || true
    done
}

nothing_left() { # release
    [ -z "$(volumes_of_driver "$1")" ] && [ -z "$(contents_of_driver "$1")" ] && [ -z "$(directories)" ] &&
        [ "$(mounts_of_driver "$1" | sort -u)" = 0 ] && [ -z "$(storage_left "$1")" ]
}

# Deletes everything of the cell, and waits until nothing of it is left anywhere.
clean_up() { # release
    k delete pod --all --timeout="${PATIENCE}s" >/dev/null || fail "the pods do not end"
    k delete volumesnapshot,pvc --all --timeout="${PATIENCE}s" >/dev/null || fail "snapshots or claims cannot be deleted"
    if ! wait_until "$PATIENCE" nothing_left "$1"; then
        say "left: volumes '$(volumes_of_driver "$1")', snapshots '$(contents_of_driver "$1")', directories '$(directories)', mounts '$(mounts_of_driver "$1")', storage '$(storage_left "$1")'"
        kubectl describe pv >&2
        fail "something is left"
    fi
}
