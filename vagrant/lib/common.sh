# shellcheck shell=bash
# What every part of the lab uses: messages, steps with a log, the cache.
: "${here:?the folder of the lab script}"

say() { printf '%s\n' "lab: $*" >&2; }
die() {
  say "$*"
  exit 1
}

# Runs one step; its output goes to a log that is shown when the step fails.
step() {
  local title=$1 log=$2 began=$SECONDS
  shift 2
  say "$title ..."
  if ! "$@" >"$log" 2>&1 </dev/null; then
    tail -n 40 "$log" >&2
    die "failed: $title. The whole log is $log"
  fi
  say "$title: done in $((SECONDS - began)) s"
}

cache_folder() {
  printf '%s\n' "${OMNIBUS_LAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/omnibus-csi/lab}"
}

# The folder of this lab: named by the content of what makes it.
state_folder() {
  local hash
  hash=$(cat "$here"/provision/*.sh "$here/lib/build.sh" | sha256sum | cut -c1-16)
  printf '%s/%s\n' "$(cache_folder)" "$hash"
}

# One at a time: two labs that are started at once must not both build. The lock goes with its shell,
# so what runs longer has to close it.
alone() {
  mkdir -p "$(cache_folder)"
  exec 9>"$(cache_folder)/.lock"
  flock -n 9 && return
  say "another lab is being built or started for the first time; waiting for it"
  flock -w 5400 9 || die "waited 90 minutes for another lab's build"
}

together() { exec 9>&-; }

need_root() {
  [ "$(id -u)" -eq 0 ] || die "needs root: it makes a root file system with debootstrap"
}

# Installs the programs that are missing, on Debian.
need_programs() {
  local missing=() pair
  for pair in debootstrap:debootstrap qemu-system-x86_64:qemu-system-x86 qemu-img:qemu-utils \
    mkfs.ext4:e2fsprogs ssh:openssh-client socat:socat; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
  done
  [ ${#missing[@]} -eq 0 ] && return
  command -v apt-get >/dev/null || die "install these first: ${missing[*]}"
  mkdir -p "$(cache_folder)"
  step "install ${missing[*]}" "$(cache_folder)/install.log" sh -c \
    "apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -qy --no-install-recommends ${missing[*]}"
}
