# shellcheck shell=bash
# `kubectl omnibus explain` beside claims that work and claims that do not. Sourced, never run.

# A picture of each of two hundred claims that work has no broken link, and takes two seconds at most; of each fault below,
# the first broken one is that of the fault. All is as a user has it: the chart, pods, the rights of the kubeconfig.
cell_explain_claims() {
    # An emulated or busy machine may be given more milliseconds for each.
    local all=${WELL:-200} most=${EXPLAIN_MS:-2000} in_each=20 number name gone names=() slow dir
    dir=$(base_of near)/v
    # shellcheck disable=SC2034  # for objects.sh
    PATIENCE=240
    export RELEASE_BY=chart
    explain_program
    release_install proxy

    say "-- $all claims that work"
    for ((number = 0; number < all; number++)); do
        claim "well-$number" near 1Mi
        names+=("well-$number")
    done
    for ((number = 0; number < all; number += in_each)); do
        pod_of_many "many-$number" : "${names[@]:number:in_each}"
    done
    for ((number = 0; number < all; number += in_each)); do ready "many-$number"; done
    : >"$CLUSTER_STATE/explained"
    for name in "${names[@]}"; do explained "$name" "" >>"$CLUSTER_STATE/explained" || fail "a claim that works: $(explain "$name" --ascii)"; done
    say "explain took $(sort -n "$CLUSTER_STATE/explained" | awk '{ at[NR] = $1 } END { print at[int((NR + 1) / 2)] " ms, at most " at[NR] " ms, of " NR " claims" }')"
    slow=$(sort -n "$CLUSTER_STATE/explained" | awk -v most="$most" '$1 > most { printf "%s ", $1 }')
    [ -z "$slow" ] || fail "explain took more than $most ms (EXPLAIN_MS) for claims that work: $slow"
    k delete pod --all --timeout="${PATIENCE}s" >/dev/null
    k delete pvc --all --wait=false >/dev/null

    say "-- faults of a claim"
    sick no-such-claim claim
    claim classless null 1Mi
    sick classless class
    claim without-class nowhere 1Mi
    sick without-class class
    class others example.org/none ''
    claim of-others others 1Mi
    sick of-others class
    class misspelt org.omnibus.proxy '{connection: naer}'
    claim at-naer misspelt 1Mi
    pod at-naer at-naer
    sick at-naer connection
    claim too-large near 900Ti
    pod too-large too-large
    sick too-large bound
    claim from-nothing near 1Mi PersistentVolumeClaim nothing
    pod from-nothing from-nothing
    sick from-nothing bound
    claim from-no-snapshot near 1Mi VolumeSnapshot none
    pod from-no-snapshot from-no-snapshot
    sick from-no-snapshot bound
    claim as-a-disk near 1Mi
    k get pvc as-a-disk -o json | sed 's/"volumeMode": "Filesystem"/"volumeMode": "Block"/' >"$CLUSTER_STATE/disk.json"
    remove pvc/as-a-disk
    k apply -f "$CLUSTER_STATE/disk.json" >/dev/null
    pod as-a-disk as-a-disk
    sick as-a-disk bound
    claim nowhere-to-run near 1Mi
    pod nowhere-to-run nowhere-to-run node-9
    sick nowhere-to-run bound
    # As after a node was removed before the volume was made. Each node has its own provisioner, so that none says a word.
    claim chosen-in-vain near 1Mi
    k annotate pvc chosen-in-vain volume.kubernetes.io/selected-node=node-9 >/dev/null
    sick chosen-in-vain bound
    says chosen-in-vain "the node node-9 was chosen for its volume"

    used leaves
    k delete pvc leaves --wait=false >/dev/null
    sick leaves claim
    used volume-gone
    gone=$(folder_of volume-gone)
    # Without its finalizer it goes under the claim.
    kubectl patch pv "$(volume_of volume-gone)" --type merge -p '{"metadata": {"finalizers": null}}' >/dev/null
    kubectl delete pv "$(volume_of volume-gone)" --wait=false >/dev/null
    sick volume-gone persistent-volume

    say "-- faults of a volume made by hand"
    by_hand of-another '{csi: {driver: example.org, volumeHandle: x}}'
    sick of-another persistent-volume
    by_hand of-no-driver '{hostPath: {path: /tmp}}'
    sick of-no-driver persistent-volume
    by_hand odd-handle '{csi: {driver: org.omnibus.proxy, volumeHandle: "v:"}}'
    sick odd-handle handle
    by_hand no-connection '{csi: {driver: org.omnibus.proxy, volumeHandle: v:nowhere/x}}'
    sick no-connection connection
    by_hand no-volume '{csi: {driver: org.omnibus.proxy, volumeHandle: v:near/none}}'
    sick no-volume volume
    by_hand of-another-claim '{csi: {driver: org.omnibus.proxy, volumeHandle: v:near/other}}'
    kubectl patch pv of-another-claim --type merge -p '{"spec": {"claimRef": {"uid": "00000000-0000-0000-0000-000000000000"}}}' >/dev/null
    sick of-another-claim persistent-volume
    by_hand of-no-node $'{csi: {driver: org.omnibus.proxy, volumeHandle: v:near/other}\n  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: example.org/nowhere, operator: Exists}]}]}}}'
    sick of-no-node persistent-volume
    by_hand deleted '{csi: {driver: org.omnibus.proxy, volumeHandle: v:near/other}}'
    kubectl delete pv deleted --wait=false >/dev/null
    sick deleted persistent-volume

    say "-- faults of a volume"
    used emptied
    in_node node-1 mv "$(folder_of emptied)" "$(folder_of emptied).away"
    sick emptied volume
    in_node node-1 mv "$(folder_of emptied).away" "$(folder_of emptied)"
    sound emptied
    used unmounted
    in_node node-1 sh -c "grep -o '[^ ]*/$(volume_of unmounted)/mount ' /proc/mounts | xargs umount -l"
    sick unmounted published
    used unstaged
    in_node node-1 sh -c "grep '/plugins/kubernetes.io/csi/org.omnibus.proxy/' /proc/mounts | cut -d ' ' -f 2 | xargs -n 1 umount -l"
    sick unstaged mount
    used too-small
    grows_not too-small
    sound too-small

    say "-- faults of the driver"
    used stays
    sound stays
    in_node node-1 mv "$dir" "$dir.away"
    sick stays volume
    in_node node-1 mv "$dir.away" "$dir"
    sound stays
    # The kubelet gives pods a changed Secret within two minutes or so.
    used_by far at-far
    file_of_far '"ZHJpdmVyOiB7fQo="'
    sick at-far connection
    file_of_far null
    sick at-far connection
    kubectl patch csinode node-1 --type json -p '[{"op": "remove", "path": "/spec/drivers"}]' >/dev/null
    sick stays registered
    asks_of_nodes '"none"'
    sick stays controller
    says stays "asks for the label example.org/disk=none"
    asks_of_nodes null
    sound stays
    pods_of_driver set image daemonset/proxy-omnibus-csi-node external-provisioner=localhost/none:1
    sick stays controller
    pods_of_driver set image daemonset/proxy-omnibus-csi-node csi-driver=localhost/omnibus-csi:none
    sick stays controller
    pods_of_driver delete daemonset proxy-omnibus-csi-node --timeout="${PATIENCE}s"
    wait_until "$PATIENCE" no_pods || fail "the pods of the driver stay"
    sick stays controller

    # As it was, to take everything away.
    chart_uninstall proxy
    chart_install proxy
    sound stays
    kubectl delete storageclass others misspelt >/dev/null
    k delete pod,pvc --all --timeout="${PATIENCE}s" >/dev/null || fail "pods or claims cannot be deleted"
    kubectl delete pv of-another of-no-driver odd-handle no-connection no-volume of-another-claim of-no-node deleted --ignore-not-found >/dev/null
    in_node node-1 rm -rf "$gone"
    clean_up proxy
    release_uninstall proxy

    say "-- a fault of the driver on the node alone"
    release_install central
    used_by central at-central
    pods_of_driver delete daemonset central-omnibus-csi-node --cascade=foreground --timeout="${PATIENCE}s"
    sick at-central node-pod
    chart_uninstall central
    chart_install central
    sound at-central
    clean_up central
}

