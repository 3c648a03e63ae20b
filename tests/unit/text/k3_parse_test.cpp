#include <algorithm>

#include "kimi_tokenizer.h"
#include "text/k3_names.h"
#include "text/output_parser.h"
#include "vectors.h"

using namespace weft;
using namespace weft::text;

namespace {

using api::Delta;
using api::FinishReason;

struct Event {
  std::string text;
  bool special = false;
};
using Feeds = std::vector<std::vector<Event>>;

struct Call {
  std::string name;
  std::string arguments;
  bool complete = false;
  bool operator==(const Call&) const = default;
};
struct Outcome {
  std::string reasoning;
  std::string content;
  std::vector<Call> calls;
  FinishReason finish = FinishReason::kNone;
  ParsedMessage message;
};

void collect(const std::vector<Delta>& deltas, Outcome* out, MessageBuilder* builder) {
  builder->add(deltas);
  for (const Delta& d : deltas) {
    if (d.kind == Delta::Kind::kReasoning) out->reasoning += d.text;
    if (d.kind == Delta::Kind::kContent) out->content += d.text;
    if (d.kind == Delta::Kind::kToolOpen) {
      REQUIRE(d.call_index == static_cast<int32_t>(out->calls.size()));
      out->calls.push_back({d.text, "", false});
    }
    if (d.kind == Delta::Kind::kToolArguments)
      out->calls.at(static_cast<size_t>(d.call_index)).arguments += d.text;
    if (d.kind != Delta::Kind::kToolOpen) CHECK(!d.text.empty());
  }
}

void close(const std::vector<bool>& complete, Outcome* out, MessageBuilder* builder) {
  REQUIRE(complete.size() == out->calls.size());
  for (size_t i = 0; i < complete.size(); ++i) out->calls[i].complete = complete[i];
  out->message = builder->finish(complete);
}

K3Machine::Marker marker_of(const std::string& text) {
  if (text == kOpen) return K3Machine::Marker::kOpenTag;
  if (text == kClose) return K3Machine::Marker::kCloseTag;
  if (text == kSep) return K3Machine::Marker::kTagEnd;
  REQUIRE(text == kEndOfMsg);
  return K3Machine::Marker::kMessageEnd;
}

Outcome run_events(const K3ParserOptions& options, const std::vector<Event>& events,
                   EndReason end) {
  K3Machine machine(options);
  Outcome out;
  MessageBuilder builder;
  for (const Event& event : events) {
    if (event.special)
      machine.marker(marker_of(event.text));
    else
      machine.text(event.text);
    collect(machine.take(), &out, &builder);
  }
  out.finish = machine.finish(end);
  collect(machine.take(), &out, &builder);
  close(machine.calls_complete(), &out, &builder);
  return out;
}

Outcome run_text(const K3ParserOptions& options, const std::vector<std::string>& chunks,
                 EndReason end) {
  K3TextParser parser(options);
  Outcome out;
  MessageBuilder builder;
  for (const std::string& chunk : chunks) collect(parser.feed(chunk), &out, &builder);
  collect(parser.finish(end, &out.finish), &out, &builder);
  close(parser.calls_complete(), &out, &builder);
  return out;
}

EndReason end_of(const JsonValue& c) {
  const std::string& finish = test::str(c, "finish");
  return finish == "length"  ? EndReason::kLength
         : finish == "abort" ? EndReason::kAbort
                             : EndReason::kStop;
}

K3ParserOptions options_of(const JsonValue& c) {
  K3ParserOptions options;
  options.start = test::str(c, "start") == "think" ? StartState::kThink : StartState::kResponse;
  if (const JsonValue* given = c.find("options")) {
    options.suppress_tools = test::flag_or(*given, "suppress_tools", false);
    options.promote_orphan_response = test::flag_or(*given, "promote_orphan_response", true);
    if (const JsonValue* most = given->find("max_calls"))
      options.max_calls = static_cast<size_t>(*most->as_int());
  }
  return options;
}

std::vector<Event> events_of(const JsonValue& segments) {
  std::vector<Event> out;
  for (const JsonValue& s : segments.items())
    out.push_back({s.items()[0].as_string(), s.items()[1].as_bool()});
  return out;
}

const char* finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kToolCalls:
      return "tool_calls";
    case FinishReason::kAbort:
      return "abort";
    default:
      return "?";
  }
}

