#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "plugin/registry.h"

using weft::plugin::compare_versions;

TEST_CASE("versions compare by their numbers, release candidates come first") {
  const std::vector<std::string> ascending = {"0.9", "1.0.0-rc1", "1.0.0",  "1.0.1",
                                              "1.2", "1.9.3",     "1.10.0", "2.0"};
  for (size_t i = 0; i < ascending.size(); ++i) {
    for (size_t j = 0; j < ascending.size(); ++j) {
      CAPTURE(ascending[i]);
      CAPTURE(ascending[j]);
      const int order = compare_versions(ascending[i], ascending[j]);
      CHECK((order < 0) == (i < j));
      CHECK((order > 0) == (i > j));
    }
  }
}