# Cargo's own, so that none is taken that is left from another day; or the one of KUBECTL_OMNIBUS.
explain_program() {
    local newer
    driver_program
    if [ -z "${KUBECTL_OMNIBUS:-}" ]; then
        cargo build --locked --quiet -p kubectl-omnibus
        KUBECTL_OMNIBUS=$OMNIBUS_TARGET/debug/kubectl-omnibus
    fi
    [ -x "$KUBECTL_OMNIBUS" ] || die "there is no program $KUBECTL_OMNIBUS"
    newer=$(find "$OMNIBUS_ROOT/kubectl/src" -type f ! -path '*/kubectl/src/walk/tests*' -newer "$KUBECTL_OMNIBUS" -print -quit)
    [ -z "$newer" ] || fail "$KUBECTL_OMNIBUS is older than $newer: build it anew"
}

explain() { in_node node-1 "$KUBECTL_OMNIBUS" explain -n "$NS" "$@"; }

# The first broken link of a claim; nothing if all hold, and `unknown` if one could not be looked at.
broken_link() { # claim
    explain "$1" --json | python3 -c '
import json, sys
chain = json.load(sys.stdin)
print(chain["broken"] or ("" if chain["state"] == "holds" else chain["state"]))'
}

# The milliseconds that it took to say that this link is the first that is broken.
explained() { # claim link
    local began=${EPOCHREALTIME/./} broken
    broken=$(broken_link "$1")
    echo $(((${EPOCHREALTIME/./} - began) / 1000))
    [ "$broken" = "$2" ]
}

