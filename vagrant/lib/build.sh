# shellcheck shell=bash
# Builds the root of the lab's machines once: debootstrap, kernel, the provisioning scripts of this
# folder, one image. The result depends on nothing but these scripts and Debian's packages.
: "${here:?the folder of the lab script}"

suite=trixie

# The mirror that this host itself uses.
mirror() {
  local found
  found=$(sed -nE 's/^URIs: *(https?:[^ ]*debian)\/?$/\1/p; s/^deb (\[[^]]*\] )?(https?:[^ ]*debian)\/? .*/\2/p' \
    /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -v security | head -n 1)
  printf '%s\n' "${OMNIBUS_LAB_MIRROR:-${found:-http://deb.debian.org/debian}}"
}

in_chroot() {
  chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
    DEBIAN_FRONTEND=noninteractive LAB_KEY="${LAB_KEY:-}" "${@:2}"
}

leave_chroot() {
  local root=$1 mount
  for mount in proc sys dev; do
    mountpoint -q "$root/$mount" && umount -R "$root/$mount"
  done
  return 0
}

provision() {
  local root=$1 script=$2
  install -m 0755 "$here/provision/$script.sh" "$root/root/$script.sh"
  in_chroot "$root" "/root/$script.sh"
  rm -f "$root/root/$script.sh"
}

install_kernel() {
  local root=$1
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
  chmod 0755 "$root/usr/sbin/policy-rc.d"
  in_chroot "$root" apt-get update -q
  # Modules that load without being unpacked first: a start is much quicker that way.
  in_chroot "$root" apt-get install -qy --no-install-recommends linux-image-amd64 zstd
}

make_image() {
  local root=$1 target=$2
  rm -f "$root/usr/sbin/policy-rc.d"
  cp "$root"/boot/vmlinuz-* "$target/vmlinuz"
  cp "$root"/boot/initrd.img-* "$target/initrd"
  sed 's/^/[127.0.0.1]:* /' "$root"/etc/ssh/ssh_host_ed25519_key.pub >"$target/known_hosts"
  truncate -s 6G "$target/root.raw"
  mkfs.ext4 -q -F -L lab-root -d "$root" "$target/root.raw"
  qemu-img convert -q -O qcow2 "$target/root.raw" "$target/root.qcow2"
  rm -f "$target/root.raw"
}

# Builds into a folder aside, which gets its name when everything is there.
build() {
  local final making root
  final=$(state_folder)
  [ -f "$final/root.qcow2" ] && return
  need_root
  making=$final.making
  leave_chroot "$making/root"
  rm -rf "$making"
  mkdir -p "$making/root"
  root=$making/root
  ssh-keygen -q -t ed25519 -N '' -C lab -f "$making/key"
  trap 'leave_chroot "'"$root"'"' EXIT
  step "make the root of a $suite machine" "$making/debootstrap.log" \
    debootstrap --variant=minbase --components=main,contrib \
    --include=systemd-sysv,udev,kmod,iproute2,openssh-server,ca-certificates,dbus "$suite" "$root" "$(mirror)"
  mkdir -p "$root/proc" "$root/sys" "$root/dev"
  mount -t proc proc "$root/proc"
  mount --rbind --make-rslave /dev "$root/dev"
  step "install a kernel" "$making/kernel.log" install_kernel "$root"
  step "make it a storage host (compiles the ZFS module, some minutes)" "$making/storage.log" \
    provision "$root" storage
  step "make it a node" "$making/node.log" provision "$root" node
  LAB_KEY=$(cat "$making/key.pub") step "make it start quickly" "$making/machine.log" \
    provision "$root" machine
  leave_chroot "$root"
  trap - EXIT
  step "make the image" "$making/image.log" make_image "$root" "$making"
  rm -rf "$root"
  mv "$making" "$final"
}
