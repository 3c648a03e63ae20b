#include "http/client.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "http/sse.h"

using namespace weft;        // NOLINT test file
using namespace weft::http;  // NOLINT test file

namespace {

// Accepts one connection, reads the head of the request, sends `answer` and closes.
struct OneAnswer {
  explicit OneAnswer(std::string answer, bool close_after = true) {
    fd = bind_address(*parse_address("127.0.0.1:0"), 0).value();
    REQUIRE(listen(fd.get(), 4) == 0);
    address = to_string(*bound_address(fd.get()));
    thread = std::thread([this, answer = std::move(answer), close_after] {
      pollfd p{fd.get(), POLLIN, 0};
      poll(&p, 1, 30'000);
      const UniqueFd peer(accept4(fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
      char buffer[4096];
      while (request.find("\r\n\r\n") == std::string::npos) {
        const ssize_t n = recv(peer.get(), buffer, sizeof(buffer), 0);
        if (n <= 0) return;
        request.append(buffer, static_cast<size_t>(n));
      }
      for (const char c : answer) {  // one byte at a time
        if (send(peer.get(), &c, 1, MSG_NOSIGNAL) != 1) return;
      }
      if (!close_after) recv(peer.get(), buffer, sizeof(buffer), 0);  // until the client goes
    });
  }
  ~OneAnswer() {
    if (thread.joinable()) thread.join();
  }
  UniqueFd fd;
  std::string address;
  std::string request;
  std::thread thread;
};

Result<ClientResponse> ask(const std::string& answer, const ClientOptions& options = {},
                           const BodyCallback& on_body = {}) {
  OneAnswer server(answer);
  return Client::make(server.address, options)->request({"GET", "/x", {{"X-A", "1"}}, ""}, on_body);
}

}  // namespace

TEST_CASE("the client reads lengths, chunks, closes and interim answers") {
  auto length = ask("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-B:  v \r\n\r\nhello");
  REQUIRE(length.ok());
  CHECK(length->status == 200);
  CHECK(length->body == "hello");
  CHECK(*length->headers.get("x-b") == "v");
  CHECK(
      ask("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x\r\nde\r\n0\r\n\r\n")
          ->body == "abcde");
  CHECK(ask("HTTP/1.0 200 OK\r\n\r\nuntil the end")->body == "until the end");
  auto interim =
      ask("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno");
  REQUIRE(interim.ok());
  CHECK(interim->status == 404);
  CHECK(interim->body == "no");
  CHECK(ask("HTTP/1.1 204 No Content\r\n\r\n")->status == 204);
}

TEST_CASE("the client sends what it should") {
  OneAnswer server("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
  REQUIRE(Client::make(server.address)->request({"POST", "/y", {{"X-A", "1"}}, ""}).ok());
  server.thread.join();
  CHECK(server.request == "POST /y HTTP/1.1\r\nX-A: 1\r\nHost: " + server.address +
                              "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
}

TEST_CASE("the client reports broken answers, limits, silence and absence") {
  CHECK(ask("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel").error().code == ErrorCode::kPeer);
  CHECK(ask("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab").error().code ==
        ErrorCode::kPeer);
  CHECK(ask("SSH-2.0-OpenSSH\r\n").error().code == ErrorCode::kPeer);
  CHECK(ask("").error().code == ErrorCode::kPeer);
  ClientOptions small;
  small.body_max = 4;
  CHECK(ask("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", small)
            .error()
            .message.find("larger") != std::string::npos);
  small.head_max = 20;
  CHECK(ask("HTTP/1.1 200 OK\r\nX: " + std::string(30, 'x') + "\r\n\r\n", small)
            .error()
            .message.find("headers") != std::string::npos);
  ClientOptions quick;
  quick.idle_timeout_ms = 20;
  OneAnswer silent("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", false);
  CHECK(Client::make(silent.address, quick)->request({"GET", "/", {}, ""}).error().code ==
        ErrorCode::kTimeout);
  const std::atomic<bool> cancelled{true};
  ClientOptions cancel;
  cancel.cancel = &cancelled;
  OneAnswer waiting("", false);
  CHECK(Client::make(waiting.address, cancel)->request({"GET", "/", {}, ""}).error().code ==
        ErrorCode::kCancelled);
  CHECK(Client::make("unix:/nonexistent/s")->request({"GET", "/", {}, ""}).error().code ==
        ErrorCode::kUnavailable);
  CHECK(!Client::make("nowhere").ok());
}

TEST_CASE("a streamed body comes in pieces and can be stopped") {
  std::string got;
  auto whole = ask("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", {},
                   [&](const ClientResponse& head, std::string_view bytes) {
                     CHECK(head.status == 200);
                     got += bytes;
                     return true;
                   });
  REQUIRE(whole.ok());
  CHECK(got == "hello");
  CHECK(whole->body.empty());
  got.clear();
  auto stopped =
      ask("HTTP/1.1 200 OK\r\nTransfer-Encoding: "
          "chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n1\r\nc\r\n0\r\n\r\n",
          {}, [&](const ClientResponse&, std::string_view bytes) {
            got += bytes;
            return got.size() < 2;
          });
  REQUIRE(stopped.ok());
  CHECK(stopped->stopped);
  CHECK(got == "ab");
}

TEST_CASE("events are framed and read back for every cut") {
  CHECK(sse_frame("x", "") == "data: x\n\n");
  CHECK(sse_frame("a\nb\r\nc\rd", "n") == "event: n\ndata: a\ndata: b\ndata: c\ndata: d\n\n");
  CHECK(sse_frame("", "") == "data: \n\n");
  const std::string text = sse_frame("one", "") + ": keep-alive\n\n" +
                           sse_frame("two\nlines", "e") +
                           "data:tight\r\nid: 7\r\n\r\ndata\r\rdata: lost at the end";
  const std::string expected = "[|one][e|two\nlines][|tight][|]";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    std::string got;
    SseParser parser([&](const SseEvent& e) { got += "[" + e.name + "|" + e.data + "]"; });
    CHECK(parser.feed(std::string_view(text).substr(0, cut)));
    CHECK(parser.feed(std::string_view(text).substr(cut)));
    CHECK(got == expected);
  }
  SseParser small([](const SseEvent&) {}, 10);
  CHECK(!small.feed("data: 12345678"));
}
