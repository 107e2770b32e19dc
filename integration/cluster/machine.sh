# shellcheck shell=bash
# The lab's machine (docs/lab.md) as a node called lab: it has real storage, and the modules of a node that the kernel
# of this host may lack. The control plane, sidecars and controllers stay with node-1, where then no pod runs that
# does not ask for it. With a pair of machines the second one is a node, too, called lab-2: it has a kernel of its own, so
# that the storage tells the two apart. Sourced, never run.
#
# QEMU lets nothing out of the machine, and node-1 has a network of its own. So SSH goes through a socket in a
# folder from node-1 to the host's port of the machine, and carries the API server to the machine and the
# kubelet's port to node-1. On both sides the machine has the address MACHINE_ADDRESS.

. "$CLUSTER/settings.sh"

MACHINE_ADDRESS=10.77.0.3
# The usual port of a kubelet is taken: that of node-1 listens at all its addresses.
MACHINE_KUBELET=10260
MACHINE_PODS=10.88.3.0/24
MACHINE_STATE=$CLUSTER_STATE/lab
# The second machine of a pair, the node lab-2.
SECOND_ADDRESS=10.77.0.4
SECOND_KUBELET=10261
SECOND_PODS=10.88.4.0/24
# Where the machine finds what is pushed to it.
MACHINE_FOLDER=/root

# The nodes that are machines.
machines_up() {
    ! machine_is_up || echo lab
    [ ! -e "$MACHINE_STATE/pair" ] || echo lab-2
}

machine_is_up() { [ -e "$MACHINE_STATE/up" ]; }

on_host() { # start|stop name [command...]
    SERVICES=$MACHINE_STATE/services "$CLUSTER/service" "$@" 7>&- 8>&- 9>&-
}

machine_up() { # [--pair]
    [ "$(uname -m)" = x86_64 ] || die "the lab is a machine of x86_64"
    mkdir -p "$MACHINE_STATE"
    lab down
    lab up "$@"
    machine_join lab "$MACHINE_ADDRESS" "$MACHINE_KUBELET" "$MACHINE_PODS"
    if [ $# -gt 0 ]; then
        machine_join lab-2 "$SECOND_ADDRESS" "$SECOND_KUBELET" "$SECOND_PODS"
        touch "$MACHINE_STATE/pair"
    fi
    touch "$MACHINE_STATE/up"
    # A taint that every tool expects on a control plane: what is not made for it goes to the machine.
    kubectl taint node node-1 node-role.kubernetes.io/control-plane:NoSchedule >/dev/null
}

machine_join() { # node address port-of-kubelet network-of-pods
    local port key state=$CLUSTER_STATE/$1 settings=$CLUSTER_STATE/$1/settings program programs=() machine
    machine=$(machine_of "$1")
    mkdir -p "$settings"
    port=$(cat "$(lab path "$machine")/port")
    key=$(lab path)/key
    on_host start "ssh-$1" socat "UNIX-LISTEN:$state/ssh,fork" "TCP:127.0.0.1:$port"
    in_node node-1 ip addr add "$2/32" dev lo
    service node-1 start "$1-ssh" socat "TCP-LISTEN:22,bind=$2,reuseaddr,fork" "UNIX-CONNECT:$state/ssh"
    service node-1 start "$1-tunnel" ssh -q -N -i "$key" -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
        -o ExitOnForwardFailure=yes -o ServerAliveInterval=15 -o ConnectTimeout=10 \
        -L "$2:$3:127.0.0.1:$3" -R 127.0.0.1:6443:127.0.0.1:443 "root@$2"

    node_settings "$MACHINE_FOLDER/node" "$4" / "$settings"
    sed "s,server: \"[^\"]*\",server: \"https://127.0.0.1:6443\",; s,$CLUSTER_STATE/pki,$MACHINE_FOLDER/node," \
        "$CLUSTER_STATE/pki/$1.conf" >"$settings/kubeconfig"
    cp "$CLUSTER_STATE/pki/ca.crt" "$settings/"
    tar -C "$settings" -cf "$state/settings.tar" .
    cp "$CLUSTER_IMAGES" "$state/images.tar"
    for program in containerd containerd-shim-runc-v2 ctr runc; do programs+=("$(command -v "$program")"); done
    lab push -m "$machine" "${programs[@]}" /usr/lib/cni/{bridge,host-local,loopback} "$KUBERNETES_PROGRAMS/kubelet" "$CLUSTER/machine" \
        "$state"/{settings.tar,images.tar}
    rm "$state/images.tar"
    wait_until 30 in_node "$1" sh -c 'ss -ltn | grep -q 127.0.0.1:6443' ||
        die "the API server does not reach the machine of $1: see $CLUSTER_STATE/node-1/services/$1-tunnel.log"
    # The storage has its address on the first machine; the second one goes there by the network between the two.
    [ "$machine" = storage ] || in_node "$1" sh -c "
        printf '[Route]\nDestination=$MACHINE_ADDRESS/32\nGateway=10.77.0.1\n' >/etc/systemd/network/20-eth1.network.d/storage.conf
        networkctl reload && networkctl reconfigure eth1"
    in_node "$1" "$MACHINE_FOLDER/machine" "$MACHINE_FOLDER" "$1" "$2" "$3" "$VOLUMES"
}

machine_down() {
    local node
    [ -d "$MACHINE_STATE" ] || return 0
    for node in lab lab-2; do on_host stop "ssh-$node"; done
    lab down
}

# What storage and sessions the machine has: nothing may be added to it when the volumes are deleted.
machine_storage() {
    # shellcheck disable=SC2016  # for the machine's shell
    in_node lab sh -c '
        zfs list -H -o name -t all
        cat /var/lib/nfs/etab
        ls /var/lib/samba/usershares
        cd /sys/kernel/config
        ls -d target/core/*_*/*/ target/iscsi/iqn* nvmet/subsystems/* nvmet/ports/*/subsystems/* 2>/dev/null
        iscsiadm -m session 2>/dev/null
        ls -d /sys/class/nvme/* 2>/dev/null
        grep "csi" /proc/self/mounts
        true' | sort
}
