# shellcheck shell=bash
# A release made by our chart, with the real helm: the names of its driver and classes are those of release.sh,
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
    "$OMNIBUS_ROOT/deploy/image/build" image --out "$folder" --program "$image=$OMNIBUS_CSI" >&2
    sidecars=$("$CLUSTER/images" release)
    for node in $(nodes_up); do
        for image in "$folder"/*.oci.tar "$sidecars"; do
            in_node "$node" ctr -n k8s.io images import "$image" >>"$CLUSTER_STATE/$node/images.log" 2>&1 ||
                die "$image cannot be imported: see $CLUSTER_STATE/$node/images.log"
        done
    done
    touch "$folder/imported"
}

chart_install() { # release
    local node
    HELM=$("$OMNIBUS_ROOT/scripts/tool" helm)
    import_images
    mkdir -p "$CLUSTER_STATE/releases/$1"
    touch "$CLUSTER_STATE/releases/$1/by-chart"
    if ! helm install "$1" "$CHART" --create-namespace --values "$CLUSTER/objects/chart-$1.yaml" --wait --timeout 120s >&2; then
        kubectl -n "$CHART_NAMESPACE" describe pod >&2
        kubectl -n "$CHART_NAMESPACE" logs -l app.kubernetes.io/instance="$1" --all-containers --tail 5 --prefix >&2 || true
        die "the chart was not installed"
    fi
    for node in $(nodes_up); do
        wait_until 60 is_registered "$1" "$node" || die "$1 is not registered on $node: $(kubectl -n "$CHART_NAMESPACE" logs -l app.kubernetes.io/instance="$1" -c csi-driver --tail 20)"
    done
}

chart_uninstall() { # release
    HELM=$("$OMNIBUS_ROOT/scripts/tool" helm)
    helm uninstall "$1" --ignore-not-found --wait --timeout 90s >&2 || die "the release $1 cannot be taken away"
}
