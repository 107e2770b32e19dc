# shellcheck shell=bash
# Layouts of a cluster in which the driver once failed. Sourced, never run.

# The cluster's kubelet has a folder that is a bind mount of another one and a peer of it: each mount of the
# driver shows up twice, and must not count as two.
cell_peer_read_write_once_pod() {
    release_install local
    [ "$(peer_group /var/lib/kubelet)" = "$(peer_group /)" ] ||
        fail "the kubelet's folder is no peer of another: this proves nothing"
    MODE=ReadWriteOncePod claim single local 1Gi
    pod only single
    ready only
    put only file mounted
    # And still there is one pod at a time.
    remove pod/only
    pod next single
    ready next
    holds next file mounted
    clean_up local
}

peer_group() { # mount point
    # shellcheck disable=SC2016  # for awk
    in_node node-1 awk -v point="$1" '$5 == point { print $7 }' /proc/self/mountinfo | tail -n 1
}

# Of two nodes each has volumes; a restore or clone goes where its source is, whatever the scheduler chose
# first, and a pod that is free to run anywhere follows.
cell_two_nodes_restore() {
    local node target
    release_install local
    for node in node-1 node-2; do
        claim "on-$node" local 1Gi
        pod "on-$node" "on-$node" "$node"
    done
    for node in node-1 node-2; do
        ready "on-$node"
        put "on-$node" file "$node"
        snapshot "of-$node" "on-$node" local
        snapshot_ready "of-$node"
    done
    # Three pods each: by chance alone not all would be scheduled to the right node.
    for node in node-1 node-2; do
        for target in a b c; do
            claim "restored-$target-$node" local 1Gi VolumeSnapshot "of-$node"
            pod "restored-$target-$node" "restored-$target-$node"
        done
        claim "cloned-$node" local 1Gi PersistentVolumeClaim "on-$node"
        pod "cloned-$node" "cloned-$node"
    done
    for node in node-1 node-2; do
        for target in restored-a restored-b restored-c cloned; do
            ready "$target-$node" 120
            holds "$target-$node" file "$node"
            [ "$(node_of "$target-$node")" = "$node" ] || fail "$target-$node is not on $node"
        done
    done
    clean_up local
}

# A volume grows on whichever node it is, with the one resizer that there is.
cell_two_nodes_growth() { grow_on_two_nodes local local; }

# The same behind the proxy: the resizer asks the controller of one node about the volumes of both.
cell_two_nodes_growth_proxy() { grow_on_two_nodes zones zones; }

grow_on_two_nodes() { # release class
    local node
    release_install "$1"
    for node in node-1 node-2; do
        claim "on-$node" "$2" 1Gi
        pod "on-$node" "on-$node" "$node"
    done
    for node in node-1 node-2; do
        ready "on-$node"
        put "on-$node" file here
        k patch pvc "on-$node" -p '{"spec": {"resources": {"requests": {"storage": "2Gi"}}}}' >/dev/null
    done
    for node in node-1 node-2; do
        wait_until 60 size_is "on-$node" 2Gi || fail "the volume of $node does not grow: $(k describe pvc "on-$node")"
        holds "on-$node" file here
    done
    clean_up "$1"
}

# The same, installed by the chart: a controller in each node's pod, and the resizer elected among them.
cell_chart_two_nodes_restore() { RELEASE_BY=chart cell_two_nodes_restore; }
cell_chart_two_nodes_growth() { RELEASE_BY=chart cell_two_nodes_growth; }

# The first volume of a class over connections whose folders are not there yet.
cell_several_connections() {
    local number
    release_install proxy
    [ -z "$(in_node node-1 ls "$VOLUMES")" ] || fail "there are folders already: this proves nothing"
    for number in 1 2 3 4; do
        claim "any-$number" both 1Gi
        pod "any-$number" "any-$number"
    done
    for number in 1 2 3 4; do
        ready "any-$number"
        put "any-$number" file "$number"
    done
    snapshot moment any-1 proxy
    snapshot_ready moment
    claim restored both 1Gi VolumeSnapshot moment
    pod restored restored
    ready restored
    holds restored file 1
    clean_up proxy
}

# A copy of 2 GB that is killed in the middle is made again, whole, and leaves nothing.
cell_kill_big_copy() {
    local source killed sum size=${BIG_COPY_MB:-2048}
    release_install local
    claim big local 4Gi
    pod writer big '' "mkdir /data/d; head -c 16m /dev/urandom >/data/d/0; n=1; while [ \$n -lt $((size / 16)) ]; do (echo \$n; cat /data/d/0) >/data/d/\$n; n=\$((n + 1)); done; cd /data/d; cat * | md5sum >/data/sum; touch /data/written"
    ready writer
    wait_until 240 run_in writer 'test -e /data/written' || fail "the source is not written in time"
    sum=$(run_in writer 'cat /data/sum')
    source=$(kilobytes local)
    in_node node-1 touch "$VOLUMES/start"
    claim copy local 4Gi PersistentVolumeClaim big
    pod reader copy
    # In the middle, twice: eight of its files are there, and the claim is not bound.
    for _ in 1 2; do
        wait_until 120 is_written "$VOLUMES/local" "$VOLUMES/start" 8 || fail "the copy does not begin"
        killed=$(service node-1 pid local-driver)
        service node-1 kill local-driver
        in_node node-1 touch "$VOLUMES/start"
        ! is_bound copy || fail "the copy was done before it was killed: a larger one is needed"
        wait_until 30 is_started_again "$killed" || fail "the driver is not started again"
    done
    ready reader 240
    [ "$(run_in reader 'cd /data/d; cat * | md5sum')" = "$sum" ] || fail "the copy is not what was copied"
    [ "$(kilobytes local)" -lt $((source * 2 + source / 8)) ] || fail "parts of the killed copies are left: $(directories)"
    clean_up local
    [ "$(kilobytes local)" -lt 1024 ] || fail "parts of the copies are left below $VOLUMES/local"
}

kilobytes() { # folder
    in_node node-1 du -sk "$VOLUMES/$1" 2>/dev/null | cut -f 1
}

is_started_again() { [ "$(service node-1 pid local-driver)" != "$1" ]; } # the process before

is_written() { # folder, a file that is older, files
    [ "$(in_node node-1 find "$1" -type f -cnewer "$2" | wc -l)" -ge "$3" ]
}

is_bound() { [ "$(k get pvc "$1" -o 'jsonpath={.status.phase}')" = Bound ]; }
