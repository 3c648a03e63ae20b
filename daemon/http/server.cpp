#include "http/server.h"

namespace weft::http {

Server::Server(Loop& loop, Limits limits, Handler handler, ErrorFormatter format_error)
    : loop_(loop), context_(std::make_shared<ServerContext>(loop, limits)) {
  context_->budget = std::make_shared<BodyBudget>(limits.body_total_max);
  context_->handler = std::move(handler);
  context_->format_error = std::move(format_error);
}

Server::~Server() {
  listeners_.clear();
  // close() removes its own entry; handlers told of a disconnect may do anything but add
  // connections.
  while (!context_->connections.empty()) {
    const std::shared_ptr<Connection> connection = context_->connections.begin()->second;
    connection->close();
  }
}

Listener::OnAccept Server::acceptor() {
  return [this](std::unique_ptr<Stream> stream) { accept(std::move(stream)); };
}

Result<std::string> Server::listen(std::string_view address, const ListenOptions& options) {
  WEFT_ASSIGN(auto listener, Listener::listen(loop_, address, options, acceptor()));
  listeners_.push_back(std::move(listener));
  return listeners_.back()->address();
}

Result<std::string> Server::adopt(UniqueFd listening, const ListenOptions& options) {
  WEFT_ASSIGN(auto listener, Listener::adopt(loop_, std::move(listening), options, acceptor()));
  listeners_.push_back(std::move(listener));
  return listeners_.back()->address();
}

std::vector<std::string> Server::addresses() const {
  std::vector<std::string> out;
  for (const auto& listener : listeners_) out.push_back(listener->address());
  return out;
}

void Server::stop_listening() { listeners_.clear(); }

void Server::drain() {
  stop_listening();
  context_->draining = true;
  std::vector<std::shared_ptr<Connection>> all;
  for (const auto& [id, connection] : context_->connections) all.push_back(connection);
  for (const auto& connection : all) connection->close_if_idle();
}

ServerStats Server::stats() const {
  ServerStats stats = context_->stats;
  stats.connections = context_->connections.size();
  stats.body_bytes = context_->budget->used();
  return stats;
}

void Server::accept(std::unique_ptr<Stream> stream) {
  ServerContext& c = *context_;
  const bool full = c.connections.size() - c.rejects >= c.limits.connections_max;
  ++c.stats.connections_total;
  if (full) ++c.stats.rejected_total;
  if (full && c.rejects >= c.limits.rejects_max) return;  // closes
  const uint64_t id = c.next_connection_id++;
  auto connection = std::make_shared<Connection>(context_, id, std::move(stream));
  c.connections.emplace(id, connection);
  if (full) {
    connection->reject();
  } else {
    connection->start();
  }
}

}  // namespace weft::http
