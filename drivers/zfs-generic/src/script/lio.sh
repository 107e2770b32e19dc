# A disk of one zvol as an iSCSI target of LIO: one backstore, one target, one LUN.
#
# lio.sh MODE CONFIGFS SAVED LOCK NAME IQN DEVICE SERIAL WORD... with the words `portal=ADDRESS:PORT`,
# `tpg=ATTRIBUTE=VALUE`, `block=ATTRIBUTE=VALUE`, and for a look `portal=any`; `nodes=listed` if only
# those get in that `node=INITIATOR` names. SAVED is a file, `auto` for that of whatever targetcli there
# is, `named` or `named:FILE` for a look that is content with the names in it, `-` for none. `$secrets`
# are lines `FILE VALUE` for the folder `auth` of the portal group and of each node. The mode `nodes`
# changes who gets into a target that is there. What is changed waits until lio_save.sh saves it.
mode=$1 root=$2/target save=$3 lock=$4 name=$5 iqn=$6 device=$7 serial=$8
shift 8
target=$root/iscsi/$iqn
tpg=$target/tpgt_1
lun=$tpg/lun/lun_0

share_lio

store_of() {
    backstore=
    for found in "$root"/core/iblock_*/"$name"; do
        [ ! -d "$found" ] || backstore=$found
    done
}

# Whether what has our names is ours, or half made and nobody's.
judge() {
    store_of
    foreign_store=no foreign_target=no
    if [ -n "$backstore" ]; then
        get "$backstore/udev_path"
        [ -z "$it" ] || [ "$it" = "$device" ] || foreign_store=yes
    fi
    # What is linked to the backstore of somebody else is theirs; so is, then, what has no link.
    if [ $foreign_store = yes ] && [ -d "$target" ]; then foreign_target=yes; fi
    for link in "$target"/tpgt_*/lun/lun_*/*; do
        [ -L "$link" ] || continue
        { [ -n "$backstore" ] && [ "$link" -ef "$backstore" ]; } || foreign_target=yes
    done
}

# What is missing of these, the outer ones first, by one process.
make_folders() {
    for folder; do
        shift
        [ -d "$folder" ] || set -- "$@" "$folder"
    done
    [ $# -eq 0 ] || mkdir "$@" || die "cannot make ${1#"$root"/}"
}

make_store() {
    if [ -z "$backstore" ]; then
        if [ "$mode" = look ]; then
            echo 'missing backstore'
            return 0
        fi
        # One adapter for each backstore, as rtslib does it. One that is empty was left behind by
        # somebody who was cut right here.
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
        make_folders "$adapter" "$backstore"
    fi
    get "$backstore/enable"
    if [ "$it" != 1 ]; then
        if [ "$mode" = look ]; then
            echo 'missing backstore'
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
            want "$backstore/attrib/${word%%=*}" "${word#*=}" \
                "some attributes only change while nobody can reach the disk; see block.attributes"
            ;;
        esac
    done
}

want_secret() {
    want "$account/auth/$1" "$2"
}

# Whoever was there while everybody got in is remembered by the kernel, shown nowhere, and let in
# again whatever is set since; all of them go with their portal group. One that is in use stays, and so
# does one of a kernel that does not say whether it is. Whoever logs in right here is cut off, and logs
# in again if it may.
forget_others() {
    among nodes listed "$@" || return 0
    get "$tpg/attrib/generate_node_acls"
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

# The portals that a group has to have when it is made anew, also those that somebody else gave it. A
# target whose group is not enabled is one at which somebody was cut: what it had is saved.
note_portals() {
    portals=
    [ "$mode" != look ] && [ -d "$target" ] || return 0
    for portal in "$tpg"/np/*; do
        [ ! -d "$portal" ] || portals=$portals${portal##*/}$newline
    done
    get "$tpg/enable"
    [ "$it" != 1 ] && [ -n "$save" ] || return 0
    save_waiting
    portals=$portals$(saved portals "{\"targets\":[{\"fabric\":\"iscsi\",\"wwn\":\"$iqn\"}]}") || :
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

