// Kimi Delta Attention. The state is f32. The order of the parts matters: later ones use earlier
// ones.
// clang-format off
#include "fast_kda_token.inl"
#include "fast_kda_step.inl"
#include "fast_kda_chunk.inl"
// clang-format on
