// Argument structs for operations that are measured alone. An OpCase is one operation with its
// data in several copies that share the activations: launched in turn, each copy's weights have
// left the caches by the time it comes round again. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "bench/op_memory.h"
#include "weft/kernels.h"

namespace weft::bench {

using OpShape = std::map<std::string, uint32_t>;

// Keys that --shape knows, for all operations together.
inline constexpr std::string_view kShapeKeys =
    "n k rows parts experts topk inner width heads dim seqs context latent tail nope v cols blocks "
    "chunk int8";

struct OpRequest {
  std::string op;
  uint32_t dtype = 0;  // of weights, or of cached rows; 0 = the operation's usual one
  OpShape shape;
  uint32_t get(const char* key, uint32_t fallback) const;
};

// Operations that can be measured alone.
const std::vector<std::string>& measurable_ops();
// dtype_w to look the kernel up by.
uint32_t kernel_dtype(const OpRequest& request);

class OpCase {
 public:
  virtual ~OpCase() = default;
  // Makes another copy of the data that belongs to one launch.
  virtual Status add_copy() = 0;
  virtual size_t copies() const = 0;
  virtual void* args(size_t copy) = 0;  // begins with a weft_op_head
};

// kInvalid when the operation or a number is unknown. memory outlives the case.
Result<std::unique_ptr<OpCase>> make_case(const OpRequest& request, OpMemory& memory,
                                          uint32_t act_dtype);

}  // namespace weft::bench
