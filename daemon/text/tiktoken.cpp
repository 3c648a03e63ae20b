#include "text/tiktoken.h"

#include <algorithm>
#include <charconv>

namespace weft::text {
namespace {

// Strict base64 with padding: no other characters, no stray bits.
bool decode_base64(std::string_view text, std::string* out) {
  if (text.empty() || text.size() % 4 != 0) return false;
  const auto value = [](char c) -> int {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
  };
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  uint32_t bits = 0;
  int held = 0;
  for (const char c : text.substr(0, text.size() - padding)) {
    const int v = value(c);
    if (v < 0) return false;
    bits = bits << 6 | static_cast<uint32_t>(v);
    held += 6;
    if (held >= 8) {
      held -= 8;
      *out += static_cast<char>(bits >> held & 0xFF);
    }
  }
  return (bits & ((1u << held) - 1)) == 0;
}

Error line_error(size_t line, std::string_view what) {
  return make_error(ErrorCode::kInvalid, "line {}: {}; expected \"BASE64 RANK\"", line, what);
}

}  // namespace

Result<TokenTable> parse_rank_file(std::string_view text) {
  TokenTable table;
  const auto lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  table.reserve(lines + 1, text.size() / 2);
  size_t number = 0;
  std::string bytes;
  while (!text.empty()) {
    ++number;
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const size_t space = line.find(' ');
    if (space == std::string_view::npos)
      return line_error(number, "no space between token and rank");
    bytes.clear();
    if (!decode_base64(line.substr(0, space), &bytes))
      return line_error(number, "the token is not base64");
    int32_t rank = -1;
    const std::string_view digits = line.substr(space + 1);
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size() || rank < 0)
      return line_error(number, "the rank is not a decimal number");
    if (static_cast<size_t>(rank) > lines)
      return make_error(ErrorCode::kInvalid,
                        "line {}: rank {} in a file of {} lines; ranks must be 0..n-1", number,
                        rank, lines);
    if (table.has(rank))
      return make_error(ErrorCode::kInvalid, "line {}: rank {} appears twice", number, rank);
    if (!table.add(bytes, rank))
      return make_error(ErrorCode::kInvalid,
                        "line {}: the byte string of rank {} already has rank {}", number, rank,
                        table.find(bytes));
  }
  if (table.size() == 0) return make_error(ErrorCode::kInvalid, "the file has no tokens");
  if (table.size() != static_cast<size_t>(table.id_end())) {
    int32_t missing = 0;
    while (table.has(missing)) ++missing;
    return make_error(ErrorCode::kInvalid,
                      "rank {} is missing among {} tokens; ranks must be 0..n-1", missing,
                      table.size());
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    if (table.find({&c, 1}) == TokenTable::kNone)
      return make_error(ErrorCode::kInvalid,
                        "no token for the single byte 0x{:02x}; all 256 must be there", byte);
  }
  return table;
}

Result<std::unique_ptr<TiktokenTokenizer>> TiktokenTokenizer::create(TokenTable ranks,
                                                                     const JsonValue& config) {
  std::unique_ptr<TiktokenTokenizer> t(new TiktokenTokenizer);
  t->ranks_ = std::move(ranks);
  t->rank_count_ = t->ranks_.id_end();
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    t->byte_ids_[static_cast<size_t>(byte)] = t->ranks_.find({&c, 1});
  }
  WEFT_TRY(t->read_added_tokens(config));
  for (size_t slot = 0; slot < t->special_names_.size(); ++slot)
    t->specials_.add(t->special_names_[slot], t->rank_count_ + static_cast<int32_t>(slot));
  if (const JsonValue* eos = config.find("eos_token")) {
    const JsonValue* name = eos->is_object() ? eos->find("content") : eos;
    if (name != nullptr && name->is_string()) {
      const auto id = t->special_id(name->as_string());
      if (!id)
        return make_error(ErrorCode::kInvalid, "eos_token \"{}\" is not among added_tokens_decoder",
                          name->as_string());
      t->add_eos_id(*id);
    }
  }
  return std::unique_ptr<TiktokenTokenizer>(std::move(t));
}

