# Has the host's own init start a daemon, and waits $1 seconds for it: a daemon of this container would end with it.
# The rest are the program and its arguments, the last of them where it mounts.
# systemd-run does not speak to an init outside of its process namespace; busctl does, over the bus.
seconds=$1
shift
[ -n "$(command -v "$1")" ] || exit 127
if [ ! -e /run/dbus/system_bus_socket ] || [ -z "$(command -v busctl)" ]; then
    exec "$@"
fi
# The environment holds secrets and goes by a file of root: every user can read the properties of a unit.
umask 077
given=$(mktemp -d /run/omnibus-csi-mount.XXXXXX) || exit
trap 'rm -rf "$given"' EXIT
export -p >"$given/environment" || exit
cat >"$given/start" <<'START'
trap 'rm -rf "$0"' TERM
. "$0/environment"
rm "$0/environment"
"$@" >"$0/said" 2>&1
status=$?
echo "$status" >"$0/ended"
mv "$0/ended" "$0/status"
exit "$status"
START
for where; do :; done
# A name for the place: while one starts there, no second one does.
unit=omnibus-csi-mount-$(printf %s "$where" | cksum | tr ' ' -).service
start() {
    # shellcheck disable=SC2016 # the words are those of the inner shell
    set -- /bin/sh -c '. "$0/start"' "$given" "$@"
    busctl --system --quiet -- call org.freedesktop.systemd1 /org/freedesktop/systemd1 \
        org.freedesktop.systemd1.Manager StartTransientUnit 'ssa(sv)a(sa(sv))' "$unit" fail \
        4 Type s forking CollectMode s inactive-or-failed TimeoutStartUSec t "${seconds}000000" \
        ExecStart 'a(sasb)' 1 /bin/sh "$#" "$@" false 0
}
start "$@" || exit
while [ ! -s "$given/status" ]; do
    sleep 0.05
done
cat "$given/said" >&2
exit "$(cat "$given/status")"
