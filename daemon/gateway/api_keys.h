// ApiKeys: who may use the public endpoints, from a file with one key per line. Keys are compared in constant time, so the
// time of an answer says nothing about how much of a guess was right. Immutable after loading; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "http/types.h"

namespace weft::gateway {

class ApiKeys {
 public:
  static constexpr size_t kKeysMax = 10'000;
  static constexpr size_t kKeyBytesMin = 8;
  static constexpr size_t kKeyBytesMax = 512;

  // Lines with a key each; blank lines and lines that start with '#' are ignored. kInvalid names the line.
  static Result<ApiKeys> parse(std::string_view text, std::string_view origin);
  static Result<ApiKeys> load(const std::string& path);

  bool configured() const { return !keys_.empty(); }
  bool accepts(std::string_view key) const;
  // Reads "Authorization: Bearer KEY" or "x-api-key: KEY". Health, metrics and the like need none.
  bool allows(const http::Request& request) const;

 private:
  std::vector<std::string> keys_;
};

}  // namespace weft::gateway
