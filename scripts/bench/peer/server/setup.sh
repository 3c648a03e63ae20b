# Builds llama-server of the pinned llama.cpp against its prebuilt libraries, once, into the cache directory. Sourced by
# ../../peer_server after ../setup.sh. Interrupted builds go on where they stopped.
PEER_SERVER=$PEER_HOME/lib/llama-server  # beside the libraries, where it looks for its backends

peer_server_source() {
  local work; work=$(mktemp -d "$PEER_DIR/fetch.XXXXXX")
  peer_fetch node-llama-cpp "$work"
  git clone --quiet "$work/package/llama/gitRelease.bundle" "$work/source" 2>/dev/null || die "the source in node-llama-cpp could not be unpacked"
  cp "$1" "$work/source/CMakeLists.txt"
  rm -rf "$PEER_HOME/server"
  mkdir "$PEER_HOME/server"
  mv "$work/source" "$PEER_HOME/server/source"
  rm -rf "$work"
}

# peer_server_setup: afterwards $PEER_SERVER exists.
peer_server_setup() {
  [ -x "$PEER_SERVER" ] && return 0
  local tool here; here=$(dirname "${BASH_SOURCE[0]}")
  for tool in npm git g++ cmake ninja sha512sum; do command -v "$tool" >/dev/null || die "$tool not found: needed to build llama-server"; done
  mkdir -p "$PEER_DIR"
  [ -d "$PEER_HOME/lib" ] || peer_download
  [ -d "$PEER_HOME/server/source" ] || { say "fetching the source of llama.cpp"; peer_server_source "$here/CMakeLists.txt"; }
  say "building llama-server (some minutes)"
  local log=$PEER_HOME/server/build.log launcher=()
  command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_C_COMPILER_LAUNCHER=ccache)
  { cmake -S "$PEER_HOME/server/source" -B "$PEER_HOME/server/build" -G Ninja -DCMAKE_BUILD_TYPE=Release "-DLLAMA_LIBRARIES=$PEER_HOME/lib" \
      -DCMAKE_CXX_FLAGS=-w -DCMAKE_C_FLAGS=-w "${launcher[@]}" && nice cmake --build "$PEER_HOME/server/build" -j "$JOBS" --target llama-server
  } >"$log" 2>&1 || { tail -5 "$log" >&2; die "llama-server was not built (log: $log)"; }
  mv "$PEER_HOME/server/build/bin/llama-server" "$PEER_SERVER"
  rm -rf "$PEER_HOME/server"
}
