# What all scripts of LIO share with targetcli, and with each other: the saved configuration, and the
# lock of whoever changes something.

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
    waiting=$save.omnibus-waiting

    # targetcli holds this lock for as long as it runs.
    if [ "$mode" != look ] && [ -n "$lock" ] && command -v flock >/dev/null 2>&1; then
        exec 9>"$lock" || exit 1
        # Not every flock can wait for a time.
        turns=20
        until flock -n 9; do
            turns=$((turns - 1))
            [ $turns -gt 0 ] || die "targetcli runs on the host and keeps $lock: it is busy"
            sleep 1
        done
    fi
}

# To save is slow, and costs the same for one volume as for many. So whoever changes a volume leaves here
# what has to be saved of it, and lets others have their turn. Whoever has the next turn at saving saves all
# that waits, and who comes later finds it done. Each line is of one start of the host: what waited when it
# ended went with it. Who is cut while a line is written leaves one without its end, which counts for nothing.
will_be_saved() {
    [ -n "$save" ] || return 0
    get /proc/sys/kernel/random/boot_id
    folder=${waiting%/*}
    [ -d "$folder" ] || mkdir -p "$folder" || die "cannot make $folder"
    printf '\n%s %s .\n' "$it" "$1" >>"$waiting" || die "cannot write $waiting"
}

# What cannot be saved is tried again and again, and waits once.
forget_repetitions() {
    awk '{ line[NR] = $0; last[$0] = NR }
        END { for (n = 1; n <= NR; n++) if (last[line[n]] == n) print line[n] }' "$waiting" >"$waiting.new" &&
        mv -f "$waiting.new" "$waiting"
}

# Saves all that waits. Nobody changes anything meanwhile.
save_waiting() {
    [ -n "$save" ] && [ -s "$waiting" ] || return 0
    get /proc/sys/kernel/random/boot_id
    elements=$(sed -n "s/^$it \(.*\) \.\$/\1/p" "$waiting") || die "cannot read $waiting"
    [ -z "$elements" ] || (put "$elements") || {
        forget_repetitions
        exit 1
    }
    rm -f "$waiting" || die "cannot remove $waiting"
}
