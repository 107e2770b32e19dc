#!/usr/bin/env bash
# Makes this Debian machine a storage host: OpenZFS, NFS, SMB, LIO, nvmet, and SSH with a user who may
# only what a storage driver needs. Runs as root, in a chroot that becomes a VM or in a running
# machine; running it again changes nothing. The pool is made at first start, by lab-pool.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive

sed -i 's/^Components: main$/Components: main contrib/' /etc/apt/sources.list.d/*.sources 2>/dev/null || true
apt-get update -q
# Headers first: the ZFS module is compiled against them.
apt-get install -qy --no-install-recommends linux-headers-amd64
apt-get install -qy --no-install-recommends \
  zfs-dkms zfsutils-linux zfs-zed nfs-kernel-server nfs-common samba smbclient targetcli-fb \
  openssh-server sudo dbus acl attr e2fsprogs xfsprogs btrfs-progs

cat >/etc/modules-load.d/lab-storage.conf <<'MODULES'
zfs
nfsd
target_core_mod
target_core_iblock
target_core_file
iscsi_target_mod
nvmet
nvmet_tcp
MODULES

# After a restart clients may reclaim for this long, and new opens wait: short in the lab.
mkdir -p /etc/nfs.conf.d
cat >/etc/nfs.conf.d/lab.conf <<'NFS'
[nfsd]
grace-time=5
lease-time=5
threads=4
NFS

# `zfs set sharesmb` makes usershares.
mkdir -p /var/lib/samba/usershares
chgrp sambashare /var/lib/samba/usershares 2>/dev/null || { groupadd -f sambashare; chgrp sambashare /var/lib/samba/usershares; }
chmod 1770 /var/lib/samba/usershares
cat >/etc/samba/smb.conf <<'SMB'
[global]
workgroup = LAB
server role = standalone server
map to guest = Bad User
usershare path = /var/lib/samba/usershares
usershare max shares = 1000
usershare allow guests = yes
usershare owner only = no
disable netbios = yes
smb ports = 445
load printers = no
printing = bsd
printcap name = /dev/null
SMB

# root, and a user who gets there by sudo: both ways in which drivers log in.
id csi >/dev/null 2>&1 || useradd --create-home --shell /bin/bash csi
usermod -aG sambashare csi
cat >/etc/sudoers.d/csi <<'SUDO'
csi ALL=(root) NOPASSWD: /usr/sbin/zfs, /usr/sbin/zpool, /usr/bin/chmod, /usr/bin/chown, /usr/bin/setfacl, /usr/bin/targetcli, /usr/bin/sh
Defaults:csi !requiretty
SUDO
chmod 0440 /etc/sudoers.d/csi
# Samba users: `csi` with the password `lab-password`, for mounts with credentials.
(echo lab-password; echo lab-password) | smbpasswd -s -a csi >/dev/null

cat >/usr/local/sbin/lab-pool <<'POOL'
#!/bin/sh
# Makes the pool `tank` on the disk that is given, once.
set -eu
disk=${1:-/dev/vdb}
modprobe zfs
zpool list tank >/dev/null 2>&1 && exit 0
zpool import tank >/dev/null 2>&1 && exit 0
zpool create -f -o ashift=12 -O compression=lz4 -O atime=off -O mountpoint=/tank tank "$disk"
zfs create tank/csi
zfs create tank/csi/volumes
zfs create tank/csi/snapshots
POOL
chmod 0755 /usr/local/sbin/lab-pool