# The portal group and all that it begins with, so that what follows only sets attributes.
make_group() {
    for word; do
        shift
        case $word in
        portal=any) ;;
        portal=*) set -- "$@" "$tpg/np/${word#*=}" ;;
        esac
    done
    make_folders "$root/iscsi" "$target" "$tpg" "$lun" "$@"
}

make_target() {
    note_portals
    if [ "$mode" != look ]; then
        [ ! -d "$target" ] || forget_others "$@"
        make_group "$@"
    fi
    want_folder "$root/iscsi" && want_folder "$target" && want_folder "$tpg" || return 0
    for word; do
        case $word in
        tpg=*)
            word=${word#*=}
            want "$tpg/attrib/${word%%=*}" "${word#*=}"
            ;;
        esac
    done
    account=$tpg
    each_secret want_secret
    want_folder "$lun" || return 0
    linked=no
    for link in "$lun"/*; do
        [ ! -L "$link" ] || linked=yes
    done
    if [ $linked = no ]; then
        if [ "$mode" = look ]; then
            echo 'missing lun'
            return 0
        fi
        ln -s "$backstore" "$lun/${serial##*-}" || die 'cannot make the LUN'
    fi
    for word; do
        case $word in
        portal=any)
            for portal in "$tpg"/np/*; do
                [ -d "$portal" ] || echo 'missing portal'
            done
            ;;
        portal=*) want_folder "$tpg/np/${word#*=}" || : ;;
        esac
    done
    if [ "$mode" != look ]; then
        make_noted_portals
        make_nodes "$@"
    fi
    # Last: nobody logs in before all of it is there.
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
        echo 'missing LUN'
    else
        ln -s "$lun" "$account/lun_0/${serial##*-}" || die "cannot give the LUN to $1"
    fi
}

# Lets in the nodes that are listed and nobody else, if that is how it is wanted.
make_nodes() {
    among nodes listed "$@" || return 0
    for account in "$tpg"/acls/*; do
        [ ! -d "$account" ] || among node "${account##*/}" "$@" || remove_node "$account"
    done
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
        half=$(make_node "${node##*/}") || exit 1
        if [ -z "$half" ]; then
            printf 'allowed %s\n' "${node##*/}"
        else
            printf 'partial %s\n' "${node##*/}"
        fi
    done
}

# The members of a group of attributes as they are set.
members() {
    comma= all=
    kind=$1 from=$2
    shift 2
    for word; do
        case $word in
        "$kind"=*)
            word=${word#*=}
            get "$from/${word%%=*}"
            case $it in
            '' | *[!0-9]* | 0?*) quoted "$it" ;;
            esac
            all=$all$comma\"${word%%=*}\":$it
            comma=,
            ;;
        esac
    done
}

secret_member() {
    quoted "$2"
    case $1 in
    userid) group="$group\"chap_userid\":$it," ;;
    password) group="$group\"chap_password\":$it," ;;
    userid_mutual) group="$group\"chap_mutual_userid\":$it," ;;
    password_mutual) group="$group\"chap_mutual_password\":$it," ;;
    esac
}

# The nodes that get in, as they are there: somebody else may have let them in.
node_elements() {
    accounts= between=
    for account in "$tpg"/acls/*; do
        [ -d "$account" ] || continue
        group=
        for key in userid password userid_mutual password_mutual; do
            get "$account/auth/$key"
            [ -z "$it" ] || secret_member $key "$it"
        done
        mapped= comma=
        for number in "$account"/lun_*; do
            for link in "$number"/*; do
                [ -L "$link" ] || continue
                get "$number/write_protect"
                protected=false
                [ "$it" != 1 ] || protected=true
                mapped="$mapped$comma{\"alias\":\"${link##*/}\",\"index\":${number##*lun_},\
\"tpg_lun\":0,\"write_protect\":$protected}"
                comma=,
            done
        done
        accounts="$accounts$between{$group\"mapped_luns\":[$mapped],\"node_wwn\":\"${account##*/}\"}"
        between=,
    done
}

