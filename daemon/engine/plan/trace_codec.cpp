#include "engine/plan/trace_codec.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>

namespace weft::engine {
namespace {

struct Field {
  size_t offset;
  bool wide;  // uint64_t
};
#define WEFT_FIELD(name) \
  Field { offsetof(weft_seq, name), sizeof(weft_seq::name) == 8 }
constexpr Field kFields[] = {
    WEFT_FIELD(id),         WEFT_FIELD(arrive_ns), WEFT_FIELD(deadline_ns), WEFT_FIELD(swap_bytes),
    WEFT_FIELD(restore_ns), WEFT_FIELD(tenant),    WEFT_FIELD(weight),      WEFT_FIELD(priority),
    WEFT_FIELD(prompt),     WEFT_FIELD(known),     WEFT_FIELD(context),     WEFT_FIELD(output),
    WEFT_FIELD(output_max), WEFT_FIELD(rows_max),  WEFT_FIELD(boundary),    WEFT_FIELD(promised),
    WEFT_FIELD(fresh),      WEFT_FIELD(drafts),    WEFT_FIELD(flags),       WEFT_FIELD(preemptions),
    WEFT_FIELD(reserved),   WEFT_FIELD(queued_ns),
};
#undef WEFT_FIELD
constexpr size_t kFixedFields = std::size(kFields);
static_assert(kFixedFields + size_t{2} * WEFT_CACHE_GROUPS_MAX <= 64);

Field field(size_t i, uint32_t n_groups) {
  if (i < kFixedFields) return kFields[i];
  const size_t unit = i - kFixedFields;
  if (unit < n_groups) return {offsetof(weft_seq, held) + unit * sizeof(uint32_t), false};
  return {offsetof(weft_seq, shared) + (unit - n_groups) * sizeof(uint32_t), false};
}

uint64_t load(const weft_seq& seq, Field f) {
  const char* at = reinterpret_cast<const char*>(&seq) + f.offset;
  if (f.wide) {
    uint64_t out;
    std::memcpy(&out, at, sizeof out);
    return out;
  }
  uint32_t out;
  std::memcpy(&out, at, sizeof out);
  return out;
}

void put(uint64_t value, std::string* out) {
  while (value >= 0x80) {
    out->push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out->push_back(static_cast<char>(value));
}

// Small differences of either sign become small numbers.
uint64_t zigzag(uint64_t difference) { return (difference << 1) ^ (0 - (difference >> 63)); }
uint64_t unzigzag(uint64_t value) { return (value >> 1) ^ (0 - (value & 1)); }

}  // namespace

void TraceEncoder::encode(const weft_sched_view& view, const weft_sched_plan& plan,
                          uint64_t plan_ns, bool by_plugin, std::string* out) {
  for (const uint64_t v :
       {uint64_t{by_plugin}, plan_ns, uint64_t{view.n_wait}, uint64_t{view.n_run},
        uint64_t{view.n_groups}, uint64_t{view.n_costs}, uint64_t{view.n_tenants},
        uint64_t{view.token_budget}, uint64_t{view.seq_budget}, uint64_t{view.drafts_max},
        uint64_t{view.chunk_grain}, uint64_t{view.run_budget}, view.seed, view.swap_free, view.step,
        view.now_ns, view.step_target_ns}) {
    put(v, out);
  }
  for (uint32_t g = 0; g < view.n_groups; ++g) {
    const weft_sched_group& one = view.groups[g];
    for (const uint32_t v :
         {one.kind, one.unit_tokens, one.free, one.total, one.spare, one.watermark}) {
      put(v, out);
    }
  }
  for (uint32_t i = 0; i < view.n_costs; ++i) {
    put(view.costs[i].rows, out);
    put(view.costs[i].samples, out);
    put(view.costs[i].ns, out);
  }
  for (uint32_t i = 0; i < view.n_tenants; ++i) {
    put(view.tenants[i].id, out);
    put(view.tenants[i].weight, out);
    put(view.tenants[i].served, out);
  }
  places_.clear();
  now_.clear();
  guess_ = 0;
  for (uint32_t i = 0; i < view.n_wait; ++i) put_seq(view.wait[i], view.n_groups, out);
  for (uint32_t i = 0; i < view.n_run; ++i) put_seq(view.run[i], view.n_groups, out);
  std::swap(last_, now_);
  put(plan.n_run, out);
  put(plan.n_admit, out);
  put(plan.n_preempt, out);
  put(plan.n_drop, out);
  const auto put_share = [&](const weft_share& s) {
    for (const uint32_t v : {s.index, s.rows, s.drafts, s.propose}) put(v, out);
  };
  for (uint32_t i = 0; i < plan.n_run; ++i) put_share(plan.run[i]);
  for (uint32_t i = 0; i < plan.n_admit; ++i) put_share(plan.admit[i]);
  for (uint32_t i = 0; i < plan.n_preempt; ++i) {
    put(plan.preempt[i].index, out);
    put(plan.preempt[i].mode, out);
  }
  for (uint32_t i = 0; i < plan.n_drop; ++i) put(plan.drop[i], out);
}

// Place of the sequence in the last record; last_.size() when it is new.
size_t TraceEncoder::find(uint64_t id) {
  if (guess_ < last_.size() && last_[guess_].id == id) return guess_++;
  if (places_.empty()) {
    for (size_t i = 0; i < last_.size(); ++i) places_.emplace(last_[i].id, i);
  }
  const auto found = places_.find(id);
  if (found == places_.end()) return last_.size();
  guess_ = found->second + 1;
  return found->second;
}

void TraceEncoder::put_seq(const weft_seq& seq, uint32_t n_groups, std::string* out) {
  const size_t place = find(seq.id);
  const weft_seq fresh = {};
  const weft_seq& before = place < last_.size() ? last_[place] : fresh;
  const size_t n_fields = kFixedFields + size_t{2} * n_groups;
  uint64_t changed = 0;
  for (size_t i = 0; i < n_fields; ++i) {
    const Field f = field(i, n_groups);
    if (load(seq, f) != load(before, f)) changed |= uint64_t{1} << i;
  }
  put(place < last_.size() ? place + 1 : 0, out);
  put(changed, out);
  for (size_t i = 0; i < n_fields; ++i) {
    if ((changed >> i & 1) == 0) continue;
    const Field f = field(i, n_groups);
    put(zigzag(load(seq, f) - load(before, f)), out);
  }
  now_.push_back(seq);
}

namespace {

// Reads varints; remembers the first failure and gives zeros after it.
class Input {
 public:
  explicit Input(std::string_view bytes) : bytes_(bytes) {}

