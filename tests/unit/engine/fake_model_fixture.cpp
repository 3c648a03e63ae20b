#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/sampler_reference.h"
#include "unit/engine/fake_model.h"

namespace weft::engine {
namespace {

constexpr uint32_t kPageTokens[2] = {4, 3};
constexpr uint64_t kSeed = 0x1234567;

struct RowEntry {
  uint64_t value;
  uint64_t position;
};
struct State {
  uint64_t hash;
  uint64_t count;
};

uint64_t mix(uint64_t a, uint64_t b) {  // splitmix64's finaliser over a combination
  uint64_t x = a * 0x9E3779B97F4A7C15u + b + 0x632BE59BD9B4E019u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

uint64_t row_value(uint64_t contribution, uint32_t group) { return mix(contribution, 77 + group); }

uint64_t media_contribution(const float* row, uint32_t hidden) {
  uint64_t h = 5;
  for (uint32_t i = 0; i < hidden; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, row + i, sizeof(bits));
    h = mix(h, bits);
  }
  return h;
}

void write_logits(const FakeOptions& o, uint64_t state, uint64_t rows, int32_t last, float* out) {
  const uint64_t h = mix(state, rows);
  for (uint32_t v = 0; v < o.vocab; ++v) {
    const uint64_t bits = mix(h, v) >> 52;  // 12 bits: ties happen
    out[v] = static_cast<float>(bits) / 256.0f - 8.0f;
  }
  if (last == o.nan_token) out[0] = std::numeric_limits<float>::quiet_NaN();
}

void encode(const float* patches, uint32_t t, uint32_t h, uint32_t w, uint32_t patch_values,
            uint32_t hidden, float* out) {
  uint64_t seed = mix(mix(t, h), w);
  for (size_t i = 0; i < size_t{t} * h * w * patch_values; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, patches + i, sizeof(bits));
    seed = mix(seed, bits);
  }
  for (size_t i = 0; i < size_t{h / 2} * (w / 2) * hidden; ++i) {
    out[i] = static_cast<float>(mix(seed, i) >> 40);
  }
}

std::vector<uint64_t> contributions(const FakeOptions& o, const std::vector<int32_t>& tokens,
                                    const wire::Generate& request) {
  std::vector<uint64_t> out;
  for (const int32_t t : tokens) out.push_back(mix(11, static_cast<uint64_t>(t)));
  for (const wire::Media& m : request.media()) {
    std::vector<float> patches(m.patches().size() / 4), rows(m.rows() * o.hidden);
    std::memcpy(patches.data(), m.patches().data(), m.patches().size());
    encode(patches.data(), m.grid_t(), m.grid_h(), m.grid_w(), 3, o.hidden, rows.data());
    for (uint32_t i = 0; i < m.rows() && m.first_position() + i < out.size(); ++i) {
      out[m.first_position() + i] = media_contribution(rows.data() + i * o.hidden, o.hidden);
    }
  }
  return out;
}

}  // namespace

struct FakeModel::Table {
  static FakeModel* of(weft_instance* self) { return reinterpret_cast<FakeModel*>(self); }
  static weft_status info(weft_instance* self, weft_model_info* out) {
    const FakeOptions& o = of(self)->options;
    *out = {};
    out->struct_size = sizeof(*out);
    out->vocab = o.vocab;
    out->hidden = o.hidden;
    out->layers = 1;
    out->max_context = o.max_context;
    out->accepts_media = 1;
    out->media_patch_values = 3;
    out->media_merge = 2;
    out->media_token = o.media_token;
    for (int32_t& id : out->eos) id = -1;
    return WEFT_OK;
  }
  static weft_status ready(weft_instance* self, const weft_arena* arenas, uint32_t n, weft_err*) {
    of(self)->set_arenas(arenas, n);
    return WEFT_OK;
  }
  static weft_status plan(weft_instance* self, const weft_limits* l, weft_mem_plan* out,
                          weft_err* err) {
    if (l->max_logit_rows == 0 || l->max_logit_rows > l->max_rows || l->max_seqs > l->max_rows) {
      std::strcpy(err->msg, "more logits or sequences than rows");
      return WEFT_E_ARG;
    }
    *out = of(self)->plan();
    return WEFT_OK;
  }
  static weft_status step(weft_instance* self, const weft_batch* batch, weft_err* err) {
    return of(self)->step(batch, err);
  }
  static weft_status encode_media(weft_instance* self, const weft_media* m, float* rows,
                                  weft_err* err) {
    FakeModel* model = of(self);
    if (m->patches[0] == static_cast<float>(model->options.bad_patch)) {
      std::strcpy(err->msg, "bad patch");
      return WEFT_E_ARG;
    }
    ++model->media_encoded;
    encode(m->patches, m->grid_t, m->grid_h, m->grid_w, 3, model->options.hidden, rows);
    return WEFT_OK;
  }
  static const weft_model_v1* table() {
    static const weft_model_v1 kTable = [] {
      weft_model_v1 t = {};
      t.head = {sizeof(weft_model_v1), 1, WEFT_MODEL_CAP_MEDIA};
      t.info = info;
      t.plan = plan;
      t.ready = ready;
      t.step = step;
      t.encode_media = encode_media;
      return t;
    }();
    return &kTable;
  }
};

