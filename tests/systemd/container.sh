# A throwaway Debian container with systemd as its first process. Sourced by run.
#
# The root file system is made once with debootstrap and then only read: every boot puts a memory overlay on top, so
# whatever a test does inside is gone afterwards. The container has its own network (loopback only) and is not registered
# with the host's service manager; commands enter it through its namespaces.
#
# Needs: WORK (scratch directory), CACHE (kept between runs), skip (function: message, ends the test as skipped).
# shellcheck shell=bash

LEADER=
NSPAWN=
CGROUPS=()

# Debian packages that hold the shared libraries of the given programs.
library_packages() {
  local library real
  for library in $(ldd "$@" | awk '/=> \//{print $3}' | sort -u); do
    real=$(readlink -f "$library")
    # Merged /usr: the package may list the file under either name.
    dpkg -S "$real" 2>/dev/null || dpkg -S "${real#/usr}" 2>/dev/null || dpkg -S "/usr$real" 2>/dev/null ||
      { echo "no Debian package owns $real" >&2; return 1; }
  done | cut -d: -f1 | sort -u
}

# make_root PACKAGE...: $CACHE/root holds a Debian of this machine's release with those packages.
make_root() {
  local suite packages
  suite=$(. /etc/os-release && [ "${ID:-}" = debian ] && echo "${VERSION_CODENAME:-}") || true
  [ -n "$suite" ] || skip "the container is made from the release that built weft, and this is not Debian"
  packages=$(IFS=,; echo "$*")
  if [ -d "$CACHE/root" ] && [ "$(cat "$CACHE/root.made" 2>/dev/null)" = "$suite $packages" ]; then
    return 0
  fi
  echo "making a Debian $suite root in $CACHE/root (once; takes some minutes)"
  rm -rf --one-file-system "$CACHE/root" "$CACHE/root.part" "$CACHE/root.made"
  debootstrap --variant=minbase --include="$packages" "$suite" "$CACHE/root.part" \
    "${WEFT_DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$CACHE/debootstrap.log" 2>&1 ||
    { tail -5 "$CACHE/debootstrap.log"; skip "debootstrap failed (log: $CACHE/debootstrap.log; is the network up?)"; }
  rm -rf "$CACHE/root.part/var/cache/apt/archives/"*.deb
  mv "$CACHE/root.part" "$CACHE/root"
  echo "$suite $packages" >"$CACHE/root.made"
}

# Control groups of its own for the container, where this machine lets us make them: nothing of it stays in ours.
make_cgroups() {
  local line base path
  while IFS= read -r line; do
    path=${line#*:*:}
    case $line in
      0::*) base=$(awk '$3 == "cgroup2" {print $2; exit}' /proc/mounts) ;;
      *:name=systemd:*) base=$(awk '$3 == "cgroup" && $4 ~ /name=systemd/ {print $2; exit}' /proc/mounts) ;;
      *) continue ;;
    esac
    [ -n "$base" ] || continue
    mkdir "${base}${path%/}/weft-test-$$" 2>/dev/null && CGROUPS+=("${base}${path%/}/weft-test-$$")
  done </proc/self/cgroup
}

# First process of the container: the child of nspawn that is number 1 in its own namespace.
find_leader() {
  local child
  for child in $(cat "/proc/$NSPAWN/task/$NSPAWN/children" 2>/dev/null); do
    if [ "$(awk '/^NSpid:/{print $NF}' "/proc/$child/status" 2>/dev/null)" = 1 ]; then
      LEADER=$child
      return 0
    fi
  done
  return 1
}

# boot STAGE: starts the container, with the directory STAGE visible inside as /stage, and waits for its systemd.
boot() {
  make_cgroups
  (
    for group in "${CGROUPS[@]}"; do echo "$BASHPID" >"$group/cgroup.procs"; done
    # Should this script be killed, the container is told to shut down.
    exec setpriv --pdeathsig TERM systemd-nspawn --quiet --settings=no -D "$CACHE/root" --volatile=overlay --boot \
      --register=no --keep-unit --private-network --link-journal=no --resolv-conf=off --timezone=off \
      --console=pipe --machine="weft-test-$$" --bind-ro="$1:/stage"
  ) </dev/null >"$WORK/console.log" 2>&1 9>&- &
  NSPAWN=$!
  if ! wait_until 60 find_leader || ! wait_until 60 inside test -S /run/systemd/private; then
    tail -20 "$WORK/console.log"
    skip "a systemd container does not boot on this machine"
  fi
  local state
  state=$(inside timeout 60 systemctl is-system-running --wait) || true
  [ "$state" = running ] || { inside systemctl --failed --no-pager; skip "the container's systemd says: ${state:-nothing}"; }
}

# inside COMMAND...: runs it as root in the container.
inside() {
  timeout -k 5 300 nsenter -t "$LEADER" -a -- /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb \
    LC_ALL=C.UTF-8 "$@"
}

# Ends the container that boot started, and only that.
shut_down() {
  if [ -n "$NSPAWN" ]; then
    kill -TERM "$NSPAWN" 2>/dev/null || true
    if ! wait_until 20 gone "$NSPAWN"; then
      [ -z "$LEADER" ] || kill -KILL "$LEADER" 2>/dev/null || true
      kill -KILL "$NSPAWN" 2>/dev/null || true
    fi
    wait "$NSPAWN" 2>/dev/null || true
    NSPAWN=
  fi
  local group
  for group in "${CGROUPS[@]}"; do
    find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
  done
}

gone() {
  [ ! -d "/proc/$1" ] || grep -q '^State:[[:space:]]*Z' "/proc/$1/status" 2>/dev/null
}

# wait_until SECONDS COMMAND...: polls until the command succeeds; fails when the time is over.
wait_until() {
  local end=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || return 1
    sleep 0.1
  done
}
