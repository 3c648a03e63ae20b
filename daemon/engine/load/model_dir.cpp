#include "engine/load/model_dir.h"

#include "base/json_value.h"
#include "engine/load/location.h"
#include "engine/load/quote.h"

namespace weft::engine {
namespace {

constexpr std::string_view kConfigName = "config.json";
constexpr std::string_view kGenerationName = "generation_config.json";

Result<std::string> read_json_object(StorageRef storage, std::string_view location,
                                     std::string_view name) {
  WEFT_TRY(check_inside(location, name));
  WEFT_ASSIGN(std::string text,
              read_object(storage, join_location(location, name), kConfigBytesMax));
  Result<JsonValue> value = parse_json(text);
  if (!value.ok())
    return std::move(value).error().within(fmt::format("{} of {}", name, quote_name(location)));
  if (!value->is_object())
    return make_error(ErrorCode::kInvalid, "{} of {}: expected a JSON object", name,
                      quote_name(location));
  return text;
}

}  // namespace

Result<ModelDir> read_model_dir(StorageRef storage, std::string_view location) {
  ModelDir out;
  out.location = location;
  Result<std::string> config = read_json_object(storage, location, kConfigName);
  if (!config.ok() && config.error().code == ErrorCode::kNotFound)
    return make_error(ErrorCode::kNotFound,
                      "config.json not found in {}: expected a model directory with config.json "
                      "and *.safetensors",
                      quote_name(location));
  if (!config.ok()) return std::move(config).error();
  out.config_json = std::move(config).value();
  Result<std::string> generation = read_json_object(storage, location, kGenerationName);
  if (generation.ok())
    out.generation_config_json = std::move(generation).value();
  else if (generation.error().code != ErrorCode::kNotFound)
    return std::move(generation).error();
  return out;
}

}  // namespace weft::engine
