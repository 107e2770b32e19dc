# shellcheck shell=bash
# The life of a claim. Sourced, never run.

cell_life_local() { life local local; }
cell_life_proxy() { life proxy near; }
cell_chart_local() { RELEASE_BY=chart life local local; }
cell_chart_central() { RELEASE_BY=chart life central central; }
cell_old_layout() { RELEASE_BY=layout life local local; }
cell_chart_proxy() { RELEASE_BY=chart life proxy near; }

life() { # release class
    release_install "$1"
    claim first "$2" 1Gi
    pod writer first
    ready writer
    put writer file first

    snapshot moment first "$1"
    snapshot_ready moment
    put writer file later
    claim restored "$2" 1Gi VolumeSnapshot moment
    pod reader restored
    claim cloned "$2" 1Gi PersistentVolumeClaim first
    pod cloner cloned
    ready reader
    ready cloner
    holds reader file first
    holds cloner file later

    # Each is a volume of its own.
    put cloner file cloned
    holds writer file later
    holds reader file first

    k patch pvc first -p '{"spec": {"resources": {"requests": {"storage": "2Gi"}}}}' >/dev/null
    wait_until 90 size_is first 2Gi || fail "the claim does not grow: $(k describe pvc first)"
    holds writer file later

    # The source goes first; what was made of it stays.
    remove pod/writer pvc/first
    remove volumesnapshot/moment
    holds reader file first
    holds cloner file cloned
    clean_up "$1"
}
