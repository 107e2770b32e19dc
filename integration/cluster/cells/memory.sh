# shellcheck shell=bash
# What a release takes of memory. Sourced, never run.

# So many seconds after its pods were last asked for something.
IDLE=${IDLE:-60}

# One controller for all nodes and one pod on the node, by the chart, with ten connections; idle, after volumes were made and
# deleted. Then again with sidecars in Go that collect their garbage sooner. The connections are local, so the program has no
# SSH or HTTP open. OMNIBUS_CSI names the program: the debug build is larger.
cell_release_memory() {
    local number gogc settings=controller.replicaCount=1 folder=$CLUSTER_STATE/memory
    # shellcheck disable=SC2034  # for objects.sh
    PATIENCE=240
    for ((number = 2; number <= 10; number++)); do
        settings+=",connections.c$number.driver=local-hostpath"
        settings+=",connections.c$number.local-hostpath.shareBasePath=$VOLUMES/c$number"
        settings+=",connections.c$number.local-hostpath.controllerBasePath=$VOLUMES/c$number"
    done
    export RELEASE_BY=chart CHART_SET=$settings
    mkdir -p "$folder"
    release_install central
    [ "$(files_of_central)" = 10 ] || fail "there are $(files_of_central) connections, not ten"
    measured "$folder/chart"
    for gogc in 50 25; do
        kubectl -n "$CHART_NAMESPACE" set env deployment/central-omnibus-csi-controller -c 'external-*' "GOGC=$gogc" >/dev/null
        kubectl -n "$CHART_NAMESPACE" rollout status --timeout="${PATIENCE}s" deployment/central-omnibus-csi-controller >&2 ||
            { pods_said central; fail "the sidecars do not start with GOGC=$gogc"; }
        measured "$folder/$gogc"
    done
    say "-- $(basename "$(dirname "$OMNIBUS_CSI")") build; MiB, of its own (anonymous) and resident"
    table_of_memory "$folder" >&2
    clean_up central
}

files_of_central() {
    kubectl -n "$CHART_NAMESPACE" get secret central-omnibus-csi-connection-files -o go-template='{{len .data}}'
}

# Writes for each container its pod, its name, and KiB that are its own and resident.
measured() { # file
    local number claims=()
    for ((number = 1; number <= 20; number++)); do
        claim "m-$number" central 1Mi
        claims+=("m-$number")
    done
    pod_of_many user : "${claims[@]}"
    ready user
    clean_up central
    sleep "$IDLE"
    memory_of_release central | sort >"$1"
    [ "$(wc -l <"$1")" = 6 ] || fail "not six containers: $(cat "$1")"
}

memory_of_release() { # release
    local part name id pid tasks
    tasks=$(in_node node-1 ctr -n k8s.io task ls)
    # shellcheck disable=SC2016  # for kubectl, and for awk below
    kubectl -n "$CHART_NAMESPACE" get pod -l "app.kubernetes.io/instance=$1" -o go-template='{{range .items}}{{$part := index .metadata.labels "app.kubernetes.io/component"}}{{range .status.containerStatuses}}{{$part}} {{.name}} {{.containerID}}{{"\n"}}{{end}}{{end}}' |
        while read -r part name id; do
            pid=$(awk -v id="${id#*//}" '$1 == id { print $2 }' <<<"$tasks")
            [ -n "$pid" ] || fail "$name has no process"
            in_node node-1 awk -v of="$part $name" '/^RssAnon:/ { anonymous = $2 } /^VmRSS:/ { resident = $2 } END { print of, anonymous, resident }' "/proc/$pid/status"
        done
}

# In the form of docs/benchmarks.md. The sums are of ten storages on ten nodes: one release of ours, and the controllers'
# sidecars alone of ten releases as democratic-csi's chart makes them (attacher, provisioner, resizer, snapshotter). Its own
# processes, csi-grpc-proxy, registrars and the container for cleaning up are not counted.
table_of_memory() { # folder
    awk '
        function mib(kib) { return sprintf("%.1f", kib / 1024) }
        FNR == 1 { way++ }
        {
            name = $1 ": " $2
            if (way == 1) order[++rows] = name
            own[name, way] = $3
            resident[name, way] = $4
            ours[way] += $3 * ($1 == "node" ? 10 : 1)
            if ($2 != "csi-driver") theirs[way] += $3 * 10
        }
        END {
            print "| container | as the chart starts it | GOGC=50 | GOGC=25 |"
            print "|---|---|---|---|"
            for (row = 1; row <= rows; row++) {
                name = order[row]
                line = "| " name " |"
                for (way = 1; way <= 3; way++) line = line " " mib(own[name, way]) ", " mib(resident[name, way]) " |"
                print line
            }
            line = "| ten storages on ten nodes, of its own |"
            for (way = 1; way <= 3; way++) line = line " " mib(ours[way]) " |"
            print line
            line = "| the sidecars of the controllers of ten releases, of their own |"
            for (way = 1; way <= 3; way++) line = line " " mib(theirs[way]) " |"
            print line
        }' "$1/chart" "$1/50" "$1/25"
}
