# A disk of one zvol as an iSCSI target of LIO: one backstore, one target, one LUN.
#
# lio.sh MODE CONFIGFS SAVED LOCK NAME IQN DEVICE SERIAL WORD... with the words `portal=ADDRESS:PORT`,
# `tpg=ATTRIBUTE=VALUE`, `block=ATTRIBUTE=VALUE`, and for a look `portal=any`; `nodes=listed` if only
# those get in that `node=INITIATOR` names, and `out=INITIATOR` for nodes that must be out at the end. SAVED
# is a file, `auto` for that of whatever targetcli there is, `named` or `named:FILE` for a look that is
# content with the names in it, `-` for none. `$secrets` are lines `FILE VALUE` for the folder `auth` of the
# portal group and of each node. The mode `nodes` changes who gets into a target that is there. The mode
# `save`, of no volume, saves what was changed of all; `examine`, of none either, says which attributes the
# kernel does not have.
mode=$1 root=$2/target save=$3 lock=$4
share_lio
about "$5" "$6" "$7" "$8"
shift 8

# What is missing of these, the outer ones first, by one process.
make_folders() {
    for folder; do
        shift
        [ -d "$folder" ] || set -- "$@" "$folder"
    done
    [ $# -gt 0 ] || return 0
    changed=yes
    mkdir "$@" && return 0
    for folder; do
        [ -d "$folder" ] || die "cannot make ${folder#"$root"/}"
    done
}

# Where a new backstore goes. Each has an adapter of its own, as rtslib does it. An empty adapter was left by an
# interrupted call.
find_adapter() {
    adapter=
    for found in "$root"/core/iblock_*; do
        used=no
        for other in "$found"/*; do
            [ ! -d "$other" ] || used=yes
        done
        [ $used = yes ] || [ ! -d "$found" ] || adapter=$found
    done
    number=0
    while [ -z "$adapter" ]; do
        [ -d "$root/core/iblock_$number" ] || adapter=$root/core/iblock_$number
        number=$((number + 1))
    done
    backstore=$adapter/$name
}

# Everything that a volume has, so that what follows only sets attributes.
make_all_folders() {
    note_portals
    [ ! -d "$target" ] || forget_others "$@"
    for word; do
        shift
        case $word in
        portal=any) ;;
        portal=*) set -- "$@" "$tpg/np/${word#*=}" ;;
        esac
    done
    [ -n "$backstore" ] || find_adapter
    make_folders "${backstore%/*}" "$backstore" "$root/iscsi" "$target" "$tpg" "$lun" "$@"
}

make_store() {
    if [ -z "$backstore" ]; then
        lacks backstore
        return 0
    fi
    get "$backstore/enable"
    if [ "$it" != 1 ]; then
        if [ "$mode" = look ]; then
            lacks backstore
            return 0
        fi
        # Before it is enabled, so that nothing that is enabled lacks it.
        printf '%s\n' "$serial" >"$backstore/wwn/vpd_unit_serial" ||
            die "cannot give $name its serial number"
        printf '%s' "$device" >"$backstore/udev_path" || die "cannot use $device"
        printf 'udev_path=%s' "$device" >"$backstore/control" || die "cannot use $device"
        printf '1\n' >"$backstore/enable" 2>/dev/null ||
            die "LIO cannot open $device: it is busy, or not there"
        get "$backstore/enable"
        [ "$it" = 1 ] || die "LIO cannot open $device: it is busy, or not there"
    fi
    for word; do
        case $word in
        block=*)
            word=${word#*=}
            want_known "$backstore/attrib/${word%%=*}" "${word#*=}" \
                "some attributes only change while no node can reach the disk; see block.attributes"
            ;;
        esac
    done
}

# want_known FILE VALUE [ADVICE]: the same for an attribute that not every kernel has. targetcli goes on
# without it, and so do we: a look says so.
want_known() {
    if [ -d "${1%/*}" ] && [ ! -e "$1" ]; then
        [ "$mode" != look ] || [ $counted = yes ] || printf 'unknown %s\n' "${1#"$root"/}"
        return 0
    fi
    want "$@"
}

# unknown_to NAME FOLDER...: says that the kernel does not have an attribute, by the first object that there is. As
# long as there is none it cannot be known.
unknown_to() {
    attribute=$1
    shift
    for folder; do
        [ -d "$folder" ] || continue
        [ ! -e "$folder/${attribute#*.attributes.}" ] || return 0
        get /proc/sys/kernel/osrelease
        release=$it
        get /proc/sys/kernel/hostname
        printf 'unknown %s %s %s\n' "$attribute" "${it:--}" "${release:--}"
        return 0
    done
}

# Whether the LUN is a disk.
is_linked() {
    for link in "$lun"/*; do
        [ ! -L "$link" ] || return 0
    done
    return 1
}

want_secret() {
    want "$account/auth/$1" "$2"
}

# The kernel remembers nodes that logged in while every node was allowed, shows them nowhere, and allows them
# again whatever is set since; they are forgotten with their portal group. A group that is in use stays, and so
# does one of a kernel that does not report whether it is. A node that logs in at this moment is cut off, and
# logs in again if it may. The kernel sets cache_dynamic_acls together with generate_node_acls, and remembers nodes while
# it is set. The mode `nodes` resets the other alone. A configuration that sets it would lose the group in each call.
forget_others() {
    among nodes listed "$@" || return 0
    remembers=cache_dynamic_acls
    ! among tpg cache_dynamic_acls=1 "$@" || remembers=generate_node_acls
    get "$tpg/attrib/$remembers"
    [ "$it" = 1 ] || return 0
    [ -e "$tpg/dynamic_sessions" ] || return 0
    get "$tpg/dynamic_sessions"
    [ -z "$it" ] || return 0
    for account in "$tpg"/acls/*; do
        get "$account/info"
        case $it in
        '' | 'No active'*) ;;
        *) return 0 ;;
        esac
    done
    remove_group "$tpg"
}

# An address that the host does not have any more is no reason to fail.
make_noted_portals() {
    # Addresses of IPv6 stand in brackets, which mean files, too.
    set -f
    fields=$IFS IFS=$newline
    for portal in $portals; do
        case $portal in
        '' | */*) ;;
        *) [ -d "$tpg/np/$portal" ] || mkdir "$tpg/np/$portal" 2>/dev/null || : ;;
        esac
    done
    IFS=$fields
    set +f
}

