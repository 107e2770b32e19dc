# shellcheck shell=bash
# Pauses a machine of the lab, or starts it again from its kernel on. Apart from machine.sh, which is part of the key of
# each kept machine.
: "${here:?the folder of the lab script}"

# Its processors stand still. It answers nothing, and when it goes on it knows nothing of that time.
lab_pause() {
  local machine rest
  chosen "$@"
  no_more
  monitor "$machine" stop
  monitor "$machine" "info status" | grep -q paused || die "$machine was not paused"
}

lab_resume() {
  local machine rest
  chosen "$@"
  no_more
  monitor "$machine" cont
  monitor "$machine" "info status" | grep -q running || die "$machine does not go on"
}

# A machine that is paused stays so in the state to which it is put back.
lab_resume_all() {
  local machine
  for machine in $(machines); do
    ! running "$machine" || monitor "$machine" cont
  done
}

# As if its power was cut, for so long: what it had not written to its disks is gone.
lab_restart() {
  local machine rest before off=0
  chosen "$@"
  if [ "${rest[0]:-}" = --off ]; then
    off=${rest[1]:-}
    rest=("${rest[@]:2}")
  fi
  case $off in '' | *[!0-9]*) die "--off takes seconds" ;; esac
  no_more
  before=$(boot_of "$machine") || die "$machine does not answer"
  # Before it is paused: a pause lets its disks end what they do. After the reset it stands in its firmware.
  monitor "$machine" system_reset
  if [ "$off" -gt 0 ]; then
    monitor "$machine" stop
    read -rt "$off" <> <(:) || true
    monitor "$machine" cont
  fi
  wait_for "SSH of $machine after its restart (see 'lab console $machine')" 600 booted_after "$machine" "$before"
  set_clock "$machine"
}

# After `chosen`: nothing is left of the arguments.
no_more() { [ "${#rest[@]}" -eq 0 ] || die "unknown: ${rest[*]}; a machine is named by -m"; }

boot_of() { on_machine "$1" cat /proc/sys/kernel/random/boot_id; }

booted_after() { # machine, the boot before
  local now
  now=$(boot_of "$1") && [ "$now" != "$2" ]
}
