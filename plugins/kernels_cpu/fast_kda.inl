// Kimi Delta Attention. The state is f32.
// clang-format off: in this order
#include "fast_kda_chunk.inl"
#include "fast_kda_step.inl"
#include "fast_kda_token.inl"
// clang-format on
