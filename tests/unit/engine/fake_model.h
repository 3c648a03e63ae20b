// A deterministic toy behind the real weft.model/1 table. Its logits are a hash of the whole token
// history, read back from the caches: a state slot, a page, a row or a media row that belongs to
// someone else changes the result at once. It also checks every batch against the contract of
// weft/model.h and keeps a list of violations.
//
// oracle_* compute the same from the history alone, without caches or batches.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/request.h"
#include "weft/model.h"

namespace weft::engine {

struct FakeOptions {
  uint32_t vocab = 61;
  uint32_t hidden = 5;
  uint32_t max_context = 200;
  int32_t media_token = 60;
  int32_t nan_token = -1;   // logits after this token are NaN
  int32_t fail_token = -1;  // a step that runs this token fails
  weft_status fail_status = WEFT_E_INTERNAL;
  int32_t bad_patch = -1;  // encode_media fails when the first patch value is this
};

class FakeModel {
 public:
  explicit FakeModel(FakeOptions options);
  FakeModel(const FakeModel&) = delete;
  FakeModel& operator=(const FakeModel&) = delete;

  StepModel ref();
  weft_mem_plan plan() const;
  void set_arenas(const weft_arena* arenas, uint32_t n) { arenas_.assign(arenas, arenas + n); }

  FakeOptions options;
  std::vector<std::string> violations;
  std::set<const void*>
      token_arrays;  // addresses seen: one when the engine builds batches without allocating
  std::atomic<uint64_t> steps{0};
  uint64_t rows = 0;
  uint32_t largest_batch_rows = 0;
  uint32_t largest_batch_sequences = 0;
  uint64_t media_encoded = 0;
  std::function<void(const weft_batch&)> before_step;

 private:
  struct Table;
  weft_status step(const weft_batch* batch, weft_err* err);
  void check(const weft_batch& batch);
  void run_sequence(const weft_batch& batch, uint32_t index);
  uint64_t contribution(const weft_batch& batch, uint32_t row) const;
  uint64_t rows_hash(const weft_batch& batch, uint32_t index, uint32_t length);
  void violation(std::string text) { violations.push_back(std::move(text)); }

  std::vector<weft_arena> arenas_;
};

// The logits after `tokens` (prompt and output so far); media of the request replace their
// placeholders.
std::vector<float> oracle_logits(const FakeOptions& options, const std::vector<int32_t>& tokens,
                                 const wire::Generate& request);

struct OracleResult {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<float> prompt_logprobs;
  std::vector<std::vector<TopLogprob>> tops, prompt_tops;
  wire::Finish finish = wire::FINISH_NONE;
};
// What a sequence alone must produce, sampled with the naive reference.
OracleResult oracle_generate(const FakeOptions& options, const wire::Generate& request,
                             uint32_t max_context);

}  // namespace weft::engine
