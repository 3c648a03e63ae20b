#include "gateway/media.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "api/errors.h"

namespace weft::gateway {
namespace {

static_assert(std::endian::native == std::endian::little, "patches travel as little-endian floats");

PreparedImage to_prepared(text::ImageInput input) {
  PreparedImage out;
  out.info = {input.width, input.height, input.rows};
  out.media.set_grid_t(input.grid_t);
  out.media.set_grid_h(input.grid_h);
  out.media.set_grid_w(input.grid_w);
  out.media.set_rows(static_cast<uint32_t>(input.rows));
  std::string& bytes = *out.media.mutable_patches();
  bytes.resize(input.patches.size() * sizeof(float));
  std::memcpy(bytes.data(), input.patches.data(), bytes.size());
  return out;
}

}  // namespace

api::Parsed<std::vector<PreparedImage>> prepare_images(const api::ChatRequest& request,
                                                       const text::ImageConfig* config) {
  std::vector<PreparedImage> out;
  for (size_t m = 0; m < request.messages.size(); ++m) {
    const auto& parts = request.messages[m].content;
    for (size_t p = 0; p < parts.size(); ++p) {
      const auto* part = std::get_if<api::ImagePart>(&parts[p]);
      if (part == nullptr) continue;
      const std::string param = fmt::format("messages[{}].content[{}].image_url", m, p);
      if (config == nullptr) return api::unsupported(param, "this model takes no images");
      auto image = text::image_from_data_url(part->url, *config);
      if (!image.ok()) return api::bad_request(param, image.error().message);
      out.push_back(to_prepared(std::move(*image)));
    }
  }
  return out;
}

api::Parsed<std::vector<wire::Media>> place_media(const std::vector<int32_t>& prompt,
                                                  int32_t pad_id,
                                                  std::vector<PreparedImage> images) {
  std::vector<wire::Media> out;
  size_t at = 0;
  for (PreparedImage& image : images) {
    while (at < prompt.size() && prompt[at] != pad_id) ++at;
    const size_t rows = image.media.rows();
    const bool whole =
        at + rows <= prompt.size() && std::all_of(prompt.begin() + static_cast<long>(at),
                                                  prompt.begin() + static_cast<long>(at + rows),
                                                  [&](int32_t id) { return id == pad_id; });
    if (!whole) return api::internal_error("an image lost its place in the prompt");
    image.media.set_first_position(static_cast<uint32_t>(at));
    at += rows;
    out.push_back(std::move(image.media));
  }
  return out;
}

}  // namespace weft::gateway