make_target() {
    want_folder "$root/iscsi" && want_folder "$target" && want_folder "$tpg" || return 0
    for word; do
        case $word in
        tpg=*)
            word=${word#*=}
            want_known "$tpg/attrib/${word%%=*}" "${word#*=}"
            ;;
        esac
    done
    account=$tpg
    each_secret want_secret
    want_folder "$lun" || return 0
    if ! is_linked; then
        if [ "$mode" = look ]; then
            lacks lun
            return 0
        fi
        ln -s "$backstore" "$lun/${serial##*-}" || die 'cannot make the LUN'
    fi
    for word; do
        case $word in
        portal=any)
            for portal in "$tpg"/np/*; do
                [ -d "$portal" ] || lacks portal
            done
            ;;
        portal=*) want_folder "$tpg/np/${word#*=}" || : ;;
        esac
    done
    if [ "$mode" != look ]; then
        make_noted_portals
        make_nodes "$@"
    fi
    # Last: no node logs in before everything exists.
    want "$tpg/enable" 1
}

remove_node() {
    for link in "$1"/lun_*/*; do
        [ ! -L "$link" ] || rm -f "$link" || die "cannot take the LUN from ${1##*/}"
    done
    for part in "$1"/lun_* "$1"; do
        # Ends its sessions, and waits until they have ended.
        [ ! -d "$part" ] || rmdir "$part" || die "${part#"$root"/} is busy"
    done
}

make_node() {
    account=$tpg/acls/$1
    want_folder "$account" || return 0
    each_secret want_secret
    want_folder "$account/lun_0" || return 0
    for link in "$account"/lun_0/*; do
        [ ! -L "$link" ] || return 0
    done
    if [ "$mode" = look ]; then
        lacks LUN
    else
        ln -s "$lun" "$account/lun_0/${serial##*-}" || die "cannot give the LUN to $1"
    fi
}

# Gives access to the listed nodes only, if access per node is wanted. Without a disk no node gets access, and
# revoked nodes are still put out. A node may have logged in without an entry, while every node was allowed: an entry
# takes over its sessions, and ends them when it is removed; those of all other nodes go on.
make_nodes() {
    among nodes listed "$@" && [ -d "$tpg" ] || return 0
    # First: no node that is put out comes back.
    want "$tpg/attrib/generate_node_acls" 0
    for word; do
        case $word in out=*) want_folder "$tpg/acls/${word#*=}" ;; esac
    done
    for account in "$tpg"/acls/*; do
        [ ! -d "$account" ] || among node "${account##*/}" "$@" || remove_node "$account"
    done
    is_linked || return 0
    for word; do
        case $word in
        node=*) make_node "${word#*=}" ;;
        esac
    done
}

# Who gets in, and who is half in.
show_nodes() {
    for node in "$tpg"/acls/*; do
        [ -d "$node" ] || continue
        counted=yes lacking=no
        make_node "${node##*/}"
        counted=no
        if [ $lacking = no ]; then
            printf 'allowed %s\n' "${node##*/}"
        else
            printf 'partial %s\n' "${node##*/}"
        fi
    done
}

