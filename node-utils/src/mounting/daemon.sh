# Has the host's own init start a daemon, and waits $1 seconds for it: a daemon of this container would end with it.
# The rest are the program and its arguments, the last of them where it mounts.
# systemd-run does not speak to an init outside of its process namespace; busctl does, over the bus.
seconds=$1
shift
if [ -z "$(command -v "$1")" ]; then
    echo "$1: not found" >&2
    exit 127
fi
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
    # systemd puts variables into words; of two dollar signs it makes one.
    for word; do
        shift
        set -- "$@" "$(printf %s "$word" | sed 's/\$/$$/g')"
    done
    # shellcheck disable=SC2016 # the words are those of the inner shell
    set -- /bin/sh -c '. "$0/start"' "$given" "$@"
    busctl --system --quiet -- call org.freedesktop.systemd1 /org/freedesktop/systemd1 \
        org.freedesktop.systemd1.Manager StartTransientUnit 'ssa(sv)a(sa(sv))' "$unit" fail \
        5 Type s forking CollectMode s inactive-or-failed TimeoutStartUSec t "${seconds}000000" \
        LimitNOFILE t 524288 \
        ExecStart 'a(sasb)' 1 /bin/sh "$#" "$@" false 0
}
# 75: it may be mounted later, by this start or by one before.
start "$@" || exit 75
left=$((seconds * 10))
while [ ! -s "$given/status" ] && [ -d "$given" ] && [ "$left" -gt 0 ]; do
    sleep 0.1
    left=$((left - 1))
done
cat "$given/said" >&2
[ -s "$given/status" ] || exit 75
exit "$(cat "$given/status")"
