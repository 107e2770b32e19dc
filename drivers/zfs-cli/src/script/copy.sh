n=$1; plain=; shift
send() {
i=0; while [ $i -lt $n ]; do word=$1; shift; set -- "$@" "$word"; i=$((i + 1)); done
shift $(($# - n)); "$@"
}
receive() {
shift $n
[ -z "$plain" ] || for word; do shift; [ "$word" = -s ] || set -- "$@" "$word"; done
"$@"
}
both "$@" && exit 0
case $said in
*'pool must be upgraded'*) plain=yes; both "$@" && exit 0 ;;
esac
printf '%s\n' "$said" >&2; exit 1
