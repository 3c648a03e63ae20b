// The model directory as a location: a plain absolute path or a URI of any storage plugin. Pure
// functions except check_inside, which looks at the file system.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace weft::engine {

// The location of file `name` in directory `dir`. In URIs the name is percent-encoded; plain paths
// take it as it is.
std::string join_location(std::string_view dir, std::string_view name);

// The path when the location is in this machine's file system ("/abs", "file:///abs").
std::optional<std::string> local_path(std::string_view location);

// Refuses a file that a symbolic link puts outside its model directory, so that a downloaded
// directory cannot make weft read other files. Allowed besides the directory itself: the "blobs"
// folder of a Hugging Face cache, whose "snapshots/<revision>" directories consist of such links.
// Locations that are not local pass, as do files that do not exist (opening them gives the better
// message).
Status check_inside(std::string_view dir, std::string_view name);

}  // namespace weft::engine
