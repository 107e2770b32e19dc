# shellcheck shell=bash
# fio beside what a pod writes: blocks with checksums, which are read back. Sourced, never run.

# In each pod from now on, in each of its folders: a file is written, and then again and again, a pass at random, of which
# each block is read back and compared. With DIRECT=1 on the storage and not in the memory of the node. The program is that
# of the node, with its libraries; what it says is in /tmp/fio, how it ended in /tmp/fio.code.
fio_beside() { # writes a second in each folder, folder...
    local folder rate=$1
    shift
    FIO="fio --ioengine=psync --direct=${DIRECT:-0} --fallocate=none --bs=16k --size=1m --verify=crc32c --verify_fatal=1 --thread"
    FIO_FOLDERS=$#
    FIO_JOBS=''
    for folder in "$@"; do FIO_JOBS+=" --name=fio --directory=$folder"; done
    # A pass that is cut short leaves no block that was never written.
    # shellcheck disable=SC2034  # for the pods
    BESIDE="($FIO --output=/tmp/fio --rw=write --do_verify=0$FIO_JOBS && "
    BESIDE+="$FIO --output=/tmp/fio --rw=randwrite --loops=1000000 --rate_iops=$rate$FIO_JOBS; echo \$? >/tmp/fio.code) & "
    # shellcheck disable=SC2034  # for objects.sh
    MORE_MOUNTS='{name: usr, mountPath: /usr, readOnly: true}, {name: lib, mountPath: /lib, readOnly: true}, {name: lib64, mountPath: /lib64, readOnly: true}'
    # shellcheck disable=SC2034  # for objects.sh
    MORE_VOLUMES='{name: usr, hostPath: {path: /usr}}, {name: lib, hostPath: {path: /usr/lib}}, {name: lib64, hostPath: {path: /usr/lib64}}'
}

fio_runs() { # pod
    run_in "$1" 'pidof fio' >/dev/null
}

fio_said() { # pod
    run_in "$1" 'cat /tmp/fio.code /tmp/fio 2>/dev/null; true'
}

# Ends fio. It has met no error until then, and what it leaves is as it was written.
fio_ends() { # pod
    # shellcheck disable=SC2016  # for the shell of the pod
    run_in "$1" 'kill -TERM $(pidof fio)' || fail "fio has ended in $1: $(fio_said "$1")"
    wait_until "$PATIENCE" run_in "$1" '[ -s /tmp/fio.code ]' || fail "fio does not end in $1: $(fio_said "$1")"
    # Its exit code after a signal, also where one of its files had an error before.
    # shellcheck disable=SC2016  # for the shell of the pod
    run_in "$1" '[ "$(cat /tmp/fio.code)" = 128 ]' || fail "fio failed in $1: $(fio_said "$1")"
    [ "$(fio_said "$1" | grep -c ' err= 0: ')" = "$FIO_FOLDERS" ] || fail "fio met an error in $1: $(fio_said "$1")"
    fio_reads "$1"
}

# Each block of the files that fio wrote, in this pod or another one.
fio_reads() { # pod
    local report
    report=$(run_in "$1" "$FIO --rw=read$FIO_JOBS 2>&1") || fail "fio does not read in $1 what it wrote: $report"
    [ "$(grep -c ' err= 0: ' <<<"$report")" = "$FIO_FOLDERS" ] || fail "fio read with an error in $1: $report"
}
