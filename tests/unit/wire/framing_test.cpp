#include "wire/framing.h"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <random>
#include <vector>

#include "base/unique_fd.h"

using namespace weft;
using namespace weft::wire;

namespace {

Envelope generate_message(uint64_t id, size_t prompt) {
  Envelope e;
  Generate* g = e.mutable_generate();
  g->set_id(id);
  for (size_t i = 0; i < prompt; ++i) g->add_prompt(static_cast<int32_t>(i * 7 % 2048));
  return e;
}

std::string frame_of(const Envelope& e) {
  std::string out;
  REQUIRE(append_frame(e, &out).ok());
  return out;
}

}  // namespace

TEST_CASE("a frame is a little-endian length and the envelope") {
  const Envelope e = generate_message(5, 3);
  const std::string frame = frame_of(e);
  REQUIRE(frame.size() == 4 + e.ByteSizeLong());
  CHECK(static_cast<unsigned char>(frame[0]) == e.ByteSizeLong());
  CHECK(frame[1] == 0);
  CHECK(frame[3] == 0);
}

TEST_CASE("the decoder gives the same messages for every cut of the stream") {
  std::mt19937 rng(7);
  std::string stream;
  std::vector<std::string> sent;
  for (uint64_t i = 0; i < 40; ++i) {
    const Envelope e = generate_message(i, rng() % 300);
    sent.push_back(e.SerializeAsString());
    stream += frame_of(e);
  }
  for (size_t most : {size_t{1}, size_t{3}, size_t{1000}, stream.size()}) {
    FrameDecoder decoder;
    size_t at = 0, got = 0;
    while (at < stream.size()) {
      const size_t n = std::min(stream.size() - at, most == 1000 ? 1 + rng() % most : most);
      decoder.feed(std::string_view(stream).substr(at, n));
      at += n;
      Envelope e;
      for (;;) {
        const Result<bool> more = decoder.next(&e);
        REQUIRE(more.ok());
        if (!*more) break;
        REQUIRE(got < sent.size());
        CHECK(e.SerializeAsString() == sent[got++]);
      }
    }
    CHECK(got == sent.size());
    CHECK(decoder.at_boundary());
  }
}

TEST_CASE("a frame over the limit is refused on both sides and the error stays") {
  const Envelope e = generate_message(1, 1000);
  const uint32_t exact = static_cast<uint32_t>(e.ByteSizeLong());
  std::string out = "kept";
  CHECK(append_frame(e, &out, exact - 1).error().code == ErrorCode::kInvalid);
  CHECK(out == "kept");
  CHECK(append_frame(e, &out, exact).ok());

  FrameDecoder small(exact - 1);
  small.feed(frame_of(e));
  Envelope got;
  CHECK(small.next(&got).error().code == ErrorCode::kPeer);
  small.feed(frame_of(generate_message(2, 0)));
  CHECK(small.next(&got).error().code == ErrorCode::kPeer);
  FrameDecoder enough(exact);
  enough.feed(frame_of(e));
  CHECK(*enough.next(&got));
}

TEST_CASE("bytes that are no envelope are a peer error") {
  FrameDecoder decoder;
  decoder.feed(std::string("\x02\x00\x00\x00\xff\xff", 6));
  Envelope e;
  CHECK(decoder.next(&e).error().code == ErrorCode::kPeer);
  CHECK_FALSE(decoder.at_boundary());
}

TEST_CASE("an announced length reserves no memory") {
  FrameDecoder decoder;
  decoder.feed(std::string("\xff\xff\xff\x0f", 4));
  Envelope e;
  CHECK_FALSE(*decoder.next(&e));
  CHECK(decoder.buffered() == 4);
}

TEST_CASE("the write queue is bounded, resumes in mid-frame and reports a dead peer") {
  int fds[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
  UniqueFd a(fds[0]), b(fds[1]);
  WriteQueue queue(1 << 20);
  std::string expected, got;
  const auto drain_reader = [&] {
    char chunk[5000];
    for (;;) {
      const ssize_t n = ::recv(b.get(), chunk, sizeof(chunk), 0);
      if (n <= 0) break;
      got.append(chunk, static_cast<size_t>(n));
    }
  };
  uint64_t id = 0;
  while (queue.has_room()) {
    const std::string frame = frame_of(generate_message(id, 1000 + id * 13));
    expected += frame;
    REQUIRE(queue.push(frame));
    ++id;
  }
  CHECK_FALSE(queue.push("more"));
  CHECK(queue.bytes() == expected.size());
  CHECK(*queue.flush(a.get()) == WriteQueue::Flushed::kBlocked);
  while (!queue.empty()) {
    drain_reader();
    REQUIRE(queue.flush(a.get()).ok());
  }
  drain_reader();
  CHECK(got == expected);
  CHECK(queue.bytes() == 0);

  b.reset();
  REQUIRE(queue.push("x"));
  CHECK(queue.flush(a.get()).error().code == ErrorCode::kPeer);
}
