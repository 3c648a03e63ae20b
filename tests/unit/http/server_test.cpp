#include "http/server.h"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/stat.h>

#include <filesystem>

#include "bench.h"

using namespace weft;        // NOLINT test file
using namespace weft::http;  // NOLINT test file
using namespace weft::test;  // NOLINT test file

TEST_CASE("several listeners: IPv4, IPv6 and Unix with peer credentials") {
  const std::string dir = temp_dir();
  Bench b;
  std::string unix_address;
  std::string v6;
  b.t.call([&] {
    unix_address = b.server->listen("unix:" + dir + "/s", {16, 0600}).value();
    if (auto r = b.server->listen("[::1]:0"); r.ok()) v6 = *r;
    CHECK(b.server->addresses().size() >= 2);
    CHECK(!b.server->listen(b.address).ok());  // taken
    CHECK(!b.server->listen("nonsense").ok());
  });
  struct stat st {};
  REQUIRE(stat((dir + "/s").c_str(), &st) == 0);
  CHECK((st.st_mode & 0777) == 0600);
  auto over_unix = Client::make(unix_address)->request({"GET", "/peer", {}, ""});
  REQUIRE(over_unix.ok());
  CHECK(over_unix->body == fmt::format("unix {} {}", getpid(), getuid()));
  auto over_tcp = Client::make(b.address)->request({"GET", "/peer", {}, ""});
  REQUIRE(over_tcp.ok());
  CHECK(over_tcp->body.find("127.0.0.1:") == 0);
  CHECK(over_tcp->body.find(" 0 99999") != std::string::npos);
  if (!v6.empty()) {
    auto over_v6 = Client::make(v6)->request({"GET", "/peer", {}, ""});
    REQUIRE(over_v6.ok());
    CHECK(over_v6->body.find("[::1]:") == 0);
  }
  b.t.call([&] { b.server->stop_listening(); });
  CHECK(!std::filesystem::exists(dir + "/s"));
  CHECK(Client::make(unix_address)->request({"GET", "/peer", {}, ""}).error().code ==
        ErrorCode::kUnavailable);
  CHECK(Client::make(b.address)->request({"GET", "/peer", {}, ""}).error().code ==
        ErrorCode::kUnavailable);
  std::filesystem::remove_all(dir);
}

TEST_CASE("an inherited socket is adopted and its file left alone") {
  const std::string dir = temp_dir();
  const std::string address = "unix:" + dir + "/s";
  {
    Bench b;
    UniqueFd fd = bind_address(*parse_address(address), 0600).value();
    REQUIRE(listen(fd.get(), 8) == 0);
    b.t.call([&] { CHECK(b.server->adopt(std::move(fd)).value() == address); });
    CHECK(Client::make(address)->request({"GET", "/echo", {}, ""})->status == 200);
  }
  CHECK(std::filesystem::exists(dir + "/s"));
  std::filesystem::remove_all(dir);
}

