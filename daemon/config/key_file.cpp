#include "config/key_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <map>

namespace weft::config {
namespace {

constexpr std::string_view kBlanks = " \t";
constexpr size_t kFieldsMax = 3;  // key, tenant, weight

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> out;
  for (size_t at = line.find_first_not_of(kBlanks); at != std::string_view::npos;) {
    const size_t end = std::min(line.find_first_of(kBlanks, at), line.size());
    out.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(kBlanks, end);
  }
  return out;
}

bool is_tenant_name(std::string_view name) {
  return !name.empty() && name.size() <= kTenantBytesMax &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '-' || c == '_' || c == '.';
         });
}

class KeyFile {
 public:
  explicit KeyFile(std::string_view origin) : origin_(origin) {}

  Status add(std::string_view line, size_t number) {
    const std::vector<std::string_view> fields = fields_of(line);
    if (fields.empty() || fields[0].starts_with('#')) return {};
    if (fields.size() > kFieldsMax)
      return bad(number, fmt::format("expected \"KEY [TENANT [WEIGHT]]\", got {} words; keys and "
                                     "names have no blanks, comments have a line of their own",
                                     fields.size()));
    KeyEntry entry;
    entry.key = std::string(fields[0]);
    const bool printable = std::all_of(entry.key.begin(), entry.key.end(),
                                       [](char c) { return c > 0x20 && c < 0x7f; });
    if (entry.key.size() < kKeyBytesMin || entry.key.size() > kKeyBytesMax || !printable)
      return bad(number,
                 fmt::format("expected a key of {} to {} printable characters without blanks",
                             kKeyBytesMin, kKeyBytesMax));
    entry.tenant = fields.size() > 1 ? std::string(fields[1]) : fmt::format("#{}", number);
    if (fields.size() > 1 && !is_tenant_name(entry.tenant))
      return bad(number, fmt::format("expected a tenant name of 1 to {} letters, digits or - _ . "
                                     "behind the key",
                                     kTenantBytesMax));
    if (fields.size() > 2) WEFT_TRY(read_weight(fields[2], number, &entry));
    return take(std::move(entry), number, fields.size());
  }

  Result<std::vector<KeyEntry>> finish() {
    if (entries_.empty())
      return make_error(ErrorCode::kInvalid,
                        "{}: no key in it; an empty key file would let nobody in or everybody",
                        origin_);
    // A weight given on one line of a tenant holds for its other keys too.
    for (KeyEntry& e : entries_)
      if (const auto found = weights_.find(e.tenant); found != weights_.end())
        e.weight = found->second.first;
    return std::move(entries_);
  }

 private:
  Error bad(size_t line, std::string_view what) const {
    return make_error(ErrorCode::kInvalid, "{}:{}: {}", origin_, line, what);
  }

  Status read_weight(std::string_view text, size_t number, KeyEntry* entry) {
    uint32_t weight = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), weight);
    if (code != std::errc() || end != text.data() + text.size() || weight < 1 ||
        weight > kTenantWeightMax)
      return bad(number, fmt::format("expected a weight of 1 to {} behind the tenant, got \"{}\"",
                                     kTenantWeightMax, text));
    const auto [found, is_new] = weights_.try_emplace(entry->tenant, weight, number);
    if (!is_new && found->second.first != weight)
      return bad(number,
                 fmt::format("tenant {} has the weight {} here and {} in line {}", entry->tenant,
                             weight, found->second.first, found->second.second));
    entry->weight = weight;
    return {};
  }

  Status take(KeyEntry entry, size_t number, size_t fields) {
    if (entries_.size() == kKeysMax)
      return make_error(ErrorCode::kInvalid, "{}: more than {} keys", origin_, kKeysMax);
    const auto [found, is_new] = lines_.try_emplace(entry.key, number);
    if (!is_new) {
      const auto same = std::find_if(entries_.begin(), entries_.end(),
                                     [&](const KeyEntry& e) { return e.key == entry.key; });
      if (fields == 1 || same->tenant == entry.tenant) return {};  // said twice
      return bad(number,
                 fmt::format("the key of line {} again, for another tenant", found->second));
    }
    entries_.push_back(std::move(entry));
    return {};
  }

  const std::string origin_;
  std::vector<KeyEntry> entries_;
  std::map<std::string, size_t> lines_;                         // by key
  std::map<std::string, std::pair<uint32_t, size_t>> weights_;  // by tenant: weight, line
};

}  // namespace

Result<std::vector<KeyEntry>> parse_key_file(std::string_view text, std::string_view origin) {
  if (text.size() > kKeyFileBytesMax)
    return make_error(ErrorCode::kInvalid, "{}: larger than {} bytes: is it a key file?", origin,
                      kKeyFileBytesMax);
  KeyFile file(origin);
  size_t number = 0;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    std::string_view line = text.substr(start, end - start);
    start = end + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    WEFT_TRY(file.add(line, ++number));
  }
  return file.finish();
}

Result<std::vector<KeyEntry>> load_key_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in)
    return make_error(errno == EACCES ? ErrorCode::kPermission : ErrorCode::kInvalid,
                      "cannot read the API key file {}: {}", path, std::strerror(errno));
  std::string text(kKeyFileBytesMax + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (in.bad()) return make_error(ErrorCode::kInvalid, "cannot read the API key file {}", path);
  return parse_key_file(text, path);
}

}  // namespace weft::config
