#!/usr/bin/env bash
# Makes this Debian machine a node: the initiators and helpers that a CSI node plugin calls. Runs as
# root, in a chroot that becomes a VM or in a running machine; running it again changes nothing.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive

apt-get update -q
apt-get install -qy --no-install-recommends \
  open-iscsi nvme-cli nfs-common cifs-utils multipath-tools kpartx keyutils \
  e2fsprogs xfsprogs btrfs-progs dosfstools exfatprogs ntfs-3g fdisk fatresize \
  cloud-guest-utils util-linux udev acl attr nftables

# What tests let write to volumes: a generator of load that checks what it reads, and a database that knows its own
# pages. No database of the machine's own.
mkdir -p /etc/postgresql-common
echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
apt-get install -qy --no-install-recommends fio postgresql
systemctl disable postgresql.service >/dev/null 2>&1 || true

cat >/etc/modules-load.d/lab-node.conf <<'MODULES'
iscsi_tcp
nvme_tcp
nfs
cifs
dm_multipath
xfs
btrfs
MODULES

# Maps only for what really has several paths.
cat >/etc/multipath.conf <<'MULTIPATH'
defaults {
    user_friendly_names yes
    find_multipaths yes
}
blacklist {
    devnode "^vd[a-z]"
}
MULTIPATH
