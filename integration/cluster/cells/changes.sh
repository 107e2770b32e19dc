# shellcheck shell=bash
# What changes under pods that write: the driver, the kubelet, the controller, the node. Sourced, never run.

written() { # pod
    run_in "$1" 'wc -l </data/log'
}

has_written() { # pod count
    [ "$(written "$1")" -ge "$2" ]
}

# The pod has gone on writing: more than before, nothing missing, never started again.
still_writes() { # pod
    local count
    count=$(written "$1")
    wait_until 30 has_written "$1" $((count + 10)) || fail "$1 does not write any more"
    run_in "$1" "awk 'NR - 1 != \$1 { exit 1 }' /data/log && [ ! -e /tmp/failed ]" || fail "writes of $1 are missing"
    [ "$(k get pod "$1" -o 'jsonpath={.status.containerStatuses[0].restartCount}')" = 0 ] || fail "$1 was started again"
    [ -z "${BESIDE:-}" ] || fio_runs "$1" || fail "fio has ended in $1: $(fio_said "$1")"
}

writer() { # name class [node]
    claim "$1" "$2" 1Gi
    pod "$1" "$1" "${3:-}" "${BESIDE:-}$WRITES"
    ready "$1"
    wait_until 30 has_written "$1" 5 || fail "$1 does not write"
}

# Another program takes the place of the one that mounted.
cell_replace_driver() {
    local release class other=$CLUSTER_STATE/omnibus-csi
    release_install local
    release_install proxy
    cp "$OMNIBUS_CSI" "$other"
    writer local local
    writer proxy near
    for release in local proxy; do
        service node-1 stop "$release-driver"
        still_writes "$release"
        start_driver "$release" node-1 "$other"
        wait_until 30 driver_answers "$release" node-1 || fail "the new driver of $release does not answer"
        wait_until 60 is_registered "$release" node-1 || fail "the new driver of $release is not registered"
        still_writes "$release"
        k patch pvc "$release" -p '{"spec": {"resources": {"requests": {"storage": "2Gi"}}}}' >/dev/null
        wait_until 90 size_is "$release" 2Gi || fail "the new driver of $release does not grow a volume of the old one"
        class=local
        [ "$release" = local ] || class=near
        claim "clone-$release" "$class" 2Gi PersistentVolumeClaim "$release"
        pod "clone-$release" "clone-$release"
        ready "clone-$release"
        still_writes "$release"
        # What the old one mounted the new one takes away, and mounts again.
        remove "pod/$release"
        pod "$release-again" "$release"
        ready "$release-again"
        has_written "$release-again" 10 || fail "the volume of $release is not what it was"
    done
    clean_up local
    clean_up proxy
}

cell_restart_kubelet() {
    release_install local
    writer steady local
    service node-1 stop kubelet
    still_writes_without_kubelet steady
    service node-1 start kubelet
    wait_until 60 is_registered local node-1 || fail "the driver is not registered again"
    wait_until 60 run_in steady true || fail "the kubelet does not work again"
    still_writes steady
    # Killed while it mounts: pods that were on their way come up, pods that were to end are gone.
    claim later local 1Gi
    pod later later
    bound later
    service node-1 kill kubelet
    ready later
    put later file later
    k delete pod later --wait=false >/dev/null
    service node-1 kill kubelet
    k wait --for=delete --timeout=90s pod/later >/dev/null || fail "a pod does not end after its kubelet was killed"
    still_writes steady
    clean_up local
}

# kubectl exec goes through the kubelet; the volume's own directory does not.
still_writes_without_kubelet() { # claim
    local log before
    log=$(in_node node-1 find "$VOLUMES" -path "*/v/*/log")
    before=$(in_node node-1 wc -l "$log" | cut -d ' ' -f 1)
    wait_until 30 longer_than "$log" $((before + 10)) || fail "$1 does not write while the kubelet is away"
}

longer_than() { [ "$(in_node node-1 wc -l "$1" | cut -d ' ' -f 1)" -gt "$2" ]; }

