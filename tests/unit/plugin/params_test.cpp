#include "plugin/params.h"

#include <doctest/doctest.h>

#include <string>

using namespace weft;
using namespace weft::plugin;

namespace {

const weft_key kKeys[] = {
    {"root", WEFT_KEY_STR, WEFT_KEY_REQUIRED, nullptr, "Directory."},
    {"threads", WEFT_KEY_INT, 0, "4", "Threads."},
    {"direct", WEFT_KEY_BOOL, 0, "true", "Bypass the page cache."},
    {"ratio", WEFT_KEY_REAL, 0, nullptr, "Share."},
    {"cache", WEFT_KEY_SIZE, 0, "64MiB", "Cache."},
    {"timeout", WEFT_KEY_DURATION, 0, "250ms", "Patience."},
    {nullptr, 0, 0, nullptr, nullptr},
};

std::string error_of(const ParamList& settings, const weft_key* keys = kKeys) {
  auto set = ParamSet::make(keys, settings);
  return set.ok() ? "fine" : set.error().message;
}

}  // namespace

TEST_CASE("settings are typed, defaults filled in, absent optional ones left out") {
  auto made = ParamSet::make(kKeys, {{"root", "/srv"}, {"cache", "1GiB"}});
  REQUIRE(made.ok());
  const ParamSet set = std::move(made).value();  // moving keeps the texts in place
  CHECK(set.size() == 5);
  CHECK(std::string(set.find("root")->text.data, set.find("root")->text.len) == "/srv");
  CHECK(set.find("threads")->i == 4);
  CHECK(set.find("direct")->i == 1);
  CHECK(set.find("cache")->i == 1 << 30);
  CHECK(set.find("timeout")->i == 250'000'000);
  CHECK(set.find("timeout")->type == WEFT_KEY_DURATION);
  CHECK(set.find("ratio") == nullptr);
}

TEST_CASE("mistakes are named with a remedy") {
  CHECK(error_of({{"root", "/"}, {"treads", "2"}}) ==
        "setting \"treads\" is unknown; did you mean \"threads\"? (Threads.)");
  CHECK(error_of({{"threads", "2"}}) ==
        "setting \"root\": expected a value, came none; set it (Directory.)");
  CHECK(error_of({{"root", "/"}, {"root", "/"}}) ==
        "setting \"root\": expected once, came twice; remove one");
  CHECK(error_of({{"root", "/"}, {"threads", "2x"}}) ==
        "setting \"threads\": expected a whole number, came \"2x\"");
  CHECK(error_of({{"root", "/"}, {"threads", "99999999999999999999"}}) ==
        "setting \"threads\": expected a whole number, came \"99999999999999999999\"");
  CHECK(error_of({{"root", "/"}, {"direct", "yes"}}) ==
        "setting \"direct\": expected true or false, came \"yes\"");
  CHECK(error_of({{"root", "/"}, {"ratio", "nan"}}) ==
        "setting \"ratio\": expected a finite number, came \"nan\"");
  CHECK(error_of({{"root", "/"}, {"cache", ""}}) ==
        "setting \"cache\": expected a size such as 4096, 64MiB or 1.5GB, came \"\"");
  CHECK(
      error_of({{"root", "/"}, {"timeout", "250"}}) ==
      "setting \"timeout\": expected a duration with its unit such as 250ms or 30s, came \"250\"");
  CHECK(error_of({{"any", "1"}}, nullptr) ==
        "setting \"any\": this interface has no settings; remove it");
  CHECK(error_of({}, nullptr) == "fine");
}

TEST_CASE("sizes and durations") {
  const struct {
    const char* text;
    int64_t value;
  } sizes[] = {{"0", 0},
               {"4096", 4096},
               {"12 B", 12},
               {"1KB", 1000},
               {"1KiB", 1024},
               {"64MiB", 64 << 20},
               {"1.5GB", 1500000000},
               {"2TiB", int64_t{2} << 40},
               {"9007199254740993", 9007199254740993},
               {"0.5KiB", 512}};
  for (const auto& s : sizes) {
    CAPTURE(std::string(s.text));
    CHECK(*parse_size(s.text) == s.value);
  }
  for (const char* bad : {"", "-1", "1 kib", "MiB", "1e3", "8388608TiB", "99999999999999999999",
                          "1.5.5GB", "0x10", "inf", "nan"}) {
    CAPTURE(std::string(bad));
    CHECK(!parse_size(bad).ok());
  }
  CHECK(*parse_duration("0") == 0);
  CHECK(*parse_duration("100ns") == 100);
  CHECK(*parse_duration("30us") == 30'000);
  CHECK(*parse_duration("1.5s") == 1'500'000'000);
  CHECK(*parse_duration("2m") == 120'000'000'000);
  CHECK(*parse_duration("1h") == 3600'000'000'000);
  for (const char* bad : {"", "5", "-1s", "1 week", "s", "9999999999h"}) {
    CAPTURE(std::string(bad));
    CHECK(!parse_duration(bad).ok());
  }
}
