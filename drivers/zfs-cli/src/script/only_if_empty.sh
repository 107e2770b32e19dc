before=$1; n=$2; shift 2
for name; do :; done
ask() {
shift $before
i=0; while [ $i -lt $n ]; do word=$1; shift; set -- "$@" "$word"; i=$((i + 1)); done
shift $(($# - n)); "$@" get -H -o value canmount,mounted,mountpoint "$name"
}
seen=$(ask "$@" 2>/dev/null) || return 0
line='
'
case $seen in
"off${line}no${line}"*) ;;
*"${line}yes${line}/"*)
path=/${seen#*"${line}yes${line}/"}
[ -z "$(ls -A "$path" 2>&1)" ] || return 0
;;
*) return 0 ;;
esac
