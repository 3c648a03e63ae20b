#include "gateway/api_keys.h"

#include <doctest/doctest.h>

using weft::gateway::ApiKeys;

namespace {

weft::http::Request request(std::string path, std::string name = "", std::string value = "") {
  weft::http::Request r;
  r.path = std::move(path);
  if (!name.empty()) r.headers.add(std::move(name), std::move(value));
  return r;
}

}  // namespace

TEST_CASE("keys come one per line; comments and blank lines are skipped") {
  auto keys = ApiKeys::parse("# team\nsk-first-key\r\n\nsk-second-key", "keys");
  REQUIRE(keys.ok());
  CHECK(keys->accepts("sk-first-key"));
  CHECK(keys->accepts("sk-second-key"));
  for (const char* wrong :
       {"", "sk-first-ke", "sk-first-key ", "sk-first-keysk-first-key", "# team"})
    CHECK(!keys->accepts(wrong));
}

TEST_CASE("bad key files name the line") {
  CHECK(ApiKeys::parse("sk-good-key\nshort\n", "keys")
            .error()
            .message.starts_with("keys:2: expected a key"));
  CHECK(!ApiKeys::parse("has blank inside\n", "keys").ok());
  CHECK(!ApiKeys::parse("# nothing\n", "keys").ok());
  CHECK(!ApiKeys::load("/nonexistent/keys").ok());
}

TEST_CASE("bearer or x-api-key on the API, nothing on health and metrics") {
  auto keys = ApiKeys::parse("sk-first-key\n", "keys");
  REQUIRE(keys.ok());
  CHECK(keys->tenant_of(request("/v1/models", "Authorization", "Bearer sk-first-key")));
  CHECK(keys->tenant_of(request("/v1/models", "authorization", "bearer sk-first-key")));
  CHECK(keys->tenant_of(request("/v1/models", "X-Api-Key", "sk-first-key")));
  CHECK(!keys->tenant_of(request("/v1/models")));
  CHECK(!keys->tenant_of(request("/v1/models", "Authorization", "Basic sk-first-key")));
  CHECK(!keys->tenant_of(request("/v1/models", "Authorization", "Bearer wrong")));
  CHECK(keys->tenant_of(request("/health")));
  CHECK(keys->tenant_of(request("/metrics")));
  CHECK(ApiKeys().tenant_of(request("/v1/models"))->name.empty());
}

TEST_CASE("a key names its tenant; without a name it is a tenant of its own") {
  auto keys = ApiKeys::parse(
      "sk-plain-one\nsk-plain-two\nsk-acme-one acme 4\nsk-acme-two\tacme\nsk-other-1 other \n",
      "keys");
  REQUIRE(keys.ok());
  const auto tenant = [&](const char* key) {
    return *keys->tenant_of(request("/v1/models", "x-api-key", key));
  };
  CHECK(tenant("sk-plain-one").name == "#1");
  CHECK(tenant("sk-plain-two").name == "#2");
  CHECK(tenant("sk-acme-one").name == "acme");
  CHECK(tenant("sk-acme-two").name == "acme");
  CHECK(tenant("sk-acme-one").weight == 4);
  CHECK(tenant("sk-acme-two").weight == 4);  // the weight is the tenant's
  CHECK(tenant("sk-other-1").weight == 1);
  CHECK(keys->tenant_of(request("/metrics"))->name.empty());
  CHECK_FALSE(keys->tenant_of(request("/v1/models", "x-api-key", "acme")).has_value());
}
