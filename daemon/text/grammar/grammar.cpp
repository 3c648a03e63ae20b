#include "text/grammar/grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "api/errors.h"
#include "text/grammar/regex.h"
#include "text/grammar/schema_compiler.h"

namespace weft::text::grammar {
namespace {

using api::ToolChoice;

constexpr std::pair<ToolChoice, std::string_view> kChoiceNames[] = {
    {ToolChoice::kAuto, "auto"},
    {ToolChoice::kNone, "none"},
    {ToolChoice::kRequired, "required"},
    {ToolChoice::kNamed, "named"}};

std::string_view text_at(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.find(key);
  return value != nullptr && value->is_string() ? std::string_view(value->as_string())
                                                : std::string_view();
}
bool flag_at(const JsonValue& object, std::string_view key, bool fallback) {
  const JsonValue* value = object.find(key);
  return value != nullptr && value->is_bool() ? value->as_bool() : fallback;
}

// CLOSE name SEP, OPEN name SEP.
void add_tag(std::vector<Symbol>* out, Symbol marker, std::string_view name) {
  out->push_back(marker);
  for (char c : name) out->push_back(static_cast<uint8_t>(c));
  out->push_back(kSepToken);
}

class TurnCompiler {
 public:
  explicit TurnCompiler(const GrammarRequest& request) : request_(request) {}

  api::Parsed<std::shared_ptr<const Grammar>> run() {
    if (auto error = compile()) return *error;
    program_.compute_heights();
    if (auto error = check_satisfiable()) return *error;
    auto grammar = std::make_shared<Grammar>(std::move(program_));
    grammar->warnings = std::move(warnings_);
    return std::shared_ptr<const Grammar>(std::move(grammar));
  }

 private:
  // Something to check after heights are known: a place whose schema may turn out to be impossible.
  struct Place {
    NodeId node;
    std::string param;
  };

  api::Check compile() {
    const bool tools_allowed =
        request_.tool_choice != ToolChoice::kNone && !request_.tools.items().empty();
    forced_ =
        request_.tool_choice == ToolChoice::kRequired || request_.tool_choice == ToolChoice::kNamed;
    if (tools_allowed)
      if (auto error = compile_calls()) return error;
    std::optional<NodeId> json;
    if (auto error = compile_response(&json)) return error;

    std::vector<Symbol> end_tag;
    add_tag(&end_tag, kCloseToken, "message");
    end_tag.push_back(kEndToken);
    const NodeId end = program_.add_symbols(std::move(end_tag));
    std::vector<NodeId> answers;
    if (json && !(forced_ && calls_)) answers.push_back(sequence({*json, close_response(), end}));
    if (calls_) {
      const NodeId before =
          json || request_.tool_choice == ToolChoice::kNamed
              ? program_.add_symbols({})
              : program_.add_free(forced_ ? std::optional(kContentBeforeCallsBytes) : std::nullopt);
      const NodeId with_calls =
          sequence({tag(kOpenToken, "tools"), *calls_, tag(kCloseToken, "tools"), end});
      const NodeId rest = forced_ || json ? with_calls : either({with_calls, end});
      answers.push_back(sequence({before, close_response(), rest}));
    } else if (!json) {
      answers.push_back(sequence({program_.add_free(std::nullopt), close_response(), end}));
    }
    const NodeId response = either(std::move(answers));
    program_.start = response;
    if (request_.thinking) {
      std::vector<Symbol> border;
      add_tag(&border, kCloseToken, "think");
      add_tag(&border, kOpenToken, "response");
      program_.start = sequence(
          {program_.add_free(std::nullopt), program_.add_symbols(std::move(border)), response});
    }
    return std::nullopt;
  }

  NodeId sequence(std::vector<NodeId> list) {
    return program_.add_list(NodeKind::kSequence, std::move(list));
  }
  NodeId either(std::vector<NodeId> list) {
    return list.size() == 1 ? list[0] : program_.add_list(NodeKind::kAlternatives, std::move(list));
  }
  NodeId tag(Symbol marker, std::string_view name) {
    std::vector<Symbol> symbols;
    add_tag(&symbols, marker, name);
    return program_.add_symbols(std::move(symbols));
  }
  NodeId close_response() { return tag(kCloseToken, "response"); }

