#include "text/hf_loader.h"

#include <algorithm>

#include "text/nfc.h"

namespace weft::text {
namespace {

const JsonValue* get(const JsonValue* object, std::string_view key) {
  const JsonValue* found = object == nullptr ? nullptr : object->find(key);
  return found == nullptr || found->is_null() ? nullptr : found;
}
std::string string_at(const JsonValue* object, std::string_view key) {
  const JsonValue* v = get(object, key);
  return v != nullptr && v->is_string() ? v->as_string() : "";
}
bool flag_at(const JsonValue* object, std::string_view key, bool fallback) {
  const JsonValue* v = get(object, key);
  return v != nullptr && v->is_bool() ? v->as_bool() : fallback;
}
std::optional<int32_t> id_of(const JsonValue* v) {
  if (v == nullptr) return std::nullopt;
  const auto id = v->as_int();
  if (!id || *id < 0 || *id > TokenTable::kIdMax) return std::nullopt;
  return static_cast<int32_t>(*id);
}
Error unsupported(std::string_view where, std::string_view what) {
  return make_error(ErrorCode::kUnsupported,
                    "{}: \"{}\" is not a byte-level BPE component that weft knows", where, what);
}
Error invalid(std::string_view what) { return make_error(ErrorCode::kInvalid, "{}", what); }
constexpr size_t kNestingMax = 8;

}  // namespace

Result<std::unique_ptr<HfTokenizer>> HfTokenizer::create(const JsonValue& document) {
  return HfLoader(document).load();
}

Result<std::unique_ptr<HfTokenizer>> HfLoader::load() {
  if (!document_.is_object()) return invalid("tokenizer.json must be an object");
  t_.reset(new HfTokenizer);
  WEFT_TRY(read_model());
  WEFT_TRY(read_normalizer(get(&document_, "normalizer"), 0));
  WEFT_TRY(read_pre_tokenizer(get(&document_, "pre_tokenizer"), 0));
  if (std::none_of(t_->steps_.begin(), t_->steps_.end(),
                   [](const auto& step) { return step.kind == HfTokenizer::Step::kByteLevel; }))
    return unsupported("pre_tokenizer", "no ByteLevel step");
  WEFT_TRY(read_decoder());
  WEFT_TRY(read_added_tokens());
  WEFT_TRY(read_post_processor(get(&document_, "post_processor"), 0));
  return std::move(t_);
}

Status HfLoader::read_model() {
  const JsonValue* model = get(&document_, "model");
  if (model == nullptr || !model->is_object()) return invalid("tokenizer.json has no model object");
  const std::string type = string_at(model, "type");
  if (type != "BPE") return unsupported("model.type", type);
  for (const char* key : {"unk_token", "continuing_subword_prefix", "end_of_word_suffix"})
    if (!string_at(model, key).empty())
      return unsupported(std::string("model.") + key, string_at(model, key));
  if (flag_at(model, "byte_fallback", false)) return unsupported("model.byte_fallback", "true");
  t_->ignore_merges_ = flag_at(model, "ignore_merges", false);
  WEFT_TRY(read_vocab(*model));
  return read_merges(*model);
}

Status HfLoader::read_vocab(const JsonValue& model) {
  const JsonValue* vocab = get(&model, "vocab");
  if (vocab == nullptr || !vocab->is_object())
    return invalid("model.vocab must be an object of token -> id");
  t_->vocab_.reserve(vocab->members().size(), vocab->members().size() * 8);
  for (const auto& [symbols, value] : vocab->members()) {
    const auto id = id_of(&value);
    if (!id)
      return invalid(fmt::format("model.vocab: the id of \"{}\" is not an integer in [0, {}]",
                                 symbols, TokenTable::kIdMax));
    t_->vocab_size_ = std::max(t_->vocab_size_, *id + 1);
    vocab_by_symbols_[symbols] = *id;
    std::string bytes;
    if (!bytes_of_symbols(symbols, &bytes)) {
      t_->odd_vocab_[*id] = symbols;
    } else if (!t_->vocab_.add(bytes, *id)) {
      return invalid(fmt::format("model.vocab: \"{}\" or its id {} appears twice", symbols, *id));
    }
  }
  for (uint32_t b = 0; b < 256; ++b) {
    const char c = static_cast<char>(b);
    t_->byte_ids_[b] = t_->vocab_.find({&c, 1});
    const bool in_utf8 = b != 0xC0 && b != 0xC1 && b < 0xF5;
    if (t_->byte_ids_[b] < 0 && in_utf8)
      return invalid(fmt::format("model.vocab has no token for the single byte 0x{:02x}", b));
  }
  return {};
}

Status HfLoader::read_merges(const JsonValue& model) {
  const JsonValue* merges = get(&model, "merges");
  if (merges == nullptr || !merges->is_array()) return invalid("model.merges must be an array");
  t_->merges_.reserve(merges->items().size());
  uint32_t rank = 0;
  for (const JsonValue& item : merges->items()) {
    std::string left, right;
    if (item.is_string()) {
      const size_t space = item.as_string().find(' ');
      if (space == std::string::npos)
        return invalid(fmt::format("model.merges[{}] has no space", rank));
      left = item.as_string().substr(0, space);
      right = item.as_string().substr(space + 1);
    } else if (item.is_array() && item.items().size() == 2 && item.items()[0].is_string() &&
               item.items()[1].is_string()) {
      left = item.items()[0].as_string();
      right = item.items()[1].as_string();
    } else {
      return invalid(fmt::format("model.merges[{}] must be \"a b\" or [\"a\", \"b\"]", rank));
    }
    const auto l = vocab_by_symbols_.find(left), r = vocab_by_symbols_.find(right),
               m = vocab_by_symbols_.find(left + right);
    if (l == vocab_by_symbols_.end() || r == vocab_by_symbols_.end() ||
        m == vocab_by_symbols_.end())
      return invalid(
          fmt::format("model.merges[{}]: \"{}\", \"{}\" or what they make is not in the vocabulary",
                      rank, left, right));
    t_->merges_.add(l->second, r->second, {rank, m->second});
    ++rank;
  }
  return {};
}

Status HfLoader::read_normalizer(const JsonValue* node, size_t depth) {
  if (node == nullptr) return {};
  if (depth > kNestingMax) return invalid("normalizer is nested too deeply");
  const std::string type = string_at(node, "type");
  if (type == "NFC") {
    t_->nfc_ = true;
    return {};
  }
  const JsonValue* list = get(node, "normalizers");
  if (type != "Sequence" || list == nullptr || !list->is_array())
    return unsupported("normalizer.type", type);
  for (const JsonValue& item : list->items()) WEFT_TRY(read_normalizer(&item, depth + 1));
  return {};
}

Status HfLoader::read_split(const JsonValue& node) {
  if (string_at(&node, "behavior") != "Isolated" || flag_at(&node, "invert", false))
    return unsupported("pre_tokenizer Split behavior", string_at(&node, "behavior"));
  HfTokenizer::Step step;
  const JsonValue* pattern = get(&node, "pattern");
  if (const std::string literal = string_at(pattern, "String"); !literal.empty()) {
    step.kind = HfTokenizer::Step::kLiteral;
    step.literal = literal;
  } else {
    const std::string regex = string_at(pattern, "Regex");
    const auto known = known_split_pattern(regex);
    if (!known) return unsupported("pre_tokenizer Split pattern", regex);
    step.pattern = *known;
  }
  t_->steps_.push_back(std::move(step));
  return {};
}

Status HfLoader::read_pre_tokenizer(const JsonValue* node, size_t depth) {
  if (node == nullptr) return {};
  if (depth > kNestingMax) return invalid("pre_tokenizer is nested too deeply");
  const std::string type = string_at(node, "type");
  HfTokenizer::Step step;
  if (type == "Sequence") {
    const JsonValue* list = get(node, "pretokenizers");
    if (list == nullptr || !list->is_array())
      return invalid("pre_tokenizer Sequence has no pretokenizers array");
    for (const JsonValue& item : list->items()) WEFT_TRY(read_pre_tokenizer(&item, depth + 1));
    return {};
  }
  if (type == "Split") return read_split(*node);
  if (type == "Digits") {
    step.pattern = flag_at(node, "individual_digits", false) ? SplitPattern::kDigitsSingle
                                                             : SplitPattern::kDigitRuns;
  } else if (type == "ByteLevel") {
    step.kind = HfTokenizer::Step::kByteLevel;
    step.add_prefix_space = flag_at(node, "add_prefix_space", true);
    step.use_regex = flag_at(node, "use_regex", true);
  } else {
    return unsupported("pre_tokenizer.type", type);
  }
  t_->steps_.push_back(std::move(step));
  return {};
}

Status HfLoader::read_decoder() {
  const JsonValue* decoder = get(&document_, "decoder");
  const std::string type = string_at(decoder, "type");
  if (decoder != nullptr && type != "ByteLevel") return unsupported("decoder.type", type);
  return {};
}

Status HfLoader::read_added_tokens() {
  const JsonValue* list = get(&document_, "added_tokens");
  if (list == nullptr) return {};
  if (!list->is_array()) return invalid("added_tokens must be an array");
  for (const JsonValue& item : list->items()) {
    HfTokenizer::AddedToken token;
    const auto id = id_of(get(&item, "id"));
    token.content = string_at(&item, "content");
    if (!id || token.content.empty())
      return invalid("added_tokens: every token needs an id and content");
    token.id = *id;
    token.single_word = flag_at(&item, "single_word", false);
    token.lstrip = flag_at(&item, "lstrip", false);
    token.rstrip = flag_at(&item, "rstrip", false);
    token.special = flag_at(&item, "special", false);
    token.normalized = flag_at(&item, "normalized", !token.special);
    token.match = token.normalized && t_->nfc_ ? to_nfc(token.content) : token.content;
    t_->vocab_size_ = std::max(t_->vocab_size_, token.id + 1);
    t_->added_.push_back(std::move(token));
  }
  for (size_t i = 0; i < t_->added_.size(); ++i) {
    const auto& token = t_->added_[i];
    if (!t_->added_by_id_.emplace(token.id, i).second)
      return invalid(fmt::format("added_tokens: id {} appears twice", token.id));
    t_->matchers_[token.normalized][1].add(token.match, token.id);
    if (!token.special) t_->matchers_[token.normalized][0].add(token.match, token.id);
  }
  return {};
}

Status HfLoader::read_template(const JsonValue& node) {
  const JsonValue* single = get(&node, "single");
  const JsonValue* specials = get(&node, "special_tokens");
  if (single == nullptr || !single->is_array())
    return invalid("TemplateProcessing has no single array");
  bool after = false;
  std::vector<int32_t> front;
  for (const JsonValue& item : single->items()) {
    if (get(&item, "Sequence") != nullptr) {
      after = true;
      continue;
    }
    const std::string name = string_at(get(&item, "SpecialToken"), "id");
    const JsonValue* ids = get(get(specials, name), "ids");
    if (ids == nullptr || !ids->is_array())
      return invalid(fmt::format("TemplateProcessing: special token \"{}\" has no ids", name));
    for (const JsonValue& value : ids->items()) {
      const auto id = id_of(&value);
      if (!id)
        return invalid(fmt::format("TemplateProcessing: an id of \"{}\" is not an integer", name));
      (after ? t_->template_after_ : front).push_back(*id);
    }
  }
  t_->template_before_.insert(t_->template_before_.begin(), front.begin(), front.end());
  return {};
}

Status HfLoader::read_post_processor(const JsonValue* node, size_t depth) {
  if (node == nullptr) return {};
  if (depth > kNestingMax) return invalid("post_processor is nested too deeply");
  const std::string type = string_at(node, "type");
  if (type == "ByteLevel") return {};  // offsets only
  if (type == "TemplateProcessing") return read_template(*node);
  const JsonValue* list = get(node, "processors");
  if (type != "Sequence" || list == nullptr || !list->is_array())
    return unsupported("post_processor.type", type);
  for (const JsonValue& item : list->items()) WEFT_TRY(read_post_processor(&item, depth + 1));
  return {};
}

}  // namespace weft::text
