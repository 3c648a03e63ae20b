// weft.hpp: optional C++17 helper for plugin authors; header only, sits on top of the C headers.
//
//   struct MyPlugin { explicit MyPlugin(const weft_host* host); };       // opened state
//   struct MyStorage { ... };                                            // an instance
//   weft_status my_open(const weft_host* host, weft_plugin** out, weft_err* err) {
//     return weft::fence(err, [&] { *out = weft::give<weft_plugin>(new MyPlugin(host)); });
//   }
//   WEFT_PLUGIN(my_plugin, "1.0.0", &kDesc);
//
// What it gives: fence() turns every exception into a status and a message, so that none crosses
// the C line; fail() throws with a chosen status; Params reads typed settings; give/self convert
// between opaque and real pointers.
#pragma once

#include <weft/host.h>
#include <weft/note.h>
#include <weft/plugin.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace weft {

// Thrown inside a plugin; fence() turns it into its status and message.
class Failure : public std::exception {
 public:
  Failure(weft_status status, std::string message, int64_t sys = 0)
      : status_(status), sys_(sys), message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }
  weft_status status() const { return status_; }
  int64_t sys() const { return sys_; }

 private:
  weft_status status_;
  int64_t sys_;
  std::string message_;
};

inline std::string format_v(const char* format, va_list args) {
  va_list again;
  va_copy(again, args);
  const int n = std::vsnprintf(nullptr, 0, format, args);
  std::string out(n > 0 ? static_cast<size_t>(n) : 0, '\0');
  if (n > 0) std::vsnprintf(&out[0], out.size() + 1, format, again);
  va_end(again);
  return out;
}

// fail(WEFT_E_CONFIG, "depth: expected 1 to 64, came %d; lower it", depth)
[[noreturn]] __attribute__((format(printf, 2, 3))) inline void fail(weft_status status,
                                                                    const char* format, ...) {
  va_list args;
  va_start(args, format);
  std::string message = format_v(format, args);
  va_end(args);
  throw Failure(status, std::move(message));
}

// Writes status and message into err (which may be NULL) and returns the status. Never throws.
inline weft_status put_error(weft_err* err, weft_status status, const char* message,
                             int64_t sys = 0) noexcept {
  if (WEFT_HAS(err, weft_err, msg)) {
    err->code = status;
    err->sys = sys;
    const size_t n = std::min(std::strlen(message), sizeof err->msg - 1);
    std::memcpy(err->msg, message, n);
    err->msg[n] = '\0';
  }
  return status;
}

// Runs body and maps what happens to a status. body returns weft_status or nothing (= WEFT_OK).
template <class Body>
weft_status fence(weft_err* err, Body&& body) noexcept {
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return WEFT_OK;
    } else {
      return body();
    }
  } catch (const Failure& failure) {
    return put_error(err, failure.status(), failure.what(), failure.sys());
  } catch (const std::bad_alloc&) {
    return put_error(err, WEFT_E_NOMEM,
                     "out of memory; give the worker more memory or lower its limits");
  } catch (const std::exception& problem) {
    return put_error(err, WEFT_E_INTERNAL, problem.what());
  } catch (...) {
    return put_error(err, WEFT_E_INTERNAL,
                     "an exception of unknown type; this is a bug of the plugin");
  }
}

// For functions that return something else than a status: fallback on any exception.
template <class Value, class Body>
Value fence_value(Value fallback, Body&& body) noexcept {
  try {
    return body();
  } catch (...) {
    return fallback;
  }
}

// For functions that return nothing.
template <class Body>
void fence_void(Body&& body) noexcept {
  try {
    body();
  } catch (...) {  // nowhere to report it; the host sees the effect
  }
}

// The opaque pointers of the ABI are our objects under another name.
template <class Opaque, class T>
Opaque* give(T* object) noexcept {
  return reinterpret_cast<Opaque*>(object);
}
template <class T, class Opaque>
T& self(Opaque* opaque) noexcept {
  return *reinterpret_cast<T*>(opaque);
}
template <class T, class Opaque>
T* self_ptr(Opaque* opaque) noexcept {
  return reinterpret_cast<T*>(opaque);
}

