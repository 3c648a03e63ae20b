#include "engine/load/location.h"

#include <ctype.h>
#include <stdlib.h>

#include <memory>

#include "engine/load/quote.h"

namespace weft::engine {
namespace {

constexpr std::string_view kFileScheme = "file://";

std::optional<std::string> real_path(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> resolved(::realpath(path.c_str(), nullptr), ::free);
  if (resolved == nullptr) return std::nullopt;
  return std::string(resolved.get());
}

bool is_under(std::string_view path, std::string_view dir) {
  if (dir == "/") return true;
  return path.size() > dir.size() && path.substr(0, dir.size()) == dir && path[dir.size()] == '/';
}

// "/cache/models--x/snapshots/abc" -> "/cache/models--x/blobs"
std::optional<std::string> blobs_of(std::string_view dir) {
  const size_t revision = dir.rfind('/');
  const size_t snapshots = revision == 0 || revision == std::string_view::npos
                               ? std::string_view::npos
                               : dir.rfind('/', revision - 1);
  if (snapshots == std::string_view::npos ||
      dir.substr(snapshots, revision - snapshots) != "/snapshots")
    return std::nullopt;
  return std::string(dir.substr(0, snapshots)) + "/blobs";
}

bool is_unreserved(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '.' || c == '_' || c == '~';
}

}  // namespace

std::string join_location(std::string_view dir, std::string_view name) {
  std::string out(dir);
  if (out.empty() || out.back() != '/') out += '/';
  if (dir.find("://") == std::string_view::npos) return out.append(name);
  for (char c : name) {
    if (is_unreserved(c))
      out += c;
    else
      out += fmt::format("%{:02X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
  }
  return out;
}

std::optional<std::string> local_path(std::string_view location) {
  if (!location.empty() && location[0] == '/') return std::string(location);
  if (location.substr(0, kFileScheme.size()) != kFileScheme) return std::nullopt;
  std::string_view rest = location.substr(kFileScheme.size());
  constexpr std::string_view kLocalhost = "localhost";
  if (rest.substr(0, kLocalhost.size() + 1) == "localhost/") rest.remove_prefix(kLocalhost.size());
  if (rest.empty() || rest[0] != '/') return std::nullopt;
  std::string path;
  for (size_t i = 0; i < rest.size(); ++i) {
    const bool escape = rest[i] == '%' && i + 2 < rest.size() &&
                        isxdigit(static_cast<unsigned char>(rest[i + 1])) &&
                        isxdigit(static_cast<unsigned char>(rest[i + 2]));
    if (!escape) {
      path += rest[i];
      continue;
    }
    path += static_cast<char>(std::stoi(std::string(rest.substr(i + 1, 2)), nullptr, 16));
    i += 2;
  }
  return path;
}

Status check_inside(std::string_view dir, std::string_view name) {
  const std::optional<std::string> local = local_path(dir);
  if (!local) return {};
  const std::optional<std::string> root = real_path(*local);
  if (!root) return {};
  const std::optional<std::string> file = real_path(*local + "/" + std::string(name));
  if (!file || is_under(*file, *root)) return {};
  if (const auto blobs = blobs_of(*root); blobs && is_under(*file, *blobs)) return {};
  return make_error(ErrorCode::kPermission,
                    "{} is a link to {}, outside the model directory {}; copy the file or the "
                    "whole directory instead",
                    quote_name(name), quote_name(*file), quote_name(*root));
}

}  // namespace weft::engine