TEST_CASE("keep-alive, HTTP/1.0, HEAD and Connection: close") {
  Bench b;
  RawClient c(b.address);
  c.send(kGet);
  REQUIRE(c.read_until("GET /echo "));
  CHECK(c.status() == 200);
  CHECK(c.text().find("Connection: close") == std::string::npos);
  CHECK(c.text().find("\r\nDate: ") != std::string::npos);
  c.clear();
  c.send("HEAD /echo HTTP/1.1\r\nHost: h\r\n\r\n");
  REQUIRE(c.read_until("\r\n\r\n"));
  CHECK(c.text().find("Content-Length: 11\r\n") != std::string::npos);
  CHECK(c.text().substr(c.text().size() - 4) == "\r\n\r\n");
  c.clear();
  c.send("GET /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  c.read_all();
  CHECK(c.text().find("Connection: close") != std::string::npos);
  CHECK(!c.was_reset());
  RawClient old(b.address);
  old.send("GET /echo HTTP/1.0\r\n\r\n");
  CHECK(old.read_all().substr(0, 15) == "HTTP/1.0 200 OK");
  RawClient kept(b.address);
  kept.send("GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  REQUIRE(kept.read_until("GET /echo "));
  CHECK(kept.text().find("Connection: keep-alive") != std::string::npos);
  kept.clear();
  kept.send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  REQUIRE(kept.read_until("first;"));
  CHECK(kept.text().find("chunked") == std::string::npos);
  CHECK(kept.text().find("Connection: close") != std::string::npos);
  b.t.call([&] {
    b.writers[0]->write("second");
    b.writers[0]->end();
  });
  kept.read_all();
  CHECK(kept.text().find("\r\n\r\nfirst;second") != std::string::npos);
}

TEST_CASE("pipelined requests are answered in order, one at a time") {
  Bench b;
  RawClient c(b.address);
  std::string bytes = "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n";
  for (int i = 0; i < 50; ++i) {
    bytes += fmt::format("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n{:03}", i);
  }
  bytes += "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n";
  c.send(bytes);
  b.wait_for([&] { return b.held.size() == 1; });
  CHECK(b.stats().requests_total == 1);
  b.t.call([&] {
    b.held[0].send(200, {}, "held");
    CHECK(b.server->stats().requests_total == 1);  // the next one does not run inside send()
    b.held.clear();
  });
  REQUIRE(c.read_until("POST /echo 049"));
  size_t at = 0;
  for (int i = 0; i < 50; ++i) {
    const size_t found = c.text().find(fmt::format("POST /echo {:03}", i));
    CHECK(found > at);
    at = found;
  }
  b.wait_for([&] { return b.held.size() == 1; });
  CHECK(b.stats().requests_in_flight == 1);
}

TEST_CASE("a pipelining client is not read beyond the buffer while a request runs") {
  Limits limits;
  limits.pipeline_buffer_max = 1024;
  Bench b(limits);
  RawClient c(b.address);
  c.send("GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
  b.wait_for([&] { return b.held.size() == 1; });
  // Send until the kernel's buffers are full: the server has stopped to read.
  const std::string junk(64 << 10, 'x');
  size_t sent = 0;
  while (true) {
    const ssize_t n = send(c.fd(), junk.data(), junk.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      sent += static_cast<size_t>(n);
      continue;
    }
    pollfd p{c.fd(), POLLOUT, 0};
    if (poll(&p, 1, 200) == 0) break;
  }
  CHECK(sent > limits.pipeline_buffer_max);
  CHECK(sent < (32u << 20));
  b.t.call([&] {
    b.held[0].send(200, {}, "done");
    b.held.clear();
  });
  c.read_all();
  CHECK(c.text().find("done") != std::string::npos);
  CHECK(c.text().find("HTTP/1.1 414") != std::string::npos);  // the junk is no request line
}

TEST_CASE("requests cut at every byte are answered") {
  Bench b;
  const std::string request =
      "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: "
      "chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
  RawClient c(b.address);
  const int on = 1;
  setsockopt(c.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  for (size_t cut = 1; cut < request.size(); ++cut) {
    c.clear();
    c.send(request.substr(0, cut));
    if (cut % 8 == 0) b.stats();  // a round trip through the loop: the halves are read apart
    c.send(request.substr(cut));
    REQUIRE(c.read_until("POST /echo abc"));
  }
}

TEST_CASE("bad requests get an answer in the error format and the connection closes") {
  Bench b;
  const std::string text = one_shot(b, "BAD\x01 / HTTP/1.1\r\nHost: h\r\n\r\n");
  CHECK(text.substr(0, 24) == "HTTP/1.1 400 Bad Request");
  CHECK(text.find("Connection: close") != std::string::npos);
  CHECK(text.find("{\"error\":{\"message\":") != std::string::npos);
  // Also right behind a good one, whose answer comes first.
  const std::string both = one_shot(b, std::string(kGet) + "nonsense\r\n\r\n");
  CHECK(both.find("HTTP/1.1 200") == 0);
  CHECK(both.find("HTTP/1.1 400") != std::string::npos);
  CHECK(b.stats().protocol_errors_total == 2);
}

TEST_CASE("a 4 MiB header and a huge request line are answered and closed, in bounded memory") {
  Bench b;
  RawClient c(b.address);
  c.send("GET / HTTP/1.1\r\nHost: h\r\nX: ");
  c.send(std::string(4 << 20, 'x'));
  c.read_all();
  CHECK(c.status() == 431);
  CHECK(!c.was_reset());
  RawClient line(b.address);
  line.send("GET /" + std::string(1 << 20, 'x'));
  line.read_all();
  CHECK(line.status() == 414);
  RawClient many(b.address);
  std::string headers = "GET / HTTP/1.1\r\nHost: h\r\n";
  for (int i = 0; i < 200; ++i) headers += "A: b\r\n";
  many.send(headers + "\r\n");
  many.read_all();
  CHECK(many.status() == 431);
  b.wait_for([&] { return b.server->stats().connections == 0; });
}

TEST_CASE(
    "bodies: 413 at once with a length, 413 when chunks exceed it, 100-continue, shared budget") {
  Limits limits;
  limits.body_max = 1000;
  limits.body_total_max = 1500;
  Bench b(limits);
  RawClient at_once(b.address);
  at_once.send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n");
  at_once.read_all();
  CHECK(at_once.status() == 413);
  RawClient expect_too_much(b.address);
  expect_too_much.send(
      "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n");
  expect_too_much.read_all();
  CHECK(expect_too_much.text().find("100 Continue") == std::string::npos);
  CHECK(expect_too_much.status() == 413);
  RawClient chunks(b.address);
  chunks.send("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 11; ++i) chunks.send("64\r\n" + std::string(100, 'x') + "\r\n");
  chunks.read_all();
  CHECK(chunks.status() == 413);
  RawClient expect(b.address);
  expect.send(
      "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  REQUIRE(expect.read_until("HTTP/1.1 100 Continue\r\n\r\n"));
  expect.send("hi");
  CHECK(expect.read_until("POST /echo hi"));
  // 800 bytes held by an unfinished body leave too little for another 800.
  RawClient first(b.address);
  first.send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 900\r\n\r\n" +
             std::string(800, 'x'));
  b.wait_for([&] { return b.server->stats().body_bytes == 800; });
  RawClient second(b.address);
  second.send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 800\r\n\r\n" +
              std::string(800, 'x'));
  second.read_all();
  CHECK(second.status() == 503);
  CHECK(second.text().find("Retry-After") != std::string::npos);
  first.send(std::string(100, 'x'));
  REQUIRE(first.read_until("POST /echo x"));
  b.wait_for([&] { return b.server->stats().body_bytes == 0; });
}

TEST_CASE("timeouts: slow headers and bodies get 408, silent connections are closed") {
  Limits limits;
  limits.header_timeout_ms = 30;
  limits.body_timeout_ms = 30;
  limits.idle_timeout_ms = 30;
  Bench b(limits);
  RawClient silent(b.address);
  CHECK(silent.read_all().empty());
  RawClient headers(b.address);
  headers.send("GET / HTTP/1.1\r\nHo");
  headers.read_all();
  CHECK(headers.status() == 408);
  RawClient body(b.address);
  body.send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nab");
  body.read_all();
  CHECK(body.status() == 408);
  RawClient idle(b.address);
  idle.send(kGet);
  idle.read_all();  // the answer, then the end
  CHECK(idle.status() == 200);
  CHECK(test::count_of(idle.text(), "HTTP/1.1") == 1);
}

TEST_CASE("a body that makes progress may take many times the timeout") {
  Limits limits;
  limits.body_timeout_ms = 400;
  limits.body_progress_min = 1;
  Bench b(limits);
  RawClient c(b.address);
  c.send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 60000000\r\n\r\n");
  // Three spans of the timeout, each with progress, counted by the server's own clock.
  const uint64_t start = b.t.call([&] { return b.t.loop().now_ms(); });
  while (b.t.call([&] { return b.t.loop().now_ms(); }) < start + 3 * limits.body_timeout_ms) {
    c.send("x");
    CHECK(b.stats().connections == 1);
  }
  CHECK(b.stats().protocol_errors_total == 0);
}

TEST_CASE("connections beyond the limit are told 503 and closed") {
  Limits limits;
  limits.connections_max = 3;
  limits.rejects_max = 2;
  limits.linger_ms = 60'000;
  Bench b(limits);
  std::vector<std::unique_ptr<RawClient>> full;
  for (int i = 0; i < 3; ++i) {
    full.push_back(std::make_unique<RawClient>(b.address));
    full.back()->send(kGet);
    REQUIRE(full.back()->read_until("GET /echo"));
  }
  RawClient a(b.address);
  RawClient c(b.address);
  a.send(kGet);
  REQUIRE(a.read_until("too_many_connections"));
  REQUIRE(c.read_until("too_many_connections"));
  CHECK(a.status() == 503);
  RawClient silent(b.address);  // beyond rejects_max: closed without a word
  CHECK(silent.read_all().empty());
  CHECK(b.stats().rejected_total == 3);
  full.pop_back();
  b.wait_for([&] { return b.server->stats().connections == 4; });
  RawClient next(b.address);
  next.send(kGet);
  CHECK(next.read_until("GET /echo"));
}

TEST_CASE("routing: parameters, rest, literals first, trailing slash, HEAD, 404, 405 and OPTIONS") {
  Bench b;
  const auto get = [&](const std::string& method, const std::string& target) {
    return Client::make(b.address)->request({method, target, {}, ""}).value();
  };
  CHECK(get("GET", "/m/7").body == "id=7");
  CHECK(get("GET", "/m/a%20b").body == "id=a b");
  CHECK(get("GET", "/m/list").body == "list");
  CHECK(get("GET", "/m/list/").body == "list");
  CHECK(get("GET", "/models/org/name").body == "org/name");
  CHECK(get("GET", "/models/org%2Fname?x=1").body == "org/name");
  CHECK(get("GET", fmt::format("http://{}/m/9", b.address)).body == "id=9");
  CHECK(get("HEAD", "/m/7").status == 200);
  CHECK(get("DELETE", "/m/7").status == 204);
  CHECK(get("GET", "/").status == 404);
  CHECK(get("GET", "/m").status == 404);
  CHECK(get("GET", "/m/").status == 404);
  CHECK(get("GET", "/m//").status == 404);
  CHECK(get("GET", "/m/7/8").status == 404);
  CHECK(get("GET", "/models/").status == 404);
  const ClientResponse wrong = get("PUT", "/m/7");
  CHECK(wrong.status == 405);
  CHECK(*wrong.headers.get("Allow") == "DELETE, GET, HEAD, OPTIONS");
  const ClientResponse options = get("OPTIONS", "/echo");
  CHECK(options.status == 204);
  CHECK(*options.headers.get("Allow") == "GET, HEAD, OPTIONS, POST");
  CHECK(get("OPTIONS", "*").status == 204);
  CHECK(get("OPTIONS", "/nowhere").status == 404);
}

TEST_CASE("draining closes idle connections, lets running answers end, and takes no new ones") {
  Bench b;
  RawClient idle(b.address);
  idle.send(kGet);
  REQUIRE(idle.read_until("GET /echo"));
  RawClient busy(b.address);
  busy.send("GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
  REQUIRE(busy.read_until("first;"));
  b.t.call([&] { b.server->drain(); });
  idle.read_all();
  b.t.call([&] {
    b.writers[0]->write("last");
    b.writers[0]->end();
  });
  busy.read_all();
  CHECK(busy.text().find("last\r\n0\r\n\r\n") != std::string::npos);
  busy.close();
  b.wait_for([&] { return b.server->stats().connections == 0; });
}
