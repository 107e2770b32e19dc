# shellcheck shell=bash
# Starts a machine of the lab again from its kernel on. Apart from machine.sh, which is part of the key of each
# kept machine.
: "${here:?the folder of the lab script}"

# As if its power was cut: what it had not written to its disks is gone.
lab_restart() {
  local machine rest before
  chosen "$@"
  [ "${#rest[@]}" -eq 0 ] || die "unknown: ${rest[*]}; a machine is named by -m"
  before=$(boot_of "$machine") || die "$machine does not answer"
  monitor "$machine" system_reset
  wait_for "SSH of $machine after its restart (see 'lab console $machine')" 600 booted_after "$machine" "$before"
  set_clock "$machine"
}

boot_of() { on_machine "$1" cat /proc/sys/kernel/random/boot_id; }

booted_after() { # machine, the boot before
  local now
  now=$(boot_of "$1") && [ "$now" != "$2" ]
}