# The record of a folder that cannot be changed cannot get the new size. The end of the cell lets it go, if this does not.
grows_not() { # claim
    unchangeable=$(folder_of "$1")
    in_node node-1 chattr +i "$unchangeable"
    k patch pvc "$1" -p '{"spec": {"resources": {"requests": {"storage": "2Mi"}}}}' >/dev/null
    sick "$1" size
    in_node node-1 chattr -i "$unchangeable"
    unchangeable=
}

# The event that tells of a fault may come a moment after it.
sick() { # claim link
    wait_until "$PATIENCE" explained "$1" "$2" || fail "$1: the first broken link is '$(broken_link "$1")', not '$2': $(explain "$1" --ascii)"
    say "$1: $2"
}
# A pod that is ending may be what is seen for a moment.
says() { # claim text
    wait_until "$PATIENCE" has_said "$1" "$2" || fail "$1: no '$2' in: $(explain "$1" --ascii)"
}
has_said() { [[ $(explain "$1" --ascii) == *"$2"* ]]; } # claim text
sound() { # claim
    wait_until "$PATIENCE" explained "$1" "" || fail "$1: $(explain "$1" --ascii)"
}

base_of() { printf "%s/%s" "$VOLUMES" "$1"; } # connection
folder_of() { printf "%s/v/%s" "$(base_of near)" "$(volume_of "$1")"; } # claim

pods_of_driver() { kubectl -n "$CHART_NAMESPACE" "$@" >/dev/null; }
asks_of_nodes() { # value of a label, or null
    pods_of_driver patch daemonset proxy-omnibus-csi-node -p "{\"spec\": {\"template\": {\"spec\": {\"nodeSelector\": {\"example.org/disk\": $1}}}}}"
}
no_pods() { [ -z "$(kubectl -n "$CHART_NAMESPACE" get pods -o name)" ]; }

# A volume made by hand, with a claim of its name. The source is in braces; another key of its spec has a line of its own.
by_hand() { # name source
    kubectl apply -f - >/dev/null <<END
apiVersion: v1
kind: PersistentVolume
metadata: {name: $1}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Mi}
  persistentVolumeReclaimPolicy: Retain
  storageClassName: ""
  claimRef: {namespace: $NS, name: $1}
  ${2:1:-1}
END
    claim "$1" '""' 1Mi
    bound "$1"
}

# A claim that a pod of its name uses.
used() { used_by near "$1"; } # name
used_by() { # class name
    claim "$2" "$1" 1Mi
    pod "$2" "$2"
    ready "$2"
}

file_of_far() { # base64, or null
    kubectl -n "$CHART_NAMESPACE" patch secret proxy-omnibus-csi-connection-files -p "{\"data\": {\"far.yaml\": $1}}" >/dev/null
}

class() { # name provisioner parameters
    kubectl apply -f - >/dev/null <<END
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: $1}
provisioner: $2
volumeBindingMode: WaitForFirstConsumer
parameters: ${3:-{\}}
END
}
