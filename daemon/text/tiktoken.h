// The rank file of Kimi models: one token per line, base64 of its bytes and its rank, which is also
// its id. Special tokens sit in the slots behind the ranks and are named by tokenizer_config.json;
// slots without a name are
// <|reserved_token_N|> with N the slot's id.
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

// Checks that ranks 0..n-1 appear once each, that no byte string repeats and that every single byte
// has a token.
Result<TokenTable> parse_rank_file(std::string_view text);

class TiktokenTokenizer final : public Tokenizer {
 public:
  static constexpr int32_t kSpecialSlots = 256;  // slots behind the ranks
  static constexpr size_t kPartMax = 400'000;    // code points encoded at a time
  static constexpr size_t kRunMax =
      25'000;  // code points of white space, or of anything else, in a row

  // `config` is tokenizer_config.json.
  static Result<std::unique_ptr<TiktokenTokenizer>> create(TokenTable ranks,
                                                           const JsonValue& config);

  void encode_into(std::string_view text, bool allow_special,
                   std::vector<int32_t>* ids) const override;
  std::string_view token_bytes(int32_t id) const override;
  bool is_special(int32_t id) const override;
  std::optional<int32_t> special_id(std::string_view name) const override;
  int32_t vocab_size() const override {
    return rank_count_ + static_cast<int32_t>(special_names_.size());
  }

 private:
  TiktokenTokenizer() = default;
  struct Work {
    CodePoints points;
    BpeScratch scratch;
  };
  Status read_added_tokens(const JsonValue& config);
  void encode_ordinary(std::string_view text, Work& work, std::vector<int32_t>* ids) const;
  void encode_piece(std::string_view piece, Work& work, std::vector<int32_t>* ids) const;

  TokenTable ranks_;
  std::array<int32_t, 256> byte_ids_{};
  int32_t rank_count_ = 0;
  std::vector<std::string> special_names_;  // by slot
  std::map<std::string, int32_t, std::less<>> special_ids_;
  SpecialMatcher specials_;
};

}  // namespace weft::text
