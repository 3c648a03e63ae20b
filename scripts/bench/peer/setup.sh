# Brings llama.cpp into the cache directory: prebuilt CPU libraries and public headers at one pinned version, and our driver
# compiled against them. Sourced by ../peer_llamacpp; nothing is installed anywhere else.
PEER_VERSION=3.21.1  # of the npm packages; the llama.cpp inside is v0.4.0
declare -A PEER_SHA512=(
  [node-llama-cpp]=13737412fd956b4c33c9dbd7605c0cf47bf2a34ecfa168edf13ffd18c738dc2bedf18915fcd53fb5852010c0b582b4cfbf6a3d3d18d08b41b759be4ffdac2232
  [@node-llama-cpp/linux-x64]=4e8b63e914c3306a371682b6c8d51acffa069990f4a2502a4eb465b855169aed245b68bd4cecc7496d0e5820221a4cd10955f45ac5360b2510a3f5b6358b5d3c)
PEER_HEADERS=(include/llama.h ggml/include/ggml.h ggml/include/ggml-cpu.h ggml/include/ggml-backend.h ggml/include/ggml-alloc.h
  ggml/include/ggml-opt.h ggml/include/gguf.h)
PEER_DIR=${XDG_CACHE_HOME:-$HOME/.cache}/weft/peer
PEER_HOME=$PEER_DIR/llamacpp-$PEER_VERSION

# fetch PACKAGE TARGET_DIR: downloads, compares the checksum, unpacks.
peer_fetch() {
  local package=$1 target=$2 file
  file=$(cd "$target" && npm pack --silent --ignore-scripts "$package@$PEER_VERSION") || die "npm could not fetch $package@$PEER_VERSION (is the network up?)"
  echo "${PEER_SHA512[$package]}  $target/$file" | sha512sum --check --quiet - >&2 || die "$file is not the file that was pinned"
  tar -xzf "$target/$file" -C "$target"
  rm "$target/$file"
}

peer_download() {
  [ "$(uname -sm)" = "Linux x86_64" ] || die "the prebuilt libraries are for Linux on x86-64"
  say "fetching llama.cpp (npm node-llama-cpp $PEER_VERSION, 46 MB) into $PEER_HOME"
  local work; work=$(mktemp -d "$PEER_DIR/fetch.XXXXXX")
  mkdir "$work/source" "$work/libraries" "$work/include"
  peer_fetch node-llama-cpp "$work/source"
  peer_fetch @node-llama-cpp/linux-x64 "$work/libraries"
  git clone --quiet --bare "$work/source/package/llama/gitRelease.bundle" "$work/bundle" 2>/dev/null
  local header
  for header in "${PEER_HEADERS[@]}"; do git -C "$work/bundle" show "HEAD:$header" >"$work/include/$(basename "$header")"; done
  mv "$work/libraries/package/bins/linux-x64" "$work/lib"
  cp "$work/libraries/package/LICENSE" "$work/LICENSE" 2>/dev/null || true
  rm -rf "$work/source" "$work/libraries" "$work/bundle" "$PEER_HOME"
  mv "$work" "$PEER_HOME"
}

peer_compile() {
  local source=$1 lib=$PEER_HOME/lib
  [ "$PEER_HOME/peer_driver" -nt "$source" ] && return 0
  say "compiling the driver"
  g++ -std=c++20 -O2 -Wall -Wextra -isystem "$PEER_HOME/include" "$source" -o "$PEER_HOME/peer_driver" \
    "$lib"/libllama.v*.so "$lib"/libggml.v*.so "$lib/libggml-base.so" "-Wl,-rpath,$lib" || die "the driver did not compile"
}

# peer_setup: afterwards $PEER_HOME/peer_driver and $PEER_HOME/lib exist.
peer_setup() {
  local tool
  for tool in npm git g++ python3 sha512sum; do command -v "$tool" >/dev/null || die "$tool not found: needed to set up llama.cpp"; done
  mkdir -p "$PEER_DIR"
  [ -d "$PEER_HOME/include" ] && [ -d "$PEER_HOME/lib" ] || peer_download
  peer_compile "$(dirname "${BASH_SOURCE[0]}")/driver.cpp"
}
