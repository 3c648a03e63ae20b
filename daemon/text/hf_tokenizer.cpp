#include "text/hf_tokenizer.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>

#include "base/utf8.h"
#include "text/nfc.h"

namespace weft::text {
namespace {

struct Alphabet {
  std::array<char32_t, 256> symbol{};
  std::array<int16_t, 0x180> byte{};

  static const Alphabet& get() {
    static const Alphabet alphabet;
    return alphabet;
  }
  Alphabet() {
    byte.fill(-1);
    char32_t next = 0x100;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      symbol[b] = itself ? b : next++;
      byte[symbol[b]] = static_cast<int16_t>(b);
    }
  }
};

bool is_word_char(std::string_view text, size_t pos) {
  char32_t cp = 0;
  if (decode_utf8(text, pos, &cp) == 0) return false;
  return cp == '_' || (CharClasses::get()[cp] & (kLetter | kNumber)) != 0;
}

// Start of the code point that ends at `end`.
size_t before(std::string_view text, size_t end) {
  size_t i = end - 1;
  while (i > 0 && (static_cast<uint8_t>(text[i]) & 0xC0) == 0x80) --i;
  return i;
}

size_t skip_space_left(std::string_view text, size_t pos, size_t limit) {
  while (pos > limit) {
    const size_t i = before(text, pos);
    if (i < limit || !is_blank(text.substr(i, pos - i))) break;
    pos = i;
  }
  return pos;
}

size_t skip_space_right(std::string_view text, size_t pos) {
  char32_t cp = 0;
  while (pos < text.size()) {
    const size_t n = decode_utf8(text, pos, &cp);
    if (n == 0 || (CharClasses::get()[cp] & kSpace) == 0) break;
    pos += n;
  }
  return pos;
}

}  // namespace

char32_t byte_symbol(uint8_t byte) { return Alphabet::get().symbol[byte]; }

bool bytes_of_symbols(std::string_view symbols, std::string* bytes) {
  const Alphabet& alphabet = Alphabet::get();
  for (size_t i = 0; i < symbols.size();) {
    char32_t cp = 0;
    const size_t n = decode_utf8(symbols, i, &cp);
    if (n == 0 || cp >= alphabet.byte.size() || alphabet.byte[cp] < 0) return false;
    *bytes += static_cast<char>(alphabet.byte[cp]);
    i += n;
  }
  return true;
}

void MergeTable::reserve(size_t merges) { slots_.assign(std::bit_ceil(merges * 2 + 16), Slot{}); }

size_t MergeTable::place(uint64_t key) const {
  size_t at = XXH3_64bits(&key, sizeof key) & (slots_.size() - 1);
  while (slots_[at].key != key && slots_[at].key != UINT64_MAX) at = (at + 1) & (slots_.size() - 1);
  return at;
}

bool MergeTable::add(int32_t left, int32_t right, PairMerge merge) {
  const uint64_t key = uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  Slot& slot = slots_[place(key)];
  if (slot.key == key) return false;
  slot = {key, merge};
  return true;
}

PairMerge MergeTable::find(int32_t left, int32_t right) const {
  const uint64_t key = uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  const Slot& slot = slots_[place(key)];
  return slot.key == key ? slot.merge : PairMerge{};
}

std::vector<HfTokenizer::Piece> HfTokenizer::split_added(std::vector<Piece> pieces, bool normalized,
                                                         bool allow_special) const {
  std::vector<Piece> out;
  for (Piece& piece : pieces) {
    if (piece.id >= 0) {
      out.push_back(std::move(piece));
      continue;
    }
    const std::string_view text = piece.text;
    size_t done = 0, from = 0;
    SpecialMatcher::Match match;
    while (matchers_[normalized][allow_special].find(text, from, &match)) {
      const AddedToken* token = &added_[added_by_id_.at(match.id)];
      const size_t begin = match.begin;
      size_t end = match.end;
      from = end;
      if (token->single_word && ((begin > 0 && is_word_char(text, before(text, begin))) ||
                                 (end < text.size() && is_word_char(text, end))))
        continue;
      const size_t start = token->lstrip ? skip_space_left(text, begin, done) : begin;
      if (token->rstrip) end = skip_space_right(text, end);
      if (start > done) out.push_back({std::string(text.substr(done, start - done)), -1});
      out.push_back({{}, token->id});
      done = from = end;
    }
    if (done < text.size()) out.push_back({std::string(text.substr(done)), -1});
  }
  return out;
}