# The driver is killed as soon as a sidecar says that it calls it; the sidecar calls again.
cell_kill_in_each_call() {
    local sum
    release_install local
    kill_in CreateVolume provisioner
    claim first local 1Gi
    pod writer first
    killed
    ready writer
    # shellcheck disable=SC2016  # for the pod's shell
    run_in writer 'for n in 1 2 3 4 5 6 7 8; do head -c 32m /dev/urandom >/data/$n; done; cd /data; cat * | md5sum >/tmp/sum; sync'
    sum=$(run_in writer 'cat /tmp/sum')

    kill_in CreateSnapshot snapshotter
    snapshot moment first local
    killed
    snapshot_ready moment 120

    kill_in CreateVolume provisioner
    claim restored local 1Gi VolumeSnapshot moment
    pod restored restored
    killed
    ready restored 120

    kill_in CreateVolume provisioner
    claim cloned local 1Gi PersistentVolumeClaim first
    pod cloned cloned
    killed
    ready cloned 120
    for pod in restored cloned; do
        [ "$(run_in "$pod" 'cd /data; cat * | md5sum')" = "$sum" ] || fail "the content of $pod is not that of its source"
    done

    # Whether the controller or the node does it: the driver is away when it is asked.
    k patch pvc first -p '{"spec": {"resources": {"requests": {"storage": "2Gi"}}}}' >/dev/null
    service node-1 kill local-driver
    wait_until 120 size_is first 2Gi || fail "the claim does not grow: $(k describe pvc first)"

    kill_in DeleteSnapshot snapshotter
    k delete volumesnapshot moment --wait=false >/dev/null
    killed
    k wait --for=delete --timeout=120s volumesnapshot/moment >/dev/null || fail "the snapshot does not go"

    kill_in DeleteVolume provisioner
    k delete pod --all >/dev/null
    k delete pvc first --wait=false >/dev/null
    killed
    clean_up local
    [ "$(kilobytes local)" -lt 1024 ] || fail "something is left below $VOLUMES/local: $(in_node node-1 find "$VOLUMES/local")"
}

# Waits, beside the cell, for the sidecar's next call of this method, and kills the driver in it.
kill_in() { # method sidecar
    local log=$CLUSTER_STATE/node-1/services/local-$2.log seen
    seen=$(grep -c "csi.v1.Controller/$1" "$log" || true)
    method=$1
    (
        end=$((SECONDS + 90))
        until [ "$(grep -c "csi.v1.Controller/$1" "$log" || true)" -gt "$seen" ]; do
            [ "$SECONDS" -lt "$end" ] || exit 1
            sleep 0.01
        done
        service node-1 kill local-driver
    ) &
    killer=$!
}

killed() {
    wait "$killer" || fail "the driver was never asked for $method"
}

# A drained node gives its volumes back, the other node does not notice; uncordoned, the pod finds its volume.
cell_drain_node() {
    release_install local
    writer stays local node-2
    claim moves local 1Gi
    k apply -f - >/dev/null <<END
apiVersion: apps/v1
kind: Deployment
metadata: {name: moves}
spec:
  selector: {matchLabels: {app: moves}}
  strategy: {type: Recreate}
  template:
    metadata: {labels: {app: moves}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: shell
        image: omnibus.test/shell:1
        imagePullPolicy: Never
        command: [sh, -c, "trap exit TERM; echo again >>/data/starts; while :; do sleep 3600 & wait; done"]
        volumeMounts: [{name: data, mountPath: /data}]
      volumes: [{name: data, persistentVolumeClaim: {claimName: moves}}]
END
    k wait --for=condition=Available --timeout=90s deployment/moves >/dev/null || fail "the deployment does not come up"
    local node
    node=$(k get pod -l app=moves -o 'jsonpath={.items[0].spec.nodeName}')
    kubectl drain "$node" --ignore-daemonsets --force --delete-emptydir-data --timeout=90s \
        --pod-selector "app=moves" >/dev/null 2>&1 || fail "the node $node cannot be drained"
    wait_until 60 no_mounts_of moves "$node" || fail "the drained node keeps the volume mounted"
    still_writes stays
    [ "$(k get pod -l app=moves -o 'jsonpath={.items[0].status.phase}')" = Pending ] || fail "the pod runs without its volume"
    kubectl uncordon "$node" >/dev/null
    k wait --for=condition=Available --timeout=120s deployment/moves >/dev/null || fail "the deployment does not come back"
    wait_until 30 started_twice || fail "the volume is not what it was"
    still_writes stays
    remove deployment/moves
    clean_up local
}

no_mounts_of() { # claim node
    ! in_node "$2" grep -q "$(volume_of "$1")" /proc/mounts
}

started_twice() {
    [ "$(run_in deployment/moves 'wc -l </data/starts')" = 2 ]
}
