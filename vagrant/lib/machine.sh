# shellcheck shell=bash
# Starts, saves, resets and stops the lab's machines under QEMU. A machine is a folder with its disks,
# its monitor socket, its process id and the port where SSH answers. Its first start is kept, as disks
# with a saved state in them, and every later machine of any instance begins as a copy of that.
: "${here:?the folder of the lab script}"

memory=${OMNIBUS_LAB_MEMORY:-3072}
instance=${OMNIBUS_LAB_INSTANCE:-}
case $instance in *[!a-z0-9]*) die "OMNIBUS_LAB_INSTANCE is lower-case letters and digits" ;; esac

# A name in the folder of this lab that belongs to this instance alone.
own() { printf '%s/%s%s\n' "$(state_folder)" "${instance:+$instance-}" "$1"; }

machine_folder() { own "$1"; }

pair_file() { own pair; }

paired() { [ -f "$(pair_file)" ]; }

# Where the first start of a machine is kept: a saved state fits only the QEMU and the devices with
# which it was made.
kept_folder() {
  local key
  key=$({
    qemu-system-x86_64 --version
    cat "$here/lib/machine.sh"
    printf '%s %s ' "$memory" "$1"
    kvm_works && echo kvm
    true
  } | sha256sum | cut -c 1-12)
  printf '%s/kept-%s%s-%s\n' "$(state_folder)" "$1" "$(paired && echo -pair)" "$key"
}

running() {
  local pid
  pid=$(cat "$(machine_folder "$1")/pid" 2>/dev/null) && kill -0 "$pid" 2>/dev/null
}

# A line for the monitor of a machine; prints what it answers.
monitor() {
  printf '%s\n' "$2" | socat -t 120 - "UNIX-CONNECT:$(machine_folder "$1")/monitor" |
    tr -d '\r' | sed -n '/^(qemu)/!p' | tail -n +2
}

# Waits until a condition holds, at most so many seconds.
wait_for() {
  local what=$1 limit=$2 began=$SECONDS
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ $((SECONDS - began)) -lt "$limit" ] || die "waited $limit s in vain: $what"
    read -rt 0.2 <> <(:) || true
  done
}

# A free port of the loopback.
free_port() {
  local port
  for port in $(shuf -i 20000-40000 -n 50); do
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || {
      printf '%s\n' "$port"
      return
    }
  done
  die "no free port"
}

# Whether a kernel really starts under KVM here; a device alone proves nothing.
kvm_works() {
  case ${OMNIBUS_LAB_KVM:-auto} in
    yes) return 0 ;;
    no) return 1 ;;
  esac
  local verdict
  verdict=$(state_folder)/kvm
  if [ ! -f "$verdict" ]; then
    if [ -w /dev/kvm ] && timeout 20 qemu-system-x86_64 -accel kvm -cpu host -m 512 -nographic \
      -no-reboot -kernel "$(state_folder)/vmlinuz" -append "console=ttyS0 panic=-1" 2>/dev/null </dev/null |
      grep -qm1 'Linux version'; then
      echo yes >"$verdict"
    else
      echo no >"$verdict"
    fi
  fi
  grep -q yes "$verdict"
}

# The key exchange is the one that costs an emulated processor least.
ssh_options=(-q -o KexAlgorithms=curve25519-sha256 -o StrictHostKeyChecking=no
  -o UserKnownHostsFile=/dev/null -o ConnectTimeout=10 -o ServerAliveInterval=15)

on_machine() {
  local machine=$1
  shift
  ssh "${ssh_options[@]}" -i "$(state_folder)/key" -p "$(cat "$(machine_folder "$machine")/port")" \
    -o BatchMode=yes root@127.0.0.1 "$@"
}

