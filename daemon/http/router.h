// Router: a table of (method, path pattern) -> handler. A pattern is literal segments and
// parameters: "{name}" takes one segment, "{name*}" at the end takes all that is left
// ("/v1/models/{model*}" fits "a/b"). Literals win over parameters.
//
// Built once, then read only. A trailing slash in a request path does not matter; HEAD falls back
// to GET; OPTIONS and wrong methods are answered with the Allow header.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "http/responder.h"

namespace weft::http {

class Router {
 public:
  void add(std::string_view method, std::string_view pattern, Handler handler);
  void handle(Request request, Responder responder) const;
  // A handler that refers to this router, which must outlive the server.
  Handler handler() const;

 private:
  struct Route {
    std::string method;
    std::vector<std::string> segments;
    Handler handler;
  };
  const Route* find(Request& request, std::string* allow) const;
  std::vector<Route> routes_;
};

}  // namespace weft::http
