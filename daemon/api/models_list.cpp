#include "api/models_list.h"

#include "api/wire_json.h"
#include "base/json_value.h"

namespace weft::api {
namespace {

JsonValue model_value(const ModelEntry& model) {
  JsonValue out =
      JsonValue::object({{"id", JsonValue::string(model.id)},
                         {"object", JsonValue::string("model")},
                         {"created", JsonValue::integer(model.created)},
                         {"owned_by", JsonValue::string(model.owned_by)},
                         {"root", JsonValue::string(model.root.empty() ? model.id : model.root)},
                         {"parent", JsonValue::null()},
                         {"max_model_len", JsonValue::integer(model.max_model_len)},
                         {"context_length", JsonValue::integer(model.max_model_len)},
                         {"supports_image_in", JsonValue::boolean(model.supports_image_in)},
                         {"supports_video_in", JsonValue::boolean(false)},
                         {"supports_reasoning", JsonValue::boolean(model.supports_reasoning)},
                         {"permission", JsonValue::array()}});
  if (!model.deployment.empty()) {
    out.members().emplace_back("deployment", JsonValue::string(model.deployment));
    out.members().emplace_back("state", JsonValue::string(model.state));
  }
  return out;
}

}  // namespace

std::string models_list_json(const std::vector<ModelEntry>& models) {
  JsonValue data = JsonValue::array();
  for (const ModelEntry& model : models) data.items().push_back(model_value(model));
  return dump_json(
      JsonValue::object({{"object", JsonValue::string("list")}, {"data", std::move(data)}}));
}

std::string model_json(const ModelEntry& model) { return dump_json(model_value(model)); }

}  // namespace weft::api
