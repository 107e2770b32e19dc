# What a target of LIO is, whose it is, and how it is saved as targetcli restores it: for one volume, and for
# all that were changed.

# The file that `$save` says, and how exactly a look wants it to be.
share_lio() {
    how=same
    case $save in
    -) save= ;;
    named:*) how=named save=${save#*:} ;;
    named | auto)
        [ "$save" = auto ] || how=named
        save=/etc/target/saveconfig.json
        [ ! -d /etc/rtslib-fb-target ] || save=/etc/rtslib-fb-target/saveconfig.json
        ;;
    esac
    # Beside the file itself, whatever links lead to it.
    [ ! -L "$save" ] || [ "$mode" = look ] || find_save
    waiting=$save.omnibus-waiting
}

# Takes the lock of the target stack until this script ends. It is the lock that targetcli holds while it runs. A
# script that does not get it has changed nothing, and reports that as our own locks do.
take_turn() {
    command -v flock >/dev/null 2>&1 || die 'flock is not installed'
    exec 9>"$lock" || exit 1
    patience=30
    late="no turn within $patience s: others, or a targetcli, keep $lock"
    flock -w $patience -E 75 9 2>/dev/null && return 0
    [ $? -ne 75 ] || die "$late"
    # Not every flock can wait for a time.
    until flock -n 9; do
        patience=$((patience - 1))
        [ $patience -gt 0 ] || die "$late"
        sleep 1
    done
}

# Which volume it is.
about() {
    name=$1 iqn=$2 device=$3 serial=$4
    target=$root/iscsi/$iqn
    tpg=$target/tpgt_1
    lun=$tpg/lun/lun_0
    only_target="{\"targets\":[{\"fabric\":\"iscsi\",\"wwn\":\"$iqn\"}]}"
}

store_of() {
    backstore=
    for found in "$root"/core/iblock_*/"$name"; do
        [ ! -d "$found" ] || backstore=$found
    done
}

# Whether the objects of our names are ours, or incomplete and without an owner.
judge() {
    store_of
    foreign_store=no foreign_target=no
    if [ -n "$backstore" ]; then
        get "$backstore/udev_path"
        [ -z "$it" ] || [ "$it" = "$device" ] || foreign_store=yes
    fi
    # A target that is linked to a foreign backstore is foreign; so is, then, one without a link.
    if [ $foreign_store = yes ] && [ -d "$target" ]; then foreign_target=yes; fi
    for link in "$target"/tpgt_*/lun/lun_*/*; do
        [ -L "$link" ] || continue
        { [ -n "$backstore" ] && [ "$link" -ef "$backstore" ]; } || foreign_target=yes
    done
}

# Whether there is a target, and all of it is ours.
is_ours() {
    [ -d "$target" ] && [ $foreign_store$foreign_target = nono ]
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
            [ -e "$from/${word%%=*}" ] || continue
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

# The names and passwords of CHAP that a portal group or a node has, as members.
chap_members() {
    chap=
    for key in userid password userid_mutual password_mutual; do
        get "$1/auth/$key"
        [ -n "$it" ] || continue
        quoted "$it"
        case $key in
        userid) member=chap_userid ;;
        password) member=chap_password ;;
        userid_mutual) member=chap_mutual_userid ;;
        password_mutual) member=chap_mutual_password ;;
        esac
        chap="$chap\"$member\":$it,"
    done
}

# The nodes that have access in the kernel, including those that others gave access.
node_elements() {
    accounts= between=
    for account in "$tpg"/acls/*; do
        [ -d "$account" ] || continue
        chap_members "$account"
        mapped= comma=
        for number in "$account"/lun_*; do
            for link in "$number"/*; do
                [ -L "$link" ] || continue
                get "$number/write_protect"
                protected=false
                [ "$it" != 1 ] || protected=true
                quoted "${link##*/}"
                mapped="$mapped$comma{\"alias\":$it,\"index\":${number##*lun_},\
\"tpg_lun\":0,\"write_protect\":$protected}"
                comma=,
            done
        done
        quoted "${account##*/}"
        accounts="$accounts$between{$chap\"mapped_luns\":[$mapped],\"node_wwn\":$it}"
        between=,
    done
}

# The portals of the group, including those that others added. A group that is not enabled was interrupted: its
# portals are saved.
note_portals() {
    portals=
    for portal in "$tpg"/np/*; do
        [ ! -d "$portal" ] || portals=$portals${portal##*/}$newline
    done
    [ -d "$target" ] || return 0
    get "$tpg/enable"
    [ "$it" != 1 ] && [ -n "$save" ] || return 0
    tell_saved portals "$only_target"
    old=$saved_text
    while [ -n "$old" ]; do
        portal=${old%%"$newline"*}
        old=${old#"$portal"}
        old=${old#"$newline"}
        case $newline$portals in
        *"$newline$portal$newline"*) ;;
        *) portals=$portals$portal$newline ;;
        esac
    done
}

