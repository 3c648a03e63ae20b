#include "plugin/instance.h"

#include "plugin/fence.h"
#include "plugin/status.h"

namespace weft::plugin {

std::string Instance::label(std::string_view call) const {
  return fmt::format("plugin {}: {} {}", plugin_->name(), interface_->id, call);
}

Result<Instance> Instance::create(const LoadedPlugin& plugin, std::string_view interface_id,
                                  const ParamList& settings) {
  Instance out;
  out.plugin_ = &plugin;
  out.interface_ = plugin.find(interface_id);
  if (out.interface_ == nullptr || out.interface_->life == nullptr) {
    return make_error(
        ErrorCode::kNotFound, "plugin {}: expected interface {}{}, came none; use another plugin",
        plugin.name(), interface_id, out.interface_ == nullptr ? "" : " with instances");
  }
  if (!plugin.is_open()) {
    return make_error(ErrorCode::kInternal,
                      "plugin {}: expected it to be open before {} create, came one that is not",
                      plugin.name(), interface_id);
  }
  auto params = ParamSet::make(out.interface_->keys, settings);
  if (!params.ok()) return std::move(params).error().within(out.label("settings"));
  weft_err err = make_err();
  weft_instance* self = nullptr;
  const weft_life& life = *out.interface_->life;
  const weft_status status = fenced(&err, [&] {
    return life.create(plugin.handle(), params->data(), params->size(), &self, &err);
  });
  if (status != WEFT_OK) return plugin_error(status, err, out.label("create"));
  if (self == nullptr) {
    return make_error(
        ErrorCode::kInternal,
        "{}: expected an instance with WEFT_OK, came NULL; the plugin must be repaired",
        out.label("create"));
  }
  out.self_ = self;
  return out;
}

Instance::~Instance() {
  if (self_ == nullptr) return;
  stop();
  interface_->life->destroy(self_);
}

Status Instance::start() {
  WEFT_CHECK(self_ != nullptr && !started_);
  weft_err err = make_err();
  const weft_status status = fenced(&err, [&] { return interface_->life->start(self_, &err); });
  if (status != WEFT_OK) return plugin_error(status, err, label("start"));
  started_ = true;
  return {};
}

Result<bool> Instance::drain(uint64_t deadline_ns) {
  WEFT_CHECK(self_ != nullptr);
  const weft_status status = interface_->life->drain(self_, deadline_ns);
  if (status == WEFT_OK) return true;
  if (status == WEFT_AGAIN) return false;
  return plugin_error(status, make_err(), label("drain"));
}

void Instance::stop() {
  if (!started_) return;
  started_ = false;
  interface_->life->stop(self_);
}

}  // namespace weft::plugin
