// GET /v1/models and /v1/models/{id}.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::api {

struct ModelEntry {
  std::string id = {};    // served name; an alias is an entry of its own
  std::string root = {};  // the model behind it
  int64_t created = 0;
  std::string owned_by = "weft";
  int64_t max_model_len = 0;
  bool supports_image_in = false;
  bool supports_reasoning = false;
  std::string deployment = {};  // weft's own fields; left out when empty
  std::string state = {};       // of the deployment: "ready", "loading", ...
};

std::string models_list_json(const std::vector<ModelEntry>& models);
std::string model_json(const ModelEntry& model);

}  // namespace weft::api
