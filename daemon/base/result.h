// Result<T> and Status: the way every fallible function of weft reports failure. No exception
// crosses a module.
//
// An Error carries a code (what kind), and a message for a person: what was expected, what came,
// what to do. Outputs are touched only on success. Values own their data; safe on any thread.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace weft {

enum class ErrorCode {
  kInvalid,      // bad input: file contents, config, request, argument
  kNotFound,     // no such file, model, request
  kUnsupported,  // never possible with this build or machine
  kUnavailable,  // not now; trying later may work
  kIo,           // the operating system said no
  kTimeout,
  kCancelled,
  kCorrupt,  // data contradicts itself
  kPeer,     // the other end broke the protocol or went away
  kPermission,
  kInternal,  // our bug
};

const char* to_string(ErrorCode code);

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;

  Error() = default;
  Error(ErrorCode c, std::string m) : code(c), message(std::move(m)) {}
  // Prefixes context, outermost first: "shard 3: header: ...".
  Error within(std::string_view context) && {
    return Error(code, fmt::format("{}: {}", context, message));
  }
};

template <class... Args>
Error make_error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Error(code, fmt::format(format, std::forward<Args>(args)...));
}

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT implicit on purpose
  Result(Error error)
      : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT implicit on purpose

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & {
    WEFT_CHECK(ok());
    return std::get<0>(state_);
  }
  const T& value() const& {
    WEFT_CHECK(ok());
    return std::get<0>(state_);
  }
  T&& value() && {
    WEFT_CHECK(ok());
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const& {
    WEFT_CHECK(!ok());
    return std::get<1>(state_);
  }
  Error&& error() && {
    WEFT_CHECK(!ok());
    return std::get<1>(std::move(state_));
  }

 private:
  std::variant<T, Error> state_;
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)), ok_(false) {}  // NOLINT implicit on purpose

  bool ok() const { return ok_; }
  explicit operator bool() const { return ok_; }
  const Error& error() const& {
    WEFT_CHECK(!ok_);
    return error_;
  }
  Error&& error() && {
    WEFT_CHECK(!ok_);
    return std::move(error_);
  }

 private:
  Error error_;
  bool ok_ = true;
};

}  // namespace weft

// Returns the error of a Status or Result expression from the enclosing function.
#define WEFT_TRY(expr)                                        \
  do {                                                        \
    auto weft_try_ = (expr);                                  \
    if (!weft_try_.ok()) return std::move(weft_try_).error(); \
  } while (false)

#define WEFT_CONCAT_(a, b) a##b
#define WEFT_CONCAT(a, b) WEFT_CONCAT_(a, b)
// WEFT_ASSIGN(auto x, f()): binds the value or returns the error.
#define WEFT_ASSIGN(decl, expr) WEFT_ASSIGN_(WEFT_CONCAT(weft_result_, __LINE__), decl, expr)
#define WEFT_ASSIGN_(tmp, decl, expr)           \
  auto tmp = (expr);                            \
  if (!tmp.ok()) return std::move(tmp).error(); \
  decl = std::move(tmp).value()