elements() {
    node_elements
    get "$backstore/wwn/vpd_unit_serial"
    unit=${it##*: }
    unit=${unit##*:}
    members block "$backstore/attrib" "$@"
    stored="{\"attributes\":{$all},\"dev\":\"$device\",\"name\":\"$name\",\"plugin\":\"block\",\
\"readonly\":false,\"write_back\":false,\"wwn\":\"$unit\"}"
    members tpg "$tpg/attrib" "$@"
    group="\"attributes\":{$all},"
    each_secret secret_member
    alias=
    for link in "$lun"/*; do
        [ ! -L "$link" ] || alias=${link##*/}
    done
    group="$group\"enable\":true,\"luns\":[{\"alias\":\"$alias\",\"index\":0,\
\"storage_object\":\"/backstores/block/$name\"}],\"node_acls\":[$accounts],\"portals\":["
    comma=
    for portal in "$tpg"/np/*; do
        [ -d "$portal" ] || continue
        portal=${portal##*/}
        group="$group$comma{\"ip_address\":\"${portal%:*}\",\"iser\":false,\"offload\":false,\
\"port\":${portal##*:}}"
        comma=,
    done
    elements="{\"storage_objects\":[$stored],\"targets\":[{\"fabric\":\"iscsi\",\"tpgs\":[{$group],\
\"tag\":1}],\"wwn\":\"$iqn\"}]}"
}

# What must not be saved any more.
absences() {
    absences="\"storage_objects\":[{\"plugin\":\"block\",\"name\":\"$name\",\"dev\":\"$device\",\
\"absent\":true}]"
    [ $foreign_target = yes ] ||
        absences="$absences,\"targets\":[{\"fabric\":\"iscsi\",\"wwn\":\"$iqn\",\"absent\":true}]"
    absences="{$absences}"
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

# Whether a file holds one of the names. What waits is saved, and gone, while it is read.
names_us() {
    [ -e "$1" ] || return 1
    grep -qsF -e "\"$name\"" -e "\"$iqn\"" "$1"
    code=$?
    [ $code -gt 1 ] || return $code
    [ ! -e "$1" ] || die "cannot read $1, or cannot run grep"
    return 1
}

# Whether one of the names is saved, or waits for that. The file is read as JSON only where it has them.
is_saved() {
    names_us "$waiting" || { names_us "$save" && ! saved named "$absences"; }
}

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
        missing=$(make_store "$@" && make_target "$@") || exit 1
        if [ -n "$missing" ]; then
            printf '%s\n' "$missing"
        elif [ -n "$save" ]; then
            elements "$@"
            if saved "$how" "$elements"; then as_wanted=$how; else echo 'missing saved'; fi
        fi
        show_nodes
    fi
    if [ $as_wanted = same ] || { [ -n "$save" ] && is_saved; }; then echo 'present saved'; fi
    ;;
nodes)
    [ $foreign_store$foreign_target = nono ] && [ -n "$backstore" ] && [ -d "$tpg" ] ||
        die "$iqn is not there, or of another volume"
    make_nodes "$@"
    if [ -n "$save" ]; then
        elements "$@"
        will_be_saved "$elements"
    fi
    ;;
make)
    [ $foreign_store$foreign_target = nono ] || die "$name or $iqn is of another volume"
    [ -d "$root/core" ] || modprobe target_core_mod || die 'the kernel of the host has no LIO'
    make_store "$@"
    make_target "$@"
    if [ -n "$save" ]; then
        elements "$@"
        will_be_saved "$elements"
    fi
    ;;
remove)
    [ $foreign_target = yes ] || remove_target
    if [ -n "$backstore" ] && [ $foreign_store = no ]; then
        rmdir "$backstore" || die "backstore $name is busy: another LUN is made of it"
        rmdir "${backstore%/*}" 2>/dev/null || :
    fi
    [ ! -e "$save" ] && [ ! -e "$waiting" ] || will_be_saved "$absences"
    ;;
esac
exit 0
