# Looks at one disk of SPDK as spdkcli shows it; the list of all others stays on the host.
#
# spdk.sh TOOL TYPE NQN LISTENERS, the last being how many addresses it should listen on.
tool=$1 type=$2 nqn=$3 listeners=$4
said=$(printf 'ls /bdevs/%s\nls /nvmf/subsystem/%s\nexit\n' "$type" "$nqn" | "$tool" 2>&1) || {
    printf '%s\n' "$said" >&2
    exit 1
}
# Lines of a tree: marks, the name, dots, and what there is to say of it in brackets.
printf '%s\n' "$said" | LC_ALL=C awk -v nqn="$nqn" -v listeners="$listeners" '
{
    sub(/\r$/, ""); sub(/^[ |]*o- /, "")
    name = $1
    if (name == nqn && $0 ~ /\[.*(Size|Claimed|bdev)/) bdev = 1
    else if (name == nqn && inspaces) space = 1
    else if (name == nqn) subsystem = 1
    if (name == "namespaces") inspaces = 1
    if (name == "listen_addresses" && match($0, /Addresses: [0-9]+/))
        addresses = substr($0, RSTART + 11, RLENGTH - 11) + 0
}
END {
    if (bdev) print "present bdev"; else print "missing bdev"
    if (subsystem) print "present subsystem"; else print "missing subsystem"
    if (!space) print "missing namespace"
    if (addresses < listeners) print "missing listener"
}'
