// The ELF note reader on any bytes: it reads or refuses, and says why.
#include <cstdint>
#include <cstdlib>

#include "plugin/elf_note.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto note = weft::plugin::read_plugin_note(weft::plugin::bytes_of({data, size}));
  if (note.ok()) {
    if (!weft::plugin::is_plugin_name(note->name) || note->version.empty() ||
        note->abi_major != WEFT_ABI_MAJOR)
      std::abort();
  } else if (note.error().message.empty()) {
    std::abort();
  }
  return 0;
}
