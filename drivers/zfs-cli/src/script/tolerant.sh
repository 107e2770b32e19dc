fine=$1; other=$2; shift 2
said=$("$@" 2>&1) && return 0
case $said in *"$fine"*|*"$other"*) return 0 ;; esac
printf '%s\n' "$said" >&2; return 1
