# Who gets into the subsystem that nvmet.sh is about.
#
# A name in `allowed_hosts` is asked for when a node connects, and never again: what it has connected
# outlives the name. Since Linux 6.11 the kernel can show who is connected, and end one of them, in a
# folder `ctrl*` of debugfs for each controller, if it was built so (CONFIG_NVME_TARGET_DEBUGFS).

# key_of NODE: the key by which it has to prove who it is, in `$key`; empty if the configuration has none.
key_of() {
    key=$newline$secrets
    case $key in
    *"$newline$1 "*)
        key=${key#*"$newline$1 "}
        key=${key%%"$newline"*}
        ;;
    *) key= ;;
    esac
}

# Whether only the owner of a file may read it.
is_hidden() {
    case $(ls -ld "$1") in ?rw-------*) ;; *) return 1 ;; esac
}

# want_key NODE: the host asks it for its key.
want_key() {
    key_of "$1"
    [ -n "$key" ] || return 0
    held=$root/hosts/$1/dhchap_key
    if [ -e "$held" ]; then
        # The kernel lets every user of the host read it, also one that was restored.
        if [ "$mode" != look ]; then
            chmod 600 "$held" || die "cannot hide the key of $1"
        elif ! is_hidden "$held"; then
            lacks "hosts/$1/dhchap_key"
            return 0
        fi
        want "$held" "$key" 'see dhchapKeys in the configuration'
    elif [ "$mode" = look ]; then
        lacks "hosts/$1/dhchap_key"
        echo "blocked hosts/$1/dhchap_key"
    else
        die 'the kernel of the host cannot ask nodes for keys: it has no DH-CHAP (CONFIG_NVME_TARGET_AUTH)'
    fi
}

# Says in a look which of the nodes that get in are not asked for their key.
look_for_keys() {
    for host in "$subsystem"/allowed_hosts/*; do
        [ ! -L "$host" ] || want_key "${host##*/}"
    done
}

# is_spared NODE WORD...: the call is for other nodes, so what is wrong with this one does not end it.
is_spared() {
    one=$1
    shift
    among keys spared "$@" && ! among for "$one" "$@"
}

# forget NODE: it and its key are not saved any longer.
forget() {
    forgotten="$forgotten${forgotten:+,}{\"nqn\":\"$1\",\"absent\":true}"
}

# Forgets keys that were saved where none are restored.
forget_unrestored() {
    [ "$restored" = no ] && [ -n "$secrets" ] || return 0
    ! grep -q DHHC- "$save" 2>/dev/null || each_secret forget
}

# unname NAME: removes it from the subsystem, and from the host if no other subsystem names it. A name that
# another subsystem has is busy; one with a key that the configuration does not have stays. An interrupted call may
# have removed it, and not have saved that.
unname() {
    link=$subsystem/allowed_hosts/$1 known=$root/hosts/$1
    [ ! -L "$link" ] || rm -f "$link" || die "cannot put out $1"
    key_of "$1"
    if [ -d "$known" ]; then
        get "$known/dhchap_key"
        [ -z "$it" ] || [ -n "$key" ] || return 0
        get "$known/dhchap_ctrl_key"
        [ -z "$it" ] || return 0
        rmdir "$known" 2>/dev/null || return 0
    fi
    [ -z "$key" ] || forget "$1"
}

# Removes all names. The arguments repeat the nodes that an interrupted call was putting out.
remove_hosts() {
    for host in "$subsystem"/allowed_hosts/*; do
        [ ! -L "$host" ] || set -- "$@" "out=${host##*/}"
    done
    for word; do
        case $word in out=*) unname "${word#*=}" ;; esac
    done
}

# The node of this controller, in `$it`: empty if the kernel does not show it, or does not allow ending it. A
# kernel that is locked down, as by Secure Boot, refuses to open what it shows for writing, and a controller that
# cannot be ended must not be waited for.
who_has() {
    get "$1/hostnqn"
    [ -n "$it" ] && true 2>/dev/null >>"$1/state" || it=
}

# The connected nodes, and which of them can be put out. A name is whatever the node has sent.
show_sessions() {
    for controller in "$shown"/ctrl*; do
        [ -d "$controller" ] || continue
        get "$controller/hostnqn"
        [ ! -d "$controller" ] || is_connected "$it"
        who_has "$controller"
        case $it in
        '' | *[!A-Za-z0-9.:_-]*) ;;
        *) printf 'session %s\n' "$it" ;;
        esac
    done
}