Status TiktokenTokenizer::read_added_tokens(const JsonValue& config) {
  special_names_.assign(kSpecialSlots, "");
  const JsonValue* added = config.find("added_tokens_decoder");
  if (added != nullptr && !added->is_object())
    return make_error(ErrorCode::kInvalid, "added_tokens_decoder must be an object of id -> token");
  if (added != nullptr) {
    for (const auto& [key, value] : added->members()) {
      int32_t id = -1;
      const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
      const bool whole = parsed.ec == std::errc() && parsed.ptr == key.data() + key.size();
      if (!whole || id < rank_count_ || id >= rank_count_ + kSpecialSlots)
        return make_error(ErrorCode::kInvalid,
                          "added_tokens_decoder: id \"{}\" is not in [{}, {}), the slots behind "
                          "the {} ranks",
                          key, rank_count_, rank_count_ + kSpecialSlots, rank_count_);
      const JsonValue* content = value.find("content");
      if (content == nullptr || !content->is_string() || content->as_string().empty())
        return make_error(ErrorCode::kInvalid, "added_tokens_decoder: token {} has no content", id);
      special_names_[static_cast<size_t>(id - rank_count_)] = content->as_string();
    }
  }
  for (int32_t slot = 0; slot < kSpecialSlots; ++slot) {
    std::string& name = special_names_[static_cast<size_t>(slot)];
    if (name.empty()) name = fmt::format("<|reserved_token_{}|>", rank_count_ + slot);
    if (!special_ids_.emplace(name, rank_count_ + slot).second)
      return make_error(ErrorCode::kInvalid, "special token \"{}\" has two ids", name);
  }
  return {};
}

void TiktokenTokenizer::encode_piece(std::string_view piece, Work& work,
                                     std::vector<int32_t>* ids) const {
  if (const int32_t id = ranks_.find(piece); id != TokenTable::kNone) {
    ids->push_back(id);
    return;
  }
  auto& parts = work.scratch.parts;
  parts.clear();
  for (size_t i = 0; i < piece.size(); ++i)
    parts.push_back({static_cast<uint32_t>(i), byte_ids_[static_cast<uint8_t>(piece[i])], {}});
  bpe_merge(work.scratch, piece.size(), [&](size_t begin, size_t, size_t end, int32_t, int32_t) {
    const int32_t id = ranks_.find(piece.substr(begin, end - begin));
    return id == TokenTable::kNone ? PairMerge{} : PairMerge{static_cast<uint32_t>(id), id};
  });
  for (const auto& part : parts) ids->push_back(part.id);
}

void TiktokenTokenizer::encode_ordinary(std::string_view text, Work& work,
                                        std::vector<int32_t>* ids) const {
  work.points.assign(text);
  for_each_piece(SplitPattern::kKimi, work.points, [&](size_t begin, size_t end) {
    encode_piece(text.substr(begin, end - begin), work, ids);
  });
}

void TiktokenTokenizer::encode_into(std::string_view text, bool allow_special,
                                    std::vector<int32_t>* ids) const {
  Work work;
  // Cutting comes before the search for special tokens: a spelling across a cut is text.
  split_runs(text, kPartMax, kRunMax, [&](std::string_view part) {
    size_t at = 0;
    SpecialMatcher::Match match;
    while (allow_special && specials_.find(part, at, &match)) {
      encode_ordinary(part.substr(at, match.begin - at), work, ids);
      ids->push_back(match.id);
      at = match.end;
    }
    encode_ordinary(part.substr(at), work, ids);
  });
}

std::string_view TiktokenTokenizer::token_bytes(int32_t id) const {
  if (is_special(id)) return special_names_[static_cast<size_t>(id - rank_count_)];
  return ranks_.bytes(id);
}

bool TiktokenTokenizer::is_special(int32_t id) const {
  return id >= rank_count_ && id < vocab_size();
}

std::optional<int32_t> TiktokenTokenizer::special_id(std::string_view name) const {
  const auto it = special_ids_.find(name);
  if (it == special_ids_.end()) return std::nullopt;
  return it->second;
}

}  // namespace weft::text
