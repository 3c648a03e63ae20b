#include "plugin/status.h"

#include <cstring>

#include "base/utf8.h"

namespace weft::plugin {

weft_err make_err() {
  weft_err err{};
  err.struct_size = sizeof err;
  return err;
}

weft_status put_err(weft_err* err, weft_status code, std::string_view message) {
  if (err == nullptr || err->struct_size < sizeof(weft_err)) return code;
  size_t n = std::min(message.size(), sizeof err->msg - 1);
  // Do not cut a character in two: step back over continuation bytes.
  while (n < message.size() && n > 0 && (static_cast<unsigned char>(message[n]) & 0xC0u) == 0x80u)
    --n;
  std::memcpy(err->msg, message.data(), n);
  err->msg[n] = '\0';
  err->code = code;
  return code;
}

weft_status put_err(weft_err* err, const Error& error) {
  return put_err(err, status_of(error.code), error.message);
}

ErrorCode error_code(weft_status status) {
  switch (status) {
    case WEFT_E_ARG:
      return ErrorCode::kInternal;  // the host or the plugin broke the contract, not the operator
    case WEFT_E_UNSUPPORTED:
      return ErrorCode::kUnsupported;
    case WEFT_E_NOMEM:
      return ErrorCode::kUnavailable;
    case WEFT_E_IO:
      return ErrorCode::kIo;
    case WEFT_E_TIMEOUT:
      return ErrorCode::kTimeout;
    case WEFT_E_CANCELLED:
      return ErrorCode::kCancelled;
    case WEFT_E_CONFIG:
      return ErrorCode::kInvalid;
    case WEFT_E_DEVICE:
      return ErrorCode::kIo;
    case WEFT_E_CORRUPT:
      return ErrorCode::kCorrupt;
    case WEFT_E_PEER:
      return ErrorCode::kPeer;
    default:
      return ErrorCode::kInternal;
  }
}

weft_status status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalid:
      return WEFT_E_CONFIG;
    case ErrorCode::kNotFound:
      return WEFT_E_CONFIG;
    case ErrorCode::kUnsupported:
      return WEFT_E_UNSUPPORTED;
    case ErrorCode::kUnavailable:
      return WEFT_E_NOMEM;
    case ErrorCode::kIo:
      return WEFT_E_IO;
    case ErrorCode::kTimeout:
      return WEFT_E_TIMEOUT;
    case ErrorCode::kCancelled:
      return WEFT_E_CANCELLED;
    case ErrorCode::kCorrupt:
      return WEFT_E_CORRUPT;
    case ErrorCode::kPeer:
      return WEFT_E_PEER;
    case ErrorCode::kPermission:
      return WEFT_E_CONFIG;
    case ErrorCode::kInternal:
      return WEFT_E_INTERNAL;
  }
  return WEFT_E_INTERNAL;
}

const char* status_name(weft_status status) {
  switch (status) {
    case WEFT_OK:
      return "WEFT_OK";
    case WEFT_AGAIN:
      return "WEFT_AGAIN";
    case WEFT_PARTIAL:
      return "WEFT_PARTIAL";
    case WEFT_END:
      return "WEFT_END";
    case WEFT_E_ARG:
      return "WEFT_E_ARG";
    case WEFT_E_UNSUPPORTED:
      return "WEFT_E_UNSUPPORTED";
    case WEFT_E_NOMEM:
      return "WEFT_E_NOMEM";
    case WEFT_E_IO:
      return "WEFT_E_IO";
    case WEFT_E_TIMEOUT:
      return "WEFT_E_TIMEOUT";
    case WEFT_E_CANCELLED:
      return "WEFT_E_CANCELLED";
    case WEFT_E_CONFIG:
      return "WEFT_E_CONFIG";
    case WEFT_E_DEVICE:
      return "WEFT_E_DEVICE";
    case WEFT_E_STATE:
      return "WEFT_E_STATE";
    case WEFT_E_CORRUPT:
      return "WEFT_E_CORRUPT";
    case WEFT_E_PEER:
      return "WEFT_E_PEER";
    case WEFT_E_INTERNAL:
      return "WEFT_E_INTERNAL";
    default:
      return "a status that the ABI does not know";
  }
}

std::string clean_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte == 0x7F ? ' ' : c;
  }
  if (!is_valid_utf8(out)) {
    for (char& c : out)
      if (static_cast<unsigned char>(c) >= 0x80) c = '?';
  }
  return out;
}

Error plugin_error(weft_status status, const weft_err& err, std::string_view what) {
  // The plugin may have left the buffer without its NUL.
  const std::string message =
      clean_text(std::string_view(err.msg, strnlen(err.msg, sizeof err.msg)));
  if (message.empty()) {
    return make_error(error_code(status), "{}: {} ({}), and the plugin gave no message", what,
                      status_name(status), status);
  }
  return make_error(error_code(status), "{}: {} ({})", what, message, status_name(status));
}

}  // namespace weft::plugin