void check(const JsonValue& c, const Outcome& got) {
  const JsonValue& expect = test::at(c, "expect");
  const JsonValue& stream = test::at(c, "expect_stream");
  CHECK(got.reasoning == test::str(stream, "reasoning"));
  CHECK(got.content == test::str(stream, "content"));
  std::vector<Call> calls;
  for (const JsonValue& call : test::at(stream, "tool_calls").items())
    calls.push_back({test::str(call, "name"), test::str(call, "arguments"),
                     test::at(call, "complete").as_bool()});
  CHECK(got.calls == calls);
  CHECK(std::string(finish_name(got.finish)) == test::str(expect, "finish_reason"));

  CHECK(got.message.reasoning == test::str_or(expect, "reasoning_content"));
  CHECK(got.message.content_is_null == test::at(expect, "content").is_null());
  if (!got.message.content_is_null) CHECK(got.message.content == test::str(expect, "content"));
  const auto& want = test::at(expect, "tool_calls").items();
  REQUIRE(got.message.tool_calls.size() == want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    CHECK(got.message.tool_calls[i].name == test::str(want[i], "name"));
    CHECK(got.message.tool_calls[i].arguments == test::str(want[i], "arguments"));
  }
}

// The same events with text cut at random places between code points.
std::vector<Event> cut_events(const std::vector<Event>& events, std::mt19937& rng,
                              bool every_code_point) {
  std::vector<Event> out;
  for (const Event& event : events) {
    if (event.special) {
      out.push_back(event);
      continue;
    }
    bool fresh = true;
    for (const std::string& cp : test::code_points(event.text)) {
      if (fresh || every_code_point || rng() % 3 == 0) out.push_back({"", false});
      out.back().text += cp;
      fresh = false;
    }
  }
  return out;
}

}  // namespace

TEST_CASE("K3 output, events: vectors under every cut") {
  const JsonValue doc = test::vectors("k3_parse");
  CHECK(test::at(doc, "cases").items().size() == 91);
  std::mt19937 rng(31);
  for (const JsonValue& c : test::at(doc, "cases").items()) {
    if (test::str(c, "mode") == "text") continue;
    CAPTURE(test::str(c, "name"));
    const auto events = events_of(test::at(c, "segments"));
    const auto options = options_of(c);
    check(c, run_events(options, events, end_of(c)));
    check(c, run_events(options, cut_events(events, rng, true), end_of(c)));
    for (int round = 0; round < 20; ++round)
      check(c, run_events(options, cut_events(events, rng, false), end_of(c)));
  }
}

TEST_CASE("K3 output, text: vectors under every cut") {
  std::mt19937 rng(37);
  for (const JsonValue& c : test::cases("k3_parse", "cases")) {
    if (test::str(c, "mode") == "token") continue;
    CAPTURE(test::str(c, "name"));
    const std::string& output = test::str(c, "output");
    const auto options = options_of(c);
    const EndReason end = end_of(c);
    check(c, run_text(options, {output}, end));
    check(c, run_text(options, test::code_points(output), end));
    for (size_t cut = 1; cut < output.size(); ++cut)  // bytes: cuts inside code points too
      check(c, run_text(options, {output.substr(0, cut), output.substr(cut)}, end));
    for (int round = 0; round < 60; ++round) {
      std::vector<std::string> chunks;
      for (size_t i = 0; i < output.size();) {
        const size_t n = 1 + rng() % 9;
        chunks.push_back(output.substr(i, n));
        i += n;
      }
      check(c, run_text(options, chunks, end));
    }
    if (const JsonValue* splits = c.find("splits"))
      for (const JsonValue& split : splits->items())
        check(c, run_text(options, test::strings_of(split), end));
  }
}

TEST_CASE("K3 output, ids: vectors with the micro tokenizer, all two-way cuts and one at a time") {
  const auto tokenizer = test::micro_tokenizer();
  const auto format = std::move(K3Format::create(*tokenizer)).value();
  for (const JsonValue& c : test::cases("k3_parse", "cases")) {
    if (test::str(c, "mode") == "text") continue;
    CAPTURE(test::str(c, "name"));
    std::vector<Segment> segments;
    for (const Event& event : events_of(test::at(c, "segments")))
      segments.push_back({event.text, event.special});
    const auto ids = format.encode(segments);
    const auto run = [&](const std::vector<size_t>& cuts) {
      K3OutputParser parser(*tokenizer, format, options_of(c));
      Outcome out;
      MessageBuilder builder;
      size_t from = 0;
      for (const size_t cut : cuts) {
        collect(parser.feed(std::span(ids).subspan(from, cut - from)), &out, &builder);
        from = cut;
      }
      collect(parser.feed(std::span(ids).subspan(from)), &out, &builder);
      collect(parser.finish(end_of(c), &out.finish), &out, &builder);
      close(parser.calls_complete(), &out, &builder);
      check(c, out);
    };
    run({});
    for (size_t cut = 1; cut < ids.size(); ++cut) run({cut});
    std::vector<size_t> all;
    for (size_t cut = 1; cut < ids.size(); ++cut) all.push_back(cut);
    run(all);
  }
}

