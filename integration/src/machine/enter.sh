# shellcheck shell=sh
set -e
place=$1
shift
root=$place/root
mkdir -p "$root"
mount -t tmpfs tmpfs "$root"
for entry in /*; do
    name=${entry#/}
    case $name in
    host | dev | etc | run | var) ;;
    *)
        if [ -L "$entry" ]; then
            cp -P "$entry" "$root/$name"
        elif [ -d "$entry" ]; then
            mkdir "$root/$name"
            mount --rbind "$entry" "$root/$name"
        fi
        ;;
    esac
done
mkdir "$root/run" "$root/var" "$root/dev"
cp -a /etc "$root/etc"
for node in null zero full random urandom tty fuse loop-control; do
    [ ! -e "/dev/$node" ] || cp -a "/dev/$node" "$root/dev/"
done
cp -a /dev/loop* "$root/dev/" 2>/dev/null || true
cp -a "$place/dev/." "$root/dev/"
[ -d "$root$place" ] || { mkdir -p "$root$place" && mount --bind "$place" "$root$place"; }
host=$root/host
mkdir -p "$host/usr" "$host/etc/iscsi" "$host/var/lib/iscsi" "$host/run/dbus/system_bus_socket" "$host/tmp" "$host$place"
mount --rbind /usr "$host/usr"
for name in bin sbin lib lib32 lib64; do
    if [ -L "/$name" ]; then
        cp -P "/$name" "$host/$name"
    elif [ -d "/$name" ]; then
        mkdir "$host/$name"
        mount --rbind "/$name" "$host/$name"
    fi
done
mount --bind "$place" "$host$place"
mount --bind "$place/here" "$root/usr/local/sbin"
mount --bind "$place/host" "$host/usr/local/sbin"
exec chroot "$root" "$@"
