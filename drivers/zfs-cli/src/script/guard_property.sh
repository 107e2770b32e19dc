expected=$1; object=$2; shift 2
seen=$("$@") || return 1
tab='	'; own=
case ${seen##*"$tab"} in local | received) own="=${seen%"$tab"*}" ;; esac
case $own in = | =-) own= ;; esac
[ "$own" = "$expected" ] && return 0
printf '%s is not what it was when it was looked at\n' "$object" >&2; return 1
