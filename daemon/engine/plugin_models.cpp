#include "engine/plugin_models.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/paths.h"
#include "engine/load/checkpoint.h"
#include "engine/load/model_dir.h"
#include "engine/load/weights_loader.h"
#include "engine/plan/scheduler_plugin.h"
#include "plugin/child_check.h"
#include "plugin/host_table.h"
#include "plugin/instance.h"
#include "plugin/registry.h"
#include "plugin/status.h"
#include "weft/kernels.h"
#include "weft/storage.h"

namespace weft::engine {
namespace {

using plugin::HostTable;
using plugin::Instance;
using plugin::InterfaceRef;
using plugin::ParamList;
using plugin::Registry;

weft_str view_of(const std::string& text) { return {text.data(), text.size()}; }

// Directory, config and every tensor's name, kind and shape: different models differ in one of
// them.
std::string identity_of(const wire::Configure& configure, const std::string& config_json,
                        const weft_catalog& catalog) {
  std::string out = fmt::format("{}\n{}\n", configure.model_dir(), config_json);
  for (uint64_t i = 0; i < catalog.n; ++i) {
    const weft_catalog_entry* e = catalog.at(&catalog, i);
    out += fmt::format("{} {} {}", std::string_view(e->name.data, e->name.len), e->dtype, e->bytes);
    for (uint32_t d = 0; d < e->rank; ++d) out += fmt::format(" {}", e->shape[d]);
    out += '\n';
  }
  return out;
}

class PluginSession : public ModelSession {
 public:
  explicit PluginSession(UseKernels use_kernels) : use_kernels_(std::move(use_kernels)) {}
  Status open(const wire::Configure& configure);

  StepModel model() override { return {model_.table<weft_model_v1>(), model_.get(), info_}; }
  Status load_weights(const BytesProgress& progress, const std::atomic<bool>& cancel) override;
  const weft_catalog* catalog() const override { return checkpoint_->catalog(); }
  std::string identity() const override { return identity_; }
  SchedulerRef scheduler() override { return scheduler_.ref(); }
  void describe(wire::Ready* ready) override;

 private:
  // Score of one candidate (0 = not this one); `why` gets its reason.
  using Probe = std::function<int32_t(const InterfaceRef& candidate, std::string* why)>;
  struct Choice {
    InterfaceRef ref;
    ParamList params;
  };
  Result<Choice> choose(const wire::Configure& configure, const char* interface_id,
                        const Probe& probe);
  Status open_kernels(const wire::Configure& configure);
  Status open_storage(const wire::Configure& configure);
  Status open_model(const wire::Configure& configure);

