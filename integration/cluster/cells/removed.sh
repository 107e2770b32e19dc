# shellcheck shell=bash
# A connection that the values of the chart no longer have. Sourced, never run.

# Its credentials leave the Secret, nothing new is made on it, and what it has is deleted once it is back.
cell_removed_connection() {
    local fewer=$CLUSTER_STATE/near.yaml
    # The kubelet gives pods a changed Secret within two minutes or so. Those of the nodes are recreated: they have a mount
    # for each base.
    # shellcheck disable=SC2034  # for objects.sh
    PATIENCE=240
    export RELEASE_BY=chart
    release_install proxy
    # The chart refuses a class whose connection is not in its values; a cluster may have one all the same.
    other_class elsewhere far
    writer stays near
    claim kept elsewhere 1Gi
    pod kept kept
    ready kept
    put kept file kept
    [ "$(files_of_connections)" = 'far.yaml near.yaml' ] || fail "the Secret has: $(files_of_connections)"

    say "-- far is removed"
    sed -e '/^  far:$/,/controllerBasePath/d' -e '/^- name: far$/,/^  parameters/d' -e '/^- name: both$/,/^  parameters/d' \
        "$CLUSTER/objects/chart-proxy.yaml" >"$fewer"
    ! grep -q far "$fewer" || fail "the values still have it: $(cat "$fewer")"
    proxy_upgrade "$fewer"
    [ "$(files_of_connections)" = near.yaml ] || fail "the Secret still has: $(files_of_connections)"
    wait_until "$PATIENCE" serves_only_near || fail "the driver serves it on"
    claim late elsewhere 1Gi
    pod late late
    wait_until "$PATIENCE" lacks_connection late far || fail "the claim does not say what it lacks: $(k describe pvc late)"
    # The provisioner would ask for it again after eight minutes only.
    remove pod/late pvc/late
    # A pod keeps what it has; to delete it, the connection is needed.
    holds kept file kept
    remove pod/kept pvc/kept
    wait_until "$PATIENCE" volumes_lack_connection far || fail "the volume does not say what it lacks: $(kubectl describe pv)"

    say "-- far is put back"
    proxy_upgrade "$CLUSTER/objects/chart-proxy.yaml"
    wait_until "$PATIENCE" serves_far || fail "the connection far does not come back"
    claim again elsewhere 1Gi
    pod again again
    ready again
    still_writes stays
    kubectl delete storageclass elsewhere >/dev/null
    clean_up proxy
}

other_class() { # name connection
    kubectl apply -f - >/dev/null <<END
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: $1}
provisioner: org.omnibus.proxy
volumeBindingMode: WaitForFirstConsumer
parameters: {connection: $2}
END
}

files_of_connections() {
    kubectl -n "$CHART_NAMESPACE" get secret proxy-omnibus-csi-connection-files -o json |
        python3 -c 'import json, sys; print(*sorted(json.load(sys.stdin)["data"]))'
}

proxy_upgrade() { # values
    helm upgrade proxy "$CHART" --values "$1" --wait --timeout "${PATIENCE}s" >&2 || fail "the values cannot be changed"
}

served() {
    kubectl -n "$CHART_NAMESPACE" exec daemonset/proxy-omnibus-csi-node -c csi-driver -- \
        omnibus-csi connections --driver-config-file=/config/driver-config-file.yaml --offline
}

serves_far() { served | grep -q '^far '; }

serves_only_near() {
    local all
    all=$(served) && grep -q '^near ' <<<"$all" && ! grep -q '^far ' <<<"$all"
}

volumes_lack_connection() { # connection
    kubectl get events --all-namespaces --field-selector involvedObject.kind=PersistentVolume,reason=VolumeFailedDelete \
        -o 'jsonpath={.items[*].message}' | grep -q "connection .$1.: it does not exist"
}
