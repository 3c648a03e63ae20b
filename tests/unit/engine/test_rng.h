// std::mt19937 whose numbers are uint32_t (the standard's result_type is a 64-bit type here). Same
// sequence everywhere.
#pragma once

#include <cstdint>
#include <random>

namespace weft::engine {

class TestRng {
 public:
  using result_type = uint32_t;
  explicit TestRng(uint32_t seed) : generator_(seed) {}
  static constexpr uint32_t min() { return 0; }
  static constexpr uint32_t max() { return 0xffffffffu; }
  uint32_t operator()() { return static_cast<uint32_t>(generator_()); }
  uint32_t below(uint32_t n) { return (*this)() % n; }

 private:
  std::mt19937 generator_;
};

}  // namespace weft::engine
