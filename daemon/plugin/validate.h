// Checks a plugin's descriptor before anything in it is used: magic, sizes, strings, interface
// tables, key tables. It comes from code that we did not write; every refusal names field,
// expectation, what came and what to do.
#pragma once

#include <weft/plugin.h>

#include <string_view>

#include "base/result.h"

namespace weft::plugin {

constexpr uint32_t kInterfacesMax = 32;
constexpr uint32_t kKeysMax = 256;

Status validate_descriptor(const weft_desc* desc, std::string_view note_name,
                           std::string_view note_version);
// The parts, for tests.
Status validate_interface(const weft_interface& interface);
Status validate_keys(const weft_key* keys, std::string_view interface_id);

}  // namespace weft::plugin
