// Parsed<T>: a T, or the error that the client shall see. Like Result, but with an ApiError.
#pragma once

#include <optional>
#include <utility>
#include <variant>

#include "api/api_error.h"
#include "base/check.h"

namespace weft::api {

template <class T>
class [[nodiscard]] Parsed {
 public:
  Parsed(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT implicit on purpose
  Parsed(ApiError error)
      : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT implicit on purpose

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& value() {
    WEFT_CHECK(ok());
    return std::get<0>(state_);
  }
  const T& value() const {
    WEFT_CHECK(ok());
    return std::get<0>(state_);
  }
  const ApiError& error() const {
    WEFT_CHECK(!ok());
    return std::get<1>(state_);
  }

 private:
  std::variant<T, ApiError> state_;
};

// What a validation step returns: nothing, or the first error.
using Check = std::optional<ApiError>;

}  // namespace weft::api

// Returns the error of a Check expression from the enclosing function.
#define WEFT_API_TRY(expr)                                                 \
  do {                                                                     \
    if (auto weft_api_error_ = (expr)) return *std::move(weft_api_error_); \
  } while (false)
