# What the scripts of all target stacks share. `$mode` is `look`, `make`, `remove` or another one of theirs.
# A look changes nothing, and prints what is missing, what is present and what belongs to others. The other
# modes print nothing. Each wanted thing has one function: a look reports it, `make` does it.
umask 077

die() {
    printf '%s\n' "$*" >&2
    exit 1
}

# The first line of a file, without a process and without the blanks at its end: nvmet pads serial
# numbers with them. An unset secret reads as NULL.
get() {
    it=
    [ -e "$1" ] || return 0
    IFS= read -r it <"$1" || :
    case $it in *' ') it=${it%"${it##*[! ]}"} ;; esac
    [ "$it" != NULL ] || it=
}

# Whether something was made that was not there.
changed=no

# Says in a look what is missing, unless it is only counted.
lacking=no counted=no
lacks() {
    lacking=yes
    [ $counted = yes ] || printf 'missing %s\n' "$1"
}

# Says in a look that a node is connected. Its name is whatever it has sent.
is_connected() {
    case $1 in
    '' | *[!A-Za-z0-9.:_-]*) echo 'connected ?' ;;
    *) printf 'connected %s\n' "$1" ;;
    esac
}

# want FILE VALUE [ADVICE]: the file holds the value. The value may be a secret, so no message has it;
# the advice is printed if the kernel refuses it.
want() {
    get "$1"
    [ "$it" != "$2" ] || return 0
    if [ "$mode" = look ]; then
        lacks "${1#"$root"/}"
        return 0
    fi
    printf '%s' "$2" >"$1" || die "the kernel refuses what ${1##*/} is set to${3:+: $3}"
    get "$1"
    [ "$it" = "$2" ] || die "the kernel does not keep what ${1##*/} is set to${3:+: $3}"
}

# want_folder PATH: the object exists. Fails in a look if it does not.
want_folder() {
    [ ! -d "$1" ] || return 0
    if [ "$mode" = look ]; then
        lacks "${1#"$root"/}"
        return 1
    fi
    mkdir "$1" || die "cannot make ${1#"$root"/}"
}

# A text as a string of JSON in `$it`.
quoted() {
    rest=$1
    it=
    while :; do
        case $rest in
        *[\"\\]*)
            head=${rest%%[\"\\]*}
            rest=${rest#"$head"}
            tail=${rest#?}
            it=$it$head\\${rest%"$tail"}
            rest=$tail
            ;;
        *)
            it=\"$it$rest\"
            return
            ;;
        esac
    done
}

# among KIND NAME WORD...: whether `KIND=NAME` is one of the words.
among() {
    sought=$1=$2
    shift 2
    for candidate; do
        [ "$candidate" != "$sought" ] || return 0
    done
    return 1
}

# each_secret FUNCTION: calls it with the file and the value of each line of `$secrets`. No shell may
# put them into a file on the way, as some do with what is given to `read`.
newline='
'
each_secret() {
    unread=$secrets
    while [ -n "$unread" ]; do
        line=${unread%%"$newline"*}
        unread=${unread#"$line"}
        unread=${unread#"$newline"}
        [ -z "$line" ] || "$1" "${line%% *}" "${line#* }"
    done
}

# is_missing FILE: whether there is no such file. One that cannot be looked at may be there, and ends the script.
is_missing() {
    [ ! -e "$1" ] || return 1
    why=$(LC_ALL=C ls -dL "$1" 2>&1) && return 1
    case $why in
    *'No such file or directory') ;;
    *) die "cannot see whether $1 is there: ${why#ls: }" ;;
    esac
}

# The subsystem that no saved port may list any more.
drop=

# saved HOW ELEMENTS [FILE]: how these elements stand in the saved configuration, see saved.awk.
saved() {
    file=${3:-$save}
    ! is_missing "$file" || file=/dev/null
    printf '%s\n' "$2" | LC_ALL=C awk -v mode="$1" -v drop="$drop" "$SAVED" - "$file"
    code=$?
    case $code in
    0 | 3 | 4) return $code ;;
    esac
    die 'cannot run awk, or it was killed'
}

# The saved form of these elements, in `$saved_text`. Empty for a file that is no JSON: the script that writes it
# refuses that.
tell_saved() {
    saved_text=$(saved "$1" "$2")
    case $? in
    0) ;;
    4) saved_text= ;;
    *) exit 1 ;;
    esac
}

# A file, or the names in a folder, as they survive a loss of power.
keep() {
    sync "$1" 2>/dev/null || sync
}

# The folder of the saved configuration is there. What is a link stays one: where it leads to may be
# what survives a reboot.
find_save() {
    if [ -L "$save" ]; then
        real=$(readlink -f "$save") && [ -n "$real" ] || die "$save leads nowhere"
        save=$real
    fi
    folder=${save%/*}
    [ -d "$folder" ] || mkdir -p "$folder" || die "cannot make $folder"
}

# Puts elements into the saved configuration, whole or not at all.
put() {
    find_save
    # Not every awk says that a disk is full: what was written is read again.
    saved merge "$1" >"$save.omnibus" && [ -s "$save.omnibus" ] && saved same "$1" "$save.omnibus" || {
        rm -f "$save.omnibus"
        die "$save is not what it should be, or cannot be written: nothing was saved"
    }
    keep "$save.omnibus"
    mv -f "$save.omnibus" "$save" || die "cannot write $save"
    keep "$folder"
}

# The same where they are not there as they are wanted.
store() {
    [ -z "$save" ] || saved same "$1" || put "$1"
}
