# Gives commands to a tool that is a shell of its own, then looks whether they have been done: these
# tools print what went wrong, go on, and exit with 0.
#
# tool.sh TRIES WORD TOOL CONFIG ARGUMENT... with the commands in `$commands`. CONFIG is a file that
# has to be there, or `-`. `$look` is the script of the stack, which must print no line that begins
# with WORD when it is given the arguments.
tries=$1 word=$2 tool=$3 config=$4
shift 4
if [ "$config" != - ] && [ ! -f "$config" ]; then
    printf '%s is not there\n' "$config" >&2
    exit 1
fi
while :; do
    said=$(printf '%s' "$commands" | "$tool" 2>&1)
    code=$?
    case $said in
    *'Ran out of input'*)
        # It has read its own file while another one of it wrote that.
        tries=$((tries - 1))
        if [ $tries -gt 0 ]; then
            sleep 1
            continue
        fi
        ;;
    esac
    break
done
# What the look of a shell that was killed does not print may be missing all the same.
seen=$(printf '%s' "$look" | sh -s "$@") || {
    printf 'cannot see what %s has done\n' "$tool" >&2
    exit 1
}
left=$(printf '%s\n' "$seen" | grep "^$word ")
[ $code != 0 ] || [ -n "$left" ] || exit 0
printf '%s\n%s\n' "$left" "$said" >&2
exit 1
