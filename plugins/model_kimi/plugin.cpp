// The plugin's edge: C tables over KimiModel. Every entry fences exceptions and turns a Fault into
// status and weft_err.
#include <weft/model.h>
#include <weft/note.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string_view>

#include "kimi_model.h"

struct weft_plugin {
  const weft_host* host;
};

struct weft_instance {
  std::unique_ptr<weft_kimi::KimiModel> model;
};

namespace weft_kimi {
namespace {

weft_status report(weft_err* err, weft_status code, std::string_view message) noexcept {
  if (code == WEFT_OK || !WEFT_HAS(err, weft_err, msg)) return code;
  err->code = code;
  err->sys = 0;
  const size_t n = std::min(message.size(), sizeof(err->msg) - 1);
  std::memcpy(err->msg, message.data(), n);
  err->msg[n] = '\0';
  return code;
}

// Runs body() -> Fault; nothing may be thrown across the ABI.
template <class Body>
weft_status fenced(weft_err* err, const Body& body) noexcept {
  try {
    const Fault f = body();
    return report(err, f.code, f.message);
  } catch (const std::bad_alloc&) {
    return report(err, WEFT_E_NOMEM, "out of memory");
  } catch (const std::exception& e) {
    return report(err, WEFT_E_INTERNAL, e.what());
  } catch (...) {
    return report(err, WEFT_E_INTERNAL, "unknown exception");
  }
}

int32_t probe(weft_plugin*, weft_str config_json, weft_err* err) {
  const weft_status status = fenced(err, [&] {
    Config config;
    return parse_config(std::string_view(config_json.data, config_json.len), &config);
  });
  return status == WEFT_OK ? 100 : 0;
}

weft_status create(weft_plugin* plugin, const weft_param* params, uint32_t n, weft_instance** out,
                   weft_err* err) {
  return fenced(err, [&]() -> Fault {
    Options options;
    KIMI_TRY(read_options(params, n, &options));
    auto instance = std::make_unique<weft_instance>();
    KIMI_TRY(KimiModel::create(plugin->host, options, &instance->model));
    *out = instance.release();
    return {};
  });
}

weft_status start(weft_instance*, weft_err*) { return WEFT_OK; }
weft_status drain(weft_instance*, uint64_t) { return WEFT_OK; }
void stop(weft_instance* self) { self->model->stop(); }
void destroy(weft_instance* self) { delete self; }

weft_status declare(weft_instance* self, const weft_catalog* catalog, weft_err* err) {
  return fenced(err, [&] { return self->model->declare(catalog); });
}

weft_status info(weft_instance* self, weft_model_info* out) {
  return fenced(nullptr, [&] { return self->model->info(out); });
}

weft_status plan(weft_instance* self, const weft_limits* limits, weft_mem_plan* out,
                 weft_err* err) {
  return fenced(err, [&] { return self->model->plan(*limits, out); });
}

weft_status want(weft_instance* self, uint64_t i, weft_want* out) {
  return self->model->want(i, out);
}

weft_status place(weft_instance* self, uint64_t i, void** dst, weft_err* err) {
  return fenced(err, [&] { return self->model->place(i, dst); });
}

weft_status placed(weft_instance* self, uint64_t i, weft_err* err) {
  return fenced(err, [&] { return self->model->placed(i); });
}

weft_status ready(weft_instance* self, const weft_arena* arenas, uint32_t n, weft_err* err) {
  return fenced(err, [&] { return self->model->ready(arenas, n); });
}

weft_status step(weft_instance* self, const weft_batch* batch, weft_err* err) {
  return fenced(err, [&] { return self->model->step(*batch); });
}

weft_status encode_media(weft_instance* self, const weft_media* media, float* rows, weft_err* err) {
  return fenced(err, [&] { return self->model->encode_media(*media, rows); });
}

weft_status open(const weft_host* host, weft_plugin** out, weft_err* err) {
  return fenced(err, [&]() -> Fault {
    *out = new weft_plugin{host};
    return {};
  });
}

void close(weft_plugin* plugin) { delete plugin; }

constexpr weft_model_v1 kModel = {{sizeof(weft_model_v1), 1, WEFT_MODEL_CAP_MEDIA},
                                  probe,
                                  declare,
                                  info,
                                  plan,
                                  want,
                                  place,
                                  placed,
                                  ready,
                                  step,
                                  encode_media};
constexpr weft_life kLife = {sizeof(weft_life), 0, create, start, drain, stop, destroy};
const weft_interface kInterfaces[] = {{WEFT_MODEL_ID, &kModel.head, &kLife, kKeys},
                                      {nullptr, nullptr, nullptr, nullptr}};
const weft_desc kDesc = {sizeof(weft_desc), WEFT_MAGIC,   WEFT_ABI_MAJOR, WEFT_ABI_MINOR,
                         "model_kimi",      WEFT_VERSION, "weft",         "Apache-2.0",
                         kInterfaces,       open,         close};

}  // namespace
}  // namespace weft_kimi

WEFT_PLUGIN(model_kimi, WEFT_VERSION, &weft_kimi::kDesc);
