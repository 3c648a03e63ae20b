#include "file_uri.h"

#include <doctest/doctest.h>

namespace {

struct Parsed {
  bool ok;
  std::string text;  // path, or error
};
Parsed parse(std::string_view uri) {
  std::string path, error;
  const bool ok = storage_file::path_of_uri(uri, &path, &error);
  return {ok, ok ? path : error};
}

}  // namespace

TEST_CASE("file URIs and absolute paths name files") {
  CHECK(parse("file:///srv/models/a.safetensors").text == "/srv/models/a.safetensors");
  CHECK(parse("file://localhost/srv").text == "/srv");
  CHECK(parse("file:///with%20space%25%2F").text == "/with space%/");
  CHECK(parse("/plain path/100%").text == "/plain path/100%");
  CHECK(parse("/").text == "/");
}

TEST_CASE("what names no local file is refused with the reason") {
  CHECK(parse("relative/path").text ==
        "expected file:///absolute/path or an absolute path, got 'relative/path'");
  CHECK(parse("s3://bucket/key").text ==
        "expected file:///absolute/path or an absolute path, got 's3://bucket/key'");
  CHECK(parse("file://host/x").text == "expected file:///absolute/path, got 'file://host/x'");
  CHECK(parse("file://localhostile/x").text ==
        "expected file:///absolute/path, got 'file://localhostile/x'");
  CHECK(parse("file:///a%2").text ==
        "'file:///a%2' has a '%' that two hex digits do not follow; write '%' as %25");
  CHECK(parse("file:///a%zz").text ==
        "'file:///a%zz' has a '%' that two hex digits do not follow; write '%' as %25");
  CHECK(parse("file:///a%00b").text ==
        "'file:///a%00b' has a NUL byte, which no file name can have");
  CHECK(parse(std::string_view("/a\0b", 4)).text ==
        "'/a?b' has a NUL byte, which no file name can have");
  CHECK(parse("/" + std::string(4095, 'x')).text == "the path has 4096 bytes, the limit is 4095");
  CHECK(parse("/" + std::string(4094, 'x')).ok);
  CHECK_FALSE(parse("").ok);
}

TEST_CASE("a spelled-out scheme scores higher than a bare path, other schemes not at all") {
  CHECK(storage_file::score_uri("file:///x") > storage_file::score_uri("/x"));
  CHECK(storage_file::score_uri("/x") > 0);
  CHECK(storage_file::score_uri("s3://x") == 0);
  CHECK(storage_file::score_uri("x") == 0);
  CHECK(storage_file::score_uri("") == 0);
}