# elements WORD...: of a target that is as it is wanted, or of what there is of one that is not.
elements() {
    node_elements
    get "$tpg/enable"
    enabled=false
    [ "$it" != 1 ] || enabled=true
    get "$backstore/wwn/vpd_unit_serial"
    unit=${it##*: }
    # The kernel shows none of a backstore that is not enabled yet.
    unit=${unit##*:} unit=${unit:-$serial}
    members block "$backstore/attrib" "$@"
    stored="{\"attributes\":{$all},\"dev\":\"$device\",\"name\":\"$name\",\"plugin\":\"block\",\
\"readonly\":false,\"write_back\":false,\"wwn\":\"$unit\"}"
    [ -n "$backstore" ] || stored=
    members tpg "$tpg/attrib" "$@"
    chap_members "$tpg"
    group="\"attributes\":{$all},$chap"
    disks=
    for link in "$lun"/*; do
        [ -L "$link" ] || continue
        quoted "${link##*/}"
        disks="{\"alias\":$it,\"index\":0,\"storage_object\":\"/backstores/block/$name\"}"
    done
    group="$group\"enable\":$enabled,\"luns\":[$disks],\"node_acls\":[$accounts],\"portals\":["
    comma=
    note_portals
    fields=$IFS IFS=$newline
    set -f
    # Lines are words here; addresses of IPv6 stand in brackets, which mean files, too.
    # shellcheck disable=SC2086
    set -- $portals
    IFS=$fields
    set +f
    for portal; do
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

# Saving is slow, and costs the same for one volume as for many. So each call notes here which volume it has
# changed, and releases the lock. The next call that saves, saves the state of all noted volumes; the calls after
# it find that done. A note from before the last boot is about a kernel with other targets. A call that is
# interrupted while it writes a line leaves one without its end, which counts for
# nothing. No word has a `|` in it.
will_be_saved() {
    [ -n "$save" ] || return 0
    get /proc/sys/kernel/random/boot_id
    line="$it|$1|$name|$iqn|$device|$serial"
    shift
    for word; do
        case $word in
        tpg=* | block=*) line="$line|$word" ;;
        esac
    done
    folder=${waiting%/*}
    [ -d "$folder" ] || mkdir -p "$folder" || die "cannot make $folder"
    # What cannot be saved is tried again and again, and noted once.
    if [ $changed = no ] && [ -s "$waiting" ]; then
        before=$(grep -F -e "|$name|$iqn|$device|" "$waiting") || :
        [ "${before##*"$newline"}" != "$line|." ] || return 0
    fi
    printf '\n%s|.\n' "$line" >>"$waiting" || die "cannot write $waiting"
}

something_waits() {
    [ -n "$save" ] && [ -s "$waiting" ]
}

# Whether a target that is saved is there, but not whole: half made, or half removed. A tool that restores all of
# them disables each for a moment.
is_half() {
    saved named "$only_target"
    # A file that is no JSON is refused by the script that writes it.
    [ $? != 3 ] || return 1
    [ -z "$backstore" ] || [ $waited = yes ] || sleep 1
    waited=yes
}

# note_state kept|gone NAME IQN DEVICE SERIAL WORD...: adds to `$states` what has to be saved of it. A volume that
# was made and no longer exists was removed by another call, which decides what is saved. An incomplete one is saved
# as it is, with the nodes that have access now, and only if it was saved before.
note_state() {
    way=$1
    about "$2" "$3" "$4" "$5"
    shift 5
    judge
    if [ "$way" = kept ]; then
        is_ours || return 0
        get "$tpg/enable"
        if [ "$it" != 1 ] || [ -z "$backstore" ]; then
            is_half || return 0
            # It may be another one by now.
            judge
            is_ours || return 0
        fi
        elements "$@"
        states=$states$elements$newline some=yes
    elif [ -z "$backstore" ] || [ $foreign_store = yes ]; then
        absences
        states=$states$absences$newline
    fi
}

# Saves the state of all noted volumes, while no other call changes anything.
save_waiting() {
    something_waits || return 0
    get /proc/sys/kernel/random/boot_id
    boot=$it states='' some=no waited=no
    while IFS= read -r line || [ -n "$line" ]; do
        case $line in
        "$boot|"*'|.') ;;
        *) continue ;;
        esac
        line=${line#*|}
        set -f
        fields=$IFS IFS='|'
        # They are words again.
        # shellcheck disable=SC2086
        set -- ${line%|.}
        IFS=$fields
        set +f
        [ $# -lt 5 ] || note_state "$@"
        :
    done <"$waiting" || die "cannot read $waiting"
    # Nothing has to be removed from a file that does not exist.
    if ! is_missing "$save" || [ $some = yes ]; then
        [ -z "$states" ] || put "$states"
    fi
    rm -f "$waiting" || die "cannot remove $waiting"
}
