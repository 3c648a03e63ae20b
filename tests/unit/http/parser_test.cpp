#include <doctest/doctest.h>

#include <random>

#include "http/request_parser.h"
#include "http/response_head.h"
#include "http/target.h"

using namespace weft::http;  // NOLINT test file
using State = RequestParser::State;

namespace {

// One line per request or error: enough to compare two runs.
std::string describe(const Request& r) {
  std::string out = fmt::format("{} {} q={} 1.{} ka={} body={}:", r.method, r.path, r.query,
                                r.version_minor, r.keep_alive, r.body);
  for (const auto& [n, v] : r.headers.fields()) out += fmt::format(" {}={}", n, v);
  return out + "\n";
}

// Feeds `bytes` cut before each position in `cuts`.
std::string run(std::string_view bytes, const std::vector<size_t>& cuts,
                const Limits& limits = {}) {
  RequestParser parser(limits, std::make_shared<BodyBudget>(limits.body_total_max));
  std::string out;
  size_t at = 0;
  for (size_t i = 0; i <= cuts.size(); ++i) {
    const size_t end = i < cuts.size() ? cuts[i] : bytes.size();
    std::string_view piece = bytes.substr(at, end - at);
    at = end;
    while (!piece.empty()) {
      const size_t n = parser.feed(piece);
      piece.remove_prefix(n);
      if (parser.state() == State::kComplete) {
        out += describe(parser.take());
      } else if (parser.state() == State::kError) {
        return out + fmt::format("error {} {}\n", parser.error().status, parser.error().code);
      } else if (!piece.empty()) {
        return out + "stuck\n";
      }
    }
  }
  return out + fmt::format("state {}\n", static_cast<int>(parser.state()));
}

int status_of(std::string_view bytes, const Limits& limits = {}) {
  RequestParser parser(limits, std::make_shared<BodyBudget>(limits.body_total_max));
  parser.feed(bytes);
  if (parser.state() == State::kComplete) return 200;
  return parser.state() == State::kError ? parser.error().status : 0;
}

Request parse(std::string_view bytes) {
  RequestParser parser(Limits(), std::make_shared<BodyBudget>(1 << 20));
  CHECK(parser.feed(bytes) == bytes.size());
  REQUIRE(parser.state() == State::kComplete);
  return parser.take();
}

constexpr std::string_view kPipeline =
    "POST /v1/chat%20x?a=1&b=%41 HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nX-A:  two words "
    "\r\n\r\nhello"
    "GET / HTTP/1.1\r\nHost: h\r\n\r\n"
    "\r\n"
    "POST /c HTTP/1.1\r\nhost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    "3;ext=\"v\"\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"
    "GET /old HTTP/1.0\r\n\r\n";

}  // namespace

TEST_CASE("a pipeline parses the same for every cut") {
  const std::string whole = run(kPipeline, {});
  CHECK(whole.find("POST /v1/chat x q=a=1&b=%41 1.1 ka=true body=hello: Host=h") == 0);
  CHECK(whole.find("X-A=two words\n") != std::string::npos);
  CHECK(whole.find("body=abc0123456789:") != std::string::npos);
  CHECK(whole.find("GET /old q= 1.0 ka=false") != std::string::npos);
  for (size_t i = 1; i < kPipeline.size(); ++i) CHECK(run(kPipeline, {i}) == whole);
  std::vector<size_t> every;
  for (size_t i = 1; i < kPipeline.size(); ++i) every.push_back(i);
  CHECK(run(kPipeline, every) == whole);
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<size_t> cuts;
    for (size_t i = 1; i < kPipeline.size(); ++i) {
      if (random() % 9 == 0) cuts.push_back(i);
    }
    CHECK(run(kPipeline, cuts) == whole);
  }
}

