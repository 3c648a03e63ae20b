// The tokenizer of the micro model, and Kimi's rank file when the machine has it.
#pragma once

#include <cstdlib>
#include <iostream>
#include <memory>

#include "text/tiktoken.h"
#include "text/tokenizer.h"
#include "vectors.h"

namespace weft::test {

inline std::unique_ptr<text::Tokenizer> micro_tokenizer() {
  auto loaded = text::load_tokenizer(std::filesystem::path(WEFT_SOURCE_DIR) / "models/micro-k3");
  REQUIRE_MESSAGE(loaded.ok(), (loaded.ok() ? "" : loaded.error().message));
  return std::move(loaded).value();
}

// Special tokens of K3 by their slot behind the ranks.
inline JsonValue kimi_config() {
  std::vector<JsonValue::Member> members;
  const std::pair<int, const char*> kSlots[] = {{0, "[BOS]"},
                                                {1, "[EOS]"},
                                                {2, "<|end_of_msg|>"},
                                                {3, "<|open|>"},
                                                {4, "<|close|>"},
                                                {5, "<|sep|>"},
                                                {6, "[start_header_id]"},
                                                {7, "[end_header_id]"},
                                                {9, "[EOT]"},
                                                {18, "<|media_begin|>"},
                                                {19, "<|media_content|>"},
                                                {20, "<|media_end|>"},
                                                {21, "<|media_pad|>"},
                                                {65, "<osagent_mode>"},
                                                {254, "[UNK]"},
                                                {255, "[PAD]"}};
  for (const auto& [slot, name] : kSlots)
    members.emplace_back(std::to_string(163584 + slot),
                         JsonValue::object({{"content", JsonValue::string(name)}}));
  return JsonValue::object({{"added_tokens_decoder", JsonValue::object(std::move(members))},
                            {"eos_token", JsonValue::string("[EOS]")}});
}

// Null, with a line on stderr, when the file is not on this machine. It is 2.8 MB of someone else's
// data, so it is not part of the tree: set WEFT_KIMI_TOKENIZER to its path, or put it at
// tests/data/kimi-tokenizer/tiktoken.model.
inline std::unique_ptr<text::Tokenizer> kimi_tokenizer() {
  const char* variable = std::getenv("WEFT_KIMI_TOKENIZER");
  std::filesystem::path path =
      variable != nullptr ? variable
                          : std::filesystem::path(WEFT_TEST_DATA) / "kimi-tokenizer/tiktoken.model";
  if (std::filesystem::is_directory(path)) path /= "tiktoken.model";
  if (!std::filesystem::exists(path)) {
    std::cerr << "SKIPPED: " << path.string()
              << " is not there (set WEFT_KIMI_TOKENIZER); ids of K3 are not checked\n";
    return nullptr;
  }
  auto ranks = text::parse_rank_file(read_file(path));
  REQUIRE_MESSAGE(ranks.ok(), (ranks.ok() ? "" : ranks.error().message));
  auto made = text::TiktokenTokenizer::create(std::move(ranks).value(), kimi_config());
  REQUIRE_MESSAGE(made.ok(), (made.ok() ? "" : made.error().message));
  return std::move(made).value();
}

}  // namespace weft::test
