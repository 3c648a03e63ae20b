// What a step must cost at least: bytes that have to come from memory and operations that the
// mathematics asks for, counted from the model's shape. Measured times are set against these.
//
// Counted as read: every weight that the rows of the step use, once; states once read and once
// written; cached rows of the context once per sequence. Not counted: activations, which fit
// caches. Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bench/model_shape.h"

namespace weft::bench {

struct WeightPart {
  std::string name;
  uint64_t parameters = 0;
  double bytes = 0;      // as stored
  uint64_t per_row = 0;  // parameters that one row is multiplied with
};
// "embedding", "delta attention", "latent attention", "dense layers", "router", "latent
// projections", "shared experts", "routed experts", "head", "norms".
std::vector<WeightPart> weight_parts(const ModelShape& shape);
double weight_bytes(const ModelShape& shape);

struct CacheBytes {
  double per_token = 0;     // cached rows, all layers
  double per_sequence = 0;  // states, all layers
};

struct RunCost {  // the rows of one sequence in a step
  uint32_t rows = 0;
  uint64_t context = 0;  // tokens already cached
};

struct StepCost {
  double weight_bytes = 0;  // without routed experts
  double expert_bytes = 0;
  double state_bytes = 0;
  double row_bytes = 0;
  double flop = 0;
  double experts_per_layer = 0;  // distinct, of one layer
  double bytes() const { return weight_bytes + expert_bytes + state_bytes + row_bytes; }
  void add(const StepCost& other);
};

// Distinct experts of a layer that `rows` rows choose when every choice is equally likely.
double expected_experts(uint32_t experts, uint32_t topk, double rows);

// logit_rows: rows whose logits are computed. experts_per_layer: measured, or negative for the
// expectation.
StepCost step_cost(const ModelShape& shape, const CacheBytes& cache, std::span<const RunCost> runs,
                   uint32_t logit_rows, double experts_per_layer = -1);

}  // namespace weft::bench
