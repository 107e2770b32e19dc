# shellcheck shell=bash
# A node that is lost while its pod writes, and the taint that says so (docs/outages.md). Sourced, never run.

# As which the storage sees the second machine: it goes there by the network between the two.
SECOND_CLIENT=10.77.0.2

# Two machines with kernels of their own. The second one stands still while a pod of a StatefulSet writes there. With the
# taint its volume is unpublished without its help, and the pod writes on the first one, which is the storage, too.
# The second one goes on, and nothing of it reaches the volume. It is started again and gets the volume back.
cell_out_of_service_nfs() { out_of_service nfs; }
cell_out_of_service_iscsi() { out_of_service iscsi; }
cell_out_of_service_nvmeof() { out_of_service nvmeof; }

out_of_service() { # release
    local began count pod gone
    # shellcheck disable=SC2034  # for objects.sh
    PATIENCE=300
    export RELEASE_BY=chart
    name_nodes "$1"
    ACCESS_NODES=$(named_nodes "$1") release_install "$1"
    kubectl cordon lab >/dev/null
    stateful_writer "$1"
    ready data-0
    [ "$(node_of data-0)" = lab-2 ] || fail "the pod is on $(node_of data-0)"
    wait_until "$PATIENCE" writes_on lab-2 || fail "the pod does not write: $(run_in data-0 'tail -n 3 /data/log')"
    kubectl uncordon lab >/dev/null
    let_in_are "$1" lab-2 || fail "the storage lets in: $(let_in "$1")"
    # What is lost with its power is nothing of the node itself, such as what it knows of the networks of its pods.
    in_node lab-2 sync

    say "-- lab-2 stands still"
    count=$(written data-0)
    lab pause -m node
    wait_until 180 is_not_ready lab-2 || fail "the node is still ready: $(kubectl describe node lab-2)"
    let_in_are "$1" lab-2 || fail "the access was closed before the taint: $(let_in "$1")"
    pod=$(uid_of data-0)
    began=${EPOCHREALTIME/./}
    kubectl taint node lab-2 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute >/dev/null
    # The collector of pods looks every 20 seconds.
    wait_until "$PATIENCE" is_another data-0 "$pod" || fail "Kubernetes does not delete the pod"
    gone=$(passed "$began" "of which" 2>&1)
    wait_until "$PATIENCE" is_out "$1" lab-2 || fail "the storage still lets in: $(let_in "$1"); $(kubectl get volumeattachments -o yaml)"
    passed "$began" "after the taint the storage lets lab-2 in no more:"
    wait_until "$PATIENCE" writes_on lab || { k describe pod >&2; fail "the pod does not write on lab"; }
    say "omnibus: $(passed "$began" "from the taint to the first write on the other node" 2>&1), $gone until Kubernetes had deleted the pod"
    let_in_are "$1" lab || fail "the storage lets in: $(let_in "$1")"
    # The last line that was seen may not have been synced.
    run_in data-0 "[ \$(grep -c '^lab-2 ' /data/log) -ge $((count - 1)) ]" || fail "writes of lab-2 are missing: it had $count"

    say "-- lab-2 goes on, and is started again"
    lab resume -m node
    count=$(written data-0)
    wait_until 60 has_written data-0 $((count + 50)) || fail "the pod does not write beside it"
    lab restart -m node
    wait_until "$PATIENCE" node_is_ready lab-2 || fail "lab-2 does not become ready"
    is_out "$1" lab-2 || fail "lab-2 was let in without a publish: $(let_in "$1")"
    kubectl taint node lab-2 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute- >/dev/null
    wait_until "$PATIENCE" is_registered "$1" lab-2 || fail "the driver does not come back on lab-2"

    say "-- the volume goes back"
    kubectl cordon lab >/dev/null
    remove pod/data-0
    wait_until "$PATIENCE" runs_on lab-2 || { k describe pod >&2; fail "the pod does not run on lab-2"; }
    wait_until "$PATIENCE" writes_on_again || fail "the pod does not write on lab-2 again"
    kubectl uncordon lab >/dev/null
    let_in_are "$1" lab-2 || fail "the storage lets in: $(let_in "$1")"
    # Each run of a pod is one block of lines, with each number once and in order.
    run_in data-0 "awk '\$1 != node { runs++; node = \$1; n = 0 } \$2 != n++ { bad = 1 } END { exit bad || runs != 3 }' /data/log" ||
        fail "the content is not that of three runs: $(run_in data-0 "cut -d ' ' -f 1 /data/log | uniq -c")"
    remove statefulset/data
    clean_up "$1"
}

