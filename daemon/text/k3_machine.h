// State machine over what a K3 model writes: markers and text in, reasoning, content and tool calls
// out. It accepts every deviation from the canonical turn that has been seen in practice and never
// fails; the result does not depend on how the input was cut.
//
// One per choice, used by the one thread that owns the choice.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/delta.h"
#include "text/k3_format.h"
#include "text/tool_call_writer.h"

namespace weft::text {

// Why generation ended, as the engine saw it.
enum class EndReason { kStop, kLength, kAbort, kStopString };

struct K3ParserOptions {
  StartState start = StartState::kThink;
  bool suppress_tools = false;          // calls are parsed and thrown away
  size_t max_calls = kToolCallsMax;     // later calls are thrown away
  bool promote_orphan_response = true;  // an answer that was never opened is also given as content
  bool include_reasoning = true;
  uint64_t call_id_seed = 0;  // random per response; part of every tool call id
};

class K3Machine {
 public:
  enum class Marker { kOpenTag, kCloseTag, kTagEnd, kMessageEnd };
  enum class State { kThink, kIdle, kResponse, kEpilogue, kTools, kCall, kArgument, kJson, kDone };

  explicit K3Machine(const K3ParserOptions& options);

  // Complete code points only.
  void text(std::string_view s);
  void marker(Marker m);
  // The log-probability of the token whose text or marker comes next.
  void logprob(const api::TokenLogprob& entry) { pending_entries_.push_back(entry); }

  // Deltas since the last call.
  std::vector<api::Delta> take() { return std::exchange(out_, {}); }
  api::FinishReason finish(EndReason reason);

  State state() const { return state_; }
  bool in_tag() const { return collecting_ != Collecting::kNothing; }
  // One entry per announced call: has its argument string been closed?
  const std::vector<bool>& calls_complete() const { return complete_; }

 private:
  enum class Collecting { kNothing, kOpening, kClosing };
  struct Tag {
    bool opening;
    std::string_view name;
    std::string_view attributes;
  };

  void plain(std::string_view s);
  void reasoning(std::string_view s);
  void content(std::string_view s);
  void abandon_tag(std::string_view tail);
  void interrupt_tag();
  void end_tag();
  void tag_in_value(const Tag& tag);
  void tag_in_message(const Tag& tag);
  void open_tag(const Tag& tag);
  void close_tag(const Tag& tag);
  void go(State next);
  void open_call(std::string_view attributes);
  void close_call();
  void close_value(bool cut);
  void end_message();
  void arguments(std::string text);
  void emit(api::Delta delta);
  bool call_open() const {
    return state_ == State::kCall || state_ == State::kArgument || state_ == State::kJson;
  }

  K3ParserOptions options_;
  State state_;
  Collecting collecting_ = Collecting::kNothing;
  std::string tag_;
  std::string idle_held_;     // white space between think and whatever comes next
  std::string content_held_;  // white space at the start of the content
  bool content_started_ = false;
  bool orphan_ = false;        // think was left by a closing response tag
  std::string reasoning_all_;  // kept for the promotion of an orphan
  ToolCallWriter call_;
  bool call_dropped_ = false;
  std::vector<bool> complete_;
  std::vector<api::TokenLogprob>
      pending_entries_;  // of tokens whose text has not gone anywhere yet
  std::vector<api::TokenLogprob> content_entries_;  // of content that is held
  std::vector<api::Delta> out_;
};

}  // namespace weft::text
