// Byte-level BPE from a tokenizer.json. Only what such tokenizers need is read; any component of
// another kind is an error at load time, because guessing would give other ids than the model was
// trained on.
//
// Immutable after loading, any thread.
#pragma once

#include <array>
#include <map>
#include <memory>

#include "base/json_value.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"
#include "text/special_matcher.h"
#include "text/token_table.h"
#include "text/tokenizer.h"

namespace weft::text {

// Ranks of token pairs: (left id, right id) -> merge. Open addressing, read only after loading.
class MergeTable {
 public:
  void reserve(size_t merges);
  bool add(int32_t left, int32_t right,
           PairMerge merge);  // false: the pair is there already (the first one counts)
  PairMerge find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t key = UINT64_MAX;
    PairMerge merge;
  };
  size_t place(uint64_t key) const;
  std::vector<Slot> slots_;
};

class HfTokenizer final : public Tokenizer {
 public:
  static Result<std::unique_ptr<HfTokenizer>> create(const JsonValue& document);

  // allow_special lets spellings of special added tokens through; other added tokens always count.
  void encode_into(std::string_view text, bool allow_special,
                   std::vector<int32_t>* ids) const override;
  void add_prompt_template(std::vector<int32_t>* ids) const override;
  std::string_view token_bytes(int32_t id) const override;
  bool is_special(int32_t id) const override;
  std::optional<int32_t> special_id(std::string_view name) const override;
  int32_t vocab_size() const override;

  struct AddedToken {
    int32_t id = -1;
    std::string content;
    std::string match;  // what is searched for: content, normalised if the token says so
    bool single_word = false;
    bool lstrip = false;
    bool rstrip = false;
    bool normalized = false;
    bool special = false;
  };
  struct Step {
    enum Kind { kPattern, kLiteral, kByteLevel } kind = kPattern;
    SplitPattern pattern = SplitPattern::kGpt2;
    std::string literal;
    bool add_prefix_space = false;
    bool use_regex = false;
  };

 private:
  friend class HfLoader;
  struct Piece {
    std::string text;
    int32_t id = -1;  // an added token when not negative
  };
  struct Work {
    CodePoints points;
    BpeScratch scratch;
  };
  HfTokenizer() = default;
  std::vector<Piece> split_added(std::vector<Piece> pieces, bool normalized,
                                 bool allow_special) const;
  void encode_text(std::string text, Work& work, std::vector<int32_t>* ids) const;
  void encode_piece(std::string_view piece, Work& work, std::vector<int32_t>* ids) const;
  void apply_step(const Step& step, std::vector<std::string>& pieces, Work& work) const;

  TokenTable vocab_;  // bytes -> id; ids that are added tokens only are not in it
  std::array<int32_t, 256> byte_ids_{};
  MergeTable merges_;
  bool ignore_merges_ = false;
  bool nfc_ = false;
  std::vector<Step> steps_;
  std::vector<AddedToken> added_;
  SpecialMatcher matchers_[2][2];          // [normalized][special ones too]
  std::map<int32_t, size_t> added_by_id_;  // index in added_
  std::map<int32_t, std::string>
      odd_vocab_;  // vocabulary entries that are not written in the byte alphabet
  std::vector<int32_t> template_before_;
  std::vector<int32_t> template_after_;
  int32_t vocab_size_ = 0;
};

// The code point that stands for a byte in a byte-level vocabulary.
char32_t byte_symbol(uint8_t byte);
// Bytes of a vocabulary string; false when it has a character outside the alphabet.
bool bytes_of_symbols(std::string_view symbols, std::string* bytes);

}  // namespace weft::text
