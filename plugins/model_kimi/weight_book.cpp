#include "weight_book.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

namespace weft_kimi {
namespace {

constexpr uint64_t kAlign = 64;
constexpr size_t kShownProblems = 4;

uint64_t round_up(uint64_t n) { return (n + kAlign - 1) & ~(kAlign - 1); }

const char* dtype_text(uint32_t dtype) {
  switch (dtype) {
    case WEFT_F32:
      return "F32";
    case WEFT_BF16:
      return "BF16";
    case WEFT_F16:
      return "F16";
    case WEFT_U8:
      return "U8";
    case WEFT_I8:
      return "I8";
    case WEFT_F8E4M3:
      return "F8_E4M3";
    case WEFT_F64:
      return "F64";
    default:
      return "another type";
  }
}

template <class Range>
std::string dtypes_text(const Range& dtypes) {
  std::string text;
  for (const uint32_t d : dtypes) text += (text.empty() ? "" : " or ") + std::string(dtype_text(d));
  return text;
}

std::string shape_text(const int64_t* shape, size_t rank) {
  std::string text = "[";
  for (size_t i = 0; i < rank; ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

std::string entry_text(const weft_catalog_entry& e) {
  return std::string(dtype_text(e.dtype)) + " " + shape_text(e.shape, e.rank);
}

uint64_t product_of(std::initializer_list<int64_t> shape) {
  uint64_t n = 1;
  for (const int64_t d : shape) n *= static_cast<uint64_t>(d);
  return n;
}

uint64_t width_of(uint32_t dtype) { return dtype == WEFT_F32 ? 4 : dtype == WEFT_BF16 ? 2 : 1; }

std::string text_of(weft_str s) { return std::string(s.data, s.len); }

float from_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

void* staging_new(uint64_t bytes) {
  return ::operator new(std::max<uint64_t>(bytes, 1), std::align_val_t(kAlign), std::nothrow);
}

void staging_delete(void* p) { ::operator delete(p, std::align_val_t(kAlign)); }

}  // namespace

WeightBook::~WeightBook() {
  for (Slot& slot : slots_) staging_delete(slot.staging);
  for (Pack& pack : packs_) {  // halves that waited for the other half
    staging_delete(const_cast<void*>(pack.source.data));
    staging_delete(const_cast<void*>(pack.source.scale));
  }
  const weft_host* host = kernels_.host();
  for (Block& block : blocks_) {
    if (block.base != nullptr) host->release(host, WEFT_MEM_HOST, 0, block.base, block.bytes);
  }
}

void WeightBook::begin_block() { blocks_.emplace_back(); }

const weft_catalog_entry* WeightBook::find(const std::string& name) const {
  return catalog_->find(catalog_, weft_str{name.data(), name.size()});
}

void WeightBook::problem(std::string what) {
  ++problem_count_;
  if (problems_.size() < kShownProblems) problems_.push_back(std::move(what));
}

Fault WeightBook::declared() const {
  if (problem_count_ == 0) return {};
  std::string text;
  for (const std::string& p : problems_) text += (text.empty() ? "" : "; ") + p;
  if (problem_count_ > problems_.size()) text += "; ...";
  return fault(WEFT_E_CONFIG, "{} tensor{} of the checkpoint do not fit config.json: {}",
               problem_count_, problem_count_ == 1 ? "" : "s", text);
}

const weft_catalog_entry* WeightBook::check(const std::string& name,
                                            std::initializer_list<uint32_t> dtypes,
                                            std::initializer_list<int64_t> shape) {
  const weft_catalog_entry* e = find(name);
  const std::string wanted = dtypes_text(dtypes) + " " + shape_text(shape.begin(), shape.size());
  if (e == nullptr) {
    problem(fmt::format("{} is missing ({} expected)", name, wanted));
    return nullptr;
  }
  const bool dtype_ok = std::find(dtypes.begin(), dtypes.end(), e->dtype) != dtypes.end();
  const bool shape_ok = e->rank == shape.size() && std::equal(shape.begin(), shape.end(), e->shape);
  if (!dtype_ok || !shape_ok || e->bytes != product_of(shape) * width_of(e->dtype)) {
    problem(
        fmt::format("{}: expected {}, got {} in {} bytes", name, wanted, entry_text(*e), e->bytes));
    return nullptr;
  }
  return e;
}

uint64_t WeightBook::reserve(uint64_t bytes) {
  Block& block = blocks_.back();
  const uint64_t at = round_up(block.bytes);
  block.bytes = at + bytes;
  return at;
}

WeightBook::Slot& WeightBook::add(const weft_catalog_entry* entry, Kind kind, uint64_t offset) {
  Slot slot;
  slot.entry = entry;
  slot.kind = kind;
  slot.block = static_cast<uint32_t>(blocks_.size() - 1);
  slot.offset = offset;
  slots_.push_back(slot);
  return slots_.back();
}

void WeightBook::point(const void** where, uint64_t offset) {
  pointers_.push_back({nullptr, where, static_cast<uint32_t>(blocks_.size() - 1), offset});
}

void WeightBook::point(const float** where, uint64_t offset) {
  pointers_.push_back({where, nullptr, static_cast<uint32_t>(blocks_.size() - 1), offset});
}

void WeightBook::add_packed(const weft_catalog_entry* data, const weft_catalog_entry* scale,
                            weft_weight* out, uint64_t bytes, uint64_t scale_bytes) {
  const uint32_t link = static_cast<uint32_t>(packs_.size());
  Pack pack;
  pack.source = *out;
  pack.source.layout = 0;
  pack.target = out;
  pack.missing = scale == nullptr ? 1 : 2;
  packs_.push_back(pack);
  add(data, Kind::kPackData, 0).link = link;
  point(&out->data, reserve(bytes));
  if (scale == nullptr) return;
  Slot& slot = add(scale, Kind::kPackScale, 0);
  slot.link = link;
  slot.count = out->k / 32;
  point(&out->scale, reserve(scale_bytes));
}

void WeightBook::matrix(const std::string& name, uint64_t n, uint64_t k, MatrixUse use,
                        weft_weight* out, std::initializer_list<int64_t> shape) {
  const weft_catalog_entry* e =
      shape.size() != 0
          ? check(name, {WEFT_BF16, WEFT_F32}, shape)
          : check(name, {WEFT_BF16, WEFT_F32}, {static_cast<int64_t>(n), static_cast<int64_t>(k)});
  *out = weft_weight{e == nullptr ? uint32_t{WEFT_BF16} : e->dtype, 0, n, k, nullptr, nullptr};
  if (e == nullptr) return;
  parameters_ += n * k;
  uint64_t bytes = e->bytes, scale_bytes = 0;
  if (use == MatrixUse::kMultiply) {
    const Fault f = kernels_.pack_plan(*out, &out->layout, &bytes, &scale_bytes);
    if (!f.ok()) return problem(fmt::format("{}: {}", name, f.message));
  }
  if (out->layout != 0) return add_packed(e, nullptr, out, bytes, 0);
  const uint64_t offset = reserve(e->bytes);
  add(e, Kind::kData, offset);
  point(&out->data, offset);
}

void WeightBook::mxfp4(const std::string& name, uint64_t n, uint64_t k, weft_weight* out) {
  *out = weft_weight{WEFT_MXFP4, 0, n, k, nullptr, nullptr};
  if (k % 32 != 0) {
    return problem(
        fmt::format("{}_packed: {} inputs are not a multiple of the MXFP4 group of 32", name, k));
  }
  const int64_t rows = static_cast<int64_t>(n), cols = static_cast<int64_t>(k);
  const weft_catalog_entry* data = check(name + "_packed", {WEFT_U8}, {rows, cols / 2});
  const weft_catalog_entry* scale = check(name + "_scale", {WEFT_U8}, {rows, cols / 32});
  if (data == nullptr || scale == nullptr) return;
  parameters_ += n * k;
  uint64_t bytes = 0, scale_bytes = 0;
  const Fault f = kernels_.pack_plan(*out, &out->layout, &bytes, &scale_bytes);
  if (!f.ok()) return problem(fmt::format("{}: {}", name, f.message));
  if (out->layout != 0) return add_packed(data, scale, out, bytes, scale_bytes);
  const uint64_t offset = reserve(data->bytes);
  add(data, Kind::kData, offset);
  point(&out->data, offset);
  const uint64_t scale_offset = reserve(scale->bytes);
  add(scale, Kind::kScale, scale_offset).count = k / 32;
  point(&out->scale, scale_offset);
}

void WeightBook::vector(const std::string& name, std::initializer_list<int64_t> shape,
                        const float** out) {
  const weft_catalog_entry* e = check(name, {WEFT_BF16, WEFT_F32}, shape);
  if (e == nullptr) return;
  const uint64_t count = product_of(shape);
  parameters_ += count;
  const uint64_t offset = reserve(count * sizeof(float));
  add(e, Kind::kVector, offset).count = count;
  point(out, offset);
}

void WeightBook::decay_log(const std::string& name, uint64_t n, const float** out) {
  const weft_catalog_entry* e = find(name);
  const int64_t heads = static_cast<int64_t>(n);
  if (e == nullptr) {
    return problem(fmt::format("{} is missing (F32 [{}], zero-padded, or [1, 1, {}, 1] expected)",
                               name, n, n));
  }
  const int64_t split[] = {1, 1, heads, 1};
  const bool flat = e->rank == 1 && e->shape[0] >= heads;
  const bool four = e->rank == 4 && std::equal(split, split + 4, e->shape);
  const uint64_t stored = flat ? static_cast<uint64_t>(e->shape[0]) : n;
  if (e->dtype != WEFT_F32 || (!flat && !four) || e->bytes != stored * sizeof(float)) {
    return problem(
        fmt::format("{}: expected F32 [{}] (or longer, with a zero tail) or [1, 1, {}, 1], got {}",
                    name, n, n, entry_text(*e)));
  }
  parameters_ += n;
  const uint64_t offset = reserve(n * sizeof(float));
  add(e, Kind::kDecayLog, offset).count = n;
  point(out, offset);
}

void WeightBook::product(const std::string& norm, const std::string& proj, uint64_t n,
                         const float** out) {
  const int64_t width = static_cast<int64_t>(n);
  const weft_catalog_entry* a = check(norm, {WEFT_BF16, WEFT_F32}, {width});
  const weft_catalog_entry* b = check(proj, {WEFT_BF16, WEFT_F32}, {1, width});
  if (a == nullptr || b == nullptr) return;
  parameters_ += 2 * n;
  const uint64_t offset = reserve(n * sizeof(float));
  const uint32_t link = static_cast<uint32_t>(products_.size());
  products_.push_back(0);
  for (const weft_catalog_entry* e : {a, b}) {
    Slot& slot = add(e, Kind::kProduct, offset);
    slot.count = n;
    slot.link = link;
  }
  point(out, offset);
}

uint64_t WeightBook::bytes() const {
  uint64_t sum = 0;
  for (const Block& block : blocks_) sum += round_up(block.bytes);
  return sum;
}

Fault WeightBook::allocate() {
  const std::lock_guard lock(mutex_);
  if (allocated_) return {};
  const weft_host* host = kernels_.host();
  for (Block& block : blocks_) {
    if (block.base != nullptr || block.bytes == 0) continue;
    const weft_status s = host->alloc(host, WEFT_MEM_HOST, 0, block.bytes, kAlign, &block.base);
    if (s != WEFT_OK) {
      block.base = nullptr;
      return fault(s, "no memory for {} bytes of weights ({} in all)", block.bytes, bytes());
    }
  }
  for (const Pointer& p : pointers_) {
    const std::byte* at = static_cast<const std::byte*>(blocks_[p.block].base) + p.offset;
    if (p.data != nullptr) *p.data = at;
    if (p.vector != nullptr) *p.vector = reinterpret_cast<const float*>(at);
  }
  allocated_ = true;
  return {};
}

void* WeightBook::address(const Slot& slot) const {
  return static_cast<std::byte*>(blocks_[slot.block].base) + slot.offset;
}

Fault WeightBook::place(uint64_t i, void** dst) {
  if (i >= slots_.size())
    return fault(WEFT_E_ARG, "tensor {} of {} does not exist", i, slots_.size());
  KIMI_TRY(allocate());
  Slot& slot = slots_[i];
  if (slot.done) return fault(WEFT_E_STATE, "{} is already placed", text_of(slot.entry->name));
  if (slot.kind == Kind::kData || slot.kind == Kind::kScale) {
    *dst = address(slot);
    return {};
  }
  if (slot.staging == nullptr) slot.staging = staging_new(slot.entry->bytes);
  if (slot.staging == nullptr) {
    return fault(WEFT_E_NOMEM, "no memory to read {} ({} bytes)", text_of(slot.entry->name),
                 slot.entry->bytes);
  }
  *dst = slot.staging;
  return {};
}

Fault WeightBook::placed(uint64_t i) {
  if (i >= slots_.size())
    return fault(WEFT_E_ARG, "tensor {} of {} does not exist", i, slots_.size());
  Slot& slot = slots_[i];
  if (!allocated_ || slot.done) {
    return fault(WEFT_E_STATE, "{} has no place that waits for bytes", text_of(slot.entry->name));
  }
  switch (slot.kind) {
    case Kind::kData:
      break;
    case Kind::kScale:
      KIMI_TRY(check_scales(slot, address(slot)));
      break;
    case Kind::kPackData:
    case Kind::kPackScale:
      KIMI_TRY(finish_pack(slot));
      break;
    case Kind::kVector:
    case Kind::kDecayLog:
    case Kind::kProduct:
      KIMI_TRY(finish_vector(slot));
      break;
  }
  slot.done = true;
  return {};
}

Fault WeightBook::complete() const {
  for (const Slot& slot : slots_) {
    if (!slot.done)
      return fault(WEFT_E_STATE, "{} has not been loaded yet", text_of(slot.entry->name));
  }
  return {};
}

Fault WeightBook::check_scales(const Slot& slot, const void* bytes) const {
  const void* bad = std::memchr(bytes, 255, slot.entry->bytes);
  if (bad == nullptr) return {};
  const uint64_t at =
      static_cast<uint64_t>(static_cast<const uint8_t*>(bad) - static_cast<const uint8_t*>(bytes));
  return fault(WEFT_E_CORRUPT,
               "{}: row {}, group {}: scale byte 255 means not-a-number; fetch the file again",
               text_of(slot.entry->name), at / slot.count, at % slot.count);
}

Fault WeightBook::finish_pack(Slot& slot) {
  if (slot.staging == nullptr) {
    return fault(WEFT_E_STATE, "{} was never given a place", text_of(slot.entry->name));
  }
  if (slot.kind == Kind::kPackScale) KIMI_TRY(check_scales(slot, slot.staging));
  Pack& pack = packs_[slot.link];
  {
    const std::lock_guard lock(mutex_);
    (slot.kind == Kind::kPackData ? pack.source.data : pack.source.scale) = slot.staging;
    slot.staging = nullptr;  // the pack frees both
    if (--pack.missing != 0) return {};
  }
  const Fault packed = kernels_.pack(pack.source, *pack.target);
  staging_delete(const_cast<void*>(pack.source.data));
  staging_delete(const_cast<void*>(pack.source.scale));
  pack.source.data = pack.source.scale = nullptr;
  if (!packed.ok()) return fault(packed.code, "{}: {}", text_of(slot.entry->name), packed.message);
  return {};
}

Fault WeightBook::to_floats(const Slot& slot, float* dst) const {
  const weft_catalog_entry& e = *slot.entry;
  const auto* bytes = static_cast<const uint8_t*>(slot.staging);
  for (uint64_t i = 0; i < slot.count; ++i) {
    if (e.dtype == WEFT_F32) {
      std::memcpy(dst + i, bytes + i * 4, 4);
    } else {
      uint16_t bits;
      std::memcpy(&bits, bytes + i * 2, 2);
      dst[i] = from_bf16(bits);
    }
    if (!std::isfinite(dst[i])) {
      return fault(WEFT_E_CORRUPT, "{}: element {} is not a finite number; fetch the file again",
                   text_of(e.name), i);
    }
  }
  if (slot.kind != Kind::kDecayLog) return {};
  for (uint64_t i = slot.count; i < e.bytes / sizeof(float); ++i) {
    float pad;
    std::memcpy(&pad, bytes + i * 4, 4);
    if (pad != 0.0f) {
      return fault(
          WEFT_E_CORRUPT,
          "{}: element {} is {}, but only the first {} (one per head) may differ from zero; "
          "check linear_attn_config.num_heads",
          text_of(e.name), i, pad, slot.count);
    }
  }
  return {};
}

Fault WeightBook::finish_vector(Slot& slot) {
  if (slot.staging == nullptr) {
    return fault(WEFT_E_STATE, "{} was never given a place", text_of(slot.entry->name));
  }
  float* target = static_cast<float*>(address(slot));
  if (slot.kind != Kind::kProduct) {
    KIMI_TRY(to_floats(slot, target));
  } else {
    std::vector<float> factor(slot.count);
    KIMI_TRY(to_floats(slot, factor.data()));
    const std::lock_guard lock(mutex_);
    const bool second = products_[slot.link] != 0;
    for (uint64_t i = 0; i < slot.count; ++i)
      target[i] = second ? target[i] * factor[i] : factor[i];
    products_[slot.link] = 1;
  }
  staging_delete(slot.staging);
  slot.staging = nullptr;
  return {};
}

}  // namespace weft_kimi
