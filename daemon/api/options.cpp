#include "api/options.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <string_view>

namespace weft::api {
namespace {

struct EffortName {
  std::string_view name;
  std::optional<Effort> effort;  // empty = the default
  bool strict;                   // valid under strict_effort too
};
constexpr std::array<EffortName, 7> kEfforts = {{{"low", Effort::kLow, true},
                                                 {"minimal", Effort::kLow, false},
                                                 {"medium", Effort::kHigh, false},
                                                 {"high", Effort::kHigh, true},
                                                 {"xhigh", Effort::kMax, false},
                                                 {"max", Effort::kMax, true},
                                                 {"none", std::nullopt, false}}};

ApiError bad(std::string param, std::string message) {
  ApiError error;
  error.param = std::move(param);
  error.message = std::move(message);
  return error;
}

// The member, with null counted as absent.
const JsonValue* get(const JsonValue* object, std::string_view key) {
  const JsonValue* found = object == nullptr ? nullptr : object->find(key);
  return found == nullptr || found->is_null() ? nullptr : found;
}

class Resolver {
 public:
  Resolver(const JsonValue& body, bool strict) : body_(body), strict_(strict) {}

  std::variant<ThinkingChoice, ApiError> run() {
    kwargs_ = get(&body_, "chat_template_kwargs");
    if (kwargs_ != nullptr && !kwargs_->is_object())
      return bad("chat_template_kwargs", "chat_template_kwargs must be an object");
    thinking_ = get(&body_, "thinking");
    if (thinking_ != nullptr && !thinking_->is_object())
      return bad("thinking", "thinking must be an object such as {\"type\": \"enabled\"}");
    find_request_effort();
    ThinkingChoice choice;
    if (auto error = resolve_mode(&choice)) return *error;
    if (!choice.thinking) return choice;  // effort and keep are not looked at
    if (auto error = resolve_effort(&choice)) return *error;
    if (const JsonValue* keep = get(thinking_, "keep"))
      if (!keep->is_string() || keep->as_string() != "all")
        return bad("thinking.keep",
                   "thinking.keep must be \"all\": the thoughts of earlier turns are always kept");
    return choice;
  }

 private:
  void find_request_effort() {
    struct Place {
      const char* object;
      const char* key;
      const char* param;
    };
    constexpr std::array<Place, 3> kPlaces = {
        {{nullptr, "reasoning_effort", "reasoning_effort"},
         {"reasoning", "effort", "reasoning.effort"},
         {"output_config", "effort", "output_config.effort"}}};
    for (const Place& place : kPlaces) {
      const JsonValue* object = place.object == nullptr ? &body_ : get(&body_, place.object);
      request_effort_ = get(object, place.key);
      request_param_ = place.param;
      if (request_effort_ != nullptr) return;
    }
  }

  std::optional<ApiError> resolve_mode(ThinkingChoice* choice) const {
    for (const char* key : {"thinking", "enable_thinking"}) {
      const JsonValue* flag = get(kwargs_, key);
      if (flag == nullptr) continue;
      if (!flag->is_bool())
        return bad(fmt::format("chat_template_kwargs.{}", key),
                   fmt::format("{} must be true or false", key));
      choice->thinking = flag->as_bool();
      return std::nullopt;
    }
    if (const JsonValue* type = get(thinking_, "type")) {
      const std::string name = type->is_string() ? type->as_string() : "";
      if (name != "enabled" && name != "adaptive" && name != "disabled")
        return bad("thinking.type",
                   "thinking.type must be \"enabled\", \"adaptive\" or \"disabled\"");
      choice->thinking = name != "disabled";
      return std::nullopt;
    }
    choice->thinking = !(request_effort_ != nullptr && request_effort_->is_string() &&
                         request_effort_->as_string() == "none");
    return std::nullopt;
  }

  std::optional<ApiError> resolve_effort(ThinkingChoice* choice) const {
    if (const JsonValue* effort = get(kwargs_, "thinking_effort"))
      return read_effort(*effort, true, "chat_template_kwargs.thinking_effort", choice);
    if (const JsonValue* effort = get(thinking_, "effort"))
      return read_effort(*effort, strict_, "thinking.effort", choice);
    if (request_effort_ != nullptr)
      return read_effort(*request_effort_, strict_, request_param_, choice);
    return std::nullopt;
  }

  static std::optional<ApiError> read_effort(const JsonValue& value, bool strict,
                                             const std::string& param, ThinkingChoice* choice) {
    if (value.is_string())
      for (const EffortName& known : kEfforts)
        if (known.name == value.as_string() && (known.strict || !strict)) {
          choice->effort = known.effort.value_or(Effort::kMax);
          return std::nullopt;
        }
    return bad(
        param,
        fmt::format(
            "{} must be {}", param,
            strict ? "\"low\", \"high\" or \"max\""
                   : "\"none\", \"minimal\", \"low\", \"medium\", \"high\", \"xhigh\" or \"max\""));
  }

  const JsonValue& body_;
  bool strict_;
  const JsonValue* kwargs_ = nullptr;
  const JsonValue* thinking_ = nullptr;
  const JsonValue* request_effort_ = nullptr;
  std::string request_param_;
};

}  // namespace

std::variant<ThinkingChoice, ApiError> resolve_thinking(const JsonValue& body, bool strict_effort) {
  return Resolver(body, strict_effort).run();
}

const char* to_string(Effort effort) {
  switch (effort) {
    case Effort::kLow:
      return "low";
    case Effort::kMedium:
      return "medium";
    case Effort::kHigh:
      return "high";
    case Effort::kMax:
      return "max";
  }
  return "max";
}

}  // namespace weft::api
