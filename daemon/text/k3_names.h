// Spellings of the K3 chat format: markers, and the fixed sentences the model was trained with.
#pragma once

#include <string_view>

namespace weft::text {

inline constexpr std::string_view kOpen = "<|open|>";
inline constexpr std::string_view kClose = "<|close|>";
inline constexpr std::string_view kSep = "<|sep|>";
inline constexpr std::string_view kEndOfMsg = "<|end_of_msg|>";
inline constexpr std::string_view kMediaBegin = "<|media_begin|>";
inline constexpr std::string_view kMediaContent = "<|media_content|>";
inline constexpr std::string_view kMediaEnd = "<|media_end|>";
inline constexpr std::string_view kMediaPad = "<|media_pad|>";
// Not a token: stands for an image when no image data is at hand.
inline constexpr std::string_view kImagePlaceholder = "<|kimi_image_placeholder|>";

inline constexpr std::string_view kToolsIntro =
    "# Tools\nHere are the available tools, described in JSONSchema.\n\n";
inline constexpr std::string_view kDynamicToolsIntro =
    "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\nHere are the specs for the extended "
    "tools.\n\n";
inline constexpr std::string_view kEffortBody =
    "`thinking_effort` guides on how much to think in your thinking channel (not including the "
    "response channel), "
    "supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort=";  // EFFORT`.
inline constexpr std::string_view kToolsRequired =
    "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.";
inline constexpr std::string_view kToolsForbidden =
    "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next "
    "message.";
inline constexpr std::string_view kFormatBody =
    "The system is invoked with `response_format=";  // NAME, then the rule
inline constexpr std::string_view kFormatRule =
    "`.\nYour response must be raw JSON data without markdown code blocks (```json) or any "
    "additional formatting.";
inline constexpr std::string_view kSchemaIntro =
    "\nThe JSON data must match the following schema:\n";

}  // namespace weft::text
