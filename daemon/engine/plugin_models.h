// The real ModelSource: a model directory served by plugins. Chooses one plugin per kind (by name
// when Configure names one, else the one whose probe scores highest), opens the checkpoint, creates
// and declares the model.
//
// Engine thread. The session owns host table, plugins, storage, checkpoint and model, and lets them
// go in the order that the ABI asks for.
#pragma once

#include <memory>

#include "engine/model_source.h"

namespace weft::engine {

class PluginModelSource : public ModelSource {
 public:
  Result<std::unique_ptr<ModelSession>> open(const wire::Configure& configure) override;
};

}  // namespace weft::engine
