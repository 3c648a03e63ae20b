// Requests for the tests of the engine and of the worker.
#pragma once

#include <vector>

#include "unit/engine/test_rng.h"
#include "wire/weft.pb.h"

namespace weft::engine {

inline wire::Generate make_request(uint64_t id, std::vector<int32_t> prompt, uint32_t max_tokens) {
  wire::Generate g;
  g.set_id(id);
  g.mutable_prompt()->Add(prompt.begin(), prompt.end());
  wire::Sampling* s = g.mutable_sampling();
  s->set_max_tokens(max_tokens);
  s->set_logprobs(-1);
  s->set_prompt_logprobs(-1);
  return g;
}

// Random patches for the fake model's tower, with their placeholders (token 60) in the prompt.
inline void add_media(wire::Generate* g, TestRng& rng, uint32_t first, uint32_t h, uint32_t w) {
  wire::Media* m = g->add_media();
  std::vector<float> patches(size_t{h} * w * 3);
  for (float& x : patches) x = static_cast<float>(rng.below(1000));
  m->set_patches(patches.data(), patches.size() * sizeof(float));
  m->set_grid_t(1);
  m->set_grid_h(h);
  m->set_grid_w(w);
  m->set_first_position(first);
  m->set_rows((h / 2) * (w / 2));
  for (uint32_t i = 0; i < m->rows(); ++i) g->set_prompt(static_cast<int>(first + i), 60);
}

inline std::vector<int32_t> random_prompt(TestRng& rng, uint32_t n) {
  std::vector<int32_t> prompt(n);
  for (int32_t& t : prompt) t = static_cast<int32_t>(rng.below(60));
  return prompt;
}

inline wire::Generate random_request(TestRng& rng, uint64_t id, uint32_t max_prompt,
                                     uint32_t max_output) {
  wire::Generate g =
      make_request(id, random_prompt(rng, 1 + rng.below(max_prompt)), 1 + rng.below(max_output));
  wire::Sampling* s = g.mutable_sampling();
  s->set_seed(rng());
  s->set_temperature(rng.below(3) == 0 ? 0.0f : 1.0f);
  if (rng.below(3) == 0) s->set_top_p(0.8f);
  if (rng.below(3) == 0) s->set_top_k(10);
  if (rng.below(3) == 0) s->set_repetition_penalty(1.2f);
  if (rng.below(3) == 0) s->set_frequency_penalty(0.5f);
  if (rng.below(4) == 0) s->set_logprobs(static_cast<int32_t>(rng.below(4)));
  if (rng.below(4) == 0) s->set_prompt_logprobs(static_cast<int32_t>(rng.below(3)));
  for (uint32_t i = rng.below(4); i > 0; --i) s->add_stop_ids(static_cast<int32_t>(rng.below(60)));
  if (rng.below(4) == 0) s->set_min_tokens(rng.below(6));
  if (g.prompt_size() > 6 && rng.below(4) == 0) add_media(&g, rng, rng.below(2), 2, 4);
  return g;
}

}  // namespace weft::engine
