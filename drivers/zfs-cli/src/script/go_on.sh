from=$1; to=$2; shift 2
send() { "$@" send -t "$token"; }
receive() { "$@" receive -s -u "$to@${from##*@}"; }
token=$("$@" get -H -o value receive_resume_token "$to") || exit 1
case $token in '' | -) exit 0 ;; esac
if said=$("$@" send -nvt "$token" 2>&1); then
case $said$line in
*"toname = $from$line"*) both "$@" && exit 0 ;;
*'toname = '*) exec "$@" receive -A "$to" ;;
esac
fi
case $said in
*'used in the initial send'* | *'resume token is corrupt'* | *'invalid backup stream'* | *'must be upgraded'*)
exec "$@" receive -A "$to" ;;
esac
printf '%s\n' "$said" >&2; exit 1