# What a node is called at the storage.
called() { # release node
    case $1-$2 in
        nfs-lab) echo "$MACHINE_ADDRESS" ;;
        nfs-lab-2) echo "$SECOND_CLIENT" ;;
        iscsi-*) echo "iqn.2026-01.lab.cluster.node:$2" ;;
        nvmeof-*) echo "nqn.2026-01.lab.cluster.node:$2" ;;
    esac
}

# The same for the configuration.
named_nodes() { # release
    printf "{names: {lab: '%s', lab-2: '%s'}}" "$(called "$1" lab)" "$(called "$1" lab-2)"
}

# Both machines began as one image, with one name.
name_nodes() { # release
    local node command
    for node in lab lab-2; do
        case $1 in
            nfs) command=true ;;
            iscsi) command="echo 'InitiatorName=$(called "$1" "$node")' >/etc/iscsi/initiatorname.iscsi && systemctl restart iscsid" ;;
            nvmeof) command="mkdir -p /etc/nvme && echo '$(called "$1" "$node")' >/etc/nvme/hostnqn && uuidgen >/etc/nvme/hostid" ;;
        esac
        in_node "$node" sh -c "$command" || fail "$node gets no name"
    done
}

# It begins with 0 whenever it starts, and syncs each line.
stateful_writer() { # class
    k apply -f - >/dev/null <<END
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: data}
spec:
  serviceName: data
  selector: {matchLabels: {app: data}}
  template:
    metadata: {labels: {app: data}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: shell
        image: omnibus.test/shell:1
        imagePullPolicy: Never
        env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        command: [sh, -c, "trap exit TERM; n=0; while echo \$NODE \$n >>/data/log && sync /data/log; do n=\$((n + 1)); sleep 0.1; done; touch /tmp/failed; while :; do sleep 3600 & wait; done"]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      accessModes: [ReadWriteOnce]
      storageClassName: $1
      resources: {requests: {storage: 1Gi}}
END
    wait_until 60 k get pod data-0 || fail "the StatefulSet makes no pod"
}

# A kubelet that stands still is not asked: it would not answer for long.
writes_on() { # node
    [ "$(node_of data-0)" = "$1" ] && run_in data-0 "grep '^$1 ' /data/log"
}

runs_on() { # node
    [ "$(node_of data-0)" = "$1" ] && k wait --for=condition=Ready --timeout=1s pod/data-0
}

# After what was written on the other node.
writes_on_again() {
    run_in data-0 "tail -n 1 /data/log | grep '^lab-2 '"
}

is_not_ready() { ! node_is_ready "$1"; } # node

uid_of() { k get pod "$1" --ignore-not-found -o 'jsonpath={.metadata.uid}'; } # pod

# Or none at all.
is_another() { # pod, the UID that it had
    local now
    now=$(uid_of "$1") && [ "$now" != "$2" ]
}

# The nodes that the storage lets in, by what they are called there.
let_in() { # release
    case $1 in
        nfs) in_node lab exportfs -s | sed -n 's/.* \([^ ]*\)(.*/\1/p' ;;
        iscsi) in_node lab find /sys/kernel/config/target/iscsi -mindepth 4 -maxdepth 4 -path '*/acls/*' -printf '%f\n' ;;
        nvmeof) in_node lab find /sys/kernel/config/nvmet/subsystems -path '*/allowed_hosts/*' -printf '%f\n' ;;
    esac
}

let_in_are() { [ "$(let_in "$1")" = "$(called "$1" "$2")" ]; } # release node

# A storage that does not answer is no proof.
is_out() { # release node
    local now
    now=$(let_in "$1") && ! grep -qxF "$(called "$1" "$2")" <<<"$now"
}
