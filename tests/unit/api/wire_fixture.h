// Shared by the api tests: vector files, the placeholder matcher of wire_formats.json, and its
// internal deltas.
#pragma once

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "api/delta.h"
#include "base/json_value.h"

namespace weft::test {

inline JsonValue load_vectors(const std::string& name) {
  std::ifstream in(std::string(WEFT_TEST_DATA) + "/vectors/" + name);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  auto parsed = parse_json(text);
  REQUIRE_MESSAGE(parsed.ok(), name);
  return std::move(parsed).value();
}

inline std::string text_of(const JsonValue& object, const char* key) {
  const JsonValue* value = object.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : "";
}

// Compares with placeholders: $any, $int, $matches:TEXT, and $name (equal names, equal values).
class Matcher {
 public:
  bool match(const JsonValue& expected, const JsonValue& actual, const std::string& path = "$") {
    if (expected.is_string() && !expected.as_string().empty() && expected.as_string()[0] == '$')
      return match_placeholder(expected.as_string(), actual, path);
    if (expected.kind() != actual.kind()) return fail(path, expected, actual);
    if (expected.is_array()) {
      if (expected.items().size() != actual.items().size()) return fail(path, expected, actual);
      for (size_t i = 0; i < expected.items().size(); ++i)
        if (!match(expected.items()[i], actual.items()[i], path + "[" + std::to_string(i) + "]"))
          return false;
      return true;
    }
    if (expected.is_object()) {
      if (expected.members().size() != actual.members().size()) return fail(path, expected, actual);
      for (const auto& [key, value] : expected.members()) {
        const JsonValue* other = actual.find(key);
        if (other == nullptr) return fail(path + "." + key, expected, actual);
        if (!match(value, *other, path + "." + key)) return false;
      }
      return true;
    }
    return expected == actual || fail(path, expected, actual);
  }
  const std::string& message() const { return message_; }

 private:
  bool match_placeholder(const std::string& name, const JsonValue& actual,
                         const std::string& path) {
    if (name == "$any") return true;
    const std::string matches = "$matches:";
    if (name.rfind(matches, 0) == 0)
      return (actual.is_string() &&
              actual.as_string().find(name.substr(matches.size())) != std::string::npos) ||
             fail(path, JsonValue::string(name), actual);
    if (name == "$int")
      return (actual.is_string() && !actual.as_string().empty() &&
              actual.as_string().find_first_not_of("0123456789") == std::string::npos) ||
             fail(path, JsonValue::string(name), actual);
    const auto [place, fresh] = bound_.emplace(name, actual);
    return fresh || place->second == actual || fail(path, place->second, actual);
  }
  bool fail(const std::string& path, const JsonValue& expected, const JsonValue& actual) {
    message_ = path + ": expected " + dump_json(expected) + ", got " + dump_json(actual);
    return false;
  }

  std::map<std::string, JsonValue> bound_;
  std::string message_;
};

struct SseEvent {
  std::string event;
  std::string data;
};
inline std::vector<SseEvent> split_sse(const std::string& stream) {
  std::vector<SseEvent> events;
  size_t pos = 0;
  while (pos < stream.size()) {
    const size_t end = stream.find("\n\n", pos);
    REQUIRE(end != std::string::npos);
    SseEvent event;
    std::istringstream lines(stream.substr(pos, end - pos));
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind("event: ", 0) == 0)
        event.event = line.substr(7);
      else if (line.rfind("data: ", 0) == 0)
        event.data = line.substr(6);
      else
        FAIL("unexpected SSE line: " << line);
    }
    events.push_back(event);
    pos = end + 2;
  }
  return events;
}

// One entry of `internal`.
struct Step {
  int32_t choice = 0;
  bool has_delta = false;
  api::Delta delta;
  api::FinishReason finish = api::FinishReason::kNone;
  std::string stop_reason;
  const JsonValue* error = nullptr;
};
inline api::FinishReason finish_named(const std::string& name) {
  if (name == "stop") return api::FinishReason::kStop;
  if (name == "length") return api::FinishReason::kLength;
  if (name == "tool_calls") return api::FinishReason::kToolCalls;
  return api::FinishReason::kNone;
}
inline Step read_step(const JsonValue& item) {
  using Kind = api::Delta::Kind;
  Step step;
  if (const JsonValue* choice = item.find("choice"))
    step.choice = static_cast<int32_t>(*choice->as_int());
  step.has_delta = true;
  if (item.find("reasoning")) {
    step.delta = {Kind::kReasoning, 0, "", text_of(item, "reasoning"), {}};
  } else if (item.find("content")) {
    step.delta = {Kind::kContent, 0, "", text_of(item, "content"), {}};
  } else if (const JsonValue* tool = item.find("tool")) {
    step.delta = {Kind::kToolOpen,
                  static_cast<int32_t>(*tool->find("index")->as_int()),
                  text_of(*tool, "id"),
                  text_of(*tool, "name"),
                  {}};
  } else if (const JsonValue* args = item.find("args")) {
    step.delta = {Kind::kToolArguments,
                  static_cast<int32_t>(*args->find("index")->as_int()),
                  "",
                  text_of(*args, "text"),
                  {}};
  } else {
    step.has_delta = false;
  }
  step.finish = finish_named(text_of(item, "finish"));
  step.stop_reason = text_of(item, "stop_reason");
  step.error = item.find("error");
  if (const JsonValue* logprobs = item.find("logprobs"))
    for (const JsonValue& entry : logprobs->find("content")->items()) {
      const auto bytes_of = [](const JsonValue& e) {
        std::string bytes;
        for (const JsonValue& b : e.find("bytes")->items()) bytes += static_cast<char>(*b.as_int());
        return bytes;
      };
      api::TokenLogprob token{7, bytes_of(entry), *entry.find("logprob")->as_double(), {}};
      for (const JsonValue& top : entry.find("top_logprobs")->items())
        token.top.push_back({7, bytes_of(top), *top.find("logprob")->as_double()});
      step.delta.logprobs.push_back(token);
    }
  return step;
}

}  // namespace weft::test
