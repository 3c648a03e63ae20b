// The real ModelSource: a model directory served by plugins. Chooses one plugin per kind (by name
// when Configure names one, else the one whose probe scores highest), opens the checkpoint, creates
// and declares the model.
//
// Engine thread. The session owns host table, plugins, storage, checkpoint and model, and lets them
// go in the order that the ABI asks for.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "engine/model_source.h"
#include "plugin/host_table.h"
#include "plugin/loader.h"

namespace weft::engine {

// Takes the chosen kernel plugin into use in place of HostTable::use_kernels, for programs that
// measure every launch.
using UseKernels =
    std::function<Status(plugin::HostTable&, const plugin::LoadedPlugin&, const std::string& isa)>;

class PluginModelSource : public ModelSource {
 public:
  explicit PluginModelSource(UseKernels use_kernels = {}) : use_kernels_(std::move(use_kernels)) {}
  Result<std::unique_ptr<ModelSession>> open(const wire::Configure& configure) override;

 private:
  const UseKernels use_kernels_;
};

}  // namespace weft::engine
