// Stop strings over deltas, log-probabilities, counting, and the parser of raw text.
#include "kimi_tokenizer.h"
#include "text/k3_format.h"
#include "text/output_parser.h"
#include "vectors.h"

using namespace weft;
using namespace weft::text;

namespace {

using api::Delta;
using api::FinishReason;

struct Setup {
  std::unique_ptr<Tokenizer> tokenizer = test::micro_tokenizer();
  K3Format format = std::move(K3Format::create(*tokenizer)).value();

  std::vector<int32_t> ids(std::string_view text) const { return tokenizer->encode(text, true); }
  std::vector<api::TokenLogprob> logprobs(const std::vector<int32_t>& tokens) const {
    std::vector<api::TokenLogprob> out;
    for (size_t i = 0; i < tokens.size(); ++i)
      out.push_back(
          {tokens[i], std::string(tokenizer->token_bytes(tokens[i])), -static_cast<double>(i), {}});
    return out;
  }
};

struct Seen {
  std::string reasoning, content;
  std::string entries;  // bytes of the content's tokens, joined
  size_t entry_count = 0;
  FinishReason finish = FinishReason::kNone;
};

template <class Parser>
Seen run(Parser& parser, const Setup& setup, const std::vector<int32_t>& ids, size_t step,
         EndReason end) {
  Seen seen;
  const auto take = [&](const std::vector<Delta>& deltas) {
    for (const Delta& d : deltas) {
      if (d.kind == Delta::Kind::kReasoning) seen.reasoning += d.text;
      if (d.kind != Delta::Kind::kContent) CHECK(d.logprobs.empty());
      if (d.kind != Delta::Kind::kContent) continue;
      seen.content += d.text;
      for (const auto& entry : d.logprobs) seen.entries += entry.bytes;
      seen.entry_count += d.logprobs.size();
    }
  };
  const auto logprobs = setup.logprobs(ids);
  for (size_t i = 0; i < ids.size() && !parser.stopped(); i += step) {
    const size_t n = std::min(step, ids.size() - i);
    take(parser.feed(std::span(ids).subspan(i, n), std::span(logprobs).subspan(i, n)));
  }
  take(parser.finish(end, &seen.finish));
  return seen;
}

const char* kAnswer =
    "Think END of it<|close|>think<|sep|><|open|>response<|sep|>\n The answer "
    "\xE4\xBD\xA0\xE5\xA5\xBD is 42. END and more"
    "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>";

}  // namespace

TEST_CASE(
    "log-probabilities: one entry per content token, none of structure, reasoning or held text is "
    "lost") {
  const Setup setup;
  const auto ids = setup.ids(kAnswer);
  for (size_t step = 1; step < 12; ++step) {
    K3OutputParser parser(*setup.tokenizer, setup.format, {});
    const Seen seen = run(parser, setup, ids, step, EndReason::kStop);
    CHECK(seen.content == "\n The answer \xE4\xBD\xA0\xE5\xA5\xBD is 42. END and more");
    CHECK(seen.entries == seen.content);
    CHECK(seen.finish == FinishReason::kStop);
  }
}

TEST_CASE("log-probabilities of raw text: one entry per token, skipped special ones included") {
  const Setup setup;
  const auto ids = setup.ids("<|open|>a b<|sep|><|close|>\xE4\xBD\xA0 c<|end_of_msg|>");
  for (const bool skip : {true, false}) {
    for (size_t step = 1; step < 5; ++step) {
      PlainParser parser(*setup.tokenizer, skip);
      const Seen seen = run(parser, setup, ids, step, EndReason::kStop);
      CHECK(seen.entry_count == ids.size());
      CHECK(seen.entries == seen.content);
      if (skip) CHECK(seen.content == "a b\xE4\xBD\xA0 c");
    }
  }
}

TEST_CASE("log-probabilities of an abandoned tag go with its text") {
  const Setup setup;
  const auto ids = setup.ids(
      "<|close|>think<|sep|><|open|>response<|sep|>a<|open|>foo<|sep|>b<|open|>thi<|close|>"
      "response<|sep|>");
  K3OutputParser parser(*setup.tokenizer, setup.format, {});
  const Seen seen = run(parser, setup, ids, 1, EndReason::kStop);
  CHECK(seen.content == "a<|open|>foo<|sep|>b<|open|>thi");
  CHECK(seen.entries == seen.content);
}

TEST_CASE("stop strings cut the content only, with its log-probabilities, at any step size") {
  const Setup setup;
  const auto ids = setup.ids(kAnswer);
  for (size_t step = 1; step < 40; ++step) {
    for (const bool include : {false, true}) {
      K3OutputParser parser(*setup.tokenizer, setup.format, {}, {{"END", "never"}, include});
      const Seen seen = run(parser, setup, ids, step, EndReason::kStop);
      CHECK(parser.stopped());
      CHECK(parser.stop_string() == "END");
      CHECK(seen.reasoning == "Think END of it");
      const std::string want = "\n The answer \xE4\xBD\xA0\xE5\xA5\xBD is 42. ";
      CHECK(seen.content == (include ? want + "END" : want));
      CHECK(seen.entries.starts_with(seen.content));
      CHECK(seen.entries.size() < seen.content.size() + 8);  // a token may reach over the cut
      CHECK(seen.finish == FinishReason::kStop);
    }
  }
}

TEST_CASE("a tool call ends a stretch of content: held text comes before it") {
  ContentStops stops({{"END"}, false});
  auto out = stops.apply({{Delta::Kind::kContent, 0, "", "ab EN", {}}});
  REQUIRE(out.size() == 1);
  CHECK(out[0].text == "ab ");
  out = stops.apply(
      {{Delta::Kind::kToolOpen, 0, "id", "f", {}}, {Delta::Kind::kContent, 0, "", "D", {}}});
  REQUIRE(out.size() == 3);
  CHECK(out[0].text == "EN");
  CHECK(out[1].kind == Delta::Kind::kToolOpen);
  CHECK(out[2].text == "D");
  CHECK(!stops.matched());
}

