// Constrained decoding: which output of the model a request allows. Tools, tool choice and response
// format are compiled into a Grammar; an Acceptor walks it along the generated tokens and says what
// may come next.
//
// The alphabet is bytes for text and single tokens for structure: text that merely spells a marker
// is never structure. Compilation is slow-lane work and deterministic; a Grammar is immutable and
// shared; an Acceptor belongs to one sequence and is a cheap copy, which is how speculative
// decoding rolls back.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/chat_request.h"
#include "api/parsed.h"
#include "text/grammar/program.h"

namespace weft::text::grammar {

// What of a request the grammar depends on. Equal descriptions give equal grammars: it is the cache
// key, and how a request's grammar travels to a worker.
struct GrammarRequest {
  JsonValue tools = JsonValue::array();  // tools[] items, those of system messages included
  api::ToolChoice tool_choice = api::ToolChoice::kAuto;
  std::string tool_choice_name;
  bool parallel_tool_calls = true;
  JsonValue response_format;     // the request's object; null means text
  JsonValue structured_outputs;  // json, json_object, choice or regex; comes before response_format
  bool thinking = true;          // generation starts inside the thinking channel

  static GrammarRequest of(const api::ChatRequest& request);
  std::string description() const;  // JSON
  static Result<GrammarRequest> parse(std::string_view description);
};

// Whether the request needs a grammar at all: forced or strict tools, forbidden tools, a JSON
// response.
bool needs_grammar(const GrammarRequest& request);

class Grammar {
 public:
  explicit Grammar(Program program) : program_(std::move(program)) {}
  const Program& program() const { return program_; }
  std::vector<std::string> warnings;  // ignored keywords, for the log

 private:
  Program program_;
};

// Limits of the language.
inline constexpr uint32_t kCallsMax = 128;
inline constexpr uint32_t kContentBeforeCallsBytes =
    4'096;  // with forced tools; about 1,024 tokens

// 400 with the parameter named when a schema cannot be compiled or can never be satisfied.
api::Parsed<std::shared_ptr<const Grammar>> compile_grammar(const GrammarRequest& request);

// One place in the grammar: a node with its progress, and what is to follow.
struct Frame;
using FramePtr = std::shared_ptr<const Frame>;
struct Frame {
  NodeId node = kNoNode;
  uint32_t state = 0;
  uint32_t pos = 0;
  uint32_t count = 0;
  int32_t aux = 0;
  uint32_t aux2 = 0;
  uint32_t depth = 0;
  std::shared_ptr<const std::vector<uint64_t>> seen;  // properties already written
  FramePtr parent;
};

class Acceptor {
 public:
  static constexpr size_t kThreadsMax = 64;

  explicit Acceptor(std::shared_ptr<const Grammar> grammar);

  // False when the symbol is not allowed; the acceptor is then unchanged.
  bool accept(Symbol symbol);
  // All or nothing.
  bool accept_text(std::string_view bytes);
  bool allows_text(std::string_view bytes) const;
  bool finished() const;  // the end token was accepted

  struct Allowed {
    std::bitset<256> bytes;
    bool open = false, close = false, sep = false, end = false;
    bool any() const { return bytes.any() || open || close || sep || end; }
  };
  Allowed allowed() const;

  // How text of plain characters (whole code points without control characters, quotes, backslashes
  // and ampersands) would go: masks need not try each token then.
  struct PlainRun {
    bool any_bytes = false;    // everything but structure is allowed
    bool unlimited = false;    // any number of plain characters may come
    uint32_t code_points = 0;  // otherwise so many at least
    bool exact = false;        // and no more than that
  };
  PlainRun plain_run() const;

 private:
  std::shared_ptr<const Grammar> grammar_;
  std::vector<Frame> threads_;
  bool finished_ = false;
};

}  // namespace weft::text::grammar
