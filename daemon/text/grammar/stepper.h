// One symbol from one place of the grammar to all places it may lead to. Ends are found lazily: a
// frame that may be complete stays, and the next symbol is also tried on what follows it.
#pragma once

#include <vector>

#include "text/grammar/grammar.h"

namespace weft::text::grammar {

class Stepper {
 public:
  Stepper(const Program& program, std::vector<Frame>* out) : program_(program), out_(out) {}

  void step(const Frame& frame, Symbol symbol);
  // The frame and everything after it may end here.
  static bool may_end(const Program& program, const Frame& frame);
  // Code points of plain text that a string still takes here; nothing means any number.
  static std::optional<uint32_t> text_left(const StringSpec& spec, const Frame& frame);
  static bool between_characters(const Frame& string);
  // Inside a key that need not be a declared one, between characters.
  bool takes_any_key(const Frame& frame) const;

 private:
  void keep(Frame frame);
  void leave(const Frame& frame,
             Symbol symbol);  // the frame is complete; the symbol belongs to its parent
  void enter(NodeId node, FramePtr parent, Symbol symbol);
  void enter_child(const Frame& frame, uint32_t after_state, NodeId child, Symbol symbol);
  bool fits(NodeId node, uint32_t parent_depth) const;

  void step_symbols(const Frame& frame, Symbol symbol);
  void step_dfa(const Frame& frame, Symbol symbol);
  void step_free(const Frame& frame, Symbol symbol);
  void step_string(const Frame& frame, Symbol symbol);
  void step_array(const Frame& frame, Symbol symbol);
  void step_object(const Frame& frame, Symbol symbol);
  void step_arguments(const Frame& frame, Symbol symbol);
  void step_calls(const Frame& frame, Symbol symbol);

  bool escape_char(Frame* next, uint8_t byte);  // inside a JSON string; false: not allowed

  // Keys of objects and arguments.
  bool value_fits(const ValueSpec& value, bool json, uint32_t depth) const;
  bool may_use(const Frame& frame, const ObjectSpec& spec, size_t property, bool json) const;
  bool may_use_extra(const Frame& frame, const ObjectSpec& spec, bool json) const;
  bool may_use_any(const Frame& frame, const ObjectSpec& spec, bool json) const;
  static bool complete(const Frame& frame, const ObjectSpec& spec);
  static uint32_t slack(const Frame& frame, const ObjectSpec& spec);
  // A byte of a key. Sets *chosen when the closing quote picked a property (its index) or another
  // key (-1).
  enum class KeyStep { kRefused, kGoesOn, kChosen };
  KeyStep step_key(const Frame& frame, const ObjectSpec& spec, bool json, uint8_t byte, Frame* next,
                   int32_t* chosen) const;
  void mark(Frame* frame, const ObjectSpec& spec, int32_t property) const;
  void step_type(const Frame& frame, const ObjectSpec& spec, uint8_t byte);
  bool literal(const Frame& frame, std::string_view text, Symbol symbol, uint32_t next_state,
               Frame* next) const;

  const Program& program_;
  std::vector<Frame>* out_;
};

bool same_place(const Frame& a, const Frame& b);

}  // namespace weft::text::grammar
