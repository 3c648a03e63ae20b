#include "text/k3_machine.h"

#include <algorithm>
#include <utility>

#include "text/k3_names.h"
#include "text/unicode.h"

namespace weft::text {
namespace {

constexpr size_t kTagBytesMax = 8192;
constexpr size_t kTagIndentMax = 8;
constexpr std::string_view kBlank = " \t\r\n";
constexpr std::string_view kNames[] = {"think",    "response", "tools",  "call",
                                       "argument", "json",     "message"};

// Tag text without the white space in front; false when there is too much of it.
bool strip_indent(std::string_view* tag) {
  const size_t indent = std::min(tag->find_first_not_of(kBlank), tag->size());
  tag->remove_prefix(indent);
  return indent <= kTagIndentMax;
}

// Could this still become the text of a tag with a known name?
bool viable(std::string_view tag) {
  if (tag.size() > kTagBytesMax || !strip_indent(&tag)) return false;
  const size_t end = tag.find_first_of(kBlank);
  const std::string_view name = tag.substr(0, end);
  return std::any_of(std::begin(kNames), std::end(kNames), [&](std::string_view known) {
    return end == std::string_view::npos ? known.starts_with(name) : known == name;
  });
}

}  // namespace

K3Machine::K3Machine(const K3ParserOptions& options) : options_(options) {
  options_.max_calls = std::min(options_.max_calls, kToolCallsMax);
  state_ = options.start == StartState::kThink      ? State::kThink
           : options.start == StartState::kResponse ? State::kResponse
                                                    : State::kIdle;
}

void K3Machine::emit(api::Delta delta) {
  if (!out_.empty() && delta.kind != api::Delta::Kind::kToolOpen) {
    api::Delta& last = out_.back();
    if (last.kind == delta.kind && last.call_index == delta.call_index) {
      last.text += delta.text;
      std::move(delta.logprobs.begin(), delta.logprobs.end(), std::back_inserter(last.logprobs));
      return;
    }
  }
  out_.push_back(std::move(delta));
}

void K3Machine::reasoning(std::string_view s) {
  if (options_.promote_orphan_response && !content_started_ && complete_.empty())
    reasoning_all_ += s;
  if (options_.include_reasoning) emit({api::Delta::Kind::kReasoning, 0, {}, std::string(s), {}});
}

void K3Machine::content(std::string_view s) {
  std::move(pending_entries_.begin(), pending_entries_.end(), std::back_inserter(content_entries_));
  pending_entries_.clear();
  if (!content_started_ && is_blank(s)) {
    content_held_ += s;
    return;
  }
  content_started_ = true;
  reasoning_all_.clear();
  emit({api::Delta::Kind::kContent,
        0,
        {},
        std::exchange(content_held_, {}) + std::string(s),
        std::exchange(content_entries_, {})});
}

void K3Machine::arguments(std::string text) {
  if (call_dropped_ || text.empty()) return;
  emit({api::Delta::Kind::kToolArguments,
        static_cast<int32_t>(complete_.size()) - 1,
        {},
        std::move(text),
        {}});
}

// Text outside tags, in the current state.
void K3Machine::plain(std::string_view s) {
  if (s.empty()) return;
  switch (state_) {
    case State::kThink:
      reasoning(s);
      break;
    case State::kIdle:
      idle_held_ += s;
      if (is_blank(s)) return;  // the log-probabilities wait with the text
      state_ = State::kResponse;
      content(std::exchange(idle_held_, {}));
      break;
    case State::kResponse:
      content(s);
      break;
    case State::kArgument:
    case State::kJson:
      arguments(call_.value(s));
      break;
    case State::kEpilogue:
    case State::kTools:
    case State::kCall:
    case State::kDone:
      break;
  }
  pending_entries_.clear();
}

void K3Machine::text(std::string_view s) {
  if (s.empty() || state_ == State::kDone) return;
  if (collecting_ == Collecting::kNothing) {
    plain(s);
    return;
  }
  tag_ += s;
  if (!viable(tag_)) abandon_tag("");
}

// What looked like a tag is text after all.
void K3Machine::abandon_tag(std::string_view tail) {
  if (collecting_ == Collecting::kNothing) return;
  std::string raw(collecting_ == Collecting::kOpening ? kOpen : kClose);
  raw += std::exchange(tag_, {});
  raw += tail;
  collecting_ = Collecting::kNothing;
  plain(raw);
}

void K3Machine::marker(Marker m) {
  if (state_ == State::kDone) return;
  switch (m) {
    case Marker::kTagEnd:
      if (collecting_ == Collecting::kNothing)
        plain(kSep);
      else
        end_tag();
      break;
    case Marker::kOpenTag:
    case Marker::kCloseTag:
      interrupt_tag();
      collecting_ = m == Marker::kOpenTag ? Collecting::kOpening : Collecting::kClosing;
      break;
    case Marker::kMessageEnd:
      interrupt_tag();
      end_message();
      break;
  }
}

// A new marker inside a tag. The entry of the marker's own token, the last one, does not go with
// the text let go.
void K3Machine::interrupt_tag() {
  if (collecting_ == Collecting::kNothing) return;
  std::vector<api::TokenLogprob> own;
  if (!pending_entries_.empty()) {
    own.push_back(std::move(pending_entries_.back()));
    pending_entries_.pop_back();
  }
  abandon_tag("");
  std::move(own.begin(), own.end(), std::back_inserter(pending_entries_));
}

void K3Machine::end_tag() {
  const std::string owned = tag_;  // the views below point into it
  std::string_view body = owned;
  if (!strip_indent(&body)) return abandon_tag(kSep);
  const size_t end = body.find_first_of(kBlank);
  const Tag tag{collecting_ == Collecting::kOpening, body.substr(0, end),
                end == std::string_view::npos ? "" : body.substr(end)};
  if (std::find(std::begin(kNames), std::end(kNames), tag.name) == std::end(kNames))
    return abandon_tag(kSep);
  if (state_ == State::kArgument || state_ == State::kJson) return tag_in_value(tag);
  tag_.clear();
  collecting_ = Collecting::kNothing;
  pending_entries_.clear();
  tag_in_message(tag);
}

void K3Machine::tag_in_value(const Tag& tag) {
  const bool own = !tag.opening && tag.name == (state_ == State::kArgument ? "argument" : "json");
  const bool ends = tag.opening
                        ? tag.name == "argument" || tag.name == "call" || tag.name == "json"
                        : tag.name == "call" || tag.name == "tools" || tag.name == "message";
  if (!own && !ends) return abandon_tag(kSep);
  tag_.clear();
  collecting_ = Collecting::kNothing;
  pending_entries_.clear();
  close_value(!tag.opening && tag.name == "message");
  if (!own) tag_in_message(tag);
}

void K3Machine::tag_in_message(const Tag& tag) {
  if (tag.opening)
    open_tag(tag);
  else
    close_tag(tag);
}

void K3Machine::go(State next) {
  if (call_open()) close_call();
  idle_held_.clear();
  state_ = next;
}

void K3Machine::open_tag(const Tag& tag) {
  if (tag.name == "think") return go(State::kThink);
  if (tag.name == "response") return go(State::kResponse);
  if (tag.name == "call") return open_call(tag.attributes);
  if (tag.name == "tools" && state_ != State::kCall) return go(State::kTools);
  if (state_ != State::kCall) return;  // message, and what belongs into a call
  if (tag.name == "argument") {
    arguments(call_.begin_argument(parse_attributes(tag.attributes)));
    state_ = State::kArgument;
  } else if (tag.name == "json") {
    arguments(call_.begin_json());
    state_ = State::kJson;
  }
}

void K3Machine::close_tag(const Tag& tag) {
  if (tag.name == "message") return end_message();
  if (tag.name == "think") {
    if (state_ == State::kThink) go(State::kIdle);
  } else if (tag.name == "response") {
    if (state_ == State::kThink) orphan_ = true;
    if (state_ == State::kThink || state_ == State::kIdle || state_ == State::kResponse)
      go(State::kEpilogue);
  } else if (tag.name == "call") {
    if (state_ == State::kCall) go(State::kTools);
  } else if (tag.name == "tools") {
    if (state_ == State::kTools || state_ == State::kCall) go(State::kEpilogue);
  }
}

void K3Machine::open_call(std::string_view attributes) {
  go(State::kCall);
  const auto values = parse_attributes(attributes);
  const auto tool = values.find("tool");
  call_.begin_call();
  call_dropped_ = tool == values.end() || tool->second.empty() || options_.suppress_tools ||
                  complete_.size() >= options_.max_calls;
  if (call_dropped_) return;
  const size_t index = complete_.size();
  complete_.push_back(false);
  emit({api::Delta::Kind::kToolOpen,
        static_cast<int32_t>(index),
        make_call_id(options_.call_id_seed, index),
        tool->second,
        {}});
}

void K3Machine::close_value(bool cut) {
  arguments(call_.end_value(cut));
  state_ = State::kCall;
}

void K3Machine::close_call() {
  if (state_ != State::kCall) close_value(true);
  if (call_dropped_) return;
  arguments(call_.end_call());
  complete_.back() = true;
}

void K3Machine::end_message() {
  go(State::kDone);
  collecting_ = Collecting::kNothing;
  tag_.clear();
  pending_entries_.clear();
}

api::FinishReason K3Machine::finish(EndReason reason) {
  collecting_ = Collecting::kNothing;  // an unfinished tag is dropped
  tag_.clear();
  if (reason == EndReason::kStop) end_message();
  const bool natural = reason == EndReason::kStop;
  if (!content_started_ && complete_.empty()) {
    if (natural && orphan_ && content_held_.empty() && !reasoning_all_.empty())
      emit({api::Delta::Kind::kContent, 0, {}, std::exchange(reasoning_all_, {}), {}});
    else if (!content_held_.empty())
      emit({api::Delta::Kind::kContent,
            0,
            {},
            std::exchange(content_held_, {}),
            std::exchange(content_entries_, {})});
  }
  state_ = State::kDone;
  if (reason == EndReason::kLength) return api::FinishReason::kLength;
  if (reason == EndReason::kAbort) return api::FinishReason::kAbort;
  const bool called = std::find(complete_.begin(), complete_.end(), true) != complete_.end();
  return natural && called ? api::FinishReason::kToolCalls : api::FinishReason::kStop;
}

}  // namespace weft::text