  uint64_t number(const char* what) {
    uint64_t out = 0;
    for (int shift = 0; ok(); shift += 7) {
      if (at_ == bytes_.size()) return fail("{}: the record ends too early", what);
      const uint8_t byte = static_cast<uint8_t>(bytes_[at_++]);
      if (shift == 63 && byte > 1) return fail("{}: more than 64 bits", what);
      out |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return out;
    }
    return 0;
  }
  uint32_t number32(const char* what, uint64_t most = UINT32_MAX) {
    const uint64_t out = number(what);
    if (out > most) return static_cast<uint32_t>(fail("{}: at most {}, got {}", what, most, out));
    return static_cast<uint32_t>(out);
  }
  // A number of entries that take at least `bytes_each` bytes: no more than there can be.
  uint32_t count(const char* what, uint64_t most, size_t bytes_each) {
    return number32(what, std::min<uint64_t>(most, (bytes_.size() - at_) / bytes_each));
  }
  template <class... Args>
  uint64_t fail(fmt::format_string<Args...> format, Args&&... args) {
    if (status_.ok()) {
      status_ = make_error(ErrorCode::kCorrupt, format, std::forward<Args>(args)...);
    }
    return 0;
  }
  bool ok() const { return status_.ok(); }
  bool at_end() const { return at_ == bytes_.size(); }
  Status take_status() { return std::move(status_); }