TEST_CASE("malformed requests get 400, whatever the cut") {
  const std::string host = "Host: h\r\n";
  const std::vector<std::string> bad = {
      "GET / HTTP/1.1\nHost: h\r\n\r\n",                        // bare LF after the request line
      "GET / HTTP/1.1\r\nHost: h\n\r\n",                        // bare LF after a header
      "GET / HTTP/1.1\r\nHost: h\r\n\n",                        // bare LF at the end
      "GET / HTTP/1.1\r\nHost: h\rX: y\r\n\r\n",                // bare CR
      std::string("GET / HTTP/1.1\r\nHost: h\0x\r\n\r\n", 29),  // NUL in a header
      std::string("GET /\0 HTTP/1.1\r\nHost: h\r\n\r\n", 28),
      "G@T / HTTP/1.1\r\n" + host + "\r\n",
      "GETT / HTTP/1.1\r\n" + host + "\r\n",
      "get / HTTP/1.1\r\n" + host + "\r\n",
      "GET / HTTPS/1.1\r\n" + host + "\r\n",
      "GET / HTTP/1.1\r\n" + host + "X : y\r\n\r\n",  // space before the colon
      "GET / HTTP/1.1\r\n" + host + "X: y\r\n folded\r\n\r\n",
      "GET / HTTP/1.1\r\n" + host + ": y\r\n\r\n",  // no name
      "GET / HTTP/1.1\r\n" + host + "novalue\r\n\r\n",
      "GET / HTTP/1.1\r\n\r\n",  // no Host
      "GET / HTTP/1.1\r\n" + host + host + "\r\n",
      "GET nothing HTTP/1.1\r\n" + host + "\r\n",
      "GET /%4 HTTP/1.1\r\n" + host + "\r\n",
      "GET /%zz HTTP/1.1\r\n" + host + "\r\n",
      "GET /%00 HTTP/1.1\r\n" + host + "\r\n",
      "GET * HTTP/1.1\r\n" + host + "\r\n",
      "POST / HTTP/1.1\r\n" + host + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
      "POST / HTTP/1.1\r\n" + host + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
      "POST / HTTP/1.1\r\n" + host + "Content-Length: 5, 5\r\n\r\nhello",
      "POST / HTTP/1.1\r\n" + host + "Content-Length: -1\r\n\r\n",
      "POST / HTTP/1.1\r\n" + host + "Content-Length: +5\r\n\r\nhello",
      "POST / HTTP/1.1\r\n" + host + "Content-Length: 0x5\r\n\r\nhello",
      "POST / HTTP/1.1\r\n" + host + "Content-Length: 99999999999999999999\r\n\r\n",
      "POST / HTTP/1.1\r\n" + host +
          "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      "POST / HTTP/1.1\r\n" + host +
          "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
      "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip\r\n\r\n",
      "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked, identity\r\n\r\n",
      "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: xchunked\r\n\r\n",
      "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
      "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n3\r\nabcX\r\n0\r\n\r\n",
      "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
      "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n",
      "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n11111111111111111\r\n",
      "\r\n\r\n\r\nGET / HTTP/1.1\r\n" + host + "\r\n",
      "\nGET / HTTP/1.1\r\n" + host + "\r\n",
      std::string("\x16\x03\x01\x02\x00\x01\x00", 7),  // a TLS hello
  };
  for (const std::string& bytes : bad) {
    CAPTURE(bytes);
    CHECK(status_of(bytes) == 400);
    std::vector<size_t> every;
    for (size_t i = 1; i < bytes.size(); ++i) every.push_back(i);
    CHECK(run(bytes, every).substr(0, 9) == "error 400");
  }
}

TEST_CASE("other refusals have their own status") {
  const std::string host = "Host: h\r\n";
  CHECK(status_of("GET / HTTP/2.0\r\n" + host + "\r\n") == 505);
  CHECK(status_of("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") == 505);
  CHECK(status_of("GET /\r\n\r\n") == 505);
  CHECK(status_of("GET / HTTP/0.9\r\n\r\n") == 505);
  CHECK(status_of("CONNECT a:1 HTTP/1.1\r\n" + host + "\r\n") == 405);
  CHECK(status_of("POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip, chunked\r\n\r\n") ==
        501);
  CHECK(status_of("POST / HTTP/1.1\r\n" + host + "Expect: magic\r\nContent-Length: 1\r\n\r\n") ==
        417);
  CHECK(status_of("POST / HTTP/1.1\r\n" + host +
                  "Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\n") == 415);
  CHECK(status_of("GET / HTTP/1.1\r\n" + host + "Connection: upgrade\r\nUpgrade: h2c\r\n\r\n") ==
        200);
  CHECK(status_of("OPTIONS * HTTP/1.1\r\n" + host + "\r\n") == 200);
}

TEST_CASE("limits are met exactly and exceeded by one byte") {
  Limits limits;
  limits.request_line_max = 100;
  limits.header_bytes_max = 200;
  limits.header_count_max = 3;
  limits.body_max = 10;
  const auto line = [](size_t bytes) {  // a request line of so many bytes, CRLF included
    return "GET /" + std::string(bytes - 16, 'a') + " HTTP/1.1\r\n";
  };
  REQUIRE(line(100).size() == 100);
  CHECK(status_of(line(100) + "Host: h\r\n\r\n", limits) == 200);
  CHECK(status_of(line(101) + "Host: h\r\n\r\n", limits) == 414);
  CHECK(status_of(std::string(200, 'G'), limits) != 200);
  const auto head = [](size_t bytes) {  // headers with the final empty line
    return "Host: h\r\nX: " + std::string(bytes - 9 - 3 - 4, 'x') + "\r\n\r\n";
  };
  REQUIRE(head(200).size() == 200);
  CHECK(status_of("GET / HTTP/1.1\r\n" + head(200), limits) == 200);
  CHECK(status_of("GET / HTTP/1.1\r\n" + head(201), limits) == 431);
  CHECK(status_of("GET / HTTP/1.1\r\nHost: h\r\nA: 1\r\nB: 2\r\n\r\n", limits) == 200);
  CHECK(status_of("GET / HTTP/1.1\r\nHost: h\r\nA: 1\r\nB: 2\r\nC: 3\r\n\r\n", limits) == 431);
  const std::string post = "POST / HTTP/1.1\r\nHost: h\r\n";
  CHECK(status_of(post + "Content-Length: 10\r\n\r\n0123456789", limits) == 200);
  CHECK(status_of(post + "Content-Length: 11\r\n\r\n", limits) == 413);  // before any byte of it
  CHECK(status_of(post + "Transfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n0\r\n\r\n",
                  limits) == 200);
  CHECK(status_of(post + "Transfer-Encoding: chunked\r\n\r\nb\r\n0123456789a", limits) == 413);
}