  const UseKernels use_kernels_;
  // Destroyed bottom-up: the model before its checkpoint, instances before plugins, plugins before
  // the host table.
  std::unique_ptr<HostTable> host_;
  std::unique_ptr<Registry> registry_;
  Instance storage_;
  std::unique_ptr<Checkpoint> checkpoint_;
  Instance model_;
  SchedulerPlugin scheduler_;
  weft_model_info info_ = {};
  std::string identity_;
};

Status PluginSession::open(const wire::Configure& configure) {
  if (configure.plugin_dir().empty()) {
    return Error(ErrorCode::kInvalid, "Configure names no plugin directory");
  }
  const auto policy = configure.allow_untrusted_plugins() ? plugin::TrustPolicy::kRootOrUser
                                                          : plugin::TrustPolicy::kRootOnly;
  plugin::HostOptions options;
  options.threads = configure.threads();
  options.pin_threads = true;
  host_ = HostTable::make(std::move(options));
  WEFT_ASSIGN(registry_, Registry::scan(configure.plugin_dir(), policy));
  // A plugin that crashes or hangs is found out in a child process: it costs its own place only.
  plugin::ChildCheckOptions check;
  check.policy = policy;
  check.program = {executable_dir() + "/weft-worker"};
  registry_->vet(check);
  registry_->load_all();
  WEFT_TRY(open_kernels(configure));
  WEFT_ASSIGN(scheduler_, SchedulerPlugin::open(scheduler_choice(configure), *registry_, *host_));
  WEFT_TRY(open_storage(configure));
  return open_model(configure);
}

Result<PluginSession::Choice> PluginSession::choose(const wire::Configure& configure,
                                                    const char* interface_id, const Probe& probe) {
  Choice best;
  std::string wanted, reasons;
  for (const wire::PluginChoice& c : configure.plugins()) {
    if (c.interface() != interface_id) continue;
    wanted = c.name();
    for (const wire::Parameter& p : c.params()) best.params.emplace_back(p.name(), p.value());
  }
  int32_t best_score = 0;
  for (const InterfaceRef& candidate : registry_->find_interfaces(interface_id)) {
    const std::string name(candidate.plugin->name());
    if (!wanted.empty() && name != wanted) continue;
    const auto opened = registry_->open(name, *host_);
    std::string why = opened.ok() ? "" : opened.error().message;
    const int32_t score = opened.ok() ? probe(candidate, &why) : 0;
    if (score > best_score) {
      best_score = score;
      best.ref = candidate;
    }
    if (score <= 0) reasons += fmt::format("; {}: {}", name, why.empty() ? "does not accept" : why);
  }
  if (best.ref) return best;
  for (const plugin::PluginRecord& r : registry_->records()) {
    if (!r.reason.empty())
      reasons += fmt::format("; {}: {} ({})", r.name, to_string(r.state), r.reason);
  }
  return make_error(ErrorCode::kUnsupported, "no plugin in {} serves {}{}{}{}",
                    configure.plugin_dir(), interface_id, wanted.empty() ? "" : " with name ",
                    wanted, reasons);
}

Status PluginSession::open_kernels(const wire::Configure& configure) {
  const Probe probe = [](const InterfaceRef& candidate, std::string*) {
    const auto* table = candidate.table<weft_kernels_v1>();
    return table->probe(candidate.plugin->handle());
  };
  WEFT_ASSIGN(const Choice choice, choose(configure, WEFT_KERNELS_ID, probe));
  if (use_kernels_) return use_kernels_(*host_, *choice.ref.plugin, configure.isa_max());
  return host_->use_kernels(*choice.ref.plugin, configure.isa_max());
}

Status PluginSession::open_storage(const wire::Configure& configure) {
  const Probe probe = [&](const InterfaceRef& candidate, std::string* why) {
    const auto* table = candidate.table<weft_storage_v1>();
    *why = "cannot read " + configure.model_dir();
    return table->probe(candidate.plugin->handle(), view_of(configure.model_dir()));
  };
  WEFT_ASSIGN(const Choice choice, choose(configure, WEFT_STORAGE_ID, probe));
  WEFT_ASSIGN(storage_, Instance::create(*choice.ref.plugin, WEFT_STORAGE_ID, choice.params));
  return storage_.start();
}

Status PluginSession::open_model(const wire::Configure& configure) {
  const StorageRef storage{storage_.table<weft_storage_v1>(), storage_.get()};
  WEFT_ASSIGN(const ModelDir dir, read_model_dir(storage, configure.model_dir()));
  const Probe probe = [&](const InterfaceRef& candidate, std::string* why) {
    weft_err err = plugin::make_err();
    const auto* table = candidate.table<weft_model_v1>();
    const int32_t score = table->probe(candidate.plugin->handle(), view_of(dir.config_json), &err);
    if (score <= 0) *why = plugin::clean_text(err.msg);
    return score;
  };
  WEFT_ASSIGN(Choice choice, choose(configure, WEFT_MODEL_ID, probe));
  choice.params.emplace_back("config", dir.config_json);
  WEFT_ASSIGN(checkpoint_, Checkpoint::open(storage, configure.model_dir()));
  WEFT_ASSIGN(model_, Instance::create(*choice.ref.plugin, WEFT_MODEL_ID, choice.params));
  WEFT_TRY(model_.start());
  const auto* table = model_.table<weft_model_v1>();
  identity_ = identity_of(configure, dir.config_json, *checkpoint_->catalog());
  weft_err err = plugin::make_err();
  weft_status status = table->declare(model_.get(), checkpoint_->catalog(), &err);
  if (status != WEFT_OK) {
    return plugin::plugin_error(status, err, "the checkpoint does not fit its config");
  }
  info_.struct_size = sizeof(info_);
  status = table->info(model_.get(), &info_);
  if (status != WEFT_OK) {
    return plugin::plugin_error(status, plugin::make_err(), "the model does not describe itself");
  }
  return {};
}

Status PluginSession::load_weights(const BytesProgress& progress, const std::atomic<bool>& cancel) {
  LoadOptions options;
  options.cancel = &cancel;
  options.progress = [&](const LoadProgress& p) { progress(p.bytes_done, p.bytes_total); };
  const ModelRef model{model_.table<weft_model_v1>(), model_.get()};
  const Result<LoadReport> report = engine::load_weights(*checkpoint_, model, options);
  if (!report.ok()) return report.error();
  return {};
}

void PluginSession::describe(wire::Ready* ready) {
  checkpoint_.reset();  // the model is ready: the files may go
  ready->set_kernels(host_->kernels()->info().isa);
  for (const plugin::PluginRecord& r : registry_->records()) {
    wire::PluginInfo* info = ready->add_plugins();
    info->set_name(r.name);
    info->set_version(r.version);
    info->set_path(r.path);
    info->set_state(r.reason.empty() ? to_string(r.state)
                                     : fmt::format("{}: {}", to_string(r.state), r.reason));
    for (const plugin::InterfaceRecord& i : r.interfaces) info->add_interfaces(i.id);
  }
}

}  // namespace

Result<std::unique_ptr<ModelSession>> PluginModelSource::open(const wire::Configure& configure) {
  auto session = std::make_unique<PluginSession>(use_kernels_);
  WEFT_TRY(session->open(configure));
  return std::unique_ptr<ModelSession>(std::move(session));
}

}  // namespace weft::engine
