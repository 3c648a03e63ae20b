#include "engine/load/location.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "temp_dir.h"

using namespace weft::engine;

TEST_CASE("names are joined as they are to paths and percent-encoded to URIs") {
  CHECK(join_location("/m", "a b%.json") == "/m/a b%.json");
  CHECK(join_location("/m/", "x") == "/m/x");
  CHECK(join_location("file:///m", "a b%.json") == "file:///m/a%20b%25.json");
  CHECK(join_location("s3://bucket/k3/", "model-1.safetensors") ==
        "s3://bucket/k3/model-1.safetensors");
  CHECK(join_location("s3://bucket", "a/?#") == "s3://bucket/a%2F%3F%23");
}

TEST_CASE("local locations have a path") {
  CHECK(local_path("/m/x") == "/m/x");
  CHECK(local_path("file:///m%20n/x") == "/m n/x");
  CHECK(local_path("file://localhost/m") == "/m");
  CHECK(local_path("file:///bad%zz%2") == "/bad%zz%2");
  CHECK_FALSE(local_path("file://host/m"));
  CHECK_FALSE(local_path("s3://bucket/m"));
  CHECK_FALSE(local_path("relative"));
  CHECK_FALSE(local_path(""));
}

TEST_CASE("links may point within the directory but not out of it") {
  const TempDir dir;
  const std::string model = dir.file("model");
  REQUIRE(::mkdir(model.c_str(), 0700) == 0);
  REQUIRE(::mkdir(dir.file("model-b").c_str(), 0700) == 0);
  dir.write("model/a", "x");
  dir.write("model-b/secret", "x");  // its path starts with the same letters
  REQUIRE(::symlink("a", (model + "/within").c_str()) == 0);
  REQUIRE(::symlink("../model-b/secret", (model + "/out").c_str()) == 0);
  REQUIRE(::symlink("../nowhere", (model + "/dangling").c_str()) == 0);
  REQUIRE(::symlink("model", dir.file("alias").c_str()) == 0);
  CHECK(check_inside(model, "a").ok());
  CHECK(check_inside(model, "within").ok());
  CHECK(check_inside("file://" + model, "within").ok());
  CHECK(check_inside(dir.file("alias"), "a").ok());
  CHECK(check_inside(model, "none").ok());
  CHECK(check_inside(model, "dangling").ok());
  CHECK(check_inside("s3://bucket/x", "out").ok());
  const weft::Status out = check_inside(model, "out");
  REQUIRE_FALSE(out.ok());
  CHECK(out.error().code == weft::ErrorCode::kPermission);
  CHECK(out.error().message == "'out' is a link to '" + dir.file("model-b/secret") +
                                   "', outside the model directory '" + model +
                                   "'; copy the file or the whole directory instead");
  CHECK_FALSE(check_inside("file://" + model, "out").ok());
}

TEST_CASE("a Hugging Face cache may link into its own blobs and no others") {
  const TempDir dir;
  for (const char* name : {"hub", "hub/m", "hub/m/blobs", "hub/m/snapshots", "hub/m/snapshots/rev",
                           "hub/n", "hub/n/blobs"})
    REQUIRE(::mkdir(dir.file(name).c_str(), 0700) == 0);
  dir.write("hub/m/blobs/abc", "x");
  dir.write("hub/n/blobs/def", "x");
  const std::string snapshot = dir.file("hub/m/snapshots/rev");
  REQUIRE(::symlink("../../blobs/abc", (snapshot + "/own").c_str()) == 0);
  REQUIRE(::symlink("../../../n/blobs/def", (snapshot + "/other").c_str()) == 0);
  CHECK(check_inside(snapshot, "own").ok());
  CHECK_FALSE(check_inside(snapshot, "other").ok());
}