void HfTokenizer::encode_into(std::string_view text, bool allow_special,
                              std::vector<int32_t>* ids) const {
  Work work;
  std::vector<Piece> pieces;
  if (!text.empty()) pieces.push_back({std::string(text), -1});
  pieces = split_added(std::move(pieces), false, allow_special);
  if (nfc_)
    for (Piece& piece : pieces)
      if (piece.id < 0) piece.text = to_nfc(piece.text);
  pieces = split_added(std::move(pieces), true, allow_special);
  for (Piece& piece : pieces) {
    if (piece.id >= 0)
      ids->push_back(piece.id);
    else
      encode_text(std::move(piece.text), work, ids);
  }
}

void HfTokenizer::apply_step(const Step& step, std::vector<std::string>& pieces, Work& work) const {
  std::vector<std::string> out;
  for (std::string& piece : pieces) {
    if (step.kind == Step::kLiteral) {
      size_t done = 0;
      for (size_t at = piece.find(step.literal); at != std::string::npos;
           at = piece.find(step.literal, done)) {
        if (at > done) out.push_back(piece.substr(done, at - done));
        out.push_back(step.literal);
        done = at + step.literal.size();
      }
      if (done < piece.size()) out.push_back(piece.substr(done));
      continue;
    }
    if (step.kind == Step::kByteLevel && step.add_prefix_space && !piece.starts_with(' '))
      piece.insert(0, 1, ' ');
    if (step.kind == Step::kByteLevel && !step.use_regex) {
      out.push_back(std::move(piece));
      continue;
    }
    work.points.assign(piece);
    for_each_piece(step.pattern, work.points, [&](size_t begin, size_t end) {
      out.push_back(piece.substr(begin, end - begin));
    });
  }
  pieces = std::move(out);
}

void HfTokenizer::encode_text(std::string text, Work& work, std::vector<int32_t>* ids) const {
  std::vector<std::string> pieces;
  pieces.push_back(std::move(text));
  for (const Step& step : steps_) apply_step(step, pieces, work);
  for (const std::string& piece : pieces) encode_piece(piece, work, ids);
}

void HfTokenizer::encode_piece(std::string_view piece, Work& work,
                               std::vector<int32_t>* ids) const {
  if (ignore_merges_) {
    if (const int32_t id = vocab_.find(piece); id != TokenTable::kNone) {
      ids->push_back(id);
      return;
    }
  }
  auto& parts = work.scratch.parts;
  parts.clear();
  for (size_t i = 0; i < piece.size(); ++i) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(piece[i])];
    if (id >= 0)
      parts.push_back(
          {static_cast<uint32_t>(i), id, {}});  // bytes without a token never occur in UTF-8
  }
  bpe_merge(work.scratch, piece.size(), [&](size_t, size_t, size_t, int32_t left, int32_t right) {
    return merges_.find(left, right);
  });
  for (const auto& part : parts) ids->push_back(part.id);
}

void HfTokenizer::add_prompt_template(std::vector<int32_t>* ids) const {
  ids->insert(ids->begin(), template_before_.begin(), template_before_.end());
  ids->insert(ids->end(), template_after_.begin(), template_after_.end());
}

std::string_view HfTokenizer::token_bytes(int32_t id) const {
  if (const auto it = added_by_id_.find(id); it != added_by_id_.end())
    return added_[it->second].content;
  if (const auto it = odd_vocab_.find(id); it != odd_vocab_.end()) return it->second;
  return vocab_.bytes(id);
}

bool HfTokenizer::is_special(int32_t id) const {
  const auto it = added_by_id_.find(id);
  return it != added_by_id_.end() && added_[it->second].special;
}

std::optional<int32_t> HfTokenizer::special_id(std::string_view name) const {
  for (const AddedToken& token : added_)
    if (token.content == name) return token.id;
  return std::nullopt;
}

int32_t HfTokenizer::vocab_size() const { return vocab_size_; }

}  // namespace weft::text
