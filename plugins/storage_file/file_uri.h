// What storage_file understands as the name of a file: "file:///abs/path" (percent escapes decoded;
// the host part empty or "localhost") and plain absolute paths (taken as they are). Pure functions,
// any thread.
#pragma once

#include <string>
#include <string_view>

namespace storage_file {

inline constexpr size_t kPathBytesMax = 4095;  // PATH_MAX without the terminator

// 0 = not ours. A spelled-out scheme is a better match than a bare path.
int score_uri(std::string_view uri);

// The absolute path behind `uri`. On failure returns false and says in `error` what was expected
// and what came.
bool path_of_uri(std::string_view uri, std::string* path, std::string* error);

// For messages: control bytes become "?", long names are cut.
std::string printable(std::string_view name);

}  // namespace storage_file
