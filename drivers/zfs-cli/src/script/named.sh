# Asks the kernel, by a channel program, which volumes have a snapshot called LEAF and which detached
# snapshots end like it. That costs no look at each volume. Only root may run one, and both parents have
# to be in one pool; otherwise the part that follows looks at everything.
#
# LEAF DETACHED PARENT N ZFS... REST...: N counts the words of `zfs`; DETACHED may be empty.
leaf=$1 detached=$2 parent=$3 n=$4
shift 4
program='args = ...
argv = args["argv"]
found = "[]"
for child in zfs.list.children(argv[2]) do
    object = child .. "@" .. argv[1]
    if zfs.exists(object) then found = found .. "[" .. object .. "]" end
end
if argv[3] ~= nil and zfs.exists(argv[3]) then
    for child in zfs.list.children(argv[3]) do
        object = child .. "/" .. argv[1]
        if zfs.exists(object) then found = found .. "[" .. object .. "]" end
    end
end
return found'
in_kernel() {
    i=0
    while [ "$i" -lt "$n" ]; do
        word=$1
        shift
        set -- "$@" "$word"
        i=$((i + 1))
    done
    shift $(($# - n))
    case $detached in
    '') set -- "$@" program -jn "${parent%%/*}" - "$leaf" "$parent" ;;
    "${parent%%/*}"/*) set -- "$@" program -jn "${parent%%/*}" - "$leaf" "$parent" "$detached" ;;
    *) return 1 ;;
    esac
    answer=$(
        "$@" 2>/dev/null <<PROGRAM
$program
PROGRAM
    ) || return 1
    case $answer in *'"[]'*) ;; *) return 1 ;; esac
    while :; do
        case $answer in
        *\[*\]*)
            answer=${answer#*\[}
            object=${answer%%\]*}
            [ -z "$object" ] || printf '%s\n' "$object"
            ;;
        *) return 0 ;;
        esac
    done
}
in_kernel "$@" && return 0
shift "$n"
