# shellcheck shell=bash
# The release truenas: a proxy over a TrueNAS of each generation. In the lab's machine the simulator runs three
# times (integration/truenas-sim), each over a pool of its own, and makes what the API is asked for with ZFS, nfsd
# and LIO. Sourced, never run.
#
# Connections and classes are v24, v25 and v26 (NFS), and v25-iscsi; the snapshot class is truenas.

# Name, release and the first of two ports: the API, and the control of the simulator.
appliances() {
    printf '%s\n' "v24 24.10 8440" "v25 25.10 8450" "v26 26-rc 8460"
}

truenas_program() {
    if [ -z "${OMNIBUS_TRUENAS_SIM:-}" ]; then
        cargo build --locked --quiet -p truenas-sim
        OMNIBUS_TRUENAS_SIM=$OMNIBUS_TARGET/debug/truenas-sim
    fi
    [ -x "$OMNIBUS_TRUENAS_SIM" ] || die "there is no program $OMNIBUS_TRUENAS_SIM"
}

# Starts the appliances, prepared as docs/truenas-tasks.md says.
appliances_up() {
    local name release port forward=()
    truenas_program
    lab push "$OMNIBUS_TRUENAS_SIM"
    while read -r name release port <&3; do
        in_node lab sh -c "zfs list tank/appliances >/dev/null 2>&1 || zfs create -o mountpoint=/appliances tank/appliances
            truncate -s 3G /appliances/$name
            zpool create -m /mnt/$name $name /appliances/$name
            zfs create -p $name/k8s/v
            zfs create -p $name/k8s/s" </dev/null
        in_node lab systemd-run --quiet --unit "appliance-$name" --collect -E PATH=/usr/sbin:/usr/bin:/sbin:/bin \
            "$MACHINE_FOLDER/${OMNIBUS_TRUENAS_SIM##*/}" --this-machine --generation "$release" --pool "$name=0" \
            --http "127.0.0.1:$((port + 2))" --https "127.0.0.1:$port" --control "127.0.0.1:$((port + 1))" </dev/null
        wait_until 60 of_appliance "$port" system.info '[]' || die "the appliance $name does not answer: see 'journalctl -u appliance-$name' there"
        if [ "$release" = 24.10 ]; then
            of_appliance "$port" service.start '["nfs"]'
        else
            of_appliance "$port" service.control '["START", "nfs"]'
        fi
        forward+=(-L "$MACHINE_ADDRESS:$port:127.0.0.1:$port")
    done 3< <(appliances)
    of_appliance 8450 iscsi.portal.create "[{\"listen\": [{\"ip\": \"$MACHINE_ADDRESS\"}]}]"
    of_appliance 8450 iscsi.initiator.create '[{}]'
    of_appliance 8450 service.control '["START", "iscsitarget"]'
    # The controller reaches their APIs as it reaches SSH.
    service node-1 start lab-appliances ssh -q -N -i "$(lab path)/key" -o BatchMode=yes -o StrictHostKeyChecking=no \
        -o UserKnownHostsFile=/dev/null -o ExitOnForwardFailure=yes -o ServerAliveInterval=15 "${forward[@]}" "root@$MACHINE_ADDRESS"
    wait_until 30 in_node node-1 sh -c 'ss -ltn | grep -q ":8460 "' ||
        die "the appliances are not reached: see $CLUSTER_STATE/node-1/services/lab-appliances.log"
}

# A call as root, beside everything. It fails where nothing listens yet.
of_appliance() { # port of the API, method, arguments
    local body said
    body="[\"$2\", $3]"
    # shellcheck disable=SC2016 # for the machine's shell
    said=$(in_node lab bash -c 'exec 4<>"/dev/tcp/127.0.0.1/$1"
        printf "POST /call HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %s\r\n\r\n%s" "${#2}" "$2" >&4
        cat <&4' appliance $(($1 + 1)) "$body" </dev/null) || return 1
    case $said in
        *' 200 '*) ;;
        *)
            say "$2: $said"
            return 1
            ;;
    esac
}

appliances_down() {
    local name
    service node-1 stop lab-appliances
    while read -r name _ <&3; do
        in_node lab sh -c "systemctl stop appliance-$name; zpool destroy $name" </dev/null
    done 3< <(appliances)
    in_node lab sh -c 'rm -f /etc/exports.d/truenas-sim-*; exportfs -ra; zfs destroy -r tank/appliances'
}

truenas_values() {
    local name port
    echo connections:
    while read -r name _ port; do
        appliance_values "$name" "$name" "$port" nfs
        cat <<END
    nfs:
      shareHost: $MACHINE_ADDRESS
      shareAllowedHosts: [$MACHINE_ADDRESS]
      shareMaprootUser: root
      shareMaprootGroup: root
END
    done < <(appliances)
    appliance_values v25-iscsi v25 8450 iscsi
    cat <<END
    # Names of extents are short.
    _private: {csi: {volume: {idHash: {strategy: md5}}}}
    iscsi:
      targetPortal: $MACHINE_ADDRESS:3260
      targetGroups: [{targetGroupPortalGroup: 1, targetGroupInitiatorGroup: 1, targetGroupAuthType: None}]
END
}

appliance_values() { # connection, pool, port, protocol
    cat <<END
  $1:
    driver: freenas-api-$4
    httpConnection:
      {protocol: https, host: $MACHINE_ADDRESS, port: $3, username: root, password: sesame-for-root, allowInsecure: true}
    zfs:
      datasetParentName: $2/k8s/v
      detachedSnapshotsDatasetParentName: $2/k8s/s
END
    [ "$4" != nfs ] || printf "      datasetEnableQuotas: true\n      datasetPermissionsMode: '0777'\n"
}
