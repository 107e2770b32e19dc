fine=$1; other=$2; sudo=$3; shift 3
said=$("$@" 2>&1) && return 0
raise=no
case $said in
*"$fine"* | *"$other"*) return 0 ;;
*'cannot destroy '*'ermission denied'*) ;;
*'cannot mount '*'ermission denied'* | *'cannot unmount '*'ermission denied'* | *'cannot unshare '* | *'cannot mount '*'nsufficient privileges'* | *'cannot unmount '*'nsufficient privileges'*) raise=yes ;;
*'only root can '*'cannot '*'mount '* | *'must be superuser '*'cannot '*'mount '* | *'peration not permitted'*'cannot mount '* | *'cannot mount '*'failed to create mountpoint')
[ "$(id -u)" = 0 ] || raise=yes ;;
*'cannot unmount '*'mount failed'*)
case $said in *usy*) ;; *) [ "$(id -u)" = 0 ] || raise=yes ;; esac ;;
esac
if [ $raise = yes ] && command -v "$sudo" >/dev/null 2>&1; then
by_sudo=$("$sudo" -n -- "$@" 2>&1) && return 0
case $by_sudo in *"$fine"* | *"$other"*) return 0 ;; esac
said="$said; $by_sudo"
fi
printf '%s\n' "$said" >&2; return 1
