#include "http/router.h"

#include <algorithm>

namespace weft::http {
namespace {

std::vector<std::string> split_path(std::string_view path) {
  std::vector<std::string> out;
  if (!path.empty() && path.front() == '/') path.remove_prefix(1);
  if (!path.empty() && path.back() == '/') path.remove_suffix(1);
  while (!path.empty()) {
    const size_t slash = path.find('/');
    out.emplace_back(path.substr(0, slash));
    if (slash == std::string_view::npos) break;
    path.remove_prefix(slash + 1);
    if (path.empty()) out.emplace_back();
  }
  return out;
}

bool is_parameter(const std::string& s) {
  return s.size() > 2 && s.front() == '{' && s.back() == '}';
}
bool takes_rest(const std::string& s) { return is_parameter(s) && s[s.size() - 2] == '*'; }

// Number of literal segments matched plus one, or 0 for no match.
size_t match(const std::vector<std::string>& pattern, const std::vector<std::string>& path,
             std::map<std::string, std::string, std::less<>>* params) {
  size_t literals = 0;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const std::string& p = pattern[i];
    if (i >= path.size()) return 0;
    if (takes_rest(p)) {
      std::string rest = path[i];
      for (size_t k = i + 1; k < path.size(); ++k) rest += "/" + path[k];
      (*params)[p.substr(1, p.size() - 3)] = std::move(rest);
      return literals + 1;
    }
    if (is_parameter(p)) {
      if (path[i].empty()) return 0;
      (*params)[p.substr(1, p.size() - 2)] = path[i];
    } else if (p == path[i]) {
      ++literals;
    } else {
      return 0;
    }
  }
  return pattern.size() == path.size() ? literals + 1 : 0;
}

}  // namespace

void Router::add(std::string_view method, std::string_view pattern, Handler handler) {
  WEFT_CHECK(!pattern.empty() && pattern[0] == '/');
  routes_.push_back({std::string(method), split_path(pattern), std::move(handler)});
}

const Router::Route* Router::find(Request& request, std::string* allow) const {
  const std::vector<std::string> path = split_path(request.path);
  const Route* best = nullptr;
  size_t best_score = 0;
  std::vector<std::string_view> methods;
  for (const Route& route : routes_) {
    std::map<std::string, std::string, std::less<>> params;
    const size_t score = match(route.segments, path, &params);
    if (score == 0) continue;
    methods.push_back(route.method);
    const bool fits =
        route.method == request.method || (request.method == "HEAD" && route.method == "GET");
    if (fits && score > best_score) {
      best = &route;
      best_score = score;
      request.params = std::move(params);
    }
  }
  if (best != nullptr || methods.empty()) return best;
  if (std::find(methods.begin(), methods.end(), "GET") != methods.end()) methods.push_back("HEAD");
  methods.push_back("OPTIONS");
  std::sort(methods.begin(), methods.end());
  methods.erase(std::unique(methods.begin(), methods.end()), methods.end());
  for (const std::string_view m : methods) {
    if (!allow->empty()) *allow += ", ";
    *allow += m;
  }
  return nullptr;
}

void Router::handle(Request request, Responder responder) const {
  std::string allow;
  if (const Route* route = find(request, &allow); route != nullptr) {
    return route->handler(std::move(request), std::move(responder));
  }
  if (request.method == "OPTIONS" && (!allow.empty() || request.path == "*")) {
    if (allow.empty()) allow = "GET, HEAD, OPTIONS, POST";
    return responder.send(204, {{"Allow", allow}}, "");
  }
  if (!allow.empty()) {
    return responder.send_error(
        {405, "method_not_allowed",
         request.method + " is not allowed for " + request.path + "; allowed: " + allow},
        {{"Allow", allow}});
  }
  responder.send_error({404, "not_found", "there is nothing at " + request.path});
}

Handler Router::handler() const {
  return [this](Request request, Responder responder) {
    handle(std::move(request), std::move(responder));
  };
}

}  // namespace weft::http
