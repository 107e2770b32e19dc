# shellcheck shell=bash
# Volumes that a pod describes itself, installed by the chart. Sourced, never run.

# A pod with such a volume at /data; the attributes are lines of YAML in braces.
inline_pod() { # name release attributes [namespace]
    kubectl -n "${4:-$NS}" apply -f - >/dev/null <<END
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: shell
    image: omnibus.test/shell:1
    imagePullPolicy: Never
    command: [sh, -c, "trap exit TERM; while :; do sleep 3600 & wait; done"]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, csi: {driver: $(csi_name "$2"), volumeAttributes: $3}}]
END
}

# The pod does not start, and an event says why.
refused() { # pod words [namespace]
    wait_until "$PATIENCE" event_says "${3:-$NS}" "$1" "$2" || fail "the pod $1 is not refused with '$2': $(kubectl -n "${3:-$NS}" describe pod "$1")"
    kubectl -n "${3:-$NS}" delete pod "$1" --timeout="${PATIENCE}s" >/dev/null || fail "the pod $1, which was refused, does not end"
}

event_says() { # namespace pod words
    kubectl -n "$1" get events --field-selector "involvedObject.name=$2" -o 'jsonpath={.items[*].message}' | grep -q "$3"
}

# The kubelet's driver is away for a moment: the pod keeps its volume, and the next driver removes it.
another_driver() { # release
    kubectl -n "$CHART_NAMESPACE" delete pod -l "app.kubernetes.io/instance=$1" --timeout="${PATIENCE}s" >/dev/null
    kubectl -n "$CHART_NAMESPACE" rollout status --timeout="${PATIENCE}s" "daemonset/$1-omnibus-csi-node" >/dev/null ||
        { pods_said "$1"; fail "the driver does not come back"; }
}

lifecycle_is_ephemeral() { # release
    [ "$(kubectl get csidriver "$(csi_name "$1")" -o 'jsonpath={.spec.volumeLifecycleModes[*]} {.spec.podInfoOnMount} {.spec.attachRequired}')" = "Ephemeral true false" ] ||
        fail "the CSIDriver is not one of inline volumes: $(kubectl get csidriver "$(csi_name "$1")" -o yaml)"
    [ -z "$(kubectl -n "$CHART_NAMESPACE" get deployments -o name)" ] || fail "a controller runs, which has nothing to do"
}

# Datasets of the lab's machine: each pod its own, for as long as it lives.
cell_inline_zfs() {
    PATIENCE=300
    export RELEASE_BY=chart
    in_node lab zfs create -p tank/csi/inline/v
    release_install scratch
    lifecycle_is_ephemeral scratch
    inline_pod one scratch '{property.recordsize: 16K}'
    inline_pod two scratch '{}'
    ready one
    ready two
    put one file of-one
    put two file of-two
    holds one file of-one
    holds two file of-two
    [ "$(inline_datasets | wc -l)" = 2 ] || fail "there are not two datasets: $(inline_datasets)"
    inline_datasets | grep -q '16K.67108864$' || fail "none has what its pod chose, and the quota: $(inline_datasets)"
    ! run_in one 'dd if=/dev/urandom of=/data/large bs=1M count=80 2>/dev/null' || fail "the quota has no effect"
    run_in one 'rm /data/large'

    inline_pod chosen scratch '{property.exec: "off"}'
    refused chosen 'pods may not choose this property'
    inline_pod foreign scratch '{}' default
    refused foreign 'may not have volumes here' default

    another_driver scratch
    holds one file of-one
    remove pod/one
    holds two file of-two
    [ "$(inline_datasets | wc -l)" = 1 ] || fail "the dataset of a pod that is gone stays: $(inline_datasets)"
    clean_up scratch
    [ -z "$(inline_datasets)" ] || fail "left: $(inline_datasets)"
    release_uninstall scratch
    in_node lab zfs destroy -r tank/csi/inline
}

inline_datasets() {
    in_node lab zfs list -Hp -o name,recordsize,refquota -r -d 1 tank/csi/inline/v | grep '^tank/csi/inline/v/' | sed 's/\t16384\t/\t16K\t/' || true
}

# The content of an image that the node has, by the containerd that runs the pods.
cell_inline_oci() {
    export RELEASE_BY=chart
    release_install images
    lifecycle_is_ephemeral images
    inline_pod one images '{image.reference: "omnibus.test/shell:1", image.pullPolicy: Never}'
    inline_pod two images '{image.reference: "omnibus.test/shell:1", image.pullPolicy: IfNotPresent}'
    ready one
    ready two
    # The very files of the image, writable, and of each pod alone.
    run_in one 'cmp /data/bin/busybox /bin/busybox' || fail "the volume has not the content of the image"
    put one file of-one
    put two file of-two
    holds one file of-one
    holds two file of-two
    [ "$(image_snapshots | wc -l)" = 2 ] || fail "there are not two snapshots: $(in_node node-1 ctr -n k8s.io snapshots list)"

    inline_pod absent images '{image.reference: "omnibus.test/absent:1", image.pullPolicy: Never}'
    refused absent 'it is not on this node'
    inline_pod foreign images '{image.reference: "omnibus.test/shell:1", image.pullPolicy: Never}' default
    refused foreign 'may not have volumes here' default

    another_driver images
    holds one file of-one
    remove pod/one
    holds two file of-two
    clean_up images
    [ -z "$(image_snapshots)" ] || fail "snapshots are left: $(image_snapshots)"
}

# Those of containers have no volume in their names.
image_snapshots() {
    in_node node-1 ctr -n k8s.io snapshots list | awk '$3 == "Active" && $1 ~ /csi/ { print $1 }'
}
