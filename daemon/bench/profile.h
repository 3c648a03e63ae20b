// Where the time of a step goes. A Profile stands between the chosen kernels and the model: it
// hands the model the same kernels with a clock around each launch, and adds the times up by layer
// kind, operation and shape. Plugins notice nothing.
//
// Kernels are plain C functions without a context, so the clocks live in a fixed set of functions
// and one Profile exists at a time. The engine thread launches; nobody else may call meanwhile.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "bench/op_cost.h"
#include "bench/stats.h"
#include "engine/plugin_models.h"

namespace weft::bench {

struct ProfileLine {
  std::string layer;  // "kda", "mla", "moe", "dense", "embed", "head"
  std::string op, variant, shape;
  uint32_t rows = 0;
  uint64_t launches = 0;
  double seconds = 0, bytes = 0, flop = 0;
  uint64_t experts = 0;  // distinct, summed over the launches
};

class Profile {
 public:
  Profile();
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  engine::UseKernels hook();
  void clear();
  // Off at first: loading and prompts that only prepare a measurement stay out.
  void record(bool on) { recording_ = on; }
  // What was launched since clear(), most time first.
  std::vector<ProfileLine> lines();

  // For the functions around the kernels.
  weft_status launch(size_t slot, const void* args, weft_err* err);

 private:
  struct Launch {
    size_t slot = 0;
    OpCost cost;
    double seconds = 0;
  };
  using Key = std::tuple<std::string, size_t, std::string, uint32_t>;

  void begins_section(std::string_view op, const void* args);
  std::string_view section_kind() const;
  void end_section();

  bool recording_ = false;
  std::vector<Launch> section_;  // launches of the current section, whose kind is not yet known
  uint64_t hidden_ = 0, vocab_ = 0;
  std::map<Key, ProfileLine> lines_;
};

nlohmann::ordered_json to_json(const std::vector<ProfileLine>& lines);
// step_seconds: of all profiled steps together.
void print(const std::vector<ProfileLine>& lines, double step_seconds, uint64_t steps,
           const Peaks& peaks, std::ostream& out);

}  // namespace weft::bench