FakeModel::FakeModel(FakeOptions o) : options(o) {}

StepModel FakeModel::ref() {
  StepModel out;
  out.table = Table::table();
  out.self = reinterpret_cast<weft_instance*>(this);
  Table::info(out.self, &out.info);
  return out;
}

weft_mem_plan FakeModel::plan() const {
  weft_mem_plan p = {};
  p.struct_size = sizeof(p);
  p.n_groups = 3;
  p.groups[0] = {"rows4", WEFT_CACHE_ROWS, kPageTokens[0], kPageTokens[0] * sizeof(RowEntry)};
  p.groups[1] = {"state", WEFT_CACHE_STATE, 0, sizeof(State)};
  p.groups[2] = {"rows3", WEFT_CACHE_ROWS, kPageTokens[1], kPageTokens[1] * sizeof(RowEntry)};
  return p;
}

void FakeModel::check(const weft_batch& b) {
  if (b.struct_size != sizeof(weft_batch) || b.n_seqs == 0) violation("malformed batch");
  if (b.seq_start[0] != 0 || b.seq_start[b.n_seqs] != b.n_rows) violation("rows do not add up");
  std::set<int32_t> slots, reads, pages[2], written[2];
  for (uint32_t i = 0; i < b.n_seqs; ++i) {
    if (b.seq_start[i + 1] <= b.seq_start[i]) violation("a sequence without rows");
    const int32_t write = b.maps[1].write_slot[i], read = b.maps[1].read_slot[i];
    if (write < 0 || static_cast<uint64_t>(write) >= arenas_[1].n_units)
      violation("slot out of range");
    if (!slots.insert(write).second) violation("two sequences share a slot");
    if (read >= 0 && read != write) reads.insert(read);
    if ((read < 0) != (b.context[i] == 0)) violation("fresh state and context disagree");
    const uint32_t length = b.context[i] + b.seq_start[i + 1] - b.seq_start[i];
    for (uint32_t g = 0; g < 2; ++g) {
      const weft_cache_map& map = b.maps[g * 2];
      const uint32_t n = (length + kPageTokens[g] - 1) / kPageTokens[g];
      if (n > map.table_stride) violation("table too short");
      for (uint32_t p = 0; p < n; ++p) {
        const int32_t page = map.table[i * map.table_stride + p];
        if (page < 0 || static_cast<uint64_t>(page) >= arenas_[g * 2].n_units) {
          violation("page out of range");
        }
        // Whole pages below the context may be shared; one that is written belongs to one alone.
        const bool writes = (p + 1) * kPageTokens[g] > b.context[i];
        if (written[g].count(page) != 0 || (writes && pages[g].count(page) != 0)) {
          violation("a page that someone writes is used twice");
        }
        pages[g].insert(page);
        if (writes) written[g].insert(page);
      }
    }
  }
  for (const int32_t slot : reads) {
    if (slots.count(slot) != 0) violation("a slot is read by one and written by another");
  }
  for (uint32_t i = 0; i < b.n_logit_rows; ++i) {
    if (b.logit_row[i] >= b.n_rows || (i > 0 && b.logit_row[i] <= b.logit_row[i - 1])) {
      violation("logit rows must ascend");
    }
  }
}

uint64_t FakeModel::contribution(const weft_batch& b, uint32_t row) const {
  for (uint32_t i = 0; i < b.n_media_rows; ++i) {
    if (b.media_row[i] == row) {
      return media_contribution(b.media + size_t{i} * options.hidden, options.hidden);
    }
  }
  return mix(11, static_cast<uint64_t>(b.token[row]));
}

uint64_t FakeModel::rows_hash(const weft_batch& b, uint32_t index, uint32_t length) {
  uint64_t h = kSeed;
  for (uint32_t g = 0; g < 2; ++g) {
    const weft_cache_map& map = b.maps[g * 2];
    for (uint32_t t = 0; t < length; ++t) {
      const int32_t page = map.table[index * map.table_stride + t / kPageTokens[g]];
      const auto* entries =
          reinterpret_cast<const RowEntry*>(static_cast<const char*>(arenas_[g * 2].base) +
                                            static_cast<uint64_t>(page) * arenas_[g * 2].stride);
      const RowEntry& e = entries[t % kPageTokens[g]];
      if (e.position != t) violation("a row of another position was read");
      h = mix(h, e.value);
    }
  }
  return h;
}

