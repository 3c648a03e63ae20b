// Admin: the control API behind weftctl, served on the Unix socket together with the OpenAI routes.
// Who may do what is decided by SO_PEERCRED: root and the user weftd runs as are administrators,
// everybody else who can open the socket may look and chat. Loop thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "fabric/replica.h"
#include "gateway/gateway.h"
#include "http/router.h"
#include "loop/lane.h"
#include "loop/loop.h"

namespace weft::admin {

// What the daemon as a whole is doing; main/ owns it.
struct DaemonFacts {
  std::string state;                // starting | loading | ready | draining | stopping
  std::vector<std::string> listen;  // bound addresses
  uint64_t started_ms = 0;          // loop clock
};

struct AdminActions {
  std::function<DaemonFacts()> facts;
  std::function<void(int64_t deadline_ms)> drain;  // negative: the configured deadline
  std::function<void()> stop;
};

// What is wrong with a worker's books, or nothing: its own verdict, and what can be seen from
// outside: an idle worker uses nothing, and without its cache it holds nothing at all.
std::string audit_problem(const wire::AuditReport& report, bool drop_cache);

class Admin {
 public:
  Admin(Loop& loop, const config::Config& config, gateway::Gateway& gateway,
        std::vector<fabric::Replica*> replicas, AdminActions actions);
  // The router keeps references to this object.
  void add_routes(http::Router& router);

  std::string status_json() const;

 private:
  enum class Need { kLook, kAdminister };
  void add(http::Router& router, const char* method, const char* pattern, Need need,
           std::function<void(http::Request&, http::Responder&)> fn);
  void handle_plugins(http::Responder& responder);
  void handle_requests(http::Responder& responder);
  void handle_cancel(http::Request& request, http::Responder& responder);
  void handle_drain(http::Request& request, http::Responder& responder);
  void handle_audit(http::Request& request, http::Responder& responder);
  void handle_config_check(http::Request& request, http::Responder& responder);

  Loop& loop_;
  const config::Config& config_;
  gateway::Gateway& gateway_;
  std::vector<fabric::Replica*> replicas_;
  AdminActions actions_;
  Lane slow_;  // directory scans
};

}  // namespace weft::admin
