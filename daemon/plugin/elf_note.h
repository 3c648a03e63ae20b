// Reads weft's ELF note (weft/note.h) from a plugin file with plain bounded reads: no dlopen, no
// code of the plugin runs. The file comes from outside, so nothing in it is believed; every refusal
// names field, expectation and remedy. Pure functions; any thread.
#pragma once

#include <weft/note.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/result.h"

namespace weft::plugin {

// Limits on what a sane plugin file contains.
constexpr uint32_t kProgramHeadersMax = 128;
constexpr uint64_t kNoteSegmentMax = 64 * 1024;

struct PluginNote {
  uint32_t abi_major = 0;
  uint32_t abi_minor = 0;
  std::string name;
  std::string version;
};

// Random access to the file: fills `out` from `offset`, false when the file ends earlier or cannot
// be read.
struct ByteSource {
  uint64_t size = 0;
  std::function<bool(uint64_t offset, std::span<uint8_t> out)> read;
};
ByteSource bytes_of(std::span<const uint8_t> data);  // data: borrowed while the source is used
ByteSource bytes_of_fd(int fd, uint64_t size);       // fd: borrowed

Result<PluginNote> read_plugin_note(const ByteSource& file);

// Can this host run a plugin built for (major, minor)? The minor of a plugin may be older or newer:
// tables grow at the end.
Status check_abi(const char* where, uint32_t major, uint32_t minor);
// [a-z][a-z0-9_]*, at most WEFT_NAME_MAX - 1 bytes.
bool is_plugin_name(std::string_view name);

}  // namespace weft::plugin
