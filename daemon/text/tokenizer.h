// Text to token ids and back. Two kinds of vocabulary are read from a model directory: a rank file
// (tiktoken.model with tokenizer_config.json) and a byte-level BPE tokenizer.json.
//
// Immutable after loading; every function may be called from any thread at once. encode is work for
// a slow lane: about 10 MB/s or better.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace weft::text {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the ids of `text`. With allow_special, spellings of special tokens become those tokens:
  // never for text that comes from a client of the chat endpoint.
  virtual void encode_into(std::string_view text, bool allow_special,
                           std::vector<int32_t>* ids) const = 0;
  std::vector<int32_t> encode(std::string_view text, bool allow_special = false) const;

  // Ids the model wants around a raw prompt (a tokenizer.json may say so); does nothing for most.
  virtual void add_prompt_template(std::vector<int32_t>* ids) const;

  // Bytes of a token, UTF-8 of the spelling for a special one; empty for an id that is not in the
  // vocabulary.
  virtual std::string_view token_bytes(int32_t id) const = 0;
  // Structure, not text: dropped by skip_special_tokens.
  virtual bool is_special(int32_t id) const = 0;
  virtual std::optional<int32_t> special_id(std::string_view name) const = 0;
  virtual int32_t vocab_size() const = 0;  // largest id + 1

  // Ids that end a turn, ascending: from the tokenizer's and the model's config files, which need
  // not agree.
  const std::vector<int32_t>& eos_ids() const { return eos_ids_; }
  void add_eos_id(int32_t id);

 private:
  std::vector<int32_t> eos_ids_;
};

// Joined bytes of the tokens, ill-formed UTF-8 replaced.
std::string decode(const Tokenizer& tokenizer, std::span<const int32_t> ids, bool skip_special);

// kNotFound when the directory has no tokenizer files: such a model serves requests given as token
// ids only.
Result<std::unique_ptr<Tokenizer>> load_tokenizer(const std::filesystem::path& directory);

}  // namespace weft::text
