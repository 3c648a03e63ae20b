// weftctl audit: what the workers say of their caches when they check their own books.
#include <fmt/format.h>

#include "ctl/ctl.h"
#include "ctl/format.h"

namespace weft::ctl {
namespace {

void print_audit(std::ostream& out, const JsonValue& d) {
  const std::string name = text_at(d, "name");
  const std::string problem = text_at(d, "problem");
  if (bool_at(d, "answered")) {
    Table table({"GROUP", "TOTAL", "FREE", "ACTIVE", "CACHED"});
    for (const JsonValue& g : list_at(d, "groups"))
      table.add({text_at(g, "name"), std::to_string(int_at(g, "total")),
                 std::to_string(int_at(g, "free")), std::to_string(int_at(g, "active")),
                 std::to_string(int_at(g, "cached"))});
    out << terminal_safe(fmt::format("{}: {} running, {} waiting", name, int_at(d, "running"),
                                     int_at(d, "waiting")));
    if (int_at(d, "host_bytes_total") > 0)
      out << fmt::format(", host memory {} of {} MiB", int_at(d, "host_bytes_used") >> 20,
                         int_at(d, "host_bytes_total") >> 20);
    out << "\n" << table.to_string();
  }
  out << terminal_safe(fmt::format("{}: {}", name, bool_at(d, "ok") ? "ok" : "NOT ok: " + problem))
      << "\n";
}

}  // namespace

int run_audit(const Context& c) {
  std::vector<JsonValue::Member> body{{"drop_cache", JsonValue::boolean(c.options.drop_cache)}};
  if (!c.options.model.empty()) body.emplace_back("model", JsonValue::string(c.options.model));
  const ApiOutcome out = c.api().call("POST", "/v1/audit", dump_json(JsonValue::object(body)));
  if (!out.ok) return c.fail(out.failure);
  const JsonValue& json = out.reply.json;
  bool answered = true;
  for (const JsonValue& d : list_at(json, "deployments")) {
    answered = answered && bool_at(d, "answered");
    if (!c.options.json) print_audit(c.console.out, d);
  }
  if (c.options.json) c.console.out << out.reply.text << "\n";
  if (bool_at(json, "ok")) return kOk;
  return answered ? kFailure : kNotReady;
}

}  // namespace weft::ctl
