# Starts a daemon of the host outside of the control group of this container: it lives on when the container ends.
[ -n "$(command -v "$1")" ] || exit 127
[ -d /run/systemd/system ] && [ -n "$(command -v systemd-run)" ] || exec "$@"
exec systemd-run --quiet --scope --collect "$@"
