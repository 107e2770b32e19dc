# shellcheck shell=bash
# Many snapshots at once. Sourced, never run.

# Files of several sizes, the first of them empty.
fill() { # pod folder
    run_in "$1" "mkdir -p $2/d && cd $2/d && n=0 && while [ \$n -lt 20 ]; do head -c \$((n * 10007)) /dev/urandom >\$n; n=\$((n + 1)); done && sync -f ."
}

# One SHA-256 over the names and the SHA-256 of these files.
sum_of() { # pod folder
    run_in "$1" "cd $2/d && find . -type f | sort | xargs sha256sum | sha256sum | cut -d ' ' -f 1"
}

same_sum() { # pod folder sum
    local sum
    sum=$(sum_of "$1" "$2")
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
    sums[0]=$(sum_of one /data)
    for number in {1..10}; do
        fill many "/data/$number"
        sums[number]=$(sum_of many "/data/$number")
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
    for number in 1 2 3; do same_sum restored "/data/$number" "${sums[0]}"; done
    same_sum restored /data/4 "${sums[3]}"
    same_sum restored /data/5 "${sums[8]}"
    ! run_in restored 'ls /data/1/later' 2>/dev/null || fail "a snapshot has what was written after it"

    began=$SECONDS
    k delete volumesnapshot --all --timeout="${PATIENCE}s" >/dev/null || fail "the snapshots cannot be deleted"
    wait_until "$PATIENCE" no_contents local || fail "contents of snapshots are left: $(contents_of_driver local)"
    say "a hundred snapshots were gone after $((SECONDS - began)) s"
    same_sum restored /data/1 "${sums[0]}"
    clean_up local
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
