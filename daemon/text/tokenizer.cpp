#include "text/tokenizer.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "base/json_value.h"
#include "text/hf_tokenizer.h"
#include "text/tiktoken.h"
#include "text/utf8_stream.h"

namespace weft::text {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kFileMax = 256u << 20;  // the largest tokenizer files known are below 40 MB

Result<std::string> read_file(const fs::path& path) {
  std::error_code ec;
  const uintmax_t size = fs::file_size(path, ec);
  if (ec) return make_error(ErrorCode::kNotFound, "{}: {}", path.string(), ec.message());
  if (size > kFileMax)
    return make_error(ErrorCode::kInvalid, "{}: {} bytes; tokenizer files may have {}",
                      path.string(), size, kFileMax);
  std::ifstream in(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in && !in.eof()) return make_error(ErrorCode::kIo, "{}: cannot be read", path.string());
  return text;
}

Result<JsonValue> read_json(const fs::path& path) {
  WEFT_ASSIGN(const std::string text, read_file(path));
  JsonLimits limits;
  limits.bytes_max = kFileMax;
  auto value = parse_json(text, limits);
  if (!value.ok()) return std::move(value).error().within(path.string());
  return value;
}

bool have_file(const fs::path& path) {
  std::error_code ec;
  return fs::exists(path, ec);
}

// eos_token_id is a number or a list, in generation_config.json and config.json (there also under
// text_config).
void add_eos_ids(const JsonValue& config, Tokenizer* tokenizer) {
  const JsonValue* value = config.find("eos_token_id");
  if (value == nullptr) return;
  const auto add = [&](const JsonValue& item) {
    const auto id = item.as_int();
    if (id && *id >= 0 && *id < tokenizer->vocab_size())
      tokenizer->add_eos_id(static_cast<int32_t>(*id));
  };
  if (value->is_array())
    for (const JsonValue& item : value->items()) add(item);
  else
    add(*value);
}

Status add_model_eos_ids(const fs::path& directory, Tokenizer* tokenizer) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    if (!have_file(directory / name)) continue;
    WEFT_ASSIGN(const JsonValue config, read_json(directory / name));
    add_eos_ids(config, tokenizer);
    if (const JsonValue* text = config.find("text_config")) add_eos_ids(*text, tokenizer);
  }
  return {};
}

Result<std::unique_ptr<Tokenizer>> load_rank_file(const fs::path& directory) {
  const fs::path path = directory / "tiktoken.model";
  WEFT_ASSIGN(const std::string text, read_file(path));
  auto ranks = parse_rank_file(text);
  if (!ranks.ok()) return std::move(ranks).error().within(path.string());
  JsonValue config = JsonValue::object();
  if (have_file(directory / "tokenizer_config.json")) {
    WEFT_ASSIGN(config, read_json(directory / "tokenizer_config.json"));
  }
  auto made = TiktokenTokenizer::create(std::move(ranks).value(), config);
  if (!made.ok())
    return std::move(made).error().within((directory / "tokenizer_config.json").string());
  return std::unique_ptr<Tokenizer>(std::move(made).value());
}

Result<std::unique_ptr<Tokenizer>> load_hf(const fs::path& directory) {
  const fs::path path = directory / "tokenizer.json";
  WEFT_ASSIGN(const JsonValue document, read_json(path));
  auto made = HfTokenizer::create(document);
  if (!made.ok()) return std::move(made).error().within(path.string());
  std::unique_ptr<Tokenizer> tokenizer = std::move(made).value();
  if (have_file(directory / "tokenizer_config.json")) {
    WEFT_ASSIGN(const JsonValue config, read_json(directory / "tokenizer_config.json"));
    if (const JsonValue* eos = config.find("eos_token")) {
      const JsonValue* name = eos->is_object() ? eos->find("content") : eos;
      if (name != nullptr && name->is_string())
        if (const auto id = tokenizer->special_id(name->as_string())) tokenizer->add_eos_id(*id);
    }
  }
  return tokenizer;
}

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool allow_special) const {
  std::vector<int32_t> ids;
  encode_into(text, allow_special, &ids);
  return ids;
}

void Tokenizer::add_prompt_template(std::vector<int32_t>*) const {}

void Tokenizer::add_eos_id(int32_t id) {
  const auto at = std::lower_bound(eos_ids_.begin(), eos_ids_.end(), id);
  if (at == eos_ids_.end() || *at != id) eos_ids_.insert(at, id);
}

std::string decode(const Tokenizer& tokenizer, std::span<const int32_t> ids, bool skip_special) {
  std::string out;
  Utf8Stream stream;
  for (const int32_t id : ids)
    if (!skip_special || !tokenizer.is_special(id)) stream.feed(tokenizer.token_bytes(id), &out);
  stream.flush(&out);
  return out;
}

Result<std::unique_ptr<Tokenizer>> load_tokenizer(const fs::path& directory) {
  const bool ranks = have_file(directory / "tiktoken.model");
  if (!ranks && !have_file(directory / "tokenizer.json"))
    return make_error(ErrorCode::kNotFound,
                      "{}: no tiktoken.model and no tokenizer.json; requests must give token ids",
                      directory.string());
  auto tokenizer = ranks ? load_rank_file(directory) : load_hf(directory);
  if (!tokenizer.ok()) return tokenizer;
  WEFT_TRY(add_model_eos_ids(directory, tokenizer.value().get()));
  return tokenizer;
}

}  // namespace weft::text
