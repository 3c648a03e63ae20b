# Shared by the scripts here: where things are, and how to say what is going on. Sourced, not run.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
JOBS=${JOBS:-$(nproc)}
export CLICOLOR_FORCE=0

say() { printf '\033[1m== %s\033[0m\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else die "installing packages needs root: run as root or install sudo"; fi
}

# Installs the Debian packages among the arguments that are missing.
need_packages() {
  command -v apt-get >/dev/null || die "apt-get not found: weft builds on Debian 12 or newer; install these packages yourself: $*"
  local missing=()
  for p in "$@"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
  done
  [ ${#missing[@]} = 0 ] && return 0
  say "installing ${#missing[@]} Debian packages: ${missing[*]}"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null 2>"${TMPDIR:-/tmp}/weft-apt.$$" ||
    { say "refreshing package lists"; as_root apt-get update -qq &&
      as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; } ||
    die "apt-get could not install: ${missing[*]} (is the network up and are Debian's main packages enabled?)"
  rm -f "${TMPDIR:-/tmp}/weft-apt.$$"
}

# configure_and_build PRESET [TARGET...]
configure_and_build() {
  local preset=$1; shift
  local launcher=()
  command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_C_COMPILER_LAUNCHER=ccache)
  (cd "$ROOT" && cmake --preset "$preset" "${launcher[@]}" >"$ROOT/build/$preset.configure.log" 2>&1) ||
    { tail -20 "$ROOT/build/$preset.configure.log" >&2; die "configuring build/$preset failed (log: build/$preset.configure.log)"; }
  cmake --build "$ROOT/build/$preset" -j "$JOBS" ${1:+--target "$@"} || die "building build/$preset failed"
}
mkdir -p "$ROOT/build"
