// What a model would need, without loading it: the model plugin reads config and headers and plans
// under the same limits as a worker would, so the figures are the real ones. Engine thread.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "engine/model_source.h"
#include "wire/weft.pb.h"

namespace weft::engine {

// One JSON object; docs/weftctl.md lists its fields.
Result<std::string> plan_report(const wire::Configure& configure, ModelSource& source);

// The part of a model that a tensor belongs to, by the names that checkpoints of the family use.
// delta: the tensor's layer has delta attention.
std::string_view part_of_tensor(std::string_view name, bool delta);

// "KEY=VALUE" of weft-worker --plan into `configure`. kInvalid names the key and what was expected.
Status read_plan_setting(std::string_view text, wire::Configure* configure);

}  // namespace weft::engine
