# shellcheck shell=bash
# Brings the QEMU of this host into a machine, whose root has none.
: "${here:?the folder of the lab script}"

# With its libraries and its firmware in one folder, as /root/qemu there. The libraries of the machine are others, so it
# is started by its own loader, which is in the folder as well.
lab_emulator() {
  local machine rest folder
  chosen "$@"
  no_more
  folder=$(mktemp -d)
  mkdir "$folder/qemu"
  collect_qemu "$folder/qemu"
  tar -cf "$folder/qemu.tar" -C "$folder" qemu
  lab_push -m "$machine" "$folder/qemu.tar"
  rm -rf "$folder"
  on_machine "$machine" "tar -xf /root/qemu.tar -C /root && rm /root/qemu.tar"
}

collect_qemu() { # the folder
  local program libraries file place
  program=$(command -v qemu-system-x86_64) || die "this host has no qemu-system-x86_64"
  libraries=$(ldd "$program" | grep -o '/[^ ]*')
  # Debian's emulates a processor by a module of its own.
  for file in /usr/lib/{x86_64-linux-gnu/,}qemu/accel-tcg-x86_64.so; do
    [ ! -f "$file" ] || libraries+=" $file"
  done
  # shellcheck disable=SC2086
  cp -L "$program" $libraries "$1"
  for file in bios-256k.bin kvmvapic.bin; do
    while read -r place; do
      [ ! -f "$place/$file" ] || cp -L "$place/$file" "$1"
    done < <("$program" -L help)
    [ -f "$1/$file" ] || die "the QEMU of this host has no $file"
  done
}
