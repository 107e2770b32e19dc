# A disk of one zvol as an NVMe-oF subsystem of nvmet: one subsystem, namespace 1, links of ports.
#
# nvmet.sh MODE CONFIGFS DEBUGFS POOLS SAVED NQN DEVICE UUID WORD... with the words `port=ID` (is there
# already) or `port=ID,trtype,adrfam,traddr,trsvcid` (is made if it is missing),
# `attr=ATTRIBUTE=VALUE`; `nodes=listed` if only the nodes of `node=NQN` have access, and `out=NQN` for
# nodes that must be out at the end; `keys=spared` if only the nodes of `for=NQN` matter when the kernel refuses a key;
# `keys=restored` if nodes that have to prove who they are may be saved, since their
# keys are restored, too. `$secrets` are lines `NQN KEY`, one for each of those. SAVED is a file, `named:FILE` for a
# look that is content with the names in it, or `-` for none. The mode `nodes` changes who gets into a subsystem
# that is there; `gone` waits until those are out; `shows`, of no disk, says why this host cannot end what one node has
# open.
mode=$1 root=$2/nvmet shown=$3/nvmet/$6 pools=$4 save=$5 nqn=$6 device=$7 uuid=$8
shift 8
subsystem=$root/subsystems/$nqn
namespace=$subsystem/namespaces/1
how=same restored=no forgotten= opening=
! among keys restored "$@" || restored=yes
case $save in
-) save= ;;
named:*) how=named save=${save#*:} ;;
esac

# Whether the object of our name is ours, or incomplete and without an owner.
judge() {
    foreign=no others=no
    get "$namespace/device_path"
    [ -z "$it" ] || [ "$it" = '(null)' ] || [ "$it" = "$device" ] || foreign=yes
    for other in "$subsystem"/namespaces/*; do
        [ ! -d "$other" ] || [ "$other" = "$namespace" ] || others=yes
    done
}

# blocked NUMBER WHY: no link can be made there until an administrator has corrected the port. A node that
# leaves needs no link, and does not wait for it.
blocked() {
    case $mode in
    look)
        lacks "ports/$1"
        echo "blocked ports/$1"
        ;;
    nodes) ;;
    *) die "$2" ;;
    esac
    return 1
}

# The port is there and can take a link. Fails if it cannot, or if it is missing in a look.
make_port() {
    port=$root/ports/${1%%,*}
    case $1 in
    *,*) want_folder "$port" && make_address "${1%%,*}" "${1#*,}" ;;
    *) [ -d "$port" ] || blocked "$1" "nvmet of the host has no port $1" ;;
    esac
}

# make_address NUMBER TRTYPE,ADRFAM,TRADDR,TRSVCID: a port that has none gets it, and one that was cut
# right here gets the rest. One with a part of another address is foreign, and nodes would look for
# its disks at our address. The family is not asked: it follows from the address.
make_address() {
    here= there= theirs=no fields=$2
    for field in trtype adrfam traddr trsvcid; do
        value=${fields%%,*} fields=${fields#*,}
        [ $field != adrfam ] || continue
        get "$port/addr_$field"
        here=$here,${it:--} there=$there,$value
        [ -z "$it" ] || [ "$it" = "$value" ] || theirs=yes
    done
    here=${here#,} there=${there#,}
    [ "$here" != "$there" ] || return 0
    if [ $theirs = yes ]; then
        blocked "$1" "port $1 of the host is at $here, not at $there: correct that, or take another port"
        return
    fi
    # The largest request is 2^8 pages of 4 KiB: without a limit nodes send any size, for which this host may have no
    # memory. Linux 7.1 or newer has it, and takes it only before the first link.
    get "$port/param_mdts"
    [ "$it" != 0 ] || want "$port/param_mdts" 8
    fields=$2
    for field in trtype adrfam traddr trsvcid; do
        want "$port/addr_$field" "${fields%%,*}"
        fields=${fields#*,}
    done
}

# The pool of the device, in `$pool`. A device that is no zvol tells of no pool, and stands for itself.
pool_of() {
    case $device in
    /dev/zvol/*) pool=${device#/dev/zvol/} pool=${pool%%/*} ;;
    *) pool=$device ;;
    esac
}

# Whether ZFS says that the pool of the device is suspended. It says that without waiting for the pool.
is_suspended() {
    pool_of
    get "$pools/$pool/state"
    [ "$it" = SUSPENDED ]
}

# The kernel opens no device of a suspended pool, and lets none go that is in use, before the pool goes on. Nothing ends
# such a write, and the lock of this script would be held for as long.
refuse_suspended() {
    ! is_suspended || die "$nqn stays as it is, as its pool is suspended: $pool"
}

make_namespace() {
    want_folder "$namespace" || return 0
    get "$namespace/enable"
    [ "$it" != 1 ] || return 0
    if [ "$mode" = look ]; then
        lacks namespace
        return 0
    fi
    refuse_suspended
    printf '%s' "$device" >"$namespace/device_path" || die "nvmet cannot use $device"
    for file in device_uuid device_nguid; do
        printf '%s\n' "$uuid" >"$namespace/$file" || die "cannot set $file of $nqn"
    done
    printf '1\n' >"$namespace/enable" 2>/dev/null ||
        die "nvmet cannot open $device: it is busy, or not there"
    get "$namespace/enable"
    [ "$it" = 1 ] || die "nvmet cannot open $device: it is busy, or not there"
}

make_links() {
    for word; do
        case $word in
        port=*)
            word=${word#*=}
            number=${word%%,*}
            link=$root/ports/$number/subsystems/$nqn
            # A port that has it is used as it is: nodes are connected there.
            [ ! -L "$link" ] || continue
            if [ "$mode" = look ]; then
                make_port "$word"
                lacks "ports/$number/subsystems"
            elif make_port "$word"; then
                link_to "$number"
            fi
            ;;
        esac
    done
}

# Whether a port listens: it does from its first link on.
listens() {
    for one in "$root/ports/$1"/subsystems/*; do
        [ ! -L "$one" ] || return 0
    done
    return 1
}

# link_to NUMBER: the port has the subsystem. A port that listens refuses nodes whose subsystem it does not have, and
# since Linux 6.10 they take that for final, and lose the disk. So before a port listens, all that was saved for it is
# made, and then linked by one command.
link_to() {
    links=$root/ports/$1/subsystems number=$1 beside=
    if [ -n "$save" ] && ! listens "$1"; then
        beside=$(make_saved "$1") || exit 1
    fi
    # Names may hold what means files, too.
    set -f
    fields=$IFS IFS=$newline
    set -- $beside
    IFS=$fields
    set +f
    ln -s "$subsystem" "$@" "$links/" || [ -L "$links/$nqn" ] || die "port $number cannot listen"
}

# unreadable NUMBER: ends the opening of that port.
unreadable() {
    die "port $1 stays closed, as $save cannot be read, and nodes would lose the disks that are saved there: restore \
the file from a copy, or see \"a port that opens again\" in docs/zfs-reference.md"
}

# leave_out REASON [PART]: says that the port opens without this subsystem, or with it and without a part of it. The
# driver logs these lines.
leave_out() {
    printf 'left out: %s of port %s: %s\n' "${2:+$2 of }$nqn" "$opening" "$1" >&2
}

# Whether the pool of the device answers. To open a device of a suspended pool takes as long as the pool is suspended,
# and that cannot be ended. So where ZFS does not say it, one of each pool is opened beside this script first, without its
# locks.
pool_answers() {
    # What is open already is not opened again.
    get "$namespace/enable"
    [ "$it" != 1 ] || return 0
    ! is_suspended || return 1
    case $silent in *"/$pool/"*) return 1 ;; esac
    case $sound in *"/$pool/"*) return 0 ;; esac
    dd "if=$device" of=/dev/null count=0 </dev/null >/dev/null 2>&1 7>&- 8>&- &
    probe=$! waited=0
    while kill -0 $probe 2>/dev/null; do
        if [ $waited -ge 100 ]; then
            silent=$silent/$pool/
            return 1
        fi
        if sleep 0.05 2>/dev/null; then
            waited=$((waited + 1))
        else
            # Not every sleep knows parts of a second.
            sleep 1
            waited=$((waited + 20))
        fi
    done
    sound=$sound/$pool/
}

# make_saved NUMBER: makes the other subsystems that are saved for a port, without links, and prints where they are. What
# cannot be made is left out, and so are nodes whose key was saved and is not known here. It runs in a shell of its own.
#
# A file that cannot be read may list other subsystems: the port stays closed. Only a file that does not exist lists
# none, and a link has to lead into a folder that is there.
make_saved() {
    mode=make ours=$nqn opening=$1 patience=10 sound= silent=
    [ ! -L "$save" ] || find_save
    (is_missing "$save") || grep -q '{' "$save" 2>/dev/null || unreadable "$1"
    saved_text=$(saved restored "{\"ports\":[{\"portid\":$1,\"lists\":\"\"}]}")
    case $? in
    0) ;;
    4) unreadable "$1" ;;
    *) exit 1 ;;
    esac
    printf '%s\n' "$saved_text" | while IFS= read -r line; do
        case $line in
        subsystem=*)
            nqn=${line#*=}
            subsystem=$root/subsystems/$nqn shown=${shown%/*}/$nqn
            namespace=$subsystem/namespaces/1
            # A key that the kernel refuses keeps out its own node.
            set -- keys=spared
            ;;
        device=*) device=${line#*=} ;;
        uuid=*) uuid=${line#*=} ;;
        keyed=*)
            key_of "${line#*=}"
            [ -z "$key" ] || set -- "$@" "node=${line#*=}"
            ;;
        attr=*)
            # Another kernel may have saved it. The subsystem of the call is there, with all that this one has.
            attribute=${line#*=}
            [ ! -e "$root/subsystems/$ours/attr_${attribute%%=*}" ] || set -- "$@" "$line"
            ;;
        end) [ "$nqn" = "$ours" ] || make_another "$@" ;;
        other=*)
            nqn=${line#*=}
            [ "$nqn" = "$ours" ] || leave_out 'it is not saved as the driver makes it'
            ;;
        *) set -- "$@" "$line" ;;
        esac
    done
}

# One of these. What is linked to another port is in use, and stays as it is.
make_another() {
    judge
    if [ $foreign$others != nono ]; then
        leave_out 'its name is in use for another disk, or for several'
        return 0
    fi
    linked
    if [ -z "$linked" ]; then
        if ! pool_answers; then
            leave_out "the pool $pool does not answer, see \`zpool status\`"
            return 0
        fi
        # A node that an interrupted call has let in may not be saved yet. To put it out would open the port with this
        # subsystem alone.
        for host in "$subsystem"/allowed_hosts/*; do
            [ ! -L "$host" ] || set -- "$@" "node=${host##*/}"
        done
        until why=$(make_subsystem "$@" 2>&1 >/dev/null); do
            # The devices of a pool come one after the other when it was imported.
            if [ $patience = 0 ]; then
                (remove) >/dev/null 2>&1
                leave_out "${why##*"$newline"}"
                return 0
            fi
            sleep 1
            patience=$((patience - 1))
        done
        [ -z "$why" ] || printf '%s\n' "$why" >&2
    fi
    printf '%s\n' "$subsystem"
}

