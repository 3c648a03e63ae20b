#include "gateway/served_model.h"

#include <algorithm>
#include <chrono>

namespace weft::gateway {

Result<std::shared_ptr<ServedModel>> load_served_model(const config::DeploymentConfig& deployment) {
  auto model = std::make_shared<ServedModel>();
  model->deployment = deployment.name;
  model->names = deployment.served_names;
  model->root = deployment.model;
  model->created = std::chrono::duration_cast<std::chrono::seconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();

  auto tokenizer = text::load_tokenizer(deployment.model);
  if (!tokenizer.ok()) {
    if (tokenizer.error().code != ErrorCode::kNotFound) return std::move(tokenizer).error();
    model->no_text_reason = tokenizer.error().message;
    model->no_chat_reason = model->no_text_reason;
    return model;
  }
  model->tokenizer = std::shared_ptr<const text::Tokenizer>(std::move(*tokenizer));
  model->stop_ids = model->tokenizer->eos_ids();
  auto format = text::K3Format::create(*model->tokenizer);
  if (!format.ok()) {
    model->no_chat_reason = format.error().message;
    return model;
  }
  auto images = text::load_image_config(deployment.model);
  if (images.ok())
    model->images = std::move(*images);
  else if (images.error().code != ErrorCode::kNotFound)
    return std::move(images).error();
  // The format refers to the tokenizer: both live as long as the model.
  model->format = std::make_shared<const text::K3Format>(std::move(format).value());
  for (int32_t id : model->format->stop_ids())
    if (std::find(model->stop_ids.begin(), model->stop_ids.end(), id) == model->stop_ids.end())
      model->stop_ids.push_back(id);
  return model;
}

}  // namespace weft::gateway
