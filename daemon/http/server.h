// Server: an HTTP/1.1 server on a loop, with several listeners and named limits. One handler
// answers everything; give it a Router's to choose by method and path.
//
// Loop thread only. Destroying the server closes all connections and tells running exchanges that
// their client is gone.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "http/connection.h"
#include "http/responder.h"
#include "http/types.h"
#include "loop/loop.h"
#include "loop/stream.h"

namespace weft::http {

class Server {
 public:
  Server(Loop& loop, Limits limits, Handler handler,
         ErrorFormatter format_error = format_openai_error);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // "127.0.0.1:8000", "[::1]:0", "unix:/path". Returns the bound address, with the real port.
  Result<std::string> listen(std::string_view address, const ListenOptions& options = {});
  Result<std::string> adopt(UniqueFd listening,
                            const ListenOptions& options = {});  // socket activation
  std::vector<std::string> addresses() const;

  void stop_listening();
  // Closes idle connections now and the others after their running answer. Listeners are closed
  // too.
  void drain();
  ServerStats stats() const;

 private:
  void accept(std::unique_ptr<Stream> stream);
  Listener::OnAccept acceptor();

  Loop& loop_;
  std::shared_ptr<ServerContext> context_;
  std::vector<std::unique_ptr<Listener>> listeners_;
};

}  // namespace weft::http
