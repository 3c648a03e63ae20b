// Reads a tokenizer.json document into an HfTokenizer; see hf_tokenizer.h. Used once per load, one
// thread.
#pragma once

#include "text/hf_tokenizer.h"

namespace weft::text {

class HfLoader {
 public:
  explicit HfLoader(const JsonValue& document) : document_(document) {}
  Result<std::unique_ptr<HfTokenizer>> load();

 private:
  Status read_model();
  Status read_vocab(const JsonValue& model);
  Status read_merges(const JsonValue& model);
  Status read_normalizer(const JsonValue* node, size_t depth);
  Status read_pre_tokenizer(const JsonValue* node, size_t depth);
  Status read_split(const JsonValue& node);
  Status read_decoder();
  Status read_post_processor(const JsonValue* node, size_t depth);
  Status read_template(const JsonValue& node);
  Status read_added_tokens();

  const JsonValue& document_;
  std::unique_ptr<HfTokenizer> t_;
  std::map<std::string, int32_t, std::less<>> vocab_by_symbols_;
};

}  // namespace weft::text
