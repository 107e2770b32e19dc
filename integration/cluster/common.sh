# shellcheck shell=bash
# What the scripts of the test cluster share: where things are, and how to run something in a node.
# Sourced, never run.

. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/common.sh"

KUBERNETES=v1.35.4
CLUSTER=$OMNIBUS_ROOT/integration/cluster
# A cluster of its own beside the others, from the same programs.
CLUSTER_INSTANCE=${OMNIBUS_CLUSTER_INSTANCE:-main}
CLUSTER_STATE=$OMNIBUS_CACHE/cluster/instances/$CLUSTER_INSTANCE

# Keyed by what they were built from, so that a new version never meets an old program.
key() { # file...
    cat "$@" | sha256sum | cut -c 1-12
}
KUBERNETES_PROGRAMS=$OMNIBUS_CACHE/cluster/kubernetes-$KUBERNETES-$(key "$CLUSTER"/kubernetes/go.* "$CLUSTER"/kubernetes/registrar/*)
SIDECAR_PROGRAMS=$OMNIBUS_CACHE/cluster/sidecars-$(key "$CLUSTER"/sidecars/go.*)
export PATH=$KUBERNETES_PROGRAMS:$SIDECAR_PROGRAMS:$PATH:/usr/sbin:/sbin
export KUBECONFIG=$CLUSTER_STATE/pki/admin.conf

# Waits until the command succeeds, in steps of a fifth of a second.
wait_until() { # seconds command...
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.2
    done
}

# Definitions that are served. `kubectl wait` fails at once for one that has no conditions yet.
established() { # what kubectl names them by...
    wait_until 60 kubectl wait --for=condition=Established --timeout=10s "$@" || die "definitions are not served: $*"
}

# Whether a process is that of a node: a number in a file may be of another one since the machine started again.
is_of_node() { grep -qsa integration/cluster/node "/proc/$1/cmdline"; }

node_pid() { # node
    local pid
    pid=$(cat "$CLUSTER_STATE/$1/pid" 2>/dev/null) && is_of_node "$pid" && printf '%s\n' "$pid"
}

# The lab's machine, if it is a node (machine.sh).
lab() { OMNIBUS_LAB_INSTANCE=${OMNIBUS_LAB_INSTANCE:-cluster${CLUSTER_INSTANCE//[^a-z0-9]/}} "$OMNIBUS_ROOT/vagrant/lab" "$@" 7>&- 8>&- 9>&-; }

machine_of() { # node
    case $1 in lab) echo storage ;; lab-2) echo node ;; esac
}

# Runs a command in a node. What it starts may outlive this script, so it gets no lock of it.
in_node() { # node command...
    local pid node=$1
    shift
    case $node in
        lab | lab-2)
            lab run -m "$(machine_of "$node")" -- "$@"
            return
            ;;
    esac
    pid=$(node_pid "$node") || die "there is no node $node: start it with 'make cluster'"
    nsenter -t "$pid" -m -n -p -i -u --wd="$PWD" -- "$@" 7>&- 8>&- 9>&-
}

kubectl() { in_node node-1 "$KUBERNETES_PROGRAMS/kubectl" "$@"; }

node_is_ready() { # node
    [ "$(kubectl get node "$1" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')" = True ]
}

# shellcheck disable=SC2034  # for the scripts that source this file
# Where volumes are: on each node a folder of its own.
VOLUMES=/var/lib/omnibus-cluster
