// Between the ABI's status + weft_err and our Result. Any thread.
#pragma once

#include <weft/base.h>

#include <string_view>

#include "base/result.h"

namespace weft::plugin {

// An empty error buffer for a plugin to fill.
weft_err make_err();
// Writes code and message (cut to fit, on a UTF-8 boundary); err may be NULL. Returns the status.
weft_status put_err(weft_err* err, weft_status code, std::string_view message);
weft_status put_err(weft_err* err, const Error& error);

ErrorCode error_code(weft_status status);
weft_status status_of(ErrorCode code);
const char* status_name(weft_status status);

// The error of a plugin call that did not return WEFT_OK: "<what>: <plugin's message>". The message
// is cleaned of control characters and bad UTF-8: it comes from outside and goes to terminals and
// journals.
Error plugin_error(weft_status status, const weft_err& err, std::string_view what);
std::string clean_text(std::string_view text);

}  // namespace weft::plugin