TEST_CASE("bodies of all connections share a budget that taken requests hold until they die") {
  Limits limits;
  auto budget = std::make_shared<BodyBudget>(8);
  RequestParser a(limits, budget);
  RequestParser b(limits, budget);
  const std::string post = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello";
  a.feed(post);
  REQUIRE(a.state() == State::kComplete);
  {
    const Request request = a.take();
    CHECK(budget->used() == 5);
    b.feed(post);
    REQUIRE(b.state() == State::kError);
    CHECK(b.error().status == 503);
    CHECK(budget->used() == 5);
  }
  CHECK(budget->used() == 0);
  RequestParser c(limits, budget);
  c.feed(post);
  CHECK(c.state() == State::kComplete);
}

TEST_CASE("endless chunk extensions and trailers are refused") {
  const std::string post = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  CHECK(run(post + "1;" + std::string(200'000, 'x'), {1000, 80'000, 150'000}).substr(0, 9) ==
        "error 400");
  std::string trailers = post + "0\r\n";
  for (int i = 0; i < 20'000; ++i) trailers += "T: x\r\n";
  CHECK(run(trailers, {70'000, 100'000}).substr(0, 9) == "error 400");
  std::string single = post;  // a byte a chunk is wasteful but right
  for (int i = 0; i < 50'000; ++i) single += "1\r\nx\r\n";
  CHECK(status_of(single + "0\r\n\r\n") == 200);
}

TEST_CASE("100-continue is asked for once and only with a body") {
  RequestParser parser(Limits(), std::make_shared<BodyBudget>(100));
  parser.feed("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-Continue\r\nContent-Length: 2\r\n\r\n");
  CHECK(parser.state() == State::kBody);
  CHECK(parser.wants_continue());
  CHECK(!parser.wants_continue());
  parser.feed("ok");
  CHECK(parser.take().body == "ok");
  parser.feed("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n");
  CHECK(parser.state() == State::kComplete);
  CHECK(!parser.wants_continue());
}

TEST_CASE("targets: origin, absolute and asterisk form, escapes and queries") {
  CHECK(parse("GET /a%2Fb%20c HTTP/1.1\r\nHost: h\r\n\r\n").path == "/a/b c");
  const Request absolute = parse("GET http://example.com:80/p/q?x=1#f HTTP/1.1\r\nHost: h\r\n\r\n");
  CHECK(absolute.path == "/p/q");
  CHECK(absolute.query == "x=1");
  CHECK(parse("GET http://example.com HTTP/1.1\r\nHost: h\r\n\r\n").path == "/");
  const auto root_query = parse_target("http://h?x=1");
  REQUIRE(root_query);
  CHECK(root_query->path == "/");
  CHECK(root_query->query == "x=1");
  CHECK(!parse_target("http:///x"));
  CHECK(!parse_target(""));
  const Request q = parse("GET /p?a=1&b=x%20y+z&c&a=2 HTTP/1.1\r\nHost: h\r\n\r\n");
  CHECK(*q.query_value("a") == "1");
  CHECK(*q.query_value("b") == "x y z");
  CHECK(*q.query_value("c") == "");
  CHECK(q.query_value("d") == nullptr);
  CHECK(percent_decode(percent_encode("a/ä%\x01 "), false) == "a/ä%\x01 ");
}

TEST_CASE("header lookup ignores case and finds list tokens") {
  Headers h{{"Content-Type", "a"}, {"Connection", "Keep-Alive , Upgrade"}, {"connection", "TE"}};
  CHECK(*h.get("content-TYPE") == "a");
  CHECK(h.get("x") == nullptr);
  CHECK(h.count("CONNECTION") == 2);
  CHECK(h.has_token("Connection", "upgrade"));
  CHECK(h.has_token("Connection", "te"));
  CHECK(!h.has_token("Connection", "alive"));
  h.set("CONNECTION", "close");
  CHECK(h.count("connection") == 1);
}

TEST_CASE("answers cannot be split by what they quote") {
  CHECK(response_head(200, {{"X", "a\r\nSet-Cookie: b"}}, 1) ==
        "HTTP/1.1 200 OK\r\nX: a  Set-Cookie: b\r\n\r\n");
  CHECK(http_date(784111777) == "Sun, 06 Nov 1994 08:49:37 GMT");
  CHECK(format_openai_error({400, "c", "say \"no\"\n"}) ==
        "{\"error\":{\"message\":\"say "
        "\\\"no\\\"\\n\",\"type\":\"invalid_request_error\",\"param\":null,"
        "\"code\":\"c\"}}");
}
