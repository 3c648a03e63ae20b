#include "gateway/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "api/errors.h"
#include "api/wire_json.h"
#include "base/log.h"
#include "http/sse.h"

namespace weft::gateway {
namespace {

api::ApiError to_api_error(const wire::SequenceTokens& update) {
  if (update.error_code() == "invalid") return api::bad_request("", update.error());
  if (update.error_code() == "unavailable") return api::unavailable(update.error());
  if (update.error_code() == "deadline") return api::deadline_exceeded(update.error());
  if (update.error_code() == "unsupported") return api::unsupported("", update.error());
  log_error("sequence {} failed: {}", update.id(), update.error());
  return api::internal_error();
}

// The update as if its tokens had come one by one.
std::vector<wire::SequenceTokens> split(const wire::SequenceTokens& update) {
  std::vector<wire::SequenceTokens> out(static_cast<size_t>(update.tokens_size()));
  for (int i = 0; i < update.tokens_size(); ++i) {
    wire::SequenceTokens& one = out[static_cast<size_t>(i)];
    one.set_id(update.id());
    one.add_tokens(update.tokens(i));
    if (update.logprobs_size() == update.tokens_size()) one.add_logprobs(update.logprobs(i));
    if (i < update.alternatives_size()) *one.add_alternatives() = update.alternatives(i);
  }
  *out.front().mutable_prompt_logprobs() = update.prompt_logprobs();
  *out.front().mutable_prompt_alternatives() = update.prompt_alternatives();
  out.back().set_finish(update.finish());
  return out;
}

double seconds(uint64_t from_ms, uint64_t to_ms) {
  return static_cast<double>(to_ms - from_ms) / 1000.0;
}

}  // namespace

void Generation::Choice::on_lost(const Error& why) {
  backend_id = 0;
  owner_.fail(api::unavailable(why.message));
}

Generation::Generation(GenerationContext context, http::Responder responder, bool stream)
    : context_(std::move(context)),
      responder_(std::move(responder)),
      streaming_(stream),
      last_write_ms_(context_.loop->now_ms()),
      keepalive_timer_(*context_.loop) {
  responder_.on_disconnect([this] { on_disconnect(); });
}

Generation::~Generation() {
  cancel_choices("shutdown");
  if (stream_open_ && !over_)
    context_.metrics->model(context_.model->names.front()).streams_unterminated->Increment();
}

void Generation::add_choice(const std::vector<int32_t>& prompt) {
  choices_.push_back(std::make_unique<Choice>(*this, choice_count(), prompt));
}

void Generation::start() {
  if (streaming_) keepalive_timer_.repeat(context_.keepalive_ms, [this] { keep_alive(); });
  admissions_.resize(choices_.size() / static_cast<size_t>(samples_per_prompt()));
  const auto waited_ms = static_cast<int64_t>(context_.loop->now_ms() - context_.arrived_ms);
  if (context_.deadline_ms > 0 && waited_ms >= context_.deadline_ms)
    return fail(api::deadline_exceeded(fmt::format(
        "the deadline of {} ms passed before the request could be queued", context_.deadline_ms)));
  for (auto& c : choices_) {
    wire::Generate generate = build(*c);
    c->max_tokens = generate.sampling().max_tokens();
    generate.set_tenant(context_.tenant);
    generate.set_tenant_weight(context_.tenant_weight);
    if (context_.deadline_ms > 0)
      generate.set_deadline_ms(static_cast<uint64_t>(context_.deadline_ms - waited_ms));
    auto id = context_.model->backend->submit(std::move(generate), c.get());
    if (!id.ok()) {
      const Error& e = id.error();
      return fail(e.code == ErrorCode::kUnavailable ? api::unavailable(e.message)
                                                    : api::from_error(e));
    }
    c->backend_id = *id;
  }
}

void Generation::on_tokens(Choice& c, const wire::SequenceTokens& update) {
  if (update.finish() != wire::FINISH_NONE) c.backend_id = 0;
  if (over_) return;
  if (update.finish() == wire::FINISH_ERROR) return fail(to_api_error(update));
  if (update.finish() == wire::FINISH_CANCELLED)
    return fail(api::unavailable("the worker gave the request up: it is shutting down"));
  note_timing(c, update);
  c.pending.push_back(update);
  pump();
}

ModelMetrics& Generation::model_metrics() const {
  return context_.metrics->model(context_.model->names.front());
}

void Generation::note_admission(const Choice& c, const wire::SequenceTokens& update) {
  admitted_ = true;
  Admission& a = admissions_[prompt_index(c)];
  if (a.seen) return;  // another sample of the prompt
  a.seen = true;
  const auto prompt = static_cast<int64_t>(c.prompt.size());
  a.cached = std::min<int64_t>(update.cached_tokens(), prompt);
  const int64_t host = std::min<int64_t>(update.cached_host_tokens(), a.cached);
  ModelMetrics& m = model_metrics();
  m.admitted({prompt, a.cached - host, host});
  m.params_max_tokens->Observe(static_cast<double>(c.max_tokens));
}

void Generation::note_timing(Choice& c, const wire::SequenceTokens& update) {
  if (update.admitted()) note_admission(c, update);
  if (update.tokens_size() > 0) {
    ModelMetrics& m = model_metrics();
    const uint64_t now = context_.loop->now_ms();
    m.generation_tokens->Increment(update.tokens_size());
    if (first_token_ms_ == 0) {
      first_token_ms_ = now;
      m.ttft->Observe(seconds(context_.arrived_ms, now));
    }
    if (c.last_token_ms != 0) m.itl->Observe(seconds(c.last_token_ms, now) / update.tokens_size());
    c.last_token_ms = now;
    c.received += update.tokens_size();
  }
  if (update.finish() != wire::FINISH_NONE) note_end(c, update);
}

void Generation::note_end(const Choice& c, const wire::SequenceTokens& update) {
  ModelMetrics& m = model_metrics();
  const auto prefill = static_cast<double>(update.prefill_us()) / 1e6;
  const auto decode = static_cast<double>(update.decode_us()) / 1e6;
  m.queue->Observe(static_cast<double>(update.queue_us()) / 1e6);
  m.prefill->Observe(prefill);
  m.decode->Observe(decode);
  m.inference->Observe(prefill + decode);
  if (c.received > 1) m.time_per_token->Observe(decode / static_cast<double>(c.received - 1));
}

void Generation::pump() {
  if (pumping_ || over_) return;
  pumping_ = true;
  std::string out;
  for (auto& c : choices_) {
    while (!over_ && writable_ && !c->pending.empty()) {
      const wire::SequenceTokens update = std::move(c->pending.front());
      c->pending.pop_front();
      if (!c->finished) consume(*c, update, &out);
      if (!flush(&out)) break;
    }
  }
  pumping_ = false;
  const bool all =
      std::all_of(choices_.begin(), choices_.end(), [](const auto& c) { return c->finished; });
  if (all && !over_) complete(&out);
}

void Generation::consume(Choice& c, const wire::SequenceTokens& update, std::string* out) {
  if (!opened_) {
    opened_ = true;
    if (streaming_) open_stream();
    write_open(out);
  }
  bool stopped = false;
  if (update.tokens_size() > 1 && has_text_stops()) {
    for (const wire::SequenceTokens& one : split(update))
      if (stopped = consume_piece(c, one, out); stopped) break;
  } else {
    stopped = consume_piece(c, update, out);
  }
  if (stopped) {
    if (c.backend_id != 0)
      context_.model->backend->forget(std::exchange(c.backend_id, 0), "stop string");
    c.pending.clear();
    finish_choice(c, wire::FINISH_STOP, true, out);
  } else if (update.finish() != wire::FINISH_NONE) {
    finish_choice(c, update.finish(), false, out);
  }
}

bool Generation::consume_piece(Choice& c, const wire::SequenceTokens& update, std::string* out) {
  if (counts_output()) c.consumed += update.tokens_size();
  return write_tokens(c, update, out);
}

void Generation::finish_choice(Choice& c, wire::Finish finish, bool stop_string, std::string* out) {
  c.finished = true;
  context_.metrics->model(context_.model->names.front())
      .generation_length->Observe(static_cast<double>(c.consumed));
  write_finish(c, finish, stop_string, out);
}

void Generation::open_stream() {
  if (stream_open_) return;
  stream_open_ = true;
  http::Headers headers = http::sse_headers();
  headers.set("x-request-id", context_.request_id);
  stream_ = responder_.begin_stream(200, std::move(headers));
  stream_.on_drain([this] {
    writable_ = true;
    pump();
  });
  context_.metrics->http_request(200);
}

bool Generation::flush(std::string* out) {
  if (!streaming_ || out->empty()) return true;
  writable_ = stream_.write(*out) || !stream_.alive();
  last_write_ms_ = context_.loop->now_ms();
  out->clear();
  return writable_;
}

void Generation::complete(std::string* out) {
  ModelMetrics& m = context_.metrics->model(context_.model->names.front());
  m.e2e->Observe(seconds(context_.arrived_ms, context_.loop->now_ms()));
  std::vector<int64_t> longest(admissions_.size());
  for (const auto& c : choices_)
    longest[prompt_index(*c)] = std::max(longest[prompt_index(*c)], c->consumed);
  for (const int64_t n : longest) m.longest_generation->Observe(static_cast<double>(n));
  for (int32_t i = 0; i < choice_count(); ++i) {
    const api::FinishReason reason = finish_reason(i);
    (reason == api::FinishReason::kLength      ? m.success_length
     : reason == api::FinishReason::kToolCalls ? m.success_tool_calls
                                               : m.success_stop)
        ->Increment();
  }
  over_ = true;
  if (streaming_) {
    write_end(out);
    stream_.write(*out);
    stream_.end();
  } else {
    context_.metrics->http_request(200);
    responder_.send(200,
                    {{"content-type", "application/json"}, {"x-request-id", context_.request_id}},
                    whole_body());
  }
  done();
}

void Generation::fail(const api::ApiError& error) {
  if (over_) return;
  over_ = true;
  cancel_choices("error");
  context_.metrics->model(context_.model->names.front()).success_error->Increment();
  if (stream_open_) {
    std::string out;
    write_error(error, &out);
    stream_.write(out);
    stream_.end();
  } else {
    context_.metrics->http_request(error.status);
    http::Headers headers{{"content-type", "application/json"},
                          {"x-request-id", context_.request_id}};
    if (const auto after = api::retry_after_s(error))
      headers.set("retry-after", std::to_string(*after));
    responder_.send(error.status, std::move(headers), api::error_json(error));
  }
  done();
}

void Generation::abort(const api::ApiError& error, const char* origin) {
  if (over_) return;
  context_.metrics->cancelled(origin);
  fail(error);
}

void Generation::on_disconnect() {
  if (over_) return;
  over_ = true;
  ModelMetrics& m = context_.metrics->model(context_.model->names.front());
  m.success_abort->Increment();
  context_.metrics->disconnect();
  context_.metrics->cancelled("disconnect");
  cancel_choices("client disconnected");
  done();
}

void Generation::cancel_choices(const char* origin) {
  for (auto& c : choices_)
    if (c->backend_id != 0)
      context_.model->backend->forget(std::exchange(c->backend_id, 0), origin);
}

void Generation::keep_alive() {
  if (over_ || !writable_ || context_.loop->now_ms() - last_write_ms_ < context_.keepalive_ms)
    return;
  open_stream();  // a long queue: the client must see life before the first token
  std::string comment(api::kSseKeepAlive);
  flush(&comment);
}

void Generation::done() {
  keepalive_timer_.stop();
  const api::Usage u = usage();
  log_info(
      "{} {} {} {} {}: {} prompt ({} cached), {} output tokens, first after {} ms, {} ms in all",
      context_.id, context_.request_id, context_.endpoint, context_.model->names.front(),
      context_.peer, u.prompt_tokens, u.cached_tokens, u.completion_tokens,
      first_token_ms_ == 0 ? 0 : first_token_ms_ - context_.arrived_ms,
      context_.loop->now_ms() - context_.arrived_ms);
  if (context_.on_done) context_.on_done(context_.id);
}

api::Usage Generation::usage_of(const Choice& c) const {
  api::Usage u;
  u.prompt_tokens = static_cast<int64_t>(c.prompt.size());
  u.completion_tokens = c.consumed;
  u.cached_tokens = admissions_.empty() ? 0 : admissions_[prompt_index(c)].cached;
  u.reasoning_tokens = reasoning_tokens(c.index);
  return u;
}

api::Usage Generation::usage() const {
  api::Usage sum;
  for (const auto& c : choices_) {
    const api::Usage u = usage_of(*c);
    if (c->index % samples_per_prompt() == 0) {
      sum.prompt_tokens += u.prompt_tokens;
      sum.cached_tokens += u.cached_tokens;
    }
    sum.completion_tokens += u.completion_tokens;
    sum.reasoning_tokens += u.reasoning_tokens;
  }
  return sum;
}

GenerationView Generation::view() const {
  GenerationView v{context_.id, context_.model->names.front(), context_.endpoint, context_.peer,
                   context_.tenant};
  const api::Usage u = usage();
  v.prompt_tokens = u.prompt_tokens;
  v.cached_tokens = u.cached_tokens;
  for (const auto& c : choices_) v.output_tokens += c->received;
  v.age_ms = context_.loop->now_ms() - context_.arrived_ms;
  v.stream = streaming_;
  v.state = over_ ? "finishing" : v.output_tokens > 0 ? "decode" : admitted_ ? "prefill" : "queued";
  return v;
}

}  // namespace weft::gateway
