#include "text/tokenizer.h"

#include <unistd.h>

#include "kimi_tokenizer.h"
#include "text/bpe.h"
#include "text/special_matcher.h"
#include "text/token_table.h"
#include "vectors.h"

using namespace weft;
using namespace weft::text;

namespace {

constexpr char kBase64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
std::string base64(const std::string& bytes) {
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    const size_t n = std::min<size_t>(3, bytes.size() - i);
    for (size_t k = 0; k < 3; ++k)
      group = group << 8 | (k < n ? static_cast<uint8_t>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) out += k <= n ? kBase64[group >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

// 256 bytes in order, then the given tokens.
std::string rank_file(const std::vector<std::string>& tokens = {}) {
  std::string out;
  for (int b = 0; b < 256; ++b)
    out += base64(std::string(1, static_cast<char>(b))) + " " + std::to_string(b) + "\n";
  for (size_t i = 0; i < tokens.size(); ++i)
    out += base64(tokens[i]) + " " + std::to_string(256 + i) + "\n";
  return out;
}

std::string error_of(const std::string& text) {
  auto parsed = parse_rank_file(text);
  REQUIRE(!parsed.ok());
  CHECK(parsed.error().code == ErrorCode::kInvalid);
  return parsed.error().message;
}

struct TempDir {
  std::filesystem::path path;
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "weft-text-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~TempDir() { std::filesystem::remove_all(path); }
  void write(const char* name, const std::string& text) const {
    std::ofstream(path / name, std::ios::binary) << text;
  }
};

}  // namespace

TEST_CASE("K3 ids: vectors") {
  const auto tokenizer = test::kimi_tokenizer();
  if (tokenizer == nullptr) return;
  const JsonValue doc = test::vectors("tokenizer_ids");
  CHECK(tokenizer->vocab_size() == *test::at(doc, "n_vocab").as_int());
  for (const JsonValue& c : test::at(doc, "cases").items()) {
    CAPTURE(test::str_or(c, "name"));
    const std::string& text = test::str(c, "text");
    CHECK(tokenizer->encode(text, test::at(c, "allow_special").as_bool()) ==
          test::ids_of(test::at(c, "ids")));
    CHECK(decode(*tokenizer, tokenizer->encode(text), false) == text);
  }
  for (const auto& [id, hex] : test::at(doc, "id_to_bytes_hex").members())
    CHECK(std::string(tokenizer->token_bytes(std::stoi(id))) == test::from_hex(hex.as_string()));
  CHECK(tokenizer->eos_ids() == std::vector<int32_t>{163585});
  CHECK(tokenizer->special_id("<|reserved_token_163800|>") == 163800);
  CHECK(!tokenizer->special_id("<|reserved_token_163839|>"));
}

TEST_CASE("micro model: special slots, end ids and a round trip of random text") {
  const auto tokenizer = test::micro_tokenizer();
  CHECK(tokenizer->vocab_size() == 2048);
  CHECK(tokenizer->special_id("<|open|>") == 1795);
  CHECK(tokenizer->special_id("<|reserved_token_1800|>") == 1800);
  CHECK(tokenizer->eos_ids() == std::vector<int32_t>{1793, 1794});
  CHECK(tokenizer->is_special(1792));
  CHECK(!tokenizer->is_special(1791));
  CHECK(tokenizer->token_bytes(5000).empty());
  CHECK(tokenizer->token_bytes(-1).empty());
  std::mt19937 rng(5);
  for (int round = 0; round < 300; ++round) {
    const std::string text = test::random_text(rng, 30);
    const auto ids = tokenizer->encode(text);
    CHECK(decode(*tokenizer, ids, false) == text);
    for (const int32_t id : ids) CHECK(!tokenizer->is_special(id));
    CHECK(decode(*tokenizer, tokenizer->encode(text, true), false) == text);
  }
  CHECK(tokenizer->encode("<|open|>a[EOS]", true) ==
        std::vector<int32_t>{1795, tokenizer->encode("a").front(), 1793});
  CHECK(decode(*tokenizer, tokenizer->encode("<|open|>a[EOS]", true), true) == "a");
}

TEST_CASE("a run of one kind is cut every 25,000 code points and the text survives") {
  const auto tokenizer = test::micro_tokenizer();
  for (const char* unit : {"a", "\xE4\xBD\xA0", " ", "!"}) {
    std::string text;
    for (int i = 0; i < 60'000; ++i) text += unit;
    CHECK(decode(*tokenizer, tokenizer->encode(text), false) == text);
    std::vector<int32_t> parts;
    split_runs(text, 400'000, 25'000, [&](std::string_view part) {
      for (const int32_t id : tokenizer->encode(part)) parts.push_back(id);
    });
    CHECK(parts == tokenizer->encode(text));
  }
}

TEST_CASE("rank file: what is wrong, and where") {
  CHECK(parse_rank_file(rank_file({"ab", "abc"})).ok());
  std::string no_newline = rank_file();
  no_newline.pop_back();
  CHECK(parse_rank_file(no_newline).ok());
  const std::string good = rank_file();
  CHECK(error_of("") == "the file has no tokens");
  CHECK(error_of(good + "YWI=256\n") ==
        "line 257: no space between token and rank; expected \"BASE64 RANK\"");
  CHECK(error_of(good + "YWI 256\n") ==
        "line 257: the token is not base64; expected \"BASE64 RANK\"");
  CHECK(error_of(good + "YWJ= 256\n") ==
        "line 257: the token is not base64; expected \"BASE64 RANK\"");
  CHECK(error_of(good + " 256\n") == "line 257: the token is not base64; expected \"BASE64 RANK\"");
  CHECK(error_of(good + "YWI= x\n") ==
        "line 257: the rank is not a decimal number; expected \"BASE64 RANK\"");
  CHECK(error_of(good + "YWI= -1\n") ==
        "line 257: the rank is not a decimal number; expected \"BASE64 RANK\"");
  CHECK(error_of(good + "YWI= 99999999999\n") ==
        "line 257: the rank is not a decimal number; expected \"BASE64 RANK\"");
  CHECK(error_of(good + "YWI= 256\r\n") ==
        "line 257: the rank is not a decimal number; expected \"BASE64 RANK\"");
  CHECK(error_of(good + "YWI= 2000000\n") ==
        "line 257: rank 2000000 in a file of 257 lines; ranks must be 0..n-1");
  CHECK(error_of(good + "YWI= 7\n") == "line 257: rank 7 appears twice");
  CHECK(error_of(good + "YQ== 256\n") ==
        "line 257: the byte string of rank 256 already has rank 97");
  CHECK(error_of(good + "YWI= 257\n") ==
        "rank 256 is missing among 257 tokens; ranks must be 0..n-1");
  std::string without_a = good;
  without_a.replace(without_a.find("YQ== 97"), 4, "YWI=");
  CHECK(error_of(without_a) == "no token for the single byte 0x61; all 256 must be there");
}

TEST_CASE("special tokens of a rank file: errors of the config") {
  const auto create = [](const std::string& config) {
    auto ranks = parse_rank_file(rank_file());
    REQUIRE(ranks.ok());
    return TiktokenTokenizer::create(std::move(ranks).value(), *parse_json(config));
  };
  CHECK(create("{}").ok());
  CHECK(
      create(R"({"added_tokens_decoder":{"300":{"content":"<x>"}},"eos_token":{"content":"<x>"}})")
          .value()
          ->eos_ids() == std::vector<int32_t>{300});
  for (const char* bad :
       {R"({"added_tokens_decoder":[]})", R"({"added_tokens_decoder":{"255":{"content":"<x>"}}})",
        R"({"added_tokens_decoder":{"512":{"content":"<x>"}}})",
        R"({"added_tokens_decoder":{"x":{"content":"<x>"}}})",
        R"({"added_tokens_decoder":{"300":{}}})", R"({"eos_token":"<nope>"})",
        R"({"added_tokens_decoder":{"300":{"content":"<x>"},"301":{"content":"<x>"}}})"}) {
    CAPTURE(bad);
    CHECK(!create(bad).ok());
  }
}

TEST_CASE("directories: nothing there, a broken file, a list of end ids") {
  TempDir dir;
  CHECK(load_tokenizer(dir.path).error().code == ErrorCode::kNotFound);
  dir.write("tiktoken.model", "YQ== zero\n");
  const auto broken = load_tokenizer(dir.path);
  REQUIRE(!broken.ok());
  CHECK(broken.error().message.find("tiktoken.model: line 1:") != std::string::npos);
  dir.write("tiktoken.model", rank_file({"ab"}));
  dir.write("generation_config.json", R"({"eos_token_id":[258,300,9999]})");
  dir.write("config.json", R"({"text_config":{"eos_token_id":257}})");
  const auto loaded = load_tokenizer(dir.path);
  REQUIRE(loaded.ok());
  CHECK(loaded.value()->eos_ids() == std::vector<int32_t>{257, 258, 300});
  dir.write("config.json", "{");
  CHECK(!load_tokenizer(dir.path).ok());
}

namespace {

// Merging as defined: look at every adjacent pair, take the lowest rank, leftmost on ties.
std::vector<int32_t> naive_merge(const std::string& piece, const TokenTable& table) {
  std::vector<std::string> parts;
  for (const char c : piece) parts.emplace_back(1, c);
  for (;;) {
    int32_t best = -1;
    size_t where = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const int32_t id = table.find(parts[i] + parts[i + 1]);
      if (id >= 0 && (best < 0 || id < best)) {
        best = id;
        where = i;
      }
    }
    if (best < 0) break;
    parts[where] += parts[where + 1];
    parts.erase(parts.begin() + static_cast<long>(where) + 1);
  }
  std::vector<int32_t> ids;
  for (const std::string& part : parts) ids.push_back(table.find(part));
  return ids;
}

std::vector<int32_t> merge(const std::string& piece, const TokenTable& table, size_t scan_max) {
  BpeScratch scratch;
  for (size_t i = 0; i < piece.size(); ++i)
    scratch.parts.push_back({static_cast<uint32_t>(i), table.find(piece.substr(i, 1)), {}});
  bpe_merge(
      scratch, piece.size(),
      [&](size_t begin, size_t, size_t end, int32_t, int32_t) {
        const int32_t id = table.find(piece.substr(begin, end - begin));
        return id < 0 ? PairMerge{} : PairMerge{static_cast<uint32_t>(id), id};
      },
      scan_max);
  std::vector<int32_t> ids;
  for (const auto& part : scratch.parts) ids.push_back(part.id);
  return ids;
}

}  // namespace

TEST_CASE("merging: scan and heap equal the definition on random vocabularies") {
  std::mt19937 rng(17);
  for (int round = 0; round < 200; ++round) {
    TokenTable table;
    int32_t next = 0;
    for (const char* letter : {"a", "b", "c"}) table.add(letter, next++);
    for (int i = 0; i < 30; ++i) {
      std::string token;
      for (size_t k = 0, n = 2 + rng() % 4; k < n; ++k) token += static_cast<char>('a' + rng() % 3);
      if (table.add(token, next)) ++next;
    }
    std::string piece;
    for (size_t k = 0, n = 1 + rng() % 120; k < n; ++k) piece += static_cast<char>('a' + rng() % 3);
    CAPTURE(piece);
    const auto want = naive_merge(piece, table);
    CHECK(merge(piece, table, 1000) == want);
    CHECK(merge(piece, table, 0) == want);
  }
}

TEST_CASE("token table: both ways, growth, refusals") {
  TokenTable table;
  CHECK(table.find("x") == TokenTable::kNone);
  for (int32_t id = 0; id < 5000; ++id) CHECK(table.add("token" + std::to_string(id * 7), id));
  CHECK(!table.add("token7", 6000));
  CHECK(!table.add("new", 4));
  CHECK(!table.add("new", -1));
  CHECK(!table.add("new", TokenTable::kIdMax + 1));
  CHECK(table.size() == 5000);
  for (int32_t id = 0; id < 5000; ++id) {
    CHECK(table.find("token" + std::to_string(id * 7)) == id);
    CHECK(table.bytes(id) == "token" + std::to_string(id * 7));
  }
  CHECK(table.find("token1") == TokenTable::kNone);
  CHECK(table.add("", 5000));
  CHECK(table.find("") == 5000);
}

TEST_CASE("special strings: leftmost, longest on ties, against a scan of every place") {
  std::mt19937 rng(29);
  for (int round = 0; round < 500; ++round) {
    SpecialMatcher matcher;
    std::map<std::string, int32_t> tokens;
    for (int i = 0; i < 6; ++i) {
      std::string token;
      for (size_t k = 0, n = 1 + rng() % 4; k < n; ++k) token += static_cast<char>('a' + rng() % 2);
      if (tokens.emplace(token, i).second) matcher.add(token, i);
    }
    std::string text;
    for (int k = 0; k < 20; ++k) text += static_cast<char>('a' + rng() % 3);
    const size_t from = rng() % 20;
    SpecialMatcher::Match want;
    for (size_t at = from; at < text.size() && want.id < 0; ++at)
      for (size_t length = 4; length > 0 && want.id < 0; --length)
        if (const auto it = tokens.find(text.substr(at, length));
            it != tokens.end() && it->first.size() == length)
          want = {at, at + length, it->second};
    SpecialMatcher::Match got;
    CHECK(matcher.find(text, from, &got) == (want.id >= 0));
    CHECK(got.begin == want.begin);
    CHECK(got.end == want.end);
    CHECK(got.id == want.id);
  }
  SpecialMatcher::Match match;
  CHECK(!SpecialMatcher().find("abc", 0, &match));
}
