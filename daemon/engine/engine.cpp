#include "engine/engine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

namespace weft::engine {
namespace {

// Prompt log-probabilities can be large; a batch that holds more entries than this leaves at once.
constexpr int kPromptEntriesPerBatch = 1 << 16;

BatchLimits batch_limits(const StepModel& model, const EngineOptions& options) {
  return {options.compose.max_batch_tokens,
          options.compose.max_sequences,
          options.compose.max_logit_rows,
          options.max_context,
          model.info.vocab,
          model.info.hidden,
          options.deterministic ? uint32_t{WEFT_BATCH_RECURRENT} : 0};
}

weft_err empty_err() {
  weft_err err = {};
  err.struct_size = sizeof(err);
  return err;
}

std::string text_of(const weft_err& err, weft_status status) {
  const std::string_view msg(err.msg, strnlen(err.msg, sizeof(err.msg)));
  return msg.empty() ? fmt::format("status {}", status) : std::string(msg);
}

uint64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  uint64_t pages = 0, resident = 0;
  in >> pages >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

Engine::Engine(StepModel model, Caches* caches, EngineOptions options, Emit emit,
               std::unique_ptr<Planner> planner)
    : model_(model),
      caches_(caches),
      options_(std::move(options)),
      emit_(std::move(emit)),
      coordinator_(caches, {options_.keep_prefixes, options_.host, options_.now_us}),
      roster_({options_.compose.max_sequences, options_.max_waiting, options_.max_waiting_bytes}),
      composer_(options_.compose, caches, &coordinator_, &roster_, &tenants_,
                planner != nullptr ? std::move(planner) : std::make_unique<Planner>()),
      builder_(batch_limits(model_, options_), *caches) {
  WEFT_CHECK(options_.now_us && emit_);
  runs_.reserve(options_.compose.max_sequences);
  ended_.reserve(options_.compose.max_sequences);
  scratch_.order.reserve(model_.info.vocab);
  scratch_.weight.reserve(model_.info.vocab);
}

// ---- commands ---------------------------------------------------------------------------------

void Engine::generate(wire::Generate message) {
  const uint64_t id = message.id();
  if (draining() || drained_ || faulted_) {
    refuse(id,
           Error(ErrorCode::kUnavailable, "the worker is shutting down: send the request again"));
    return;
  }
  Result<Request> request = parse_generate(message, model_.info, options_.max_context);
  if (!request.ok()) {
    refuse(id, request.error());
    return;
  }
  const uint64_t now = options_.now_us();
  const cache::Key128 root =
      cache::root_key(options_.model_identity, request->tenant, request->cache_salt);
  auto sequence =
      std::make_unique<Sequence>(std::move(request).value(), caches_, next_order_++, now, root);
  sequence->tenant = tenants_.enter(sequence->request.tenant, sequence->request.tenant_weight, now);
  sequence->queued_us = now;
  sequence->chain.extend(sequence->tokens);
  sequence->prompt_top_count = static_cast<uint32_t>(
      std::clamp<int64_t>(sequence->request.sampling.prompt_logprobs, 0, model_.info.vocab));
  Status status = composer_.may_queue(*sequence, now);
  const uint32_t tenant = sequence->tenant;
  if (status.ok()) status = roster_.enqueue(std::move(sequence));
  if (!status.ok()) return refuse(id, status.error());
  tenants_.begin(tenant);
}

void Engine::cancel(uint64_t id, const std::string& reason) {
  std::unique_ptr<Sequence> sequence = roster_.remove(id);
  if (sequence == nullptr) return;  // its final message is already on the way
  const Error why(ErrorCode::kCancelled, reason.empty() ? "cancelled" : reason);
  finish(std::move(sequence), wire::FINISH_CANCELLED, &why);
}

void Engine::drain(uint64_t deadline_ms) {
  constexpr uint64_t kLongest = uint64_t{1} << 40;  // ms; keeps the sum below in range
  const uint64_t deadline = options_.now_us() + std::min(deadline_ms, kLongest) * 1000;
  if (drained_) return;
  drain_deadline_us_ = std::max<uint64_t>(deadline, 1);
}

// ---- messages ---------------------------------------------------------------------------------

wire::SequenceTokens* Engine::entry(Sequence* sequence) {
  wire::TokenBatch* batch = out_.mutable_tokens();
  if (sequence->batch_mark != batch_mark_) {
    sequence->batch_mark = batch_mark_;
    sequence->entry_index = batch->sequences_size();
    batch->add_sequences()->set_id(sequence->id());
  }
  return batch->mutable_sequences(sequence->entry_index);
}

void Engine::finish(std::unique_ptr<Sequence> sequence, wire::Finish finish, const Error* error,
                    const char* error_code) {
  const uint64_t now = options_.now_us();
  // What an error left in the caches is in doubt; everything else is worth keeping, a cancelled
  // answer too: its client may come back.
  const bool keep = finish != wire::FINISH_ERROR;
  composer_.leave(sequence.get(), keep,
                  finish == wire::FINISH_CANCELLED ? WEFT_E_CANCELLED
                  : keep                           ? WEFT_OK
                                                   : WEFT_E_INTERNAL,
                  now);
  wire::SequenceTokens* e = entry(sequence.get());
  e->set_finish(finish);
  if (error != nullptr) e->set_error(error->message);
  if (error != nullptr && finish == wire::FINISH_ERROR) {
    e->set_error_code(error_code != nullptr ? error_code : error_word(error->code));
  }
  const uint64_t admitted = sequence->admitted_us == 0 ? now : sequence->admitted_us;
  const uint64_t first = sequence->first_token_us == 0 ? now : sequence->first_token_us;
  e->set_queue_us(admitted - sequence->arrived_us);
  e->set_prefill_us(first - admitted);
  e->set_decode_us(now - first);
  sequence.reset();  // units are free before the message leaves
}

void Engine::refuse(uint64_t id, const Error& error) {
  wire::SequenceTokens* e = out_.mutable_tokens()->add_sequences();
  e->set_id(id);
  e->set_finish(wire::FINISH_ERROR);
  e->set_error(error.message);
  e->set_error_code(error_word(error.code));
}

void Engine::flush_tokens() {
  if (out_.tokens().sequences_size() == 0) return;
  out_.mutable_tokens()->set_step(steps_);
  emit_(out_);
  out_.mutable_tokens()->Clear();
  ++batch_mark_;
}

void Engine::fail_all(const Error& error) {
  for (const uint64_t id : roster_.ids()) {
    finish(roster_.remove(id), wire::FINISH_ERROR, &error);
  }
}

void Engine::end_draining() {
  if (!draining()) return;
  if (!roster_.empty() && options_.now_us() >= drain_deadline_us_) {
    fail_all(Error(ErrorCode::kUnavailable,
                   "the worker is shutting down and the time to finish is over"));
  }
  if (!roster_.empty()) return;
  flush_tokens();
  drained_ = true;
  wire::Envelope drained;
  drained.mutable_drained();
  emit_(drained);
}

void Engine::emit_stats(uint64_t now) {
  const bool idle = roster_.empty() && !coordinator_.copying();
  if (now < stats_due_us_ && idle == stats_idle_) return;
  if (idle && stats_idle_) return;  // nothing new to say
  stats_idle_ = idle;
  stats_due_us_ = now + options_.stats_interval_us;
  wire::WorkerStats* s = stats_.mutable_stats();
  s->Clear();
  s->set_step(steps_);
  s->set_running(static_cast<uint32_t>(roster_.running().size()));
  s->set_waiting(static_cast<uint32_t>(roster_.waiting().size()));
  for (const Caches::Group& group : caches_->groups()) {
    wire::GroupUse* use = s->add_groups();
    use->set_name(group.name);
    use->set_units_total(group.total());
    use->set_units_used(group.used());
    use->set_units_cached(group.pool->cached());
  }
  s->set_prompt_tokens_total(prompt_tokens_total_);
  s->set_generated_tokens_total(generated_tokens_total_);
  s->set_last_step_us(last_step_us_);
  s->set_last_batch_tokens(last_batch_tokens_);
  s->set_preemptions_total(composer_.preemptions());
  composer_.describe(s);
  s->set_resident_bytes(resident_bytes());
  emit_(stats_);
}

// ---- the step ---------------------------------------------------------------------------------

bool Engine::step() {
  end_draining();
  bool work = !roster_.empty() && !faulted_;
  if (work) {
    const std::vector<PlannedRun>& plan = composer_.compose(options_.now_us());
    runs_.assign(plan.begin(), plan.end());
    end_refused();
    note_admissions();
    if (runs_.empty()) {
      idle_wait();
    } else if (encode_media()) {
      run_step();
    }
  } else {
    coordinator_.poll();
    if (coordinator_.copying()) {  // copies in flight hold units: they are given back as they end
      work = true;
      idle_wait();
    }
  }
  flush_tokens();
  end_draining();
  emit_stats(options_.now_us());
  return work;
}

// There is work, but nothing can run: a prefix is on its way, or the policy waits for one.
void Engine::idle_wait() {
  constexpr uint64_t kWaitUs = 500;
  if (coordinator_.copying()) {
    coordinator_.host().queue().wait(kWaitUs);
  } else if (!options_.host.inline_copies) {
    std::this_thread::sleep_for(std::chrono::microseconds(kWaitUs / 5));
  }
}

// What the policy refused, and what makes no progress whatever is tried.
void Engine::end_refused() {
  refused_.clear();
  for (const Sequence* s : composer_.dropped()) refused_.push_back(s->id());
  for (const uint64_t id : refused_) {
    std::unique_ptr<Sequence> s = roster_.remove(id);
    const bool late = s->request.deadline_ms != 0;
    const bool passed = options_.now_us() > s->arrived_us + s->request.deadline_ms * 1000;
    const Error error =
        late ? Error(ErrorCode::kUnavailable,
                     fmt::format("{} its deadline of {} ms",
                                 passed ? "the request waited longer than"
                                        : "the request cannot have its first token within",
                                 s->request.deadline_ms))
             : Error(ErrorCode::kUnavailable, "the worker is overloaded: try again later");
    finish(std::move(s), wire::FINISH_ERROR, &error, late ? "deadline" : nullptr);
  }
  refused_.clear();
  for (const Sequence* s : composer_.stuck()) refused_.push_back(s->id());
  for (const uint64_t id : refused_) {
    std::erase_if(runs_, [&](const PlannedRun& run) { return run.sequence->id() == id; });
    const Error error(ErrorCode::kInternal,
                      "the request made no progress for a long time and was given up");
    finish(roster_.remove(id), wire::FINISH_ERROR, &error);
  }
}

void Engine::note_admissions() {
  for (const PlannedRun& run : runs_) {
    Sequence* s = run.sequence;
    if (s->announced) continue;
    s->announced = true;
    prompt_tokens_total_ += s->prompt_tokens;
    wire::SequenceTokens* e = entry(s);
    e->set_admitted(true);
    e->set_cached_tokens(s->cached_local + s->cached_host);
    e->set_cached_host_tokens(s->cached_host);
  }
}

// Drops from the step every sequence whose media cannot be encoded. False when none is left.
bool Engine::encode_media() {
  for (size_t i = 0; i < runs_.size();) {
    const Status status = encode(runs_[i].sequence, runs_[i].rows);
    if (status.ok()) {
      ++i;
      continue;
    }
    finish(roster_.remove(runs_[i].sequence->id()), wire::FINISH_ERROR, &status.error());
    runs_.erase(runs_.begin() + static_cast<ptrdiff_t>(i));
  }
  return !runs_.empty();
}

Status Engine::encode(Sequence* sequence, uint32_t rows) {
  for (MediaInput& m : sequence->request.media) {
    const bool needed =
        m.first < sequence->computed + rows && m.first + m.rows > sequence->computed;
    if (!needed || !m.encoded.empty()) continue;
    weft_media media = {};
    media.struct_size = sizeof(media);
    media.grid_t = m.grid_t;
    media.grid_h = m.grid_h;
    media.grid_w = m.grid_w;
    media.patches = m.patches.data();
    weft_err err = empty_err();
    m.encoded.resize(size_t{m.rows} * model_.info.hidden);
    const weft_status status =
        model_.table->encode_media(model_.self, &media, m.encoded.data(), &err);
    if (status != WEFT_OK) {
      return make_error(status == WEFT_E_ARG ? ErrorCode::kInvalid : ErrorCode::kInternal,
                        "the model could not encode the image at token {}: {}", m.first,
                        text_of(err, status));
    }
    std::vector<float>().swap(m.patches);
  }
  return {};
}

void Engine::run_step() {
  const uint64_t begin = options_.now_us();
  const weft_batch& batch = builder_.build(runs_);
  weft_err err = empty_err();
  const weft_status status = model_.table->step(model_.self, &batch, &err);
  ++steps_;
  last_batch_tokens_ = batch.n_rows;
  composer_.stepped(batch.n_rows, (options_.now_us() - begin) * 1000);
  if (status != WEFT_OK) {
    fail_step(status, text_of(err, status));
    return;
  }
  failed_steps_ = 0;
  uint32_t logit_row = 0;
  ended_.clear();
  for (const PlannedRun& run : runs_) take_results(run, &logit_row);
  WEFT_CHECK(logit_row == batch.n_logit_rows);
  for (const auto& [id, why] : ended_) finish(roster_.remove(id), why, nullptr);
  last_step_us_ = options_.now_us() - begin;
}

void Engine::fail_step(weft_status status, const std::string& message) {
  const Error error(ErrorCode::kInternal, "the model failed in a step: " + message);
  for (const PlannedRun& run : runs_) {
    finish(roster_.remove(run.sequence->id()), wire::FINISH_ERROR, &error);
  }
  if (++failed_steps_ < kFailedStepsMax && status != WEFT_E_DEVICE) return;
  faulted_ = true;
  fail_all(error);
  flush_tokens();
  wire::Envelope fault;
  fault.mutable_fault()->set_where("step");
  fault.mutable_fault()->set_message(error.message);
  fault.mutable_fault()->set_code(error_word(error.code));
  emit_(fault);
}

void Engine::take_results(const PlannedRun& run, uint32_t* logit_row) {
  Sequence* sequence = run.sequence;
  for (uint32_t i = 0; i < run.rows; ++i) {
    const uint32_t position = sequence->computed + i;
    if (!sequence->wants_prompt_row(position)) continue;
    const Status recorded = record_prompt_row(sequence, position, builder_.logits((*logit_row)++));
    if (!recorded.ok()) {
      // The rest of its rows hold nothing usable: skip exactly those that the batch asked for.
      uint32_t left = 0;
      for (uint32_t j = i + 1; j < run.rows; ++j) {
        const uint32_t later = sequence->computed + j;
        left += sequence->wants_prompt_row(later) || later + 1 == sequence->length() ? 1u : 0u;
      }
      *logit_row += left;
      finish(roster_.remove(sequence->id()), wire::FINISH_ERROR, &recorded.error());
      return;
    }
  }
  sequence->computed += run.rows;
  if (sequence->computed < sequence->length()) return composer_.keep(sequence);
  const Result<int32_t> token = next_token(sequence, builder_.logits((*logit_row)++));
  if (!token.ok()) {
    finish(roster_.remove(sequence->id()), wire::FINISH_ERROR, &token.error());
    return;
  }
  composer_.keep(sequence);  // not before its logits have proved to be numbers
  const wire::Finish why = finish_after(*sequence, *token);
  if (why != wire::FINISH_NONE) ended_.emplace_back(sequence->id(), why);
}

Status Engine::record_prompt_row(Sequence* sequence, uint32_t position,
                                 std::span<const float> logits) {
  WEFT_CHECK(position == sequence->prompt_logprobs.size());
  WEFT_ASSIGN(const double norm, log_normaliser(logits));
  const int32_t next = sequence->tokens[position + 1];
  sequence->prompt_logprobs.push_back(logprob_of(logits, norm, next));
  top_logprobs(logits, norm, static_cast<int32_t>(sequence->prompt_top_count), &tops_);
  sequence->prompt_tops.insert(sequence->prompt_tops.end(), tops_.begin(), tops_.end());
  return {};
}

Result<int32_t> Engine::next_token(Sequence* sequence, std::span<float> logits) {
  const SamplingParams& params = sequence->request.sampling;
  double norm = 0.0;
  float raw_of_chosen = 0.0f;
  tops_.clear();
  std::span<const float> raw = logits;
  if (params.logprobs >= 0) {
    WEFT_ASSIGN(norm, log_normaliser(logits));
    top_logprobs(logits, norm, params.logprobs, &tops_);
    const bool changes =
        params.penalises() || !params.bias.empty() || sequence->generated() < params.min_tokens;
    if (changes) {  // sampling will overwrite the raw row
      raw_copy_.assign(logits.begin(), logits.end());
      raw = raw_copy_;
    }
  }
  const SamplePoint point{sequence->generated(), sequence->length()};
  WEFT_ASSIGN(const int32_t token,
              sample_token(logits, params, sequence->counts, point, &scratch_));
  if (params.logprobs >= 0) raw_of_chosen = logprob_of(raw, norm, token);

  sequence->tokens.push_back(token);
  if (params.penalises()) sequence->counts.add_output(token);
  ++generated_tokens_total_;
  tenants_.serve(sequence->tenant, 1);
  if (sequence->generated() == 1) {
    sequence->first_token_us = std::max<uint64_t>(options_.now_us(), 1);
    if (params.prompt_logprobs >= 0) send_prompt_logprobs(sequence);
  }
  wire::SequenceTokens* e = entry(sequence);
  e->add_tokens(token);
  if (params.logprobs >= 0) {
    e->add_logprobs(raw_of_chosen);
    wire::Alternatives* alternatives = e->add_alternatives();
    for (const TopLogprob& top : tops_) {
      alternatives->add_ids(top.id);
      alternatives->add_logprobs(top.logprob);
    }
  }
  return token;
}

void Engine::send_prompt_logprobs(Sequence* sequence) {
  wire::SequenceTokens* e = entry(sequence);
  e->mutable_prompt_logprobs()->Add(sequence->prompt_logprobs.begin(),
                                    sequence->prompt_logprobs.end());
  const size_t per_entry = sequence->prompt_top_count;
  for (size_t i = 0; i < sequence->prompt_logprobs.size(); ++i) {
    wire::Alternatives* alternatives = e->add_prompt_alternatives();
    for (size_t j = 0; j < per_entry; ++j) {
      const TopLogprob& top = sequence->prompt_tops[i * per_entry + j];
      alternatives->add_ids(top.id);
      alternatives->add_logprobs(top.logprob);
    }
  }
  if (e->prompt_logprobs_size() * static_cast<int>(1 + per_entry) > kPromptEntriesPerBatch) {
    flush_tokens();
    out_.Clear();
  }
  std::vector<TopLogprob>().swap(sequence->prompt_tops);
}

wire::Finish Engine::finish_after(const Sequence& sequence, int32_t token) const {
  const SamplingParams& params = sequence.request.sampling;
  if (std::find(params.stop_ids.begin(), params.stop_ids.end(), token) != params.stop_ids.end()) {
    return wire::FINISH_STOP;
  }
  if (params.max_tokens != 0 && sequence.generated() >= params.max_tokens)
    return wire::FINISH_LENGTH;
  if (sequence.length() >= options_.max_context) return wire::FINISH_LENGTH;
  return wire::FINISH_NONE;
}

Status Engine::audit() const {
  WEFT_TRY(coordinator_.audit());
  for (const Caches::Group& g : caches_->groups()) {
    if (roster_.empty() && !coordinator_.copying() && g.pool->active() != 0) {
      return make_error(ErrorCode::kInternal,
                        "nothing runs, but {} of {} units of cache group {} are in use",
                        g.pool->active(), g.total(), g.name);
    }
  }
  return {};
}

void Engine::report_audit(uint64_t id, bool drop_cache) {
  coordinator_.poll();
  // An idle worker can wait for its copies; they take milliseconds.
  for (int i = 0; i < 1000 && roster_.empty() && coordinator_.copying(); ++i) {
    coordinator_.host().queue().wait(5000);
    coordinator_.poll();
  }
  if (drop_cache) coordinator_.drop_all();
  const Status status = audit();
  wire::Envelope out;
  wire::AuditReport* report = out.mutable_audit_report();
  report->set_id(id);
  report->set_ok(status.ok());
  if (!status.ok()) report->set_problem(status.error().message);
  for (const Caches::Group& g : caches_->groups()) {
    wire::AuditGroup* group = report->add_groups();
    group->set_name(g.name);
    group->set_total(g.total());
    group->set_free(g.pool->free());
    group->set_active(g.pool->active());
    group->set_cached(g.pool->cached());
  }
  report->set_running(static_cast<uint32_t>(roster_.running().size()));
  report->set_waiting(static_cast<uint32_t>(roster_.waiting().size()));
  report->set_host_bytes_used(coordinator_.host().budget().used);
  report->set_host_bytes_total(coordinator_.host().budget().total);
  emit_(out);
  stats_idle_ = false;  // the gauges may have moved
}

Status Engine::warm_up() {
  Request request;
  request.prompt = {0};
  Sequence sequence(std::move(request), caches_, 0, options_.now_us());
  WEFT_CHECK(sequence.cache.reserve(1, 0));
  const PlannedRun run{&sequence, 1};
  const weft_batch& batch = builder_.build({&run, 1});
  weft_err err = empty_err();
  const weft_status status = model_.table->step(model_.self, &batch, &err);
  if (status != WEFT_OK) {
    return make_error(ErrorCode::kInternal, "the model failed in its first step: {}",
                      text_of(err, status));
  }
  const Result<double> norm = log_normaliser(builder_.logits(0));
  if (!norm.ok()) return Error(norm.error()).within("first step");
  return {};
}

}  // namespace weft::engine
