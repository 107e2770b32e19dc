# shellcheck shell=bash
# Volumes of democratic-csi. Sourced, never run.

# PersistentVolumes as democratic-csi's local-hostpath writes them, with the directories that it makes: used,
# copied, grown and deleted by our driver under the same name.
cell_take_over_hostpath() {
    local number handle
    release_install local
    for number in 1 2; do
        handle=pvc-00000000-0000-4000-8000-00000000000$number
        in_node node-1 mkdir -p "$VOLUMES/local/v/$handle"
        in_node node-1 sh -c "echo theirs >'$VOLUMES/local/v/$handle/file'"
        theirs "$handle" "old-$number"
        pod "old-$number" "old-$number" '' "$WRITES"
    done
    for number in 1 2; do
        ready "old-$number"
        holds "old-$number" file theirs
        wait_until 30 has_written "old-$number" 5 || fail "old-$number does not write"
    done
    snapshot moment old-1 local
    snapshot_ready moment
    claim restored local 1Gi VolumeSnapshot moment
    pod restored restored
    ready restored
    holds restored file theirs
    k patch pvc old-1 -p '{"spec": {"resources": {"requests": {"storage": "2Gi"}}}}' >/dev/null
    wait_until 90 size_is old-1 2Gi || fail "a volume of theirs does not grow: $(k describe pvc old-1)"
    # The release ends and comes back under pods that write: what is mounted stays.
    release_uninstall local
    still_writes old-1
    still_writes old-2
    release_install local
    still_writes old-1
    # What ours mounted is mounted anew for another pod, and what ours made they would find.
    remove pod/old-2
    pod again old-2
    ready again
    holds again file theirs
    [ "$(in_node node-1 cat "$VOLUMES/local/v/$(handle_of restored)/file")" = theirs ] ||
        fail "a volume of ours is not where theirs are"
    clean_up local
}

handle_of() { # claim
    kubectl get pv "$(volume_of "$1")" -o 'jsonpath={.spec.csi.volumeHandle}'
}

theirs() { # handle claim
    kubectl apply -f - >/dev/null <<END
apiVersion: v1
kind: PersistentVolume
metadata:
  name: $1
  annotations: {pv.kubernetes.io/provisioned-by: org.omnibus.local}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Gi}
  claimRef: {apiVersion: v1, kind: PersistentVolumeClaim, namespace: $NS, name: $2}
  csi:
    driver: org.omnibus.local
    volumeAttributes:
      node_attach_driver: hostpath
      path: $VOLUMES/local/v/$1
      provisioner_driver: local-hostpath
      storage.kubernetes.io/csiProvisionerIdentity: 1600000000000-8081-org.omnibus.local
    volumeHandle: $1
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions:
        - {key: org.democratic-csi.topology/node, operator: In, values: [node-1]}
  persistentVolumeReclaimPolicy: Delete
  storageClassName: local
  volumeMode: Filesystem
END
    k apply -f - >/dev/null <<END
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: $2}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
  storageClassName: local
  volumeName: $1
END
}
