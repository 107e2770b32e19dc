line='
'
both() {
said=$( { { send "$@" 3>&- && echo .sent >&3; } |
{ receive "$@" >&2 3>&- && echo .received >&3; }; } 3>&1 2>&1 )
case $line$said$line in *"$line.sent$line"*)
case $line$said$line in *"$line.received$line"*) return 0 ;; esac ;;
esac
said="$said${line}not both ends of the copy are done"; return 1
}
