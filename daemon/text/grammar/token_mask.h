// From a place in the grammar to the tokens of a vocabulary that may come next, as a bit per token
// id.
//
// MaskVocabulary is built once per model and read by all sequences; fill is called by the
// scheduler's thread once per sequence and step. Tokens are tried in sorted order and share the
// work of common prefixes; in free text, tokens of plain characters are allowed all at once.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/grammar.h"
#include "text/tokenizer.h"

namespace weft::text::grammar {

struct StructuralIds {
  int32_t open = -1;
  int32_t close = -1;
  int32_t sep = -1;
  int32_t end_of_msg = -1;
};

class MaskVocabulary {
 public:
  // kInvalid when the vocabulary lacks one of the four markers.
  static Result<MaskVocabulary> from(const Tokenizer& tokenizer);
  // `tokens[id]` holds the bytes of an ordinary token; empty entries (special and unused ids) are
  // never allowed.
  MaskVocabulary(std::vector<std::string> tokens, StructuralIds structural);

  size_t size() const { return tokens_.size(); }
  size_t words() const { return (tokens_.size() + 63) / 64; }
  // Overwrites `mask`, which must have words() elements. Bit set: allowed. Stop ids other than the
  // end marker stay clear.
  void fill(const Acceptor& acceptor, std::span<uint64_t> mask) const;

  // The symbol or bytes of a token applied to the acceptor; false, with the acceptor unchanged,
  // when not allowed.
  bool accept(Acceptor* acceptor, int32_t id) const;
  // How many of the tokens are allowed one after the other, as needed to verify a draft. The
  // acceptor is not moved.
  size_t count_accepted(const Acceptor& acceptor, std::span<const int32_t> ids) const;

 private:
  struct Group {
    std::vector<int32_t> order;    // ids by their bytes
    std::vector<uint32_t> shared;  // bytes in common with the entry before
  };
  static Group make_group(const std::vector<std::string>& tokens, std::vector<int32_t> ids);
  void walk(const Group& group, const Acceptor& acceptor, std::span<uint64_t> mask) const;

  std::vector<std::string> tokens_;
  StructuralIds structural_;
  Group plain_;  // whole code points, none of which has a meaning inside strings
  Group other_;
  std::vector<uint64_t> ordinary_mask_;
  std::vector<std::vector<uint64_t>> plain_masks_;  // [n]: plain tokens of at most n code points
  uint32_t plain_longest_ = 0;                      // in code points
};

}  // namespace weft::text::grammar
