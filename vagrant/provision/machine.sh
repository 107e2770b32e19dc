#!/usr/bin/env bash
# What only the QEMU lab needs: a fixed network, a quick start, the key that may log in. Runs as root
# in the chroot that becomes the VM's root. LAB_KEY is the public key.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive

echo lab >/etc/hostname
printf '127.0.0.1 localhost lab\n10.77.0.1 storage\n10.77.0.2 node\n' >/etc/hosts
echo '/dev/vda / ext4 defaults,noatime 0 1' >/etc/fstab

# eth0: the user network of QEMU. eth1: between the two machines of a pair.
mkdir -p /etc/systemd/network
printf '[Match]\nName=eth0\n[Network]\nAddress=10.0.2.15/24\nLinkLocalAddressing=no\n' \
  >/etc/systemd/network/10-eth0.network
printf '[Match]\nName=eth1\n[Network]\nLinkLocalAddressing=no\nConfigureWithoutCarrier=yes\n' \
  >/etc/systemd/network/20-eth1.network
systemctl enable systemd-networkd >/dev/null
systemctl disable systemd-networkd-wait-online.service >/dev/null 2>&1 || true

mkdir -p /root/.ssh /home/csi/.ssh
printf '%s\n' "$LAB_KEY" | tee /root/.ssh/authorized_keys >/home/csi/.ssh/authorized_keys
chmod 0700 /root/.ssh /home/csi/.ssh
chown -R csi:csi /home/csi/.ssh
ssh-keygen -A >/dev/null
printf 'PermitRootLogin prohibit-password\nUseDNS no\nMaxSessions 10\n' >/etc/ssh/sshd_config.d/lab.conf

# Nothing that wakes up by itself (the ZFS event daemon spins on an emulated processor), and nothing to
# wait for at start.
for unit in apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer man-db.timer \
  dpkg-db-backup.timer logrotate.timer e2scrub_reap.service zfs-zed.service; do
  systemctl mask "$unit" >/dev/null 2>&1 || true
done
mkdir -p /etc/systemd/journald.conf.d
printf '[Journal]\nStorage=volatile\n' >/etc/systemd/journald.conf.d/lab.conf
apt-get clean
rm -rf /var/lib/apt/lists/*