TEST_CASE("reasoning tokens: the channel and its closer, whatever follows") {
  const Setup setup;
  K3OutputParser parser(*setup.tokenizer, setup.format, {});
  const auto thought = setup.ids("some thoughts");
  auto ids = thought;
  const auto rest = setup.ids("<|close|>think<|sep|><|open|>response<|sep|>answer");
  ids.insert(ids.end(), rest.begin(), rest.end());
  parser.feed(ids);
  const auto closer = setup.ids("<|close|>think<|sep|>");
  CHECK(parser.reasoning_tokens() == static_cast<int64_t>(thought.size() + closer.size()));
}

TEST_CASE("options: no reasoning wanted, calls capped, ids from the given randomness") {
  const Setup setup;
  K3ParserOptions options;
  options.include_reasoning = false;
  options.call_id_seed = 0xABCDEF;
  K3OutputParser parser(*setup.tokenizer, setup.format, options);
  MessageBuilder builder;
  builder.add(parser.feed(
      setup.ids("secret<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool=\"a\"<|sep|>"
                "<|close|>call<|sep|><|open|>call tool=\"b\"<|sep|><|close|>call<|sep|>")));
  FinishReason reason;
  builder.add(parser.finish(EndReason::kStop, &reason));
  const ParsedMessage message = builder.finish(parser.calls_complete());
  CHECK(message.reasoning.empty());
  REQUIRE(message.tool_calls.size() == 2);
  CHECK(message.tool_calls[0].id == "call_0000000000abcdef_000");
  CHECK(message.tool_calls[1].id == "call_0000000000abcdef_001");
  CHECK(message.tool_calls[0].id < message.tool_calls[1].id);
  CHECK(message.content_is_null);
  CHECK(reason == FinishReason::kToolCalls);
}

TEST_CASE("a thousand calls is the most that is told") {
  const Setup setup;
  K3OutputParser parser(*setup.tokenizer, setup.format, {});
  parser.feed(setup.ids("<|close|>think<|sep|>"));
  const auto call = setup.ids("<|open|>call tool=\"a\"<|sep|><|close|>call<|sep|>");
  for (size_t i = 0; i < kToolCallsMax + 5; ++i) parser.feed(call);
  CHECK(parser.calls_complete().size() == kToolCallsMax);
}

TEST_CASE(
    "other special tokens in K3 output are dropped and counted, the second end token ends the "
    "message") {
  const Setup setup;
  K3OutputParser parser(*setup.tokenizer, setup.format, {});
  MessageBuilder builder;
  builder.add(parser.feed(
      setup.ids("<|close|>think<|sep|><|open|>response<|sep|>a<|media_pad|>b[EOS]junk")));
  FinishReason reason;
  builder.add(parser.finish(EndReason::kStop, &reason));
  CHECK(builder.finish({}).content == "ab");
  CHECK(parser.dropped_specials() == 1);
}

TEST_CASE("a broken code point before structure is replaced, not carried over") {
  const Setup setup;
  K3OutputParser parser(*setup.tokenizer, setup.format, {});
  std::vector<int32_t> ids = setup.ids("<|close|>think<|sep|><|open|>response<|sep|>a");
  for (int32_t id = 0; id < setup.tokenizer->vocab_size(); ++id)
    if (setup.tokenizer->token_bytes(id) == "\xE4") ids.push_back(id);
  for (const int32_t id : setup.ids("<|close|>response<|sep|>")) ids.push_back(id);
  MessageBuilder builder;
  builder.add(parser.feed(ids));
  CHECK(builder.finish({}).content == "a\xEF\xBF\xBD");
}

TEST_CASE("plain text: every id is text, specials on request, stop strings everywhere") {
  const Setup setup;
  const std::string text = "one <|open|>\xE4\xBD\xA0\xE5\xA5\xBD two [EOS]three";
  const auto ids = setup.ids(text);
  for (size_t step = 1; step < 8; ++step) {
    PlainParser all(*setup.tokenizer, false);
    Seen seen = run(all, setup, ids, step, EndReason::kLength);
    CHECK(seen.content == text);
    CHECK(seen.entries == text);
    CHECK(seen.finish == FinishReason::kLength);
    PlainParser skipping(*setup.tokenizer, true);
    seen = run(skipping, setup, ids, step, EndReason::kAbort);
    CHECK(seen.content == "one \xE4\xBD\xA0\xE5\xA5\xBD two three");
    CHECK(seen.finish == FinishReason::kAbort);
    PlainParser stopping(*setup.tokenizer, true, {{"wo t"}, false});
    seen = run(stopping, setup, ids, step, EndReason::kLength);
    CHECK(stopping.stopped());
    CHECK(seen.content == "one \xE4\xBD\xA0\xE5\xA5\xBD t");
    CHECK(seen.finish == FinishReason::kStop);
  }
}

TEST_CASE("plain text: an unfinished code point is flushed at the end, with its entry") {
  const Setup setup;
  int32_t lead = -1;
  for (int32_t id = 0; id < setup.tokenizer->vocab_size(); ++id)
    if (setup.tokenizer->token_bytes(id) == "\xF0") lead = id;
  REQUIRE(lead >= 0);
  PlainParser parser(*setup.tokenizer, true);
  const Seen seen = run(parser, setup, {lead}, 1, EndReason::kStop);
  CHECK(seen.content == "\xEF\xBF\xBD");
  CHECK(seen.entry_count == 1);
}
