// Settings for a plugin instance: text pairs from the operator -> typed weft_param checked against
// the interface's key table. Unknown keys are errors that name the nearest known one; missing keys
// get their default; sizes read like "64MiB", durations like "250ms". A ParamSet owns all text and
// may be moved; its params() stay valid while it lives.
#pragma once

#include <weft/plugin.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace weft::plugin {

using ParamList = std::vector<std::pair<std::string, std::string>>;

class ParamSet {
 public:
  // keys may be NULL: then any setting is an error.
  static Result<ParamSet> make(const weft_key* keys, const ParamList& settings);

  const weft_param* data() const { return params_.data(); }
  uint32_t size() const { return static_cast<uint32_t>(params_.size()); }
  const weft_param* find(std::string_view name) const;

 private:
  std::vector<std::unique_ptr<std::pair<std::string, std::string>>> texts_;  // fixed addresses
  std::vector<weft_param> params_;
};

// The value of one setting; text is borrowed by the result.
Result<weft_param> parse_value(const weft_key& key, std::string_view text);

// "64MiB", "1.5GB", "4096" -> bytes. Powers of 1024 with i, of 1000 without; B or nothing = bytes.
Result<int64_t> parse_size(std::string_view text);
// "250ms", "1.5s", "2m", "1h", "30us", "100ns" -> nanoseconds; the unit is required, except for 0.
Result<int64_t> parse_duration(std::string_view text);

}  // namespace weft::plugin
