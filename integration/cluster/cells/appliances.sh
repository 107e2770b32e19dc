# shellcheck shell=bash
# TrueNAS of three generations behind one proxy, over the simulator. Sourced, never run.

cell_truenas() {
    local class
    # shellcheck disable=SC2034  # for objects.sh
    PATIENCE=300
    # shellcheck disable=SC2034  # for life.sh
    FULL_SIZE=1
    export RELEASE_BY=chart
    appliances_up
    release_install truenas
    for class in v24 v25 v26 v25-iscsi; do
        say "-- $class"
        life_of_claim "$class" truenas
        clean_up truenas
    done
    controller_is_unprivileged truenas
    release_uninstall truenas
    E2E_AT_ONCE=2 e2e truenas 3 "$APPLIANCE_SPECS"
    release_uninstall truenas
    appliances_down
}

APPLIANCE_SPECS='Dynamic PV .*(default fs.* volumes should store data|default fs.* provision storage with snapshot data source .Feature|filesystem volmode.*multiVolume.*should concurrently access the single volume from pods on the same node$)'
