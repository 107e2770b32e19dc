filter=$1; n=$2; pools=$3; wanted=$4; name=$5; shift 5
line='
'
pools() {
i=0; while [ $i -lt $n ]; do word=$1; shift; set -- "$@" "$word"; i=$((i + 1)); done
shift $(($# - n)); set -- "$@" get -H -o name type
while [ -n "$unseen" ]; do set -- "$@" "${unseen%%"$line"*}"; unseen=${unseen#*"$line"}; done
"$@"
}
omnibus_seen=
if [ -z "$filter" ]; then
omnibus_seen=$("$@"); code=$?
[ -z "$omnibus_seen" ] || printf '%s\n' "$omnibus_seen"
else
ended=.ended.$$.
{ "$@"; echo "$ended$?"; } |
ended=$ended wanted=$wanted name=$name LC_ALL=C awk -F '\t' "
index(\$0, ENVIRON[\"ended\"]) == 1 { code = substr(\$0, length(ENVIRON[\"ended\"]) + 1); next }
$filter
END { exit code == \"\" ? 3 : code }"
code=$?
fi
[ $code -eq 1 ] || return $code
unseen=
while [ -n "$pools" ]; do
pool=${pools%%"$line"*}; pools=${pools#*"$line"}
case $line$omnibus_seen in *"$line$pool"[/@"	"]*) ;; *) unseen=$unseen$pool$line ;; esac
done
[ -n "$unseen" ] || return 1
said=$(pools "$@" 2>&1 >/dev/null) && return 1
