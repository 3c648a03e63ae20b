// ServedModel: what the gateway knows of one deployment: its names, its text tools and the replica
// behind it. Made once per deployment at start on the main thread; then read only, also on lanes,
// except `backend` (loop thread).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "config/config.h"
#include "gateway/backend.h"
#include "text/image/image_input.h"
#include "text/k3_format.h"
#include "text/tokenizer.h"

namespace weft::gateway {

struct ServedModel {
  std::string deployment;
  std::vector<std::string> names;  // what clients put into "model"; the first is the main one
  std::string root;                // checkpoint directory
  int64_t created = 0;             // Unix time
  std::shared_ptr<const text::Tokenizer>
      tokenizer;                                 // shared with lanes; null: token-id requests only
  std::shared_ptr<const text::K3Format> format;  // null: the vocabulary lacks the chat structure
  std::string no_text_reason;                    // why tokenizer is null
  std::string no_chat_reason;                    // why format is null
  std::optional<text::ImageConfig> images;       // absent: no preprocessor_config.json
  std::vector<int32_t> stop_ids;                 // end-of-turn ids of tokenizer and config
  Backend* backend = nullptr;
};

// Reads tokenizer files of the deployment's model directory. A directory without any is fine;
// broken ones are an error.
Result<std::shared_ptr<ServedModel>> load_served_model(const config::DeploymentConfig& deployment);

}  // namespace weft::gateway