inline std::string_view view(weft_str text) noexcept {
  return {text.data, static_cast<size_t>(text.len)};
}
inline weft_str str(std::string_view text) noexcept { return {text.data(), text.size()}; }

// Typed view of the settings given to create(). The host has checked names and types and filled in
// defaults, so a wrong type here is a bug of the plugin. Borrows the array: use it within create()
// and copy what is kept.
class Params {
 public:
  Params(const weft_param* params, uint32_t n) : params_(params), n_(n) {}

  const weft_param* find(std::string_view name) const {
    for (uint32_t i = 0; i < n_; ++i)
      if (name == params_[i].name) return &params_[i];
    return nullptr;
  }
  std::string text(std::string_view name, std::string_view fallback = {}) const {
    const weft_param* p = find(name);
    return std::string(p == nullptr ? fallback : view(p->text));
  }
  // INT; SIZE in bytes; DURATION in nanoseconds.
  int64_t integer(std::string_view name, int64_t fallback = 0) const {
    const weft_param* p = find(name);
    return p == nullptr ? fallback : p->i;
  }
  bool flag(std::string_view name, bool fallback = false) const {
    return integer(name, fallback ? 1 : 0) != 0;
  }
  double real(std::string_view name, double fallback = 0) const {
    const weft_param* p = find(name);
    return p == nullptr ? fallback : p->r;
  }
  // As integer, and fails with a good message outside [low, high].
  int64_t integer_in(std::string_view name, int64_t low, int64_t high, int64_t fallback = 0) const {
    const int64_t value = integer(name, fallback);
    if (value < low || value > high) {
      fail(WEFT_E_CONFIG, "setting \"%.*s\": expected %lld to %lld, came %lld",
           static_cast<int>(name.size()), name.data(), static_cast<long long>(low),
           static_cast<long long>(high), static_cast<long long>(value));
    }
    return value;
  }

 private:
  const weft_param* params_;
  uint32_t n_;
};

// host->log with printf formatting.
__attribute__((format(printf, 3, 4))) inline void log(const weft_host* host, int32_t level,
                                                      const char* format, ...) noexcept {
  char line[1024];
  va_list args;
  va_start(args, format);
  std::vsnprintf(line, sizeof line, format, args);
  va_end(args);
  host->log(host, level, line);
}

// Memory from host->alloc, given back in the destructor. Movable.
class HostBlock {
 public:
  HostBlock() = default;
  HostBlock(const weft_host* host, uint64_t bytes, uint64_t align = 64)
      : host_(host), bytes_(bytes) {
    const weft_status status = host->alloc(host, WEFT_MEM_HOST, 0, bytes, align, &data_);
    if (status != WEFT_OK) {
      fail(status,
           "the host has no %llu bytes of memory left; lower the limits or give the worker more",
           static_cast<unsigned long long>(bytes));
    }
  }
  HostBlock(HostBlock&& other) noexcept { swap(other); }
  HostBlock& operator=(HostBlock&& other) noexcept {
    HostBlock taken(std::move(other));
    swap(taken);
    return *this;
  }
  HostBlock(const HostBlock&) = delete;
  HostBlock& operator=(const HostBlock&) = delete;
  ~HostBlock() {
    if (data_ != nullptr) host_->release(host_, WEFT_MEM_HOST, 0, data_, bytes_);
  }

  void* data() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  uint64_t bytes() const { return bytes_; }

 private:
  void swap(HostBlock& other) noexcept {
    std::swap(host_, other.host_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  const weft_host* host_ = nullptr;
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// The host table `id` as T, or NULL when the host lacks it:
// host_extension<weft_host_kernels_v1>(host, WEFT_HOST_KERNELS_ID).
template <class T>
const T* host_extension(const weft_host* host, const char* id) noexcept {
  return static_cast<const T*>(host->extension(host, id));
}

}  // namespace weft
