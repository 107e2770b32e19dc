# What has a zvol on its host besides the export of the connection: a subsystem of nvmet, a backstore of LIO, a mount,
# swap, a device on top of it.
#
# users.sh CONFIGFS DEVICE NQN BACKSTORE: the last two name the export of the connection, and one of them is empty. `used`
# is said of each other. A program that has opened the disk without claiming it is not seen. It is the body of a function.
config=$1 device=$2 nqn=$3 backstore=$4

sys=/sys/class/block
proc=/proc/self/mountinfo
swaps=/proc/swaps

# The first line of a file, without a process.
first() {
    it=
    [ ! -r "$1" ] || IFS= read -r it <"$1" || :
}

# The disk and its partitions, by the names and by the numbers of the kernel.
node=$(readlink -f "$device") || node=$device
disk=${node##*/}
parts='' numbers=' '
for folder in "$sys/$disk" "$sys/$disk/$disk"*; do
    [ -e "$folder/dev" ] || continue
    first "$folder/dev"
    parts="$parts ${folder##*/}" numbers="$numbers$it "
done

# Whether a path leads to the disk, or to one of its partitions.
is_it() {
    if [ "$1" = "$device" ] || [ "$1" -ef "$device" ]; then
        return 0
    fi
    for part in $parts; do
        [ ! "$1" -ef "${node%/*}/$part" ] || return 0
    done
    return 1
}

for file in "$config"/nvmet/subsystems/*/namespaces/*/device_path; do
    subsystem=${file#"$config"/nvmet/subsystems/}
    subsystem=${subsystem%%/*}
    [ "$subsystem" != "$nqn" ] || continue
    first "$file"
    ! is_it "$it" || printf 'used the subsystem %s of nvmet\n' "$subsystem"
done
for file in "$config"/target/core/*/*/udev_path; do
    store=${file%/udev_path}
    store=${store##*/}
    [ "$store" != "$backstore" ] || continue
    first "$file"
    ! is_it "$it" || printf 'used the backstore %s of LIO\n' "$store"
done
for below in $parts; do
    for holder in "$sys/$below/holders"/*; do
        [ ! -L "$holder" ] || printf 'used the device %s on top of it\n' "${holder##*/}"
    done
done
# Of a loop device the kernel lists no holder.
for file in "$sys"/loop*/loop/backing_file; do
    first "$file"
    is_it "$it" || continue
    file=${file%/loop/backing_file}
    printf 'used the device %s on top of it\n' "${file##*/}"
done
if [ -r "$proc" ]; then
    while read -r _ _ number root point rest; do
        case $rest in
        # It shows numbers of its own.
        *' - btrfs '*)
            source=${rest##*' - btrfs '}
            is_it "${source%% *}" || continue
            ;;
        # The node of the disk, as a pod has it.
        *' - devtmpfs '*) [ "$root" = "/$disk" ] || continue ;;
        *) case $numbers in *" $number "*) ;; *) continue ;; esac ;;
        esac
        printf 'used the mount at %s\n' "$point"
    done <"$proc"
fi
if [ -r "$swaps" ]; then
    while read -r file rest; do
        ! is_it "$file" || printf 'used the swap on %s\n' "$file"
    done <"$swaps"
fi
return 0
