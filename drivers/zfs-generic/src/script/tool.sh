# Gives commands to a tool that is a shell of its own, then looks whether they have been done: these
# tools print what went wrong, go on, and exit with 0.
#
# tool.sh TRIES WORD TOOL CONFIG ARGUMENT... with the commands in `$commands`. CONFIG is a file that
# has to be there, or `-`. `$look` is the script of the stack, which must print no line that begins
# with WORD when it is given the arguments. `$saving` are the commands for a tool that is found to have
# done all but saved: it saves when it exits, unless it is set up otherwise. Saving twice takes twice as long.
tries=$1 word=$2 tool=$3 config=$4
shift 4
newline='
'
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
    # What the look of a shell that was killed does not print may be missing all the same.
    seen=$(eval "$look" </dev/null) || {
        printf 'cannot see what %s has done\n' "$tool" >&2
        exit 1
    }
    left=
    while [ -n "$seen" ]; do
        line=${seen%%"$newline"*}
        seen=${seen#"$line"}
        seen=${seen#"$newline"}
        case $line in "$word "*) left=$left$line$newline ;; esac
    done
    if [ $code = 0 ] && [ -n "$saving" ] && [ "$left" = "$word saved$newline" ]; then
        commands=$saving saving=
        continue
    fi
    break
done
[ $code != 0 ] || [ -n "$left" ] || exit 0
printf '%s%s\n' "$left" "$said" >&2
exit 1
