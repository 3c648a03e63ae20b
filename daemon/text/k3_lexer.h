// Turns K3 output that arrives as text (engines that return strings, replay tools) into the events
// of K3Machine. The four marker spellings become markers, except inside an argument or json body:
// there only the body's own closing tag counts, because anything else may be data.
//
// One per choice, used by the one thread that owns the choice.
#pragma once

#include <string>
#include <string_view>

#include "text/k3_machine.h"

namespace weft::text {

class K3Lexer {
 public:
  explicit K3Lexer(K3Machine* machine) : machine_(machine) {}

  // Complete code points. What could still become a marker (or, in a body, the closing tag) is held
  // back.
  void feed(std::string_view text);
  // An unfinished spelling is plain text: a real marker is one token and cannot be cut.
  void finish();

 private:
  bool in_body() const;
  size_t lex_outside(std::string_view text);
  size_t lex_body(std::string_view text);

  K3Machine* machine_;
  std::string held_;
};

}  // namespace weft::text