 private:
  std::string_view bytes_;
  size_t at_ = 0;
  Status status_;
};

void read_view(Input& in, TraceRecord* out) {
  weft_sched_view& v = out->view;
  v = {};
  v.struct_size = sizeof(v);
  out->by_plugin = in.number32("by_plugin", 1) != 0;
  out->plan_ns = in.number("plan_ns");
  v.n_wait = in.count("n_wait", TraceDecoder::kSeqsMax, 2);
  v.n_run = in.count("n_run", TraceDecoder::kSeqsMax, 2);
  v.n_groups = in.number32("n_groups", WEFT_CACHE_GROUPS_MAX);
  v.n_costs = in.count("n_costs", TraceDecoder::kCostsMax, 3);
  v.n_tenants = in.count("n_tenants", TraceDecoder::kTenantsMax, 3);
  v.token_budget = in.number32("token_budget");
  v.seq_budget = in.number32("seq_budget");
  v.drafts_max = in.number32("drafts_max");
  v.chunk_grain = in.number32("chunk_grain");
  v.run_budget = in.number32("run_budget");
  v.seed = in.number("seed");
  v.swap_free = in.number("swap_free");
  v.step = in.number("step");
  v.now_ns = in.number("now_ns");
  v.step_target_ns = in.number("step_target_ns");
  out->groups.assign(v.n_groups, {});
  for (weft_sched_group& g : out->groups) {
    g.kind = in.number32("group.kind");
    if (in.ok() && g.kind != WEFT_CACHE_ROWS && g.kind != WEFT_CACHE_STATE) {
      in.fail("group.kind: 1 or 2, got {}", g.kind);
    }
    g.unit_tokens = in.number32("group.unit_tokens");
    g.free = in.number32("group.free");
    g.total = in.number32("group.total");
    g.spare = in.number32("group.spare");
    g.watermark = in.number32("group.watermark");
  }
  out->costs.assign(v.n_costs, {});
  for (weft_sched_cost& c : out->costs) {
    c.rows = in.number32("cost.rows");
    c.samples = in.number32("cost.samples");
    c.ns = in.number("cost.ns");
  }
  out->tenants.assign(v.n_tenants, {});
  for (weft_sched_tenant& t : out->tenants) {
    t.id = in.number32("tenant.id");
    t.weight = in.number32("tenant.weight");
    t.served = in.number("tenant.served");
  }
}

weft_seq read_seq(Input& in, uint32_t n_groups, const std::vector<weft_seq>& last) {
  const uint32_t place = in.number32("sequence reference", last.size());
  weft_seq out = place > 0 && in.ok() ? last[place - 1] : weft_seq{};
  const size_t n_fields = kFixedFields + size_t{2} * n_groups;
  const uint64_t changed = in.number("sequence fields");
  if (n_fields < 64 && changed >> n_fields != 0) in.fail("sequence fields: unknown bits");
  for (size_t i = 0; i < n_fields && in.ok(); ++i) {
    if ((changed >> i & 1) == 0) continue;
    const Field f = field(i, n_groups);
    const uint64_t value = load(out, f) + unzigzag(in.number("sequence field"));
    if (!f.wide && value > UINT32_MAX) in.fail("sequence field {}: more than 32 bits", i);
    char* at = reinterpret_cast<char*>(&out) + f.offset;
    const uint32_t narrow = static_cast<uint32_t>(value);
    if (f.wide) {
      std::memcpy(at, &value, sizeof value);
    } else {
      std::memcpy(at, &narrow, sizeof narrow);
    }
  }
  return out;
}

void read_plan(Input& in, TraceRecord* out) {
  weft_sched_plan& p = out->plan;
  p = {};
  p.struct_size = sizeof(p);
  p.n_run = in.count("plan.n_run", out->view.n_run, 4);
  p.n_admit = in.count("plan.n_admit", out->view.n_wait, 4);
  p.n_preempt = in.count("plan.n_preempt", out->view.n_run, 2);
  p.n_drop = in.count("plan.n_drop", out->view.n_wait, 1);
  const auto read_shares = [&](uint32_t n, uint32_t of, std::vector<weft_share>* shares) {
    shares->assign(n, {});
    for (weft_share& s : *shares) {
      s.index = in.number32("share.index", of - 1);
      s.rows = in.number32("share.rows");
      s.drafts = in.number32("share.drafts");
      s.propose = in.number32("share.propose");
    }
  };
  read_shares(p.n_run, out->view.n_run, &out->run_shares);
  read_shares(p.n_admit, out->view.n_wait, &out->admit_shares);
  out->preempts.assign(p.n_preempt, {});
  for (weft_preempt& one : out->preempts) {
    one.index = in.number32("preempt.index", uint64_t{out->view.n_run} - 1);
    one.mode = in.number32("preempt.mode");
  }
  out->drops.assign(p.n_drop, 0);
  for (uint32_t& index : out->drops) {
    index = in.number32("drop.index", uint64_t{out->view.n_wait} - 1);
  }
}

void link(TraceRecord* out) {
  out->view.wait = out->wait.data();
  out->view.run = out->run.data();
  out->view.groups = out->groups.data();
  out->view.costs = out->costs.data();
  out->view.tenants = out->tenants.data();
  out->plan.cap = std::max(out->view.n_run, out->view.n_wait);
  out->plan.run = out->run_shares.data();
  out->plan.admit = out->admit_shares.data();
  out->plan.preempt = out->preempts.data();
  out->plan.drop = out->drops.data();
}

}  // namespace

Status TraceDecoder::decode(std::string_view bytes, TraceRecord* out) {
  Input in(bytes);
  read_view(in, out);
  out->wait.clear();
  out->run.clear();
  for (uint32_t i = 0; i < out->view.n_wait && in.ok(); ++i) {
    out->wait.push_back(read_seq(in, out->view.n_groups, last_));
  }
  for (uint32_t i = 0; i < out->view.n_run && in.ok(); ++i) {
    out->run.push_back(read_seq(in, out->view.n_groups, last_));
  }
  if (in.ok()) read_plan(in, out);
  if (in.ok() && !in.at_end()) in.fail("bytes are left after the plan");
  if (!in.ok()) return in.take_status();
  last_ = out->wait;
  last_.insert(last_.end(), out->run.begin(), out->run.end());
  link(out);
  return {};
}

}  // namespace weft::engine
