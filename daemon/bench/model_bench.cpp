#include "bench/model_bench.h"

#include <algorithm>
#include <cstring>

#include "bench/random.h"

namespace weft::bench {

using engine::PlannedRun;
using engine::Sequence;

std::vector<int32_t> ModelBench::random_tokens(uint32_t n) {
  // The last ids of real vocabularies are control tokens.
  const uint32_t vocab = model_.info().vocab;
  const uint32_t usable = vocab > 1024 ? vocab - 256 : vocab;
  std::vector<int32_t> out(n);
  for (int32_t& token : out) token = static_cast<int32_t>(next_random(&state_) % usable);
  return out;
}

int32_t ModelBench::next_token(std::span<const float> logits, NextToken next) {
  if (next == NextToken::kRandom) return random_tokens(1)[0];
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

Status ModelBench::run_prompt(Sequence* sequence, Measurement* out) {
  const uint32_t most = model_.options().max_batch_tokens;
  while (sequence->computed < sequence->length()) {
    const PlannedRun run{sequence, std::min(most, sequence->pending())};
    double seconds = 0;
    WEFT_TRY(model_.step({&run, 1}, &seconds));
    out->step_seconds.push_back(seconds);
    out->seconds += seconds;
    out->tokens += run.rows;
    out->rows_per_step = std::max(out->rows_per_step, run.rows);
  }
  return {};
}

Result<Measurement> ModelBench::prefill(uint32_t n) {
  if (n == 0) return make_error(ErrorCode::kInvalid, "prefill of 0 tokens: expected 1 or more");
  WEFT_ASSIGN(const std::unique_ptr<Sequence> sequence, model_.make_sequence(random_tokens(n), 0));
  Measurement m;
  m.what = "prefill";
  const Measuring measuring(observe_);
  WEFT_TRY(run_prompt(sequence.get(), &m));
  return m;
}

void ModelBench::pretend_computed(Sequence* sequence) {
  // Every 16 bits are a number of magnitude 2^-4 as bf16; two of them are one as f32.
  const auto fill = [&](uint32_t group, int32_t unit) {
    const weft_arena& arena = model_.caches().arenas()[group];
    auto* bytes =
        static_cast<unsigned char*>(arena.base) + static_cast<uint64_t>(unit) * arena.stride;
    const uint64_t size = model_.caches().groups()[group].unit_bytes;
    for (uint64_t at = 0; at + 8 <= size; at += 8) {
      const uint64_t word = (next_random(&state_) & 0x807f807f807f807full) | 0x3d803d803d803d80ull;
      std::memcpy(bytes + at, &word, 8);
    }
  };
  for (uint32_t g = 0; g < model_.caches().groups().size(); ++g) {
    if (model_.caches().groups()[g].rows) {
      const engine::SequenceCache::Rows& rows = sequence->cache.rows(g);
      for (size_t i = 0; i < rows.size(); ++i) fill(g, rows.unit(i));
    } else {
      fill(g, sequence->cache.write_slot(g));
    }
  }
  sequence->computed = sequence->length() - 1;
}

Result<ModelBench::Sequences> ModelBench::prepare(const DecodeOptions& o) {
  if (o.batch == 0 || o.tokens == 0 || o.context == 0) {
    return make_error(ErrorCode::kInvalid,
                      "decoding {} tokens at batch {} after {}: expected numbers from 1 on",
                      o.tokens, o.batch, o.context);
  }
  if (o.batch > model_.options().max_sequences) {
    return make_error(ErrorCode::kInvalid,
                      "batch {}: the benchmark was started for at most {} sequences "
                      "(--max-sequences)",
                      o.batch, model_.options().max_sequences);
  }
  Sequences sequences;
  for (uint32_t i = 0; i < o.batch; ++i) {
    WEFT_ASSIGN(auto sequence, model_.make_sequence(random_tokens(o.context), o.tokens + 1));
    if (o.fake_context) {
      pretend_computed(sequence.get());
    } else {
      Measurement unused;
      WEFT_TRY(run_prompt(sequence.get(), &unused));
      sequence->tokens.push_back(next_token(model_.logits(0), o.next));
    }
    sequences.push_back(std::move(sequence));
  }
  return sequences;
}

Result<Measurement> ModelBench::decode(const DecodeOptions& o) {
  WEFT_ASSIGN(const Sequences sequences, prepare(o));
  Measurement m;
  m.what = "decode";
  m.batch = m.rows_per_step = o.batch;
  m.context = o.context;
  m.fake_context = o.fake_context;
  std::vector<PlannedRun> runs;
  for (const auto& s : sequences) runs.push_back({s.get(), 1});
  const Measuring measuring(observe_);
  for (uint32_t step = 0; step < o.tokens; ++step) {
    double seconds = 0;
    WEFT_TRY(model_.step(runs, &seconds));
    m.step_seconds.push_back(seconds);
    m.seconds += seconds;
    m.tokens += o.batch;
    for (uint32_t i = 0; i < o.batch; ++i) {
      sequences[i]->tokens.push_back(next_token(model_.logits(i), o.next));
    }
  }
  return m;
}

Result<Measurement> ModelBench::mixed(const DecodeOptions& o) {
  const uint32_t most = model_.options().max_batch_tokens;
  if (o.batch >= most || o.batch >= model_.options().max_sequences) {
    return make_error(ErrorCode::kInvalid,
                      "mixed at batch {}: a step of {} rows and {} sequences has no room for a "
                      "prompt piece beside it",
                      o.batch, most, model_.options().max_sequences);
  }
  WEFT_ASSIGN(const Sequences sequences, prepare(o));
  const uint32_t piece = std::min(most - o.batch, model_.options().max_context);
  Measurement m;
  m.what = "mixed";
  m.batch = o.batch;
  m.context = o.context;
  m.fake_context = o.fake_context;
  m.rows_per_step = o.batch + piece;
  const Measuring measuring(observe_);
  for (uint32_t step = 0; step < o.tokens; ++step) {
    WEFT_ASSIGN(const auto prompt, model_.make_sequence(random_tokens(piece), 0));
    std::vector<PlannedRun> runs;
    for (const auto& s : sequences) runs.push_back({s.get(), 1});
    runs.push_back({prompt.get(), piece});
    double seconds = 0;
    WEFT_TRY(model_.step(runs, &seconds));
    m.step_seconds.push_back(seconds);
    m.seconds += seconds;
    m.tokens += m.rows_per_step;
    for (uint32_t i = 0; i < o.batch; ++i) {
      sequences[i]->tokens.push_back(next_token(model_.logits(i), o.next));
    }
  }
  return m;
}

Result<std::vector<float>> ModelBench::logits(const std::vector<int32_t>& tokens, uint32_t steps) {
  if (tokens.size() <= steps) return make_error(ErrorCode::kInvalid, "logits of no tokens");
  for (const int32_t token : tokens) {
    if (token < 0 || static_cast<uint32_t>(token) >= model_.info().vocab) {
      return make_error(ErrorCode::kInvalid, "token {}: expected 0 to {}", token,
                        model_.info().vocab - 1);
    }
  }
  const auto prompt_end = tokens.end() - steps;
  WEFT_ASSIGN(const auto sequence, model_.make_sequence({tokens.begin(), prompt_end}, steps));
  std::vector<float> rows;
  for (auto next = prompt_end;; ++next) {
    Measurement unused;
    WEFT_TRY(run_prompt(sequence.get(), &unused));
    const std::span<const float> row = model_.logits(0);
    rows.insert(rows.end(), row.begin(), row.end());
    if (next == tokens.end()) return rows;
    sequence->tokens.push_back(*next);
  }
}

}  // namespace weft::bench