start_qemu() {
  local machine=$1 folder port accel=tcg,thread=multi cpu=max
  folder=$(machine_folder "$machine")
  port=$(free_port)
  echo "$port" >"$folder/port"
  kvm_works && accel=kvm cpu=host
  # Without a pair the second card has an empty network: a card whose queue nothing reads makes the kernel warn.
  local link=("-netdev" "user,id=between,restrict=on,net=10.78.0.0/24")
  if paired; then
    link=("-netdev" "socket,id=between,$([ "$machine" = storage ] && echo listen || echo connect)=127.0.0.1:$(cat "$(pair_file)")")
  fi
  local kernel="root=/dev/vda rw console=ttyS0 quiet net.ifnames=0 mitigations=off"
  # At random addresses an emulator translates a program anew at each start of it, which is more than half
  # of its work; and it writes slowly the zeroes that no program reads.
  kvm_works || kernel+=" norandmaps init_on_alloc=0"
  # An emulated kernel now and then dies at its start, while it changes its own code. It starts again then.
  kernel+=" panic=-1"
  rm -f "$folder/monitor"
  setsid qemu-system-x86_64 -accel "$accel" -cpu "$cpu" -smp 2 -m "$memory" -M q35 -display none \
    -kernel "$(state_folder)/vmlinuz" -initrd "$(state_folder)/initrd" \
    -append "$kernel" \
    -drive "file=$folder/root.qcow2,if=virtio,cache=unsafe,discard=unmap" \
    -drive "file=$folder/pool.qcow2,if=virtio,cache=unsafe,discard=unmap" \
    -drive "file=$folder/mail.raw,if=virtio,format=raw,readonly=on" \
    -netdev "user,id=outside,restrict=on,hostfwd=tcp:127.0.0.1:$port-:22" \
    -device virtio-net-pci,netdev=outside "${link[@]}" -device virtio-net-pci,netdev=between \
    -object rng-random,filename=/dev/urandom,id=rng -device virtio-rng-pci,rng=rng \
    -serial "file:$folder/console" -monitor "unix:$folder/monitor,server=on,wait=off" \
    -pidfile "$folder/pid" "${@:2}" >"$folder/qemu.log" 2>&1 </dev/null 9>&- &
  wait_for "the monitor of $machine" 20 test -S "$folder/monitor"
}

make_disks() {
  local folder
  folder=$(machine_folder "$1")
  rm -rf "$folder"
  mkdir -p "$folder"
  qemu-img create -q -f qcow2 -F qcow2 -b ../root.qcow2 "$folder/root.qcow2"
  qemu-img create -q -f qcow2 "$folder/pool.qcow2" 8G
  truncate -s "$mail_size" "$folder/mail.raw"
}

# First start: from the kernel on, make the pool, then keep the running machine.
first_start() {
  local machine=$1 folder address=10.77.0.1 kept=$2
  [ "$machine" = node ] && address=10.77.0.2
  folder=$(machine_folder "$machine")
  make_disks "$machine"
  start_qemu "$machine"
  wait_for "SSH of $machine (see 'lab console $machine')" 600 on_machine "$machine" true
  # networkd has the address, too: it removes those that it does not know when it starts again.
  on_machine "$machine" "hostnamectl set-hostname $machine; mkdir -p /etc/systemd/network/20-eth1.network.d
    printf '[Network]\\nAddress=$address/24\\n' >/etc/systemd/network/20-eth1.network.d/address.conf
    networkctl reload && networkctl reconfigure eth1
    systemctl is-system-running --wait >/dev/null || true
    lab-pool /dev/vdb && systemctl start nfs-server smbd open-iscsi multipathd && sync"
  monitor "$machine" "savevm ready"
  monitor "$machine" "info snapshots" | grep -q ready || die "the state of $machine could not be saved"
  stop "$machine"
  rm -rf "$kept.making"
  mkdir "$kept.making"
  mv "$folder/root.qcow2" "$folder/pool.qcow2" "$kept.making"
  # Those of other versions of this script or of QEMU fit nothing any more.
  rm -rf "${kept%-*}"-????????????
  mv "$kept.making" "$kept"
}

