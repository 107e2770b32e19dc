umask 077
file=$1; wait=$2; folder=$3; held=$4; reads=$5; shift 5
[ "$reads" = list ] && [ -n "${omnibus_list-}" ] || omnibus_list=
if [ -n "$folder" ]; then :
elif [ -O / ]; then folder=/run; [ -d $folder ] || folder=/var/run; folder=$folder/omnibus-csi
elif [ -n "$HOME" ]; then folder=$HOME/.omnibus-csi
else echo 'no folder for locks: HOME is not set' >&2; exit 73; fi
[ -d "$folder" ] || mkdir -p "$folder" || { echo 'no folder for locks' >&2; exit 73; }
file=$folder/$file
late() { printf 'no turn within %s s\n' "$wait" >&2; exit 75; }
if command -v flock >/dev/null 2>&1; then
case $held in 7) exec 7>>"$file" ;; *) exec 8>>"$file" ;; esac
flock -w "$wait" -E 75 "$held" 2>/dev/null || {
[ $? -ne 75 ] || late
flock "$held" || exit 73
}
if [ -n "$omnibus_list" ]; then shift 2; eval "omnibus_list=
$omnibus_list"; else "$@"; fi
exit
fi
command -v lockf >/dev/null 2>&1 || { echo 'neither flock nor lockf is installed' >&2; exit 69; }
hold() { lockf -k -s -t "$wait" "$file" "$@"; }
print_input() {
for name in $omnibus_routines; do printf '%s() {\n' "$name"; eval "printf '%s\n}\n' \"\$$name\""; done
printf '%s\n' "$omnibus_list"
}
if [ -n "$omnibus_list" ]; then
for name in $omnibus_routines; do export "${name?}"; done
print_input | hold "$@"
else hold "$@"; fi
code=$?
[ $code -ne 75 ] || late
exit $code
