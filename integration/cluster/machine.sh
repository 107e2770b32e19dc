# shellcheck shell=bash
# The lab's machine (docs/lab.md) as a node called lab: it has real storage, and the modules of a node that the kernel
# of this host may lack. The control plane, sidecars and controllers stay with node-1, where then no pod runs that
# does not ask for it. Sourced, never run.
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
# Where the machine finds what is pushed to it.
MACHINE_FOLDER=/root

machine_is_up() { [ -e "$MACHINE_STATE/up" ]; }

on_host() { # start|stop name [command...]
    SERVICES=$MACHINE_STATE/services "$CLUSTER/service" "$@" 7>&- 8>&- 9>&-
}

machine_up() {
    local port key settings=$MACHINE_STATE/settings program
    [ "$(uname -m)" = x86_64 ] || die "the lab is a machine of x86_64"
    mkdir -p "$settings"
    lab down
    lab up
    port=$(cat "$(lab path storage)/port")
    key=$(lab path)/key
    on_host start ssh socat "UNIX-LISTEN:$MACHINE_STATE/ssh,fork" "TCP:127.0.0.1:$port"
    in_node node-1 ip addr add "$MACHINE_ADDRESS/32" dev lo
    service node-1 start lab-ssh socat "TCP-LISTEN:22,bind=$MACHINE_ADDRESS,reuseaddr,fork" "UNIX-CONNECT:$MACHINE_STATE/ssh"
    service node-1 start lab-tunnel ssh -q -N -i "$key" -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
        -o ExitOnForwardFailure=yes -o ServerAliveInterval=15 -o ConnectTimeout=10 \
        -L "$MACHINE_ADDRESS:$MACHINE_KUBELET:127.0.0.1:$MACHINE_KUBELET" -R 127.0.0.1:6443:127.0.0.1:443 "root@$MACHINE_ADDRESS"

    node_settings "$MACHINE_FOLDER/node" "$MACHINE_PODS" / "$settings"
    sed "s,server: \"[^\"]*\",server: \"https://127.0.0.1:6443\",; s,$CLUSTER_STATE/pki,$MACHINE_FOLDER/node," \
        "$CLUSTER_STATE/pki/lab.conf" >"$settings/kubeconfig"
    cp "$CLUSTER_STATE/pki/ca.crt" "$settings/"
    tar -C "$settings" -cf "$MACHINE_STATE/settings.tar" .
    cp "$CLUSTER_IMAGES" "$MACHINE_STATE/images.tar"
    for program in containerd containerd-shim-runc-v2 ctr runc; do set -- "$@" "$(command -v "$program")"; done
    lab push "$@" /usr/lib/cni/{bridge,host-local,loopback} "$KUBERNETES_PROGRAMS/kubelet" "$CLUSTER/machine" \
        "$MACHINE_STATE"/{settings.tar,images.tar}
    rm "$MACHINE_STATE/images.tar"
    wait_until 30 in_node lab sh -c 'ss -ltn | grep -q 127.0.0.1:6443' ||
        die "the API server does not reach the machine: see $CLUSTER_STATE/node-1/services/lab-tunnel.log"
    in_node lab "$MACHINE_FOLDER/machine" "$MACHINE_FOLDER" "$MACHINE_ADDRESS" "$MACHINE_KUBELET" "$VOLUMES"
    touch "$MACHINE_STATE/up"
    # A taint that every tool expects on a control plane: what is not made for it goes to the machine.
    kubectl taint node node-1 node-role.kubernetes.io/control-plane:NoSchedule >/dev/null
}

machine_down() {
    [ -d "$MACHINE_STATE" ] || return 0
    on_host stop ssh
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