# set_attribute NAME VALUE: what is restored beside the subsystem of the call goes without one that the kernel refuses,
# unless it says who gets in.
set_attribute() {
    case $opening/$1 in
    /* | */allow_any_host) want "$subsystem/attr_$1" "$2" ;;
    *) (want "$subsystem/attr_$1" "$2") 2>/dev/null || leave_out 'the kernel refuses what was saved' "attr_$1" ;;
    esac
}

make_subsystem() {
    if [ ! -d "$root/subsystems" ] && [ "$mode" = make ]; then
        modprobe nvmet || die 'the kernel of the host has no nvmet'
    fi
    want_folder "$subsystem" || {
        # What is wrong with a port is to be known before anything is made.
        make_links "$@"
        return
    }
    # A random one would change when the subsystem is made again. While it has no disk, no node
    # has seen its number.
    if [ "$mode" = make ] && [ ! -d "$namespace" ] && [ -e "$subsystem/attr_serial" ]; then
        serial=$(printf %s "$uuid" | tr -d -)
        printf '%s\n' "${serial#????????????}" >"$subsystem/attr_serial" ||
            die "cannot give $nqn its serial number"
    fi
    for word; do
        case $word in
        attr=*)
            word=${word#*=}
            # The kernel gives every node access only if no node is named. Sessions stay.
            [ "$mode/$word" != make/allow_any_host=1 ] || remove_hosts
            set_attribute "${word%%=*}" "${word#*=}"
            ;;
        esac
    done
    make_namespace
    if [ "$mode" = look ]; then
        look_for_keys
    else
        make_nodes "$@"
    fi
    # Last: no node connects before everything exists.
    make_links "$@"
}