# The connected nodes: those with an access entry, and those that get in without one, where the kernel lists them.
show_connected() {
    for group in "$target"/tpgt_*; do
        for account in "$group"/acls/*; do
            [ -d "$account" ] || continue
            get "$account/info"
            case $it in
            'No active'*) ;;
            # Its entry went at this moment, with what it had connected.
            '') [ ! -d "$account" ] || printf 'hidden %s\n' "${account#"$root"/}/info" ;;
            *) is_connected "${account##*/}" ;;
            esac
        done
        [ -e "$group/dynamic_sessions" ] || continue
        # Between the lines are zeros, which `read` leaves out.
        while IFS= read -r it; do
            [ -z "$it" ] || is_connected "$it"
        done 2>/dev/null <"$group/dynamic_sessions" || [ ! -d "$group" ] ||
            printf 'hidden %s\n' "${group#"$root"/}/dynamic_sessions"
    done
}

# A portal group and all that is in it.
remove_group() {
    # Ends its sessions. Some kernels refuse to disable what was never enabled.
    get "$1/enable"
    [ "$it" = 0 ] || printf '0\n' >"$1/enable" || die "cannot disable $iqn"
    for link in "$1"/acls/*/lun_*/* "$1"/lun/lun_*/*; do
        [ ! -L "$link" ] || rm -f "$link" || die "cannot remove a LUN of $iqn"
    done
    for part in "$1"/acls/*/lun_* "$1"/acls/* "$1"/lun/lun_* "$1"/np/* "$1"; do
        [ ! -d "$part" ] || rmdir "$part" || die "${part#"$root"/} is busy"
    done
}

remove_target() {
    for group in "$target"/tpgt_*; do
        [ ! -d "$group" ] || remove_group "$group"
    done
    [ ! -d "$target" ] || rmdir "$target" || die "$iqn is busy"
}

# Whether one of the names is saved. The file is read as JSON only where it has them.
is_saved() {
    ! is_missing "$save" || return 1
    grep -qF -e "\"$name\"" -e "\"$iqn\"" "$save"
    code=$?
    [ $code -le 1 ] || die "cannot read $save, or cannot run grep"
    [ $code = 0 ] && ! saved named "$absences"
}

case $mode in
look) ;;
examine)
    for word; do
        case $word in
        tpg=*) word=${word#*=} && unknown_to "tpg.attributes.${word%%=*}" "$root"/iscsi/*/tpgt_*/attrib ;;
        block=*) word=${word#*=} && unknown_to "block.attributes.${word%%=*}" "$root"/core/iblock_*/*/attrib ;;
        esac
    done
    exit 0
    ;;
save)
    # Another call may have saved all of it by now.
    something_waits || exit 0
    take_turn
    save_waiting
    exit 0
    ;;
make)
    # ZFS opens a zvol for the first time only while it makes no other, and waits a second for that. No other
    # call waits during that time.
    tries=5
    until { command exec 6<"$device"; } 2>/dev/null || [ $tries = 0 ]; do
        tries=$((tries - 1))
    done
    take_turn
    ;;
*) take_turn ;;
esac
judge
absences
case $mode in
look)
    [ $foreign_store = no ] || echo 'foreign backstore'
    [ $foreign_target = no ] || echo 'foreign target'
    [ -z "$backstore" ] || [ $foreign_store = yes ] || echo 'present backstore'
    [ ! -d "$target" ] || [ $foreign_target = yes ] || echo 'present target'
    as_wanted=no
    if [ $foreign_store$foreign_target = nono ]; then
        make_store "$@" && make_target "$@" || exit 1
        if [ $lacking = no ] && [ -n "$save" ]; then
            elements "$@"
            if saved "$how" "$elements"; then as_wanted=yes; else lacks saved; fi
        fi
        show_nodes
        show_connected
    fi
    if [ $as_wanted = yes ] || { [ -n "$save" ] && is_saved; }; then echo 'present saved'; fi
    ;;
nodes)
    is_ours || die "$iqn is not there, or of another volume"
    make_nodes "$@"
    will_be_saved kept "$@"
    ;;
make)
    [ $foreign_store$foreign_target = nono ] || die "$name or $iqn is of another volume"
    [ -d "$root/core" ] || modprobe target_core_mod || die 'the kernel of the host has no LIO'
    make_all_folders "$@"
    make_store "$@"
    make_target "$@"
    will_be_saved kept "$@"
    ;;
remove)
    [ $foreign_target = yes ] || remove_target
    if [ -n "$backstore" ] && [ $foreign_store = no ]; then
        rmdir "$backstore" || die "backstore $name is busy: another LUN is made of it"
        rmdir "${backstore%/*}" 2>/dev/null || :
    fi
    is_missing "$save" && [ ! -e "$waiting" ] || will_be_saved gone
    ;;
esac
exit 0
