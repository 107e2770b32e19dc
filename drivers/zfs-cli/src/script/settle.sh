[ -e "$1" ] && return 0
command -v udevadm >/dev/null 2>&1 && udevadm settle --timeout=30 --exit-if-exists="$1"
tell_again() {
[ -d /run/udev/data ] && [ ! -e /run/udev/queue ] || return 0
for zvol in /sys/block/zd*; do
number=; read -r number <"$zvol/dev"
[ -z "$number" ] || [ -e "/run/udev/data/b$number" ] || echo add >"$zvol/uevent"
done
}
i=0; pause=0.1
until [ -e "$1" ]; do
[ $i -lt 30 ] || { printf '%s did not appear\n' "$1" >&2; return 1; }
sleep $pause
i=$((i + 1))
case $i in 1) pause=0.2 ;; 2) pause=0.5 ;; 3) pause=1 ;; 6) pause=2 ;; esac
case $i in 5 | 10 | 15 | 20 | 25) tell_again 2>/dev/null ;; esac
done
return 0