# Why none of the connected nodes can be put out while others stay, if it is so.
show_hidden() {
    folder=${shown%/*}
    # Where nvmet is not loaded no node is connected.
    [ -d "$root" ] || return 0
    if [ ! -d "$folder" ]; then
        echo 'hidden the storage host does not show controllers of nvmet: see CONFIG_NVME_TARGET_DEBUGFS'
        return 0
    fi
    # It is beside debugfs.
    folder=${folder%/*}
    get "${folder%/*}/security/lockdown"
    case $it in
    *'[integrity]'* | *'[confidentiality]'*)
        echo 'hidden the kernel of the storage host is locked down, and ends no connection of nvmet'
        return 0
        ;;
    esac
    # A host may not show that it is locked down. Its controllers do.
    for controller in "${shown%/*}"/*/ctrl*; do
        [ -d "$controller" ] || continue
        who_has "$controller"
        if [ -z "$it" ] && [ -d "$controller" ]; then
            echo 'hidden the storage host shows a controller of nvmet that it does not allow ending'
            return 0
        fi
    done
}

# Whether another node is listed, or connected.
others_stay() {
    for word; do
        case $word in node=*) return 0 ;; esac
    done
    for controller in "$shown"/ctrl*; do
        who_has "$controller"
        [ -z "$it" ] || among out "$it" "$@" || return 0
    done
    return 1
}

# Ends the controllers of the nodes that are put out, and no others; the last of them is in
# `$connected`.
tell_sessions() {
    connected=
    for controller in "$shown"/ctrl*; do
        who_has "$controller"
        [ -n "$it" ] && among out "$it" "$@" || continue
        connected=$it
        printf fatal 2>/dev/null >"$controller/state" || :
    done
}

# The same until there are none. The folder of a controller goes when nothing of it is on its way to the
# disk any more.
await_sessions() {
    tenths=0
    while :; do
        tell_sessions "$@"
        [ -n "$connected" ] || return 0
        [ $tenths -lt 200 ] || die "$connected stays connected to $nqn"
        if sleep 0.1 2>/dev/null; then
            tenths=$((tenths + 1))
        else
            # Not every sleep knows parts of a second.
            sleep 1
            tenths=$((tenths + 10))
        fi
    done
}

# Removes the subsystem from all its ports, which ends all connections; waits for writes in progress; and puts it
# back. A port from which an interrupted call removed it is a saved one; the ports of the arguments come after
# this.
cut_sessions() {
    refuse_suspended
    numbers=
    for port in "$root"/ports/*; do
        [ -d "$port" ] || continue
        link=$port/subsystems/$nqn number=${port##*/}
        if [ -L "$link" ]; then
            numbers="$numbers $number"
            continue
        fi
        case " $* " in *" port=$number "* | *" port=$number,"*) continue ;; esac
        if [ -n "$save" ] && saved same "{\"ports\":[{\"portid\":$number,\"lists\":\"$nqn\"}]}"; then
            numbers="$numbers $number"
        fi
    done
    for number in $numbers; do
        link=$root/ports/$number/subsystems/$nqn
        [ ! -L "$link" ] || rm -f "$link" || die "cannot take $nqn from port $number"
    done
    if [ -d "$namespace" ]; then
        printf '0\n' >"$namespace/enable" || die "namespace of $nqn is busy"
    fi
    make_namespace
    for number in $numbers; do
        ln -s "$subsystem" "$root/ports/$number/subsystems/$nqn" || die "port $number cannot listen"
    done
}

# Puts out the nodes that must be out, and those that are named and not listed. Their names are removed first, so
# that none comes back; the retry of an interrupted call gets the same nodes again.
put_out() {
    for host in "$subsystem"/allowed_hosts/*; do
        [ -L "$host" ] || continue
        among node "${host##*/}" "$@" || set -- "$@" "out=${host##*/}"
    done
    leaving=no
    for word; do
        case $word in
        out=*)
            leaving=yes
            unname "${word#*=}"
            ;;
        esac
    done
    [ $leaving = yes ] || return 0
    if others_stay "$@"; then
        # The ports are theirs, too. What the kernel does not show is left connected. What ends is not
        # waited for here, where all volumes of the host wait behind: see the mode `gone`.
        tell_sessions "$@"
    else
        cut_sessions "$@"
    fi
}

# Gives access to the listed nodes only, if access per node is wanted.
make_nodes() {
    among nodes listed "$@" || return 0
    want "$subsystem/attr_allow_any_host" 0
    put_out "$@"
    for word; do
        case $word in
        node=*)
            word=${word#*=}
            want_folder "$root/hosts/$word"
            # Before it gets in. Where the kernel refuses its key it stays as it is while others are put out, or let in:
            # the next look or repair has it.
            if [ $leaving = yes ] || is_spared "$word" "$@"; then
                (want_key "$word") 2>/dev/null || continue
            else
                want_key "$word"
            fi
            [ -L "$subsystem/allowed_hosts/$word" ] ||
                ln -s "$root/hosts/$word" "$subsystem/allowed_hosts/$word" || die "cannot let in $word"
            ;;
        esac
    done
}