  api::Check compile_calls() {
    std::map<std::string, NodeId> by_name;
    const auto& tools = request_.tools.items();
    for (size_t i = 0; i < tools.size(); ++i) {
      const JsonValue* function = tools[i].find("function");
      const std::string name(function == nullptr ? "" : text_at(*function, "name"));
      if (name.empty())
        return api::bad_request(fmt::format("tools[{}].function.name", i), "a tool needs a name");
      if (request_.tool_choice == ToolChoice::kNamed && name != request_.tool_choice_name) continue;
      const std::string param = fmt::format("tools[{}].function.parameters", i);
      NodeId arguments = kNoNode;
      if (auto error = compile_arguments(*function, param, &arguments)) return error;
      by_name.emplace(name, arguments);
      places_.push_back({arguments, param});
    }
    if (by_name.empty())
      return api::bad_request("tool_choice", "tool_choice names no declared tool");
    CallsSpec spec;
    for (const auto& [name, node] : by_name) {
      spec.names.push_back(name);
      spec.arguments.push_back(node);
    }
    spec.trie.build(spec.names);
    spec.max = request_.parallel_tool_calls ? kCallsMax : 1;
    program_.calls.push_back(std::move(spec));
    calls_ = program_.add(NodeKind::kCalls, program_.calls.size() - 1);
    return std::nullopt;
  }

  api::Check compile_arguments(const JsonValue& function, const std::string& param, NodeId* out) {
    const bool strict = flag_at(function, "strict", false);
    const JsonValue* parameters = function.find("parameters");
    // Without strict the schema is advice: any key, any type, but well formed.
    static const JsonValue kAny = JsonValue::object({{"type", JsonValue::string("object")}});
    static const JsonValue kNothing =
        JsonValue::object({{"type", JsonValue::string("object")},
                           {"additionalProperties", JsonValue::boolean(false)}});
    const bool absent = parameters == nullptr || parameters->is_null();
    return compile_schema(!strict  ? kAny
                          : absent ? kNothing
                                   : *parameters,
                          strict, true, param, out);
  }

  api::Check compile_schema(const JsonValue& schema, bool strict, bool arguments,
                            const std::string& param, NodeId* out) {
    if (dump_json(schema).size() > SchemaCompiler::kSchemaBytesMax)
      return api::bad_request(param, fmt::format("{}: the schema is larger than {} bytes", param,
                                                 SchemaCompiler::kSchemaBytesMax));
    SchemaCompiler compiler(program_, schema, strict);
    auto node = arguments ? compiler.arguments() : compiler.json_value();
    if (!node.ok())
      return api::bad_request(param, fmt::format("{}: {}", param, node.error().message));
    for (const std::string& warning : compiler.warnings())
      warnings_.push_back(fmt::format("{}: {}", param, warning));
    *out = *node;
    return std::nullopt;
  }

  api::Check compile_response(std::optional<NodeId>* out) {
    if (request_.structured_outputs.is_object()) return compile_structured_outputs(out);
    const std::string_view type = text_at(request_.response_format, "type");
    const JsonValue* wrapper = request_.response_format.find("json_schema");
    NodeId node = kNoNode;
    if (type == "json_object") {
      static const JsonValue kObject = JsonValue::object({{"type", JsonValue::string("object")}});
      if (auto error = compile_schema(kObject, false, false, "response_format", &node))
        return error;
    } else if (type == "json_schema") {
      const std::string param = "response_format.json_schema.schema";
      const JsonValue* schema = wrapper == nullptr ? nullptr : wrapper->find("schema");
      if (schema == nullptr) return api::bad_request(param, param + " is required");
      if (auto error =
              compile_schema(*schema, flag_at(*wrapper, "strict", true), false, param, &node))
        return error;
      places_.push_back({node, param});
    } else {
      return std::nullopt;
    }
    *out = node;
    return std::nullopt;
  }

  api::Check compile_structured_outputs(std::optional<NodeId>* out) {
    const JsonValue& outputs = request_.structured_outputs;
    NodeId node = kNoNode;
    std::string param = "structured_outputs";
    if (const JsonValue* schema = outputs.find("json")) {
      param += ".json";
      if (auto error = compile_schema(*schema, false, false, param, &node)) return error;
    } else if (flag_at(outputs, "json_object", false)) {
      const JsonValue object = JsonValue::object({{"type", JsonValue::string("object")}});
      if (auto error = compile_schema(object, false, false, param, &node)) return error;
    } else if (const JsonValue* choice = outputs.find("choice")) {
      param += ".choice";
      if (auto error = add_automaton(compile_choice(*choice), param, &node)) return error;
    } else if (!text_at(outputs, "regex").empty()) {
      // The whole answer is meant, as if anchored.
      param += ".regex";
      auto dfa = compile_pattern(fmt::format("^(?:{})$", text_at(outputs, "regex")));
      if (auto error = add_automaton(std::move(dfa), param, &node)) return error;
    } else {
      return api::unsupported(param,
                              "structured_outputs must have json, json_object, choice or regex");
    }
    places_.push_back({node, param});
    *out = node;
    return std::nullopt;
  }