# The attributes of one group of an object, as nvmetcli saves them.
group() {
    all=
    for file in "$1/$2"_*; do
        [ -f "$file" ] && [ -w "$file" ] || continue
        get "$file"
        quoted "$it"
        all="$all,\"${file##*/"$2"_}\":$it"
    done
    all="{${all#,}}"
}

# The subsystems that a port lists, and that are saved for it: a call that puts a node out, or was interrupted at
# that, has removed a subsystem that comes back.
port_list() {
    list= comma=
    for link in "$1"/subsystems/*; do
        [ -L "$link" ] || continue
        list="$list$comma\"${link##*/}\""
        comma=,
    done
    [ -n "$save" ] || return 0
    tell_saved listed "{\"ports\":[{\"portid\":${1##*/},\"lists\":\"\"}]}"
    known=$saved_text
    # Names may hold what means files, too.
    set -f
    fields=$IFS IFS=$newline
    for name in $known; do
        case ",$list," in
        *",$name,"*) continue ;;
        esac
        list="$list$comma$name"
        comma=,
    done
    IFS=$fields
    set +f
}

port_element() {
    group "$1" addr
    addresses=$all
    group "$1" param
    parameters=$all
    port_list "$1"
    groups= comma=
    for ana in "$1"/ana_groups/*; do
        [ -d "$ana" ] || continue
        group "$ana" ana
        groups="$groups$comma{\"ana\":$all,\"grpid\":${ana##*/}}"
        comma=,
    done
    referrals= comma=
    for referral in "$1"/referrals/*; do
        [ -d "$referral" ] || continue
        group "$referral" addr
        get "$referral/enable"
        referrals="$referrals$comma{\"addr\":$all,\"enable\":${it:-0},\"name\":\"${referral##*/}\"}"
        comma=,
    done
    element="{\"addr\":$addresses,\"ana_groups\":[$groups],\"param\":$parameters,\
\"portid\":${1##*/},\"referrals\":[$referrals],\"subsystems\":[$list]}"
}

