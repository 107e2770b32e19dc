#!/bin/sh
/bin/mount -t tmpfs layers "$LAYERS" && mkdir "$LAYERS/upper" "$LAYERS/work" "$LAYERS/root" || exit 99
/bin/mount -t overlay -o "lowerdir=/,upperdir=$LAYERS/upper,workdir=$LAYERS/work" layer "$LAYERS/root" || exit 99
for folder in "$(dirname "$1")" "$FILES"; do
    mkdir -p "$LAYERS/root$folder" && /bin/mount --bind "$folder" "$LAYERS/root$folder" || exit 99
done
/bin/mount -t proc proc "$LAYERS/root/proc" && exec chroot "$LAYERS/root" "$@"
