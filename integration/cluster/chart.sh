# shellcheck shell=bash
# Releases in pods. One made by our chart, with the real helm: the names of its driver and classes are those of release.sh,
# so that the cells find either. The driver's image is the one that deploy/image/build makes of OMNIBUS_CSI, the
# sidecars' are packed from the same programs that release.sh runs. Sourced, never run.

CHART=$OMNIBUS_ROOT/deploy/chart
CHART_NAMESPACE=omnibus

helm() { in_node node-1 env KUBECONFIG="$KUBECONFIG" HELM_CACHE_HOME="$CLUSTER_STATE/helm" "$HELM" --namespace "$CHART_NAMESPACE" "$@"; }

# Gives the nodes the images, once for each program.
import_images() {
    local node image sidecars folder
    case $(uname -m) in aarch64) image=arm64 ;; *) image=amd64 ;; esac
    folder=$CLUSTER_STATE/image-$(key "$OMNIBUS_CSI")
    [ ! -e "$folder/imported" ] || return 0
    "$OMNIBUS_ROOT/deploy/image/build" image --newest --out "$folder" --program "$image=$OMNIBUS_CSI" >&2
    sidecars=$("$CLUSTER/images" release)
    for node in $(nodes_up); do
        for image in "$folder"/*.oci.tar "$sidecars"; do
            in_node "$node" ctr -n k8s.io images import "$image" >>"$CLUSTER_STATE/$node/images.log" 2>&1 ||
                die "$image cannot be imported: see $CLUSTER_STATE/$node/images.log"
        done
    done
    for node in $(machines_up); do
        lab push -m "$(machine_of "$node")" "$folder"/*.oci.tar
        for image in "$folder"/*.oci.tar; do
            in_node "$node" "$MACHINE_FOLDER/ctr" -n k8s.io images import "$MACHINE_FOLDER/${image##*/}" >>"$CLUSTER_STATE/$node/images.log" 2>&1 ||
                die "$image cannot be imported: see $CLUSTER_STATE/$node/images.log"
        done
    done
    touch "$folder/imported"
}

chart_install() { # release
    local node nodes folder=$CLUSTER_STATE/releases/$1 values=(--values "$CLUSTER/objects/chart-$1.yaml")
    HELM=$("$OMNIBUS_ROOT/scripts/tool" helm)
    import_images
    mkdir -p "$folder"
    touch "$folder/by-chart"
    nodes=$(nodes_up)
    if is_of_network "$1"; then
        nodes=$(machines_up)
        machine_storage >"$folder/storage"
        (umask 077; network_values "$1" >"$folder/values.yaml")
        values+=(--values "$folder/values.yaml")
    fi
    # What a cell wants otherwise.
    [ -z "${CHART_SET:-}" ] || values+=(--set "$CHART_SET")
    if ! helm install "$1" "$CHART" --create-namespace "${values[@]}" --wait --timeout "$((${PATIENCE:-90} + 30))s" >&2; then
        pods_said "$1"
        die "the chart was not installed"
    fi
    for node in $nodes; do
        wait_until 60 is_registered "$1" "$node" || { pods_said "$1"; die "$1 is not registered on $node"; }
    done
}

# The release again, after what its values are made from has changed.
chart_upgrade() { # release
    local folder=$CLUSTER_STATE/releases/$1
    (umask 077; network_values "$1" >"$folder/values.yaml")
    helm upgrade "$1" "$CHART" --values "$CLUSTER/objects/chart-$1.yaml" --values "$folder/values.yaml" \
        --wait --timeout "${PATIENCE:-90}s" >&2 || die "the values of $1 cannot be changed"
}

# The pods of a release, with what changes when one is made or started again.
chart_pods() { # release
    kubectl -n "$CHART_NAMESPACE" get pod -l "app.kubernetes.io/instance=$1" -o \
        'jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.status.containerStatuses[*].restartCount}{"\n"}{end}' | sort
}

# The same release in the layout of democratic-csi's chart, with only the image replaced; and with the sidecars that there
# are, which are those of our chart.
layout_objects() { # release
    sed -e "s/@VERSION@/$(sed -n 's/^appVersion: //p' "$CHART/Chart.yaml")/" \
        -e "$(sed -n 's,.*registry: \(registry.k8s.io/[a-z/-]*\)\, tag: \(v[0-9.]*\)}.*,s|\1:@VERSION_OF_CHART@|\1:\2|,p' "$CHART/values.yaml")" \
        "$CLUSTER/objects/layout-$1.yaml"
}

layout_install() { # release
    local node
    import_images
    mkdir -p "$CLUSTER_STATE/releases/$1"
    touch "$CLUSTER_STATE/releases/$1/by-layout"
    kubectl create namespace "$CHART_NAMESPACE" --dry-run=client -o yaml | kubectl apply -f - >/dev/null
    kubectl apply -f "$CLUSTER/objects/$1.yaml" >/dev/null
    layout_objects "$1" | kubectl apply -f - >/dev/null
    if ! kubectl -n "$CHART_NAMESPACE" rollout status --timeout=90s "daemonset/$1-node" >&2; then
        pods_said "$1"
        die "the pods of the old layout do not come up"
    fi
    for node in $(nodes_up); do
        wait_until 60 is_registered "$1" "$node" || { pods_said "$1"; die "$1 is not registered on $node"; }
    done
}

layout_uninstall() { # release
    layout_objects "$1" | kubectl delete --ignore-not-found --timeout=90s -f - >/dev/null
    kubectl -n "$CHART_NAMESPACE" wait --for=delete --timeout=60s pod -l app.kubernetes.io/instance="$1" >/dev/null
    kubectl delete --ignore-not-found -f "$CLUSTER/objects/$1.yaml" >/dev/null
}

pods_said() { # release
    kubectl -n "$CHART_NAMESPACE" describe pod -l app.kubernetes.io/instance="$1" >&2
    kubectl -n "$CHART_NAMESPACE" logs -l app.kubernetes.io/instance="$1" --all-containers --tail 8 --prefix >&2 || true
}

chart_uninstall() { # release
    HELM=$("$OMNIBUS_ROOT/scripts/tool" helm)
    helm uninstall "$1" --ignore-not-found --wait --timeout "${PATIENCE:-90}s" >&2 || die "the release $1 cannot be taken away"
}
