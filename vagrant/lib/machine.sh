# shellcheck shell=bash
# Starts, saves, resets and stops the lab's machines under QEMU. A machine's state is a folder with
# its disks, its monitor socket, its process id and the port where SSH answers.

memory=${OMNIBUS_LAB_MEMORY:-3072}

machine_folder() { printf '%s/%s\n' "$(state_folder)" "$1"; }

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

on_machine() {
  local machine=$1 folder
  shift
  folder=$(machine_folder "$machine")
  ssh -q -i "$(state_folder)/key" -p "$(cat "$folder/port")" -o BatchMode=yes -o ConnectTimeout=5 \
    -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ServerAliveInterval=15 \
    root@127.0.0.1 "$@"
}

start_qemu() {
  local machine=$1 folder port accel=tcg,thread=multi cpu=max
  folder=$(machine_folder "$machine")
  port=$(free_port)
  echo "$port" >"$folder/port"
  kvm_works && accel=kvm cpu=host
  local link=("-netdev" "hubport,hubid=0,id=between")
  if [ -f "$(state_folder)/pair" ]; then
    link=("-netdev" "socket,id=between,$([ "$machine" = storage ] && echo listen || echo connect)=127.0.0.1:$(cat "$(state_folder)/pair")")
  fi
  rm -f "$folder/monitor"
  setsid qemu-system-x86_64 -accel "$accel" -cpu "$cpu" -smp 2 -m "$memory" -M q35 -display none \
    -kernel "$(state_folder)/vmlinuz" -initrd "$(state_folder)/initrd" \
    -append "root=/dev/vda rw console=ttyS0 quiet net.ifnames=0 mitigations=off" \
    -drive "file=$folder/root.qcow2,if=virtio,cache=unsafe,discard=unmap" \
    -drive "file=$folder/pool.qcow2,if=virtio,cache=unsafe,discard=unmap" \
    -netdev "user,id=outside,restrict=on,hostfwd=tcp:127.0.0.1:$port-:22" \
    -device virtio-net-pci,netdev=outside "${link[@]}" -device virtio-net-pci,netdev=between \
    -object rng-random,filename=/dev/urandom,id=rng -device virtio-rng-pci,rng=rng \
    -serial "file:$folder/console" -monitor "unix:$folder/monitor,server=on,wait=off" \
    -pidfile "$folder/pid" "${@:2}" >"$folder/qemu.log" 2>&1 </dev/null &
  wait_for "the monitor of $machine" 20 test -S "$folder/monitor"
}

make_disks() {
  local folder
  folder=$(machine_folder "$1")
  mkdir -p "$folder"
  qemu-img create -q -f qcow2 -F qcow2 -b ../root.qcow2 "$folder/root.qcow2"
  qemu-img create -q -f qcow2 "$folder/pool.qcow2" 8G
}

# First start: from the kernel on, make the pool, then save the running machine.
first_start() {
  local machine=$1 folder address=10.77.0.1
  [ "$machine" = node ] && address=10.77.0.2
  folder=$(machine_folder "$machine")
  rm -f "$folder"/*.qcow2
  make_disks "$machine"
  start_qemu "$machine"
  wait_for "SSH of $machine (see 'lab console $machine')" 400 on_machine "$machine" true
  on_machine "$machine" "hostnamectl set-hostname $machine; ip link set eth1 up; ip addr replace $address/24 dev eth1
    systemctl is-system-running --wait >/dev/null || true
    lab-pool /dev/vdb && systemctl start nfs-server smbd open-iscsi multipathd && sync"
  monitor "$machine" "savevm ready"
  monitor "$machine" "info snapshots" | grep -q ready || die "the state of $machine could not be saved"
  touch "$folder/saved"
}

start() {
  local machine=$1 folder
  folder=$(machine_folder "$machine")
  running "$machine" && return
  if [ -f "$folder/saved" ]; then
    start_qemu "$machine" -loadvm ready
    if (wait_for "SSH of $machine" 60 on_machine "$machine" true); then
      clock "$machine"
      return
    fi
    say "the saved state of $machine does not answer; starting it anew"
    stop "$machine"
    rm -f "$folder/saved"
  fi
  step "start $machine for the first time (two minutes without KVM)" "$(state_folder)/$machine.log" \
    first_start "$machine"
}

# A resumed machine believes in the time at which it was saved.
clock() { on_machine "$1" "date -s @$(date +%s) >/dev/null"; }

stop() {
  local pid folder
  folder=$(machine_folder "$1")
  pid=$(cat "$folder/pid" 2>/dev/null) || return 0
  kill "$pid" 2>/dev/null || true
  wait_for "the end of $1" 20 sh -c "! kill -0 $pid"
  rm -f "$folder/pid" "$folder/monitor"
}

machines() {
  echo storage
  [ ! -f "$(state_folder)/pair" ] || echo node
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
  need_programs
  build
  local pair machine
  pair=$(state_folder)/pair
  if [ "${1:-}" = --pair ]; then
    # The saved state of a machine alone has another network card than one of a pair.
    [ -f "$pair" ] || { lab_down; rm -f "$(machine_folder storage)/saved"; free_port >"$pair"; }
  elif [ -f "$pair" ]; then
    lab_down
    rm -f "$(machine_folder storage)/saved" "$pair"
  fi
  for machine in $(machines); do start "$machine"; done
  lab_status
}

lab_down() {
  for machine in storage node; do stop "$machine"; done
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

lab_reset() {
  local machine
  for machine in $(machines); do
    running "$machine" || die "$machine does not run: 'lab up' starts it"
    monitor "$machine" "loadvm ready"
  done
  for machine in $(machines); do
    wait_for "SSH of $machine" 60 on_machine "$machine" true
    clock "$machine"
  done
}

lab_run() {
  local machine rest
  chosen "$@"
  [ ${#rest[@]} -gt 0 ] || die "what shall be run? lab run -- COMMAND"
  # Each argument arrives as it is: ssh joins them and a shell splits them again.
  on_machine "$machine" "$(printf '%q ' "${rest[@]}")"
}

lab_push() {
  local machine rest
  chosen "$@"
  tar -cf - --transform 's,.*/,,' -P -- "${rest[@]}" | on_machine "$machine" "tar -xf - -C /root"
}

lab_shell() {
  local machine=${1:-storage}
  running "$machine" || die "$machine does not run: 'lab up' starts it"
  ssh -t -i "$(state_folder)/key" -p "$(cat "$(machine_folder "$machine")/port")" \
    -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -q root@127.0.0.1
}

lab_cut() { monitor node "set_link between off"; }
lab_join() { monitor node "set_link between on"; }
lab_console() { cat "$(machine_folder "${1:-storage}")/console"; }
