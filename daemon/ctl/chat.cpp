// weftctl chat: one question or a conversation over the control socket. Thinking is dimmed on a
// terminal. When the output is not a terminal it carries the answer alone; thinking and numbers
// then go to the error stream.
#include <iterator>

#include "ctl/chat_stream.h"
#include "ctl/ctl.h"
#include "ctl/format.h"

namespace weft::ctl {
namespace {

constexpr std::string_view kDim = "\x1b[2m";
constexpr std::string_view kPlain = "\x1b[0m";

class Conversation {
 public:
  explicit Conversation(const Context& context) : context_(context), api_(context.api()) {
    reset();
  }

  void reset() {
    messages_.clear();
    if (!context_.options.system.empty()) add("system", context_.options.system);
  }
  int choose_model();
  int ask(const std::string& text);

 private:
  void add(const char* role, const std::string& content) {
    messages_.push_back(JsonValue::object(
        {{"role", JsonValue::string(role)}, {"content", JsonValue::string(content)}}));
  }
  std::string request_body(bool stream) const;
  int ask_json();
  void show_aside(std::string_view text);
  void end_line();

  // Where thinking and numbers go, and whether they can be dimmed there.
  std::ostream& aside() {
    return context_.console.out_is_terminal ? context_.console.out : context_.console.err;
  }
  bool aside_is_terminal() const {
    return context_.console.out_is_terminal || context_.console.err_is_terminal;
  }

  const Context& context_;
  const Api api_;
  std::string model_;
  std::vector<JsonValue> messages_;
  bool line_open_ = false;   // out does not stand at the start of a line
  bool aside_open_ = false;  // the same for thinking
};

int Conversation::choose_model() {
  model_ = context_.options.model;
  if (!model_.empty()) return kOk;
  const ApiOutcome out = api_.call("GET", "/v1/models");
  if (!out.ok) return context_.fail(out.failure);
  const JsonValue& json = out.reply.json;
  for (const JsonValue& m :
       json.find("models") != nullptr ? list_at(json, "models") : list_at(json, "data")) {
    const std::string state = text_at(m, "state");
    if (!state.empty() && state != "ready") continue;
    model_ = text_at(m, "id");
    return kOk;
  }
  return context_.fail(kNotReady, "no model is ready; see weftctl status");
}

std::string Conversation::request_body(bool stream) const {
  const Options& o = context_.options;
  std::vector<JsonValue::Member> m{{"model", JsonValue::string(model_)},
                                   {"messages", JsonValue::array(messages_)}};
  if (stream) {
    m.emplace_back("stream", JsonValue::boolean(true));
    m.emplace_back("stream_options",
                   JsonValue::object({{"include_usage", JsonValue::boolean(true)}}));
  }
  if (!o.effort.empty()) m.emplace_back("reasoning_effort", JsonValue::string(o.effort));
  if (o.no_thinking) {
    m.emplace_back("thinking", JsonValue::object({{"type", JsonValue::string("disabled")}}));
  }
  if (o.max_tokens > 0) m.emplace_back("max_tokens", JsonValue::integer(o.max_tokens));
  if (o.temperature >= 0)
    m.emplace_back("temperature", JsonValue::number(fmt::format("{}", o.temperature)));
  return dump_json(JsonValue::object(std::move(m)));
}

int Conversation::ask_json() {
  const ApiOutcome out = api_.call("POST", "/v1/chat/completions", request_body(false));
  if (!out.ok) return context_.fail(out.failure);
  context_.console.out << out.reply.text << "\n";
  return kOk;
}

void Conversation::show_aside(std::string_view text) {
  std::ostream& out = aside();
  if (aside_is_terminal()) out << kDim;
  out << terminal_safe(text);
  if (aside_is_terminal()) out << kPlain;
  out.flush();
}

void Conversation::end_line() {
  if (line_open_) context_.console.out << std::endl;
  if (aside_open_) aside() << std::endl;
  line_open_ = aside_open_ = false;
}

int Conversation::ask(const std::string& text) {
  add("user", text);
  if (context_.options.json) return ask_json();
  Console& console = context_.console;
  if (console.clear_interrupt) console.clear_interrupt();
  ChatListener listener;
  listener.on_reasoning = [&](std::string_view piece) {
    if (line_open_) end_line();
    show_aside(piece);
    aside_open_ = true;
  };
  listener.on_content = [&](std::string_view piece) {
    if (aside_open_) {
      end_line();
      if (console.out_is_terminal) console.out << "\n";
    }
    console.out << (console.out_is_terminal ? terminal_safe(piece) : std::string(piece));
    console.out.flush();
    line_open_ = true;
  };
  ChatAnswer answer(monotonic_us(), listener);
  const ApiOutcome out =
      api_.stream("/v1/chat/completions", request_body(true),
                  [&](std::string_view data, int64_t at) { return answer.event(data, at); });
  end_line();
  for (const ShownCall& call : answer.calls()) {
    console.out << terminal_safe(
                       fmt::format("tool call {}: {}({})", call.id, call.name, call.arguments))
                << std::endl;
  }
  const bool interrupted = console.interrupted != nullptr && console.interrupted->load();
  if (interrupted) show_aside("[interrupted]\n");
  if (interrupted && answer.content().empty() && answer.reasoning().empty()) {
    messages_.pop_back();  // nothing was said: the question is taken back
    return kFailure;
  }
  if (!interrupted && (!out.ok || !answer.error().empty() || !answer.done())) {
    messages_.pop_back();  // the question was not answered; it may be asked again
    if (!out.ok) return context_.fail(out.failure);
    return context_.fail(kFailure,
                         answer.error().empty() ? "the answer broke off" : answer.error());
  }
  if (answer.finish_reason() == "length") show_aside("[stopped at the token limit]\n");
  messages_.push_back(answer.message());
  const std::string summary = answer.summary();
  if (!summary.empty()) show_aside("[" + summary + "]\n");
  return interrupted ? kFailure : kOk;
}

// Lines of a terminal are turns; piped input is one message.
int converse(const Context& context, Conversation& conversation) {
  Console& console = context.console;
  if (!console.in_is_terminal) {
    const std::string text((std::istreambuf_iterator<char>(console.in)),
                           std::istreambuf_iterator<char>());
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
      return context.fail(
          kUsage, "nothing to ask: give -m MESSAGE or write the message to the standard input");
    }
    return conversation.ask(text);
  }
  console.out
      << "A line is a message. /reset starts over, /exit or Ctrl-D ends, Ctrl-C stops an answer.\n";
  int last = kOk;
  std::string line;
  while (true) {
    console.out << "> " << std::flush;
    if (!std::getline(console.in, line)) {
      console.out << std::endl;
      return last;
    }
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (line == "/exit" || line == "/quit") return last;
    if (line == "/reset") {
      conversation.reset();
      last = kOk;
    } else {
      last = conversation.ask(line);
      // Without a daemon or the right to talk to it, further lines are of no use.
      if (last == kUnreachable || last == kDenied) return last;
    }
  }
}

}  // namespace

int run_chat(const Context& context) {
  const Options& o = context.options;
  if (o.no_thinking && !o.effort.empty()) {
    return context.fail(kUsage, "--no-thinking and --effort exclude each other");
  }
  if (o.json && !o.message_given && context.console.in_is_terminal) {
    return context.fail(kUsage, "chat --json needs -m MESSAGE");
  }
  Conversation conversation(context);
  const int chosen = conversation.choose_model();
  if (chosen != kOk) return chosen;
  return o.message_given ? conversation.ask(o.message) : converse(context, conversation);
}

}  // namespace weft::ctl