TEST_CASE("K3 output: ids of the vectors with Kimi's tokenizer") {
  const auto tokenizer = test::kimi_tokenizer();
  if (tokenizer == nullptr) return;
  const auto format = std::move(K3Format::create(*tokenizer)).value();
  for (const JsonValue& c : test::cases("k3_parse", "cases")) {
    if (test::str(c, "mode") == "text" || c.find("ids") == nullptr) continue;
    CAPTURE(test::str(c, "name"));
    K3OutputParser parser(*tokenizer, format, options_of(c));
    Outcome out;
    MessageBuilder builder;
    for (const int32_t id : test::ids_of(test::at(c, "ids")))
      collect(parser.feed({&id, 1}), &out, &builder);
    collect(parser.finish(end_of(c), &out.finish), &out, &builder);
    close(parser.calls_complete(), &out, &builder);
    check(c, out);
  }
}

TEST_CASE("K3 output: exact delta sequences") {
  const JsonValue doc = test::vectors("k3_parse");
  CHECK(test::at(doc, "exact_deltas").items().size() == 5);
  for (const JsonValue& c : test::at(doc, "exact_deltas").items()) {
    CAPTURE(test::str(c, "name"));
    K3Machine machine(options_of(c));
    const auto compare = [](const std::vector<Delta>& got, const JsonValue& want) {
      REQUIRE(got.size() == want.items().size());
      for (size_t i = 0; i < got.size(); ++i) {
        const JsonValue& w = want.items()[i];
        if (w.find("reasoning_content") != nullptr) {
          CHECK(got[i].kind == Delta::Kind::kReasoning);
          CHECK(got[i].text == test::str(w, "reasoning_content"));
        } else if (w.find("content") != nullptr) {
          CHECK(got[i].kind == Delta::Kind::kContent);
          CHECK(got[i].text == test::str(w, "content"));
        } else {
          const JsonValue& call = test::at(w, "tool_call");
          CHECK(got[i].call_index == test::at(call, "index").as_int());
          const bool open = call.find("name") != nullptr;
          CHECK(got[i].kind == (open ? Delta::Kind::kToolOpen : Delta::Kind::kToolArguments));
          CHECK(got[i].text == test::str(call, open ? "name" : "arguments"));
        }
      }
    };
    const auto& feeds = test::at(c, "feeds").items();
    for (size_t i = 0; i < feeds.size(); ++i) {
      for (const JsonValue& event : feeds[i].items()) {
        if (event.find("special") != nullptr)
          machine.marker(marker_of(test::str(event, "special")));
        else
          machine.text(test::str(event, "text"));
      }
      compare(machine.take(), test::at(c, "deltas").items()[i]);
    }
    const JsonValue& finish = test::at(c, "at_finish");
    CHECK(std::string(finish_name(machine.finish(EndReason::kStop))) ==
          test::str(finish, "finish_reason"));
    compare(machine.take(), test::at(finish, "deltas"));
  }
}

TEST_CASE("K3 output: random event soup does not depend on the cut, in both modes") {
  const std::vector<std::string> kTexts = {"think",
                                           "response",
                                           "tools",
                                           "call tool=\"f\"",
                                           "argument key=\"a\"",
                                           "argument key=\"b\" type=\"number\"",
                                           "json type=\"object\"",
                                           "message",
                                           " ",
                                           "\n",
                                           "x",
                                           "12",
                                           "{\"a\": 1}",
                                           "<",
                                           "<|",
                                           "thi",
                                           "call",
                                           "argument",
                                           "json",
                                           "\xE4\xBD\xA0"};
  const std::vector<std::string> kMarkers = {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"};
  std::mt19937 rng(41);
  for (int round = 0; round < 3000; ++round) {
    std::vector<Event> events;
    std::string output;
    for (int i = 0; i < 25; ++i) {
      const bool special = rng() % 2 == 0;
      const size_t which =
          special ? std::min<size_t>(rng() % 24, 3 - rng() % 3) : rng() % kTexts.size();
      events.push_back({special ? kMarkers[std::min<size_t>(which, 3)] : kTexts[which], special});
      output += events.back().text;
    }
    CAPTURE(output);
    const EndReason end = static_cast<EndReason>(rng() % 3);
    const auto same = [](const Outcome& a, const Outcome& b) {
      CHECK(a.reasoning == b.reasoning);
      CHECK(a.content == b.content);
      CHECK(a.calls == b.calls);
      CHECK(a.finish == b.finish);
    };
    same(run_events({}, events, end), run_events({}, cut_events(events, rng, true), end));
    std::vector<std::string> chunks;
    for (size_t i = 0; i < output.size();) {
      const size_t n = 1 + rng() % 12;
      chunks.push_back(output.substr(i, n));
      i += n;
    }
    same(run_text({}, {output}, end), run_text({}, chunks, end));
  }
}
