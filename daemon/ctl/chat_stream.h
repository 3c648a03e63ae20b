// ChatAnswer: collects a streamed chat completion and says what each piece is, so that showing it
// is somebody else's work. Pure; times are passed in.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_value.h"

namespace weft::ctl {

struct ShownCall {
  std::string id;
  std::string name;
  std::string arguments;
};

struct ChatListener {
  std::function<void(std::string_view)> on_reasoning;
  std::function<void(std::string_view)> on_content;
};

class ChatAnswer {
 public:
  ChatAnswer(int64_t start_us, ChatListener listener)
      : start_us_(start_us), listener_(std::move(listener)) {}

  // The data of one event. False when the answer is over ("[DONE]") or broken (error() says how).
  bool event(std::string_view data, int64_t now_us);

  bool done() const { return done_; }
  const std::string& error() const { return error_; }
  const std::string& content() const { return content_; }
  const std::string& reasoning() const { return reasoning_; }
  const std::vector<ShownCall>& calls() const { return calls_; }
  const std::string& finish_reason() const { return finish_reason_; }
  // The assistant message for the next turn of the conversation.
  JsonValue message() const;
  // "12 tokens in, 34 out; TTFT 120 ms, ITL 15.2 ms, 65.8 tok/s". Parts that are not known are left
  // out.
  std::string summary() const;

 private:
  void delta(const JsonValue& delta);

  const int64_t start_us_;
  ChatListener listener_;
  int64_t first_us_ = -1;
  int64_t last_us_ = -1;
  int64_t prompt_tokens_ = -1;
  int64_t output_tokens_ = -1;
  std::string content_;
  std::string reasoning_;
  std::vector<ShownCall> calls_;
  std::string finish_reason_;
  std::string error_;
  bool done_ = false;
};

}  // namespace weft::ctl
