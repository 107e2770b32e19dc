expected=$1; shift
seen=$("$@") || return 1
line='
'
while [ -n "$expected" ]; do
one=${expected%%"$line"*}; expected=${expected#*"$line"}
case $line$seen$line in *"$line$one$line"*) ;; *)
printf '%s is not what it was when it was looked at\n' "${one%	*}" >&2; return 1 ;; esac
done
