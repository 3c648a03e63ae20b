#include "kimi_model.h"

#include <algorithm>
#include <vector>

namespace weft_kimi {
namespace {

constexpr uint32_t kDefaultPageTokens = 64;
constexpr uint32_t kMaxPageTokens = 1u << 16;

const char* stage_call(int stage) {
  constexpr const char* calls[] = {"create", "declare", "plan", "ready", "stop"};
  return calls[stage];
}

}  // namespace

Fault KimiModel::create(const weft_host* host, const Options& options,
                        std::unique_ptr<KimiModel>* out) {
  std::unique_ptr<KimiModel> model(new KimiModel(host));
  model->options_ = options;
  KIMI_TRY(parse_config(options.config, &model->config_));
  KIMI_TRY(model->kernels_.open(host));
  model->settings_.kda_chunk = options.kda_chunk;
  model->settings_.biased_router = options.biased_router;
  model->settings_.moe_mode = options.moe_mode;
  model->settings_.lora_eps = options.lora_norm_eps.value_or(model->config_.lora_eps);
  *out = std::move(model);
  return {};
}

KimiModel::~KimiModel() {
  if (workspace_ != nullptr) {
    host_->release(host_, WEFT_MEM_HOST, 0, workspace_, buffer_bytes_ + scratch_bytes_);
  }
}

Fault KimiModel::expect(Stage stage, const char* call) const {
  if (stage_ == stage) return {};
  return fault(WEFT_E_STATE, "{} must follow {}, but the last stage reached is {}", call,
               stage_call(static_cast<int>(stage)), stage_call(static_cast<int>(stage_)));
}

Fault KimiModel::declare(const weft_catalog* catalog) {
  KIMI_TRY(expect(Stage::kCreated, "declare"));
  auto book = std::make_unique<WeightBook>(kernels_);
  book->open(catalog);
  // The book points into weights_, so it is filled in its final place.
  weights_ = Weights();
  KIMI_TRY(declare_weights(config_, *book, &weights_));
  book_ = std::move(book);
  stage_ = Stage::kDeclared;
  if (catalog->n > book_->tensors()) {
    host_->log(host_, WEFT_LOG_INFO,
               fmt::format("{} of {} tensors are not part of this model and stay on disk",
                           catalog->n - book_->tensors(), catalog->n)
                   .c_str());
  }
  return {};
}

Fault KimiModel::info(weft_model_info* out) const {
  if (stage_ == Stage::kCreated) return fault(WEFT_E_STATE, "info must follow declare");
  weft_model_info i{};
  i.struct_size = sizeof(i);
  i.vocab = config_.vocab;
  i.hidden = config_.hidden;
  i.layers = config_.layers;
  i.max_context = config_.max_context;
  i.media_token = -1;
  std::copy(config_.eos.begin(), config_.eos.end(), i.eos);
  i.parameters = book_->parameters();
  if (media()) {
    i.accepts_media = 1;
    i.media_patch_values = config_.vision->patch_values();
    i.media_merge = config_.vision->merge;
    i.media_token = config_.media_token;
  }
  *out = i;
  return {};
}

Fault KimiModel::check_limits(const weft_limits& l) {
  const auto range = [](const char* name, uint64_t got, uint64_t low, uint64_t high) -> Fault {
    if (got >= low && got <= high) return {};
    return fault(WEFT_E_ARG, "limits.{}: expected {} to {}, got {}", name, low, high, got);
  };
  KIMI_TRY(range("struct_size", l.struct_size, sizeof(weft_limits), UINT32_MAX));
  KIMI_TRY(range("max_seqs", l.max_seqs, 1, 1u << 20));
  KIMI_TRY(range("max_rows", l.max_rows, l.max_seqs, 1u << 24));
  KIMI_TRY(range("max_context", l.max_context, 1, config_.max_context));
  KIMI_TRY(range("max_logit_rows", l.max_logit_rows, 1, l.max_rows));
  KIMI_TRY(range("page_tokens", l.page_tokens, 0, kMaxPageTokens));
  uint32_t dtype = l.cache_dtype != 0 ? l.cache_dtype : options_.cache_dtype;
  if (dtype == 0) KIMI_TRY(natural_cache_dtype(&dtype));
  if (dtype != WEFT_F32 && dtype != WEFT_BF16) {
    return fault(WEFT_E_UNSUPPORTED,
                 "limits.cache_dtype: expected f32 ({}), bf16 ({}) or 0, got {}", int{WEFT_F32},
                 int{WEFT_BF16}, dtype);
  }
  const bool rows = config_.mla_layers() != 0;
  layout_ =
      CacheLayout::make(config_, l.page_tokens != 0 ? l.page_tokens : kDefaultPageTokens, dtype);
  shape_.vocab = config_.vocab;
  shape_.max_rows = l.max_rows;
  shape_.max_seqs = l.max_seqs;
  shape_.max_context = l.max_context;
  shape_.max_logit_rows = l.max_logit_rows;
  shape_.page_tokens = rows ? layout_.page_tokens : 0;
  shape_.has_state = config_.kda_layers() != 0;
  shape_.has_media = media();
  shape_.prefill_min_rows = options_.prefill_min_rows;
  return {};
}

// Kernels that round what products take in to bf16 gain nothing from rows in f32.
Fault KimiModel::natural_cache_dtype(uint32_t* out) const {
  const weft_kernel* gemm = nullptr;
  KIMI_TRY(kernels_.find("gemm", WEFT_BF16, &gemm));
  *out = gemm->isa >= WEFT_ISA_X86_AVX512_BF16 ? WEFT_BF16 : WEFT_F32;
  return {};
}

Fault KimiModel::plan(const weft_limits& limits, weft_mem_plan* out) {
  KIMI_TRY(expect(Stage::kDeclared, "plan"));
  KIMI_TRY(check_limits(limits));
  KIMI_TRY(text_kernels_.find(kernels_, config_, weights_, layout_.row_dtype));
  if (media()) KIMI_TRY(vision_kernels_.find(kernels_));
  KIMI_TRY(measure());

  weft_mem_plan p{};
  p.struct_size = sizeof(p);
  p.weight_bytes = book_->bytes();
  p.workspace_bytes = buffer_bytes_ + scratch_bytes_ + batch_plan_.bytes();
  if (layout_.page_bytes != 0) {
    p.groups[p.n_groups++] = {"mla", WEFT_CACHE_ROWS, layout_.page_tokens, layout_.page_bytes};
  }
  if (layout_.slot_bytes != 0)
    p.groups[p.n_groups++] = {"kda", WEFT_CACHE_STATE, 0, layout_.slot_bytes};
  *out = p;
  stage_ = Stage::kPlanned;
  return {};
}

// Walks the graph without memory over the steps that need most: one long prompt piece, every
// sequence decoding, prompt pieces of every sequence, and a long piece token by token.
Fault KimiModel::measure() {
  arenas_.page_stride = layout_.page_bytes;
  arenas_.slot_stride = layout_.slot_bytes;
  scratch_bytes_ = 0;
  Carver carver(nullptr);
  text_buffers_ = TextBuffers::carve(config_, shape_.max_rows, shape_.max_logit_rows, carver);
  buffer_bytes_ = carver.bytes();
  const uint32_t rows = shape_.max_rows, seqs = shape_.max_seqs;
  const uint32_t longest = std::min(rows, shape_.max_context);
  const uint32_t each = std::min(rows / seqs, shape_.max_context);
  const uint32_t per_piece = std::min(shape_.prefill_min_rows, longest);
  const uint32_t pieces = std::min(seqs, rows / per_piece);
  KIMI_TRY(measure_step(1, longest, shape_.max_context - longest, false));
  KIMI_TRY(measure_step(1, longest, shape_.max_context - longest, true));
  KIMI_TRY(measure_step(seqs, seqs, shape_.max_context - 1, false));
  KIMI_TRY(measure_step(seqs, seqs * each, shape_.max_context - each, false));
  KIMI_TRY(measure_step(seqs, seqs * each, shape_.max_context - each, true));
  KIMI_TRY(measure_step(pieces, pieces * per_piece, shape_.max_context - per_piece, false));
  if (media()) KIMI_TRY(measure_media());
  return {};
}

Fault KimiModel::measure_step(uint32_t n_seqs, uint32_t n_rows, uint32_t context, bool recurrent) {
  BatchShape shape = shape_;
  shape.n_slots = n_seqs;
  shape.n_pages = n_seqs * shape.table_stride();
  BatchPlan plan;
  plan.resize(shape);
  std::vector<int32_t> token(n_rows, 0), table(shape.n_pages), write(n_seqs);
  std::vector<uint32_t> start(uint64_t{n_seqs} + 1), contexts(n_seqs, context);
  std::vector<uint32_t> logit(std::min(n_rows, shape.max_logit_rows));
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
  for (uint32_t i = 0; i < n_seqs; ++i) {
    write[i] = static_cast<int32_t>(i);
    start[i + 1] = start[i] + n_rows / n_seqs;
  }
  for (uint32_t i = 0; i < logit.size(); ++i) logit[i] = i;
  std::vector<int32_t> read = context == 0 ? std::vector<int32_t>(n_seqs, -1) : write;
  const weft_cache_map pages = {table.data(), shape.table_stride(), nullptr, nullptr};
  const weft_cache_map slots = {nullptr, 0, read.data(), write.data()};
  const weft_cache_map maps[] = {shape.page_tokens != 0 ? pages : slots, slots};
  float unused = 0;
  weft_batch b{};
  b.struct_size = sizeof(b);
  b.flags = recurrent ? WEFT_BATCH_RECURRENT : 0;
  b.n_seqs = n_seqs;
  b.n_rows = n_rows;
  b.n_logit_rows = static_cast<uint32_t>(logit.size());
  b.token = token.data();
  b.seq_start = start.data();
  b.context = contexts.data();
  b.maps = maps;
  b.logit_row = logit.data();
  b.logits = &unused;
  KIMI_TRY(plan.check(b));
  Runner runner = Runner::dry(host_);
  KIMI_TRY(text(runner).run(plan, nullptr, nullptr));
  scratch_bytes_ = std::max(scratch_bytes_, runner.scratch_needed());
  return {};
}

Fault KimiModel::measure_media() {
  const VisionConfig& v = *config_.vision;
  Carver carver(nullptr);
  vision_buffers_ = VisionBuffers::carve(v, options_.max_media_patches, carver);
  buffer_bytes_ = std::max(buffer_bytes_, carver.bytes());
  weft_media media{};
  media.struct_size = sizeof(media);
  media.grid_t = 1;
  media.grid_w = v.merge;
  media.grid_h = std::max(1u, options_.max_media_patches / (v.merge * v.merge)) * v.merge;
  for (uint32_t frames = 1; frames <= v.table_t; frames *= 2) {
    media.grid_t = frames;
    Runner runner = Runner::dry(host_);
    weft_media clip = media;
    clip.grid_h = std::max(1u, media.grid_h / v.merge / frames) * v.merge;
    KIMI_TRY(VisionForward(config_, weights_.vision, vision_kernels_, options_.vision_norm_eps,
                           vision_buffers_, runner)
                 .run(clip, nullptr));
    scratch_bytes_ = std::max(scratch_bytes_, runner.scratch_needed());
  }
  return {};
}

weft_status KimiModel::want(uint64_t i, weft_want* out) const {
  if (book_ == nullptr) return WEFT_E_STATE;
  if (i >= book_->tensors()) return WEFT_END;
  weft_want w{};
  w.struct_size = sizeof(w);
  w.name = book_->name(i);
  w.bytes = book_->stored_bytes(i);
  *out = w;
  return WEFT_OK;
}

Fault KimiModel::place(uint64_t i, void** dst) {
  KIMI_TRY(expect(Stage::kPlanned, "place"));
  return book_->place(i, dst);
}

Fault KimiModel::placed(uint64_t i) {
  KIMI_TRY(expect(Stage::kPlanned, "placed"));
  return book_->placed(i);
}

Fault KimiModel::take_arenas(const weft_arena* arenas, uint32_t n) {
  const uint32_t groups = (layout_.page_bytes != 0 ? 1u : 0u) + (layout_.slot_bytes != 0 ? 1u : 0u);
  if (n != groups) return fault(WEFT_E_ARG, "ready: expected {} arenas, got {}", groups, n);
  const auto check = [](const char* group, const weft_arena& a, uint64_t unit,
                        uint64_t grain) -> Fault {
    if (a.base != nullptr && a.stride >= unit && a.stride % grain == 0 && a.n_units >= 1 &&
        a.n_units <= INT32_MAX && reinterpret_cast<uintptr_t>(a.base) % 64 == 0) {
      return {};
    }
    return fault(
        WEFT_E_ARG,
        "ready: arena \"{}\": expected a 64-byte aligned base, a stride that is a multiple of {} "
        "and at least {} bytes, and 1 to {} units; got base {}, stride {}, units {}",
        group, grain, unit, INT32_MAX, fmt::ptr(a.base), a.stride, a.n_units);
  };
  if (layout_.page_bytes != 0) {
    KIMI_TRY(check("mla", *arenas, layout_.page_bytes, layout_.row_dtype == WEFT_F32 ? 4 : 2));
    arenas_.pages = arenas->base;
    arenas_.page_stride = arenas->stride;
    shape_.n_pages = arenas->n_units;
    ++arenas;
  }
  if (layout_.slot_bytes != 0) {
    KIMI_TRY(check("kda", *arenas, layout_.slot_bytes, 4));
    arenas_.slots = arenas->base;
    arenas_.slot_stride = arenas->stride;
    shape_.n_slots = arenas->n_units;
  }
  return {};
}

Fault KimiModel::ready(const weft_arena* arenas, uint32_t n) {
  KIMI_TRY(expect(Stage::kPlanned, "ready"));
  KIMI_TRY(book_->complete());
  KIMI_TRY(take_arenas(arenas, n));
  batch_plan_.resize(shape_);
  if (workspace_ == nullptr) {
    const uint64_t bytes = buffer_bytes_ + scratch_bytes_;
    const weft_status s = host_->alloc(host_, WEFT_MEM_HOST, 0, bytes, 64, &workspace_);
    if (s != WEFT_OK) {
      workspace_ = nullptr;
      return fault(s, "no memory for a workspace of {} bytes", bytes);
    }
  }
  Carver text_carver(workspace_);
  text_buffers_ = TextBuffers::carve(config_, shape_.max_rows, shape_.max_logit_rows, text_carver);
  if (media()) {
    Carver media_carver(workspace_);
    vision_buffers_ =
        VisionBuffers::carve(*config_.vision, options_.max_media_patches, media_carver);
  }
  stage_ = Stage::kReady;
  return {};
}

Fault KimiModel::step(const weft_batch& batch) {
  KIMI_TRY(expect(Stage::kReady, "step"));
  KIMI_TRY(batch_plan_.check(batch));
  Runner runner = Runner::live(host_, shift(static_cast<std::byte*>(workspace_), buffer_bytes_),
                               scratch_bytes_, batch.stream);
  KIMI_TRY(text(runner).run(batch_plan_, batch.media, batch.logits));
  return runner.finish();
}

Fault KimiModel::encode_media(const weft_media& m, float* rows) {
  KIMI_TRY(expect(Stage::kReady, "encode_media"));
  if (!media()) return fault(WEFT_E_UNSUPPORTED, "this checkpoint has no vision tower");
  KIMI_TRY(check_media(*config_.vision, m, options_.max_media_patches));
  if (rows == nullptr) return fault(WEFT_E_ARG, "encode_media: rows: expected a pointer, got NULL");
  Runner runner = Runner::live(host_, shift(static_cast<std::byte*>(workspace_), buffer_bytes_),
                               scratch_bytes_, nullptr);
  KIMI_TRY(VisionForward(config_, weights_.vision, vision_kernels_, options_.vision_norm_eps,
                         vision_buffers_, runner)
               .run(m, rows));
  return runner.finish();
}

}  // namespace weft_kimi