start() {
  local machine=$1 folder kept
  folder=$(machine_folder "$machine")
  running "$machine" && return
  kept=$(kept_folder "$machine")
  if [ ! -d "$kept" ]; then
    alone
    [ -d "$kept" ] || step "start $machine for the first time (two minutes without KVM)" \
      "$(own "$machine.log")" first_start "$machine" "$kept"
    together
  fi
  make_disks "$machine"
  cp --sparse=always --reflink=auto "$kept"/*.qcow2 "$folder/"
  start_qemu "$machine" -loadvm ready
  # A resumed machine believes in the time at which it was saved.
  if ! (wait_for "SSH of $machine" 120 set_clock "$machine"); then
    rm -rf "$kept"
    die "the saved state of $machine does not answer, and is removed: 'lab up' again makes it anew"
  fi
}

set_clock() { on_machine "$1" "date -s @$(date +%s) >/dev/null"; }

stop() {
  local pid folder
  folder=$(machine_folder "$1")
  pid=$(cat "$folder/pid" 2>/dev/null) || return 0
  kill "$pid" 2>/dev/null || true
  wait_for "the end of $1" 20 sh -c "! kill -0 $pid"
  rm -f "$folder/pid" "$folder/monitor" "$folder/port"
}

machines() {
  echo storage
  ! paired || echo node
}

# The machine that an option `-m MACHINE` names; the rest is left in `rest`.
chosen() {
  machine=storage
  if [ "${1:-}" = -m ]; then
    machine=$2
    shift 2
  fi
  [ "${1:-}" != -- ] || shift
  rest=("$@")
  running "$machine" || die "$machine does not run: 'lab up' starts it"
}

lab_up() {
  local pair machine
  need_programs
  alone
  build
  together
  pair=$(pair_file)
  if [ "${1:-}" = --pair ]; then
    paired || { lab_down; free_port >"$pair"; }
  elif paired; then
    lab_down
    rm -f "$pair"
  fi
  for machine in $(machines); do start "$machine"; done
  lab_status
}

lab_down() {
  local machine
  for machine in storage node; do
    stop "$machine"
    # The logs stay, for a later inspection.
    rm -f "$(machine_folder "$machine")"/*.qcow2 "$(machine_folder "$machine")/mail.raw"
  done
}

lab_status() {
  local machine
  for machine in $(machines); do
    if running "$machine"; then
      say "$machine runs, SSH at 127.0.0.1:$(cat "$(machine_folder "$machine")/port") with the key $(state_folder)/key"
    else
      say "$machine does not run"
    fi
  done
}

state_name() {
  case $1 in '' | *[!a-z0-9-]*) die "a state's name is lower-case letters, digits and dashes" ;; esac
}

lab_save() {
  local machine
  state_name "${1:-}"
  [ "$1" != ready ] || die "'ready' is the state of the start"
  for machine in $(machines); do
    running "$machine" || die "$machine does not run: 'lab up' starts it"
    monitor "$machine" "savevm $1"
    monitor "$machine" "info snapshots" | grep -qw -- "$1" || die "the state of $machine could not be saved"
  done
}

lab_reset() {
  local machine to=${1:-ready}
  state_name "$to"
  for machine in $(machines); do
    running "$machine" || die "$machine does not run: 'lab up' starts it"
    monitor "$machine" "info snapshots" | grep -qw -- "$to" || die "$machine has no state called $to"
    monitor "$machine" "loadvm $to"
  done
  for machine in $(machines); do
    wait_for "SSH of $machine" 120 set_clock "$machine"
  done
}

lab_run() {
  local machine rest
  chosen "$@"
  [ ${#rest[@]} -gt 0 ] || die "what shall be run? lab run -- COMMAND"
  # Each argument arrives as it is: ssh joins them and a shell splits them again.
  on_machine "$machine" "$(printf '%q ' "${rest[@]}")"
}

# Files go through a disk that the machine can only read: an emulated processor takes minutes to
# decrypt what is read from a disk in a second.
mail_size=1G

lab_push() {
  local machine rest mail blocks
  chosen "$@"
  [ ${#rest[@]} -gt 0 ] || die "what shall be copied? lab push FILE ..."
  mail=$(machine_folder "$machine")/mail.raw
  if [ ! -f "$mail" ]; then
    tar -cf - --transform 's,.*/,,' -P -- "${rest[@]}" | on_machine "$machine" "tar -xf - -C /root"
    return
  fi
  tar -cf "$mail.tar" --transform 's,.*/,,' -P -- "${rest[@]}"
  blocks=$(($(stat -c %s "$mail.tar") / 1048576 + 1))
  [ "$blocks" -le 1024 ] || die "more than 1 GiB at once is too much"
  dd if="$mail.tar" of="$mail" bs=1M conv=notrunc status=none
  rm -f "$mail.tar"
  # Not from the machine's own cache, where the mail of before may be.
  on_machine "$machine" "dd if=/dev/vdc bs=1M count=$blocks iflag=direct status=none | tar -xf - -C /root"
}

lab_shell() {
  local machine=${1:-storage}
  running "$machine" || die "$machine does not run: 'lab up' starts it"
  ssh -t "${ssh_options[@]}" -i "$(state_folder)/key" -p "$(cat "$(machine_folder "$machine")/port")" root@127.0.0.1
}

lab_path() { if [ -n "${1:-}" ]; then machine_folder "$1"; else state_folder; fi; }
lab_cut() { monitor node "set_link between off"; }
lab_join() { monitor node "set_link between on"; }
lab_console() { cat "$(machine_folder "${1:-storage}")/console"; }