# The ports that `$1` says: whole, or for a look only as far as they list us. What else a port lists
# is made, and then saved, by others, who do not wait for a look.
port_elements() {
    ports= separator=
    for port in "$root"/ports/*; do
        [ -d "$port" ] || continue
        case " $1 " in
        *" ${port##*/} "*) ;;
        *) continue ;;
        esac
        if [ "$mode" = look ]; then
            element="{\"portid\":${port##*/},\"lists\":\"$nqn\"}"
        else
            port_element "$port"
        fi
        ports=$ports$separator$element
        separator=,
    done
}

linked() {
    linked=
    for link in "$root"/ports/*/subsystems/"$nqn"; do
        [ -L "$link" ] || continue
        link=${link%/subsystems/*}
        linked="$linked ${link##*/}"
    done
}

elements() {
    group "$subsystem" attr
    attributes=$all
    forget_unrestored
    hosts= comma= unknown=$forgotten separator=${forgotten:+,}
    for link in "$subsystem"/allowed_hosts/*; do
        [ -L "$link" ] || continue
        host=${link##*/}
        key_of "$host"
        # Restored without its key it would get in without one.
        if [ -n "$key" ]; then
            get "$root/hosts/$host/dhchap_key"
            [ $restored = yes ] && [ "$it" = "$key" ] || continue
        fi
        hosts="$hosts$comma\"$host\""
        comma=,
        if [ -n "$key" ]; then
            group "$root/hosts/$host" dhchap
            unknown="$unknown$separator{\"dhchap\":$all,\"nqn\":\"$host\"}"
            separator=,
        # What else is saved of a node, such as the keys of an administrator, stays as it is.
        elif [ -n "$save" ] && ! saved named "{\"hosts\":[{\"nqn\":\"$host\"}]}"; then
            unknown="$unknown$separator{\"nqn\":\"$host\"}"
            separator=,
        fi
    done
    spaces= separator=
    for space in "$subsystem"/namespaces/*; do
        [ -d "$space" ] || continue
        group "$space" device
        get "$space/enable"
        enabled=${it:-0}
        get "$space/ana_grpid"
        spaces="$spaces$separator{\"ana_grpid\":${it:-0},\"device\":$all,\"enable\":$enabled,\
\"nsid\":${space##*/}}"
        separator=,
    done
    linked
    port_elements "$linked"
    elements="{\"hosts\":[$unknown],\"ports\":[$ports],\"subsystems\":[{\"allowed_hosts\":[$hosts],\
\"attr\":$attributes,\"namespaces\":[$spaces],\"nqn\":\"$nqn\"}]}"
}

