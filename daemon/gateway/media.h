// Images of a chat request: decoded and cut into patches on a lane, then placed at their
// placeholder tokens.
#pragma once

#include <vector>

#include "api/chat_request.h"
#include "api/parsed.h"
#include "text/image/image_input.h"
#include "text/k3_format.h"
#include "wire/weft.pb.h"

namespace weft::gateway {

struct PreparedImage {
  text::ImageInfo info;
  wire::Media media;  // without first_position
};

// One entry per image part, in order. Fetches nothing: only data URLs. `config` is null for models
// without vision.
api::Parsed<std::vector<PreparedImage>> prepare_images(const api::ChatRequest& request,
                                                       const text::ImageConfig* config);

// Finds each image's run of placeholder tokens in the prompt.
api::Parsed<std::vector<wire::Media>> place_media(const std::vector<int32_t>& prompt,
                                                  int32_t pad_id,
                                                  std::vector<PreparedImage> images);

}  // namespace weft::gateway
