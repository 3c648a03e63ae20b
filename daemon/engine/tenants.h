// What each tenant has received, for fair plans. Engine thread only.
#pragma once

#include <weft/scheduler.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace weft::engine {

class TenantBook {
 public:
  // The tenant's number, a new one when it is new. The last weight that came counts.
  uint32_t enter(const std::string& name, uint32_t weight, uint64_t now_us);
  // Work done for it: prompt rows computed for the first time, and output tokens.
  void serve(uint32_t tenant, uint64_t tokens) { tenants_[tenant].served += tokens; }
  // A sequence of the tenant begins or ends. The first one lifts the tenant to a little below the
  // least served of those who are active.
  void begin(uint32_t tenant);
  void end(uint32_t tenant, uint64_t now_us);
  uint32_t weight(uint32_t tenant) const { return tenants_[tenant].weight; }
  // Those with sequences, and those that had some within the last minutes; by rising number.
  void list(uint64_t now_us, std::vector<weft_sched_tenant>* out) const;

 private:
  struct Tenant {
    uint32_t weight = 1;
    uint64_t served = 0;
    uint32_t sequences = 0;
    uint64_t seen_us = 0;
  };
  std::vector<Tenant> tenants_;  // by number; there are as many as API keys name
  std::unordered_map<std::string, uint32_t> numbers_;
};

}  // namespace weft::engine