void FakeModel::run_sequence(const weft_batch& b, uint32_t index) {
  const auto state_at = [&](int32_t slot) {
    return reinterpret_cast<State*>(static_cast<char*>(arenas_[1].base) +
                                    static_cast<uint64_t>(slot) * arenas_[1].stride);
  };
  const int32_t read = b.maps[1].read_slot[index];
  State state = read < 0 ? State{kSeed, 0} : *state_at(read);
  if (state.count != b.context[index]) violation("a state of another length was read");
  for (uint32_t row = b.seq_start[index]; row < b.seq_start[index + 1]; ++row) {
    const uint32_t position = b.context[index] + row - b.seq_start[index];
    const uint64_t c = contribution(b, row);
    for (uint32_t g = 0; g < 2; ++g) {
      const weft_cache_map& map = b.maps[g * 2];
      const int32_t page = map.table[index * map.table_stride + position / kPageTokens[g]];
      auto* entries =
          reinterpret_cast<RowEntry*>(static_cast<char*>(arenas_[g * 2].base) +
                                      static_cast<uint64_t>(page) * arenas_[g * 2].stride);
      entries[position % kPageTokens[g]] = {row_value(c, g), position};
    }
    state.hash = mix(state.hash, c);
    ++state.count;
    for (uint32_t i = 0; i < b.n_logit_rows; ++i) {
      if (b.logit_row[i] != row) continue;
      write_logits(options, state.hash, rows_hash(b, index, position + 1), b.token[row],
                   b.logits + size_t{i} * options.vocab);
    }
  }
  *state_at(b.maps[1].write_slot[index]) = state;
}

weft_status FakeModel::step(const weft_batch* batch, weft_err* err) {
  if (before_step) before_step(*batch);
  ++steps;
  rows += batch->n_rows;
  largest_batch_rows = std::max(largest_batch_rows, batch->n_rows);
  largest_batch_sequences = std::max(largest_batch_sequences, batch->n_seqs);
  token_arrays.insert(batch->token);
  check(*batch);
  if (!violations.empty()) return WEFT_E_INTERNAL;
  for (uint32_t i = 0; i < batch->n_rows; ++i) {
    if (batch->token[i] == options.fail_token) {
      std::strcpy(err->msg, "fail token");
      return options.fail_status;
    }
  }
  for (uint32_t i = 0; i < batch->n_seqs; ++i) run_sequence(*batch, i);
  return WEFT_OK;
}

std::vector<float> oracle_logits(const FakeOptions& o, const std::vector<int32_t>& tokens,
                                 const wire::Generate& request) {
  const std::vector<uint64_t> c = contributions(o, tokens, request);
  uint64_t state = kSeed, rows = kSeed;
  for (const uint64_t x : c) state = mix(state, x);
  for (uint32_t g = 0; g < 2; ++g) {
    for (const uint64_t x : c) rows = mix(rows, row_value(x, g));
  }
  std::vector<float> out(o.vocab);
  write_logits(o, state, rows, tokens.back(), out.data());
  return out;
}

namespace {

// Scores `token` against raw logits by the definition.
float score(const std::vector<float>& logits, int32_t token, int32_t n,
            std::vector<TopLogprob>* top) {
  double sum = 0.0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x));
  const auto value = [&](int32_t id) {
    return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(id)]) - std::log(sum));
  };
  std::vector<int32_t> ids(logits.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  for (int32_t i = 0; i < n; ++i) {
    top->push_back({ids[static_cast<size_t>(i)], value(ids[static_cast<size_t>(i)])});
  }
  return value(token);
}

}  // namespace

OracleResult oracle_generate(const FakeOptions& o, const wire::Generate& request,
                             uint32_t max_context) {
  weft_model_info info = FakeModel(o).ref().info;
  const Result<Request> parsed = parse_generate(request, info, max_context);
  WEFT_CHECK(parsed.ok());
  const SamplingParams& p = parsed->sampling;
  OracleResult out;
  std::vector<int32_t> tokens = parsed->prompt;
  for (size_t i = 1; p.prompt_logprobs >= 0 && i < parsed->prompt.size(); ++i) {
    const std::vector<int32_t> prefix(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(i));
    out.prompt_tops.emplace_back();
    out.prompt_logprobs.push_back(score(oracle_logits(o, prefix, request), tokens[i],
                                        p.prompt_logprobs, &out.prompt_tops.back()));
  }
  TokenCounts counts;
  counts.add_prompt(tokens);
  while (out.finish == wire::FINISH_NONE) {
    const std::vector<float> logits = oracle_logits(o, tokens, request);
    const auto generated = static_cast<uint32_t>(out.tokens.size());
    const int32_t token = reference_sample(logits, p, counts, {generated, tokens.size()});
    if (p.logprobs >= 0) {
      out.tops.emplace_back();
      out.logprobs.push_back(score(logits, token, p.logprobs, &out.tops.back()));
    }
    tokens.push_back(token);
    out.tokens.push_back(token);
    counts.add_output(token);
    const bool stop = std::count(p.stop_ids.begin(), p.stop_ids.end(), token) != 0;
    const bool full = out.tokens.size() == p.max_tokens || tokens.size() >= max_context;
    out.finish = stop ? wire::FINISH_STOP : full ? wire::FINISH_LENGTH : wire::FINISH_NONE;
  }
  return out;
}

}  // namespace weft::engine