  static Result<Dfa> compile_choice(const JsonValue& choice) {
    Nfa nfa;
    const Nfa::State start = nfa.add_state(), end = nfa.add_state();
    if (!choice.is_array())
      return make_error(ErrorCode::kInvalid, "choice must be an array of strings");
    for (const JsonValue& item : choice.items()) {
      if (!item.is_string() || nfa.full())
        return make_error(ErrorCode::kInvalid, "choice must be an array of strings, not too many");
      nfa.add_epsilon(nfa.add_text(start, item.as_string()), end);
    }
    return determinize(nfa, start, end);
  }

  api::Check add_automaton(Result<Dfa> dfa, const std::string& param, NodeId* out) {
    if (!dfa.ok())
      return api::bad_request(param, fmt::format("{}: {}", param, dfa.error().message));
    *out = program_.add_dfa(std::move(dfa).value());
    return std::nullopt;
  }

  api::Check check_satisfiable() const {
    for (const Place& place : places_)
      if (program_.nodes[place.node].height > kDepthMax / 2)
        return api::bad_request(place.param, place.param + ": no value can satisfy this schema");
    return std::nullopt;
  }

  const GrammarRequest& request_;
  Program program_;
  std::vector<Place> places_;
  std::vector<std::string> warnings_;
  std::optional<NodeId> calls_;
  bool forced_ = false;
};

}  // namespace

GrammarRequest GrammarRequest::of(const api::ChatRequest& request) {
  GrammarRequest out;
  for (const api::Tool& tool : request.tools) out.tools.items().push_back(tool.declaration);
  for (const api::Message& message : request.messages)
    for (const api::Tool& tool : message.tools) out.tools.items().push_back(tool.declaration);
  out.tool_choice = request.tool_choice;
  out.tool_choice_name = request.tool_choice_name;
  out.parallel_tool_calls = request.parallel_tool_calls;
  if (request.response_format != api::ResponseFormat::kText)
    out.response_format = request.response_format_json;
  out.structured_outputs = request.structured_outputs;
  out.thinking = request.thinking;
  return out;
}

std::string GrammarRequest::description() const {
  std::string_view choice = "auto";
  for (const auto& [value, name] : kChoiceNames)
    if (value == tool_choice) choice = name;
  return dump_json(
      JsonValue::object({{"tools", tools},
                         {"tool_choice", JsonValue::string(std::string(choice))},
                         {"tool_choice_name", JsonValue::string(tool_choice_name)},
                         {"parallel_tool_calls", JsonValue::boolean(parallel_tool_calls)},
                         {"response_format", response_format},
                         {"structured_outputs", structured_outputs},
                         {"thinking", JsonValue::boolean(thinking)}}));
}

Result<GrammarRequest> GrammarRequest::parse(std::string_view description) {
  WEFT_ASSIGN(const JsonValue value, parse_json(description));
  GrammarRequest out;
  const JsonValue* list = value.find("tools");
  if (list == nullptr || !list->is_array())
    return make_error(ErrorCode::kInvalid, "a grammar description needs an array \"tools\"");
  out.tools = *list;
  bool known = false;
  for (const auto& [choice, name] : kChoiceNames)
    if (name == text_at(value, "tool_choice")) {
      out.tool_choice = choice;
      known = true;
    }
  if (!known)
    return make_error(ErrorCode::kInvalid, "a grammar description needs a known \"tool_choice\"");
  out.tool_choice_name = text_at(value, "tool_choice_name");
  out.parallel_tool_calls = flag_at(value, "parallel_tool_calls", true);
  if (const JsonValue* format = value.find("response_format")) out.response_format = *format;
  if (const JsonValue* outputs = value.find("structured_outputs"))
    out.structured_outputs = *outputs;
  out.thinking = flag_at(value, "thinking", true);
  return out;
}

bool needs_grammar(const GrammarRequest& request) {
  const std::string_view format = text_at(request.response_format, "type");
  if (format == "json_object" || format == "json_schema") return true;
  if (request.structured_outputs.is_object()) return true;
  if (request.tool_choice != ToolChoice::kAuto)
    return request.tool_choice != ToolChoice::kNone || !request.tools.items().empty();
  return std::any_of(request.tools.items().begin(), request.tools.items().end(),
                     [](const JsonValue& tool) {
                       const JsonValue* function = tool.find("function");
                       return function != nullptr && flag_at(*function, "strict", false);
                     });
}

api::Parsed<std::shared_ptr<const Grammar>> compile_grammar(const GrammarRequest& request) {
  return TurnCompiler(request).run();
}

}  // namespace weft::text::grammar
