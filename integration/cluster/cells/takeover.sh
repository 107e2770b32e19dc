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

# A driver that does not advertise that it attaches, as democratic-csi, then one that does, and back, under pods that
# write. What the attacher of the second leaves keeps volumes for ever; the commands of docs/migrate.md remove it.
cell_leave_attachments() {
    local like_theirs patches=$CLUSTER_STATE/patches.sh attachment volume object
    like_theirs='driver.config.service.controller.capabilities.rpc={CREATE_DELETE_VOLUME,CREATE_DELETE_SNAPSHOT,CLONE_VOLUME,EXPAND_VOLUME,GET_CAPACITY}'
    # A new pod of a sidecar waits for the lease of the one before.
    # shellcheck disable=SC2034  # for objects.sh
    PATIENCE=240
    export RELEASE_BY=chart
    CHART_SET=$like_theirs release_install central
    writer old central
    has_attachments central 1 || fail "the old volume has no attachment: this proves nothing"
    [ -z "$(attacher_finalizers central)" ] || fail "the attacher left something already: $(attacher_finalizers central)"

    say "-- one that attaches"
    release_uninstall central
    release_install central
    still_writes old
    writer going central
    writer staying central
    [ "$(attacher_finalizers central | wc -l)" = 4 ] || fail "two attachments and two volumes have no finalizer: $(attacher_finalizers central)"
    # In this direction nothing is to be done.
    remove pod/old pvc/old
    wait_until "$PATIENCE" has_attachments central 2 || fail "the old attachment stays: $(attachments central)"

    say "-- and back"
    volume=$(volume_of going)
    attachment=$(kubectl get volumeattachments -o "jsonpath={.items[?(@.spec.source.persistentVolumeName==\"$volume\")].metadata.name}")
    release_uninstall central
    CHART_SET=$like_theirs release_install central
    still_writes staying
    remove pod/going pvc/going
    for object in "volumeattachment/$attachment" "pv/$volume"; do
        wait_until "$PATIENCE" is_terminating "$object" || fail "$object is not deleted"
        ! wait_until 10 is_absent "$object" || fail "$object goes by itself: nothing has to be removed"
    done
    attacher_finalizers central >"$patches"
    [ "$(wc -l <"$patches")" = 4 ] || fail "the commands are not for two attachments and two volumes: $(cat "$patches")"
    in_node node-1 sh -e "$patches" >/dev/null || fail "a command fails: $(cat "$patches")"
    for object in "volumeattachment/$attachment" "pv/$volume"; do
        wait_until "$PATIENCE" is_absent "$object" || fail "$object stays: $(kubectl get "$object" -o yaml)"
    done
    # What was in use goes as any other volume from now on.
    still_writes staying
    remove pod/staying pvc/staying
    wait_until "$PATIENCE" has_attachments central 0 || fail "attachments stay: $(attachments central)"
    [ -z "$(attacher_finalizers central)" ] || fail "the attacher left something: $(attacher_finalizers central)"
    clean_up central
}

attachments() { # release
    kubectl get volumeattachments -o "jsonpath={range .items[?(@.spec.attacher==\"$(csi_name "$1")\")]}{.metadata.name} {end}"
}

has_attachments() { # release number
    [ "$(attachments "$1" | wc -w)" = "$2" ]
}

# The commands that docs/migrate.md prints.
attacher_finalizers() { # release
    kubectl get volumeattachments,persistentvolumes -o json |
        in_node node-1 "$OMNIBUS_CSI" attacher-finalizers --csi-name="$(csi_name "$1")" 2>/dev/null
}

is_terminating() { # kind/name
    [ -n "$(kubectl get "$1" -o 'jsonpath={.metadata.deletionTimestamp}')" ]
}

is_absent() { # kind/name
    [ -z "$(kubectl get "$1" --ignore-not-found -o name)" ]
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
