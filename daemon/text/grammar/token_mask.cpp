#include "text/grammar/token_mask.h"

#include <algorithm>

#include "base/check.h"
#include "base/utf8.h"
#include "text/k3_names.h"

namespace weft::text::grammar {
namespace {

void set_bit(std::span<uint64_t> mask, int32_t id) {
  mask[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
}

// Code points of a token that is allowed wherever text is free; nothing for other tokens.
std::optional<uint32_t> plain_length(std::string_view bytes) {
  if (!is_valid_utf8(bytes)) return std::nullopt;
  uint32_t length = 0;
  for (char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x20 || byte == '"' || byte == '\\' || byte == '&') return std::nullopt;
    if ((byte & 0xC0) != 0x80) ++length;
  }
  return length;
}

uint32_t shared_prefix(std::string_view a, std::string_view b) {
  const size_t most = std::min(a.size(), b.size());
  return static_cast<uint32_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<long>(most), b.begin()).first - a.begin());
}

}  // namespace

Result<MaskVocabulary> MaskVocabulary::from(const Tokenizer& tokenizer) {
  const auto need = [&](std::string_view name) -> Result<int32_t> {
    const auto id = tokenizer.special_id(name);
    if (!id)
      return make_error(ErrorCode::kInvalid,
                        "the vocabulary has no {}; constrained decoding needs it", name);
    return *id;
  };
  StructuralIds structural;
  WEFT_ASSIGN(structural.open, need(kOpen));
  WEFT_ASSIGN(structural.close, need(kClose));
  WEFT_ASSIGN(structural.sep, need(kSep));
  WEFT_ASSIGN(structural.end_of_msg, need(kEndOfMsg));
  std::vector<std::string> tokens(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (!tokenizer.is_special(id)) tokens[static_cast<size_t>(id)] = tokenizer.token_bytes(id);
  for (int32_t id : {structural.open, structural.close, structural.sep, structural.end_of_msg})
    tokens[static_cast<size_t>(id)].clear();
  return MaskVocabulary(std::move(tokens), structural);
}

MaskVocabulary::MaskVocabulary(std::vector<std::string> tokens, StructuralIds structural)
    : tokens_(std::move(tokens)), structural_(structural) {
  const auto size = static_cast<int32_t>(tokens_.size());
  for (int32_t id : {structural_.open, structural_.close, structural_.sep, structural_.end_of_msg})
    WEFT_CHECK(id >= 0 && id < size && tokens_[static_cast<size_t>(id)].empty());
  ordinary_mask_.resize(words());
  plain_masks_.emplace_back(words());
  std::vector<int32_t> plain, other;
  for (int32_t id = 0; id < size; ++id) {
    const std::string& bytes = tokens_[static_cast<size_t>(id)];
    if (bytes.empty()) continue;
    set_bit(ordinary_mask_, id);
    const auto length = plain_length(bytes);
    (length ? plain : other).push_back(id);
    if (!length) continue;
    if (*length >= plain_masks_.size())
      plain_masks_.resize(*length + 1, std::vector<uint64_t>(words()));
    set_bit(plain_masks_[*length], id);
  }
  for (size_t n = 1; n < plain_masks_.size(); ++n)
    for (size_t w = 0; w < words(); ++w) plain_masks_[n][w] |= plain_masks_[n - 1][w];
  plain_longest_ = static_cast<uint32_t>(plain_masks_.size() - 1);
  plain_ = make_group(tokens_, std::move(plain));
  other_ = make_group(tokens_, std::move(other));
}

MaskVocabulary::Group MaskVocabulary::make_group(const std::vector<std::string>& tokens,
                                                 std::vector<int32_t> ids) {
  Group group;
  std::sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    return tokens[static_cast<size_t>(a)] < tokens[static_cast<size_t>(b)];
  });
  group.shared.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i)
    group.shared.push_back(i == 0 ? 0
                                  : shared_prefix(tokens[static_cast<size_t>(ids[i - 1])],
                                                  tokens[static_cast<size_t>(ids[i])]));
  group.order = std::move(ids);
  return group;
}

void MaskVocabulary::walk(const Group& group, const Acceptor& acceptor,
                          std::span<uint64_t> mask) const {
  std::vector<Acceptor> path = {acceptor};  // path[k]: after k bytes of the current token
  size_t dead_at =
      SIZE_MAX;  // the current prefix of this many bytes is allowed, one more byte is not
  for (size_t i = 0; i < group.order.size(); ++i) {
    if (group.shared[i] > dead_at) continue;  // shares the refused byte
    const std::string& bytes = tokens_[static_cast<size_t>(group.order[i])];
    dead_at = SIZE_MAX;
    path.resize(std::min<size_t>(path.size(), group.shared[i] + size_t{1}), acceptor);
    while (path.size() <= bytes.size()) {
      Acceptor next = path.back();
      if (!next.accept(static_cast<uint8_t>(bytes[path.size() - 1]))) {
        dead_at = path.size() - 1;
        break;
      }
      path.push_back(std::move(next));
    }
    if (dead_at == SIZE_MAX) set_bit(mask, group.order[i]);
  }
}

void MaskVocabulary::fill(const Acceptor& acceptor, std::span<uint64_t> mask) const {
  WEFT_CHECK(mask.size() == words());
  std::fill(mask.begin(), mask.end(), 0);
  const Acceptor::Allowed allowed = acceptor.allowed();
  if (allowed.bytes.any()) {
    const Acceptor::PlainRun run = acceptor.plain_run();
    const bool all_plain = run.unlimited || run.code_points >= plain_longest_;
    if (run.any_bytes) {
      std::copy(ordinary_mask_.begin(), ordinary_mask_.end(), mask.begin());
    } else {
      if (all_plain || run.exact) {
        const auto& plain = plain_masks_[all_plain ? plain_longest_ : run.code_points];
        std::copy(plain.begin(), plain.end(), mask.begin());
      } else {
        walk(plain_, acceptor, mask);
      }
      walk(other_, acceptor, mask);
    }
  }
  if (allowed.open) set_bit(mask, structural_.open);
  if (allowed.close) set_bit(mask, structural_.close);
  if (allowed.sep) set_bit(mask, structural_.sep);
  if (allowed.end) set_bit(mask, structural_.end_of_msg);
}

bool MaskVocabulary::accept(Acceptor* acceptor, int32_t id) const {
  if (id == structural_.open) return acceptor->accept(kOpenToken);
  if (id == structural_.close) return acceptor->accept(kCloseToken);
  if (id == structural_.sep) return acceptor->accept(kSepToken);
  if (id == structural_.end_of_msg) return acceptor->accept(kEndToken);
  if (id < 0 || static_cast<size_t>(id) >= tokens_.size() ||
      tokens_[static_cast<size_t>(id)].empty())
    return false;
  return acceptor->accept_text(tokens_[static_cast<size_t>(id)]);
}

size_t MaskVocabulary::count_accepted(const Acceptor& acceptor,
                                      std::span<const int32_t> ids) const {
  Acceptor trial = acceptor;
  size_t count = 0;
  while (count < ids.size() && accept(&trial, ids[count])) ++count;
  return count;
}

}  // namespace weft::text::grammar