remove() {
    get "$namespace/enable"
    [ "$it" != 1 ] || refuse_suspended
    if [ $others = no ]; then
        for link in "$root"/ports/*/subsystems/"$nqn"; do
            [ ! -L "$link" ] || rm -f "$link" || die "cannot take $nqn from a port"
        done
    fi
    if [ -d "$namespace" ]; then
        printf '0\n' >"$namespace/enable" || die "namespace of $nqn is busy"
        rmdir "$namespace" || die "namespace of $nqn is busy"
    fi
    [ $others = no ] || return 0
    remove_hosts "$@"
    [ ! -d "$subsystem" ] || rmdir "$subsystem" || die "subsystem $nqn is busy"
}

absence="{\"subsystems\":[{\"nqn\":\"$nqn\",\"absent\":true}]}"
judge
case $mode in
look)
    [ $foreign = no ] || echo 'foreign subsystem'
    [ ! -d "$subsystem" ] || [ $foreign = yes ] || [ $others = yes ] || echo 'present subsystem'
    [ ! -d "$namespace" ] || [ $foreign = yes ] || echo 'present namespace'
    if [ $foreign = no ]; then
        drop=$nqn
        [ -z "$save" ] || [ $others = yes ] || saved named "$absence" || echo 'present saved'
        drop=
        make_subsystem "$@" || exit 1
        if [ $lacking = no ] && [ -n "$save" ]; then
            elements
            saved "$how" "$elements" || lacks saved
        fi
        for host in "$subsystem"/allowed_hosts/*; do
            [ ! -L "$host" ] || printf 'allowed %s\n' "${host##*/}"
        done
        show_sessions
    fi
    ;;
nodes)
    [ $foreign = no ] && [ -d "$subsystem" ] || die "$nqn is not there, or of another volume"
    make_nodes "$@"
    make_links "$@"
    if [ -n "$save" ]; then
        elements
        store "$elements"
    fi
    ;;
gone)
    await_sessions "$@"
    ;;
shows)
    show_hidden
    ;;
make)
    [ $foreign = no ] || die "$nqn is of another volume"
    make_subsystem "$@"
    if [ -n "$save" ]; then
        elements
        store "$elements"
    fi
    ;;
resize)
    if [ $foreign = no ] && [ -e "$namespace/revalidate_size" ]; then
        printf '1\n' >"$namespace/revalidate_size" || die "nvmet does not read the size of $device"
    fi
    ;;
remove)
    if [ $foreign = no ] && [ $others = yes ]; then
        remove "$@"
        elements
        is_missing "$save" || store "$elements"
    elif [ $foreign = no ]; then
        remove "$@"
        drop=$nqn
        forget_unrestored
        is_missing "$save" || store "{\"hosts\":[$forgotten]}$absence"
    fi
    ;;
esac
exit 0
