// ApiKeys: who may use the public endpoints and as which tenant, from a key file
// (config/key_file.h). Keys are compared in constant time, so the time of an answer says nothing
// about how much of a guess was right. Immutable after loading; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "config/key_file.h"
#include "http/types.h"

namespace weft::gateway {

// Whose requests share a prefix cache, and their share of the machine under load.
struct Tenant {
  std::string name;  // empty: nobody in particular
  uint32_t weight = 1;
};

class ApiKeys {
 public:
  // kInvalid names the line.
  static Result<ApiKeys> parse(std::string_view text, std::string_view origin);
  static Result<ApiKeys> load(const std::string& path);

  bool configured() const { return !keys_.empty(); }
  bool accepts(std::string_view key) const { return find(key) != nullptr; }
  // Reads "Authorization: Bearer KEY" or "x-api-key: KEY". Health, metrics and the like need none.
  // Nothing: refuse.
  std::optional<Tenant> tenant_of(const http::Request& request) const;

 private:
  const config::KeyEntry* find(std::string_view key) const;
  std::vector<config::KeyEntry> keys_;
};

}  // namespace weft::gateway
