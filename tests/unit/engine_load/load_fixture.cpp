#include "load_fixture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace weft_test {

char pattern_byte(size_t i, int salt) {
  return static_cast<char>((i * 37 + i / 251 + static_cast<size_t>(salt) * 101 + 5) & 0xff);
}

std::string shard_bytes(std::string_view header_json, size_t data_bytes, int salt) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(header_json.size() >> (8 * i) & 0xff);
  out += header_json;
  for (size_t i = 0; i < data_bytes; ++i) out += pattern_byte(i, salt);
  return out;
}

std::string u8_shard(const std::vector<U8Tensor>& tensors, int salt) {
  std::string json = "{";
  size_t at = 0;
  for (const U8Tensor& t : tensors) {
    json += fmt::format("{}\"{}\":{{\"dtype\":\"U8\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                        json.size() > 1 ? "," : "", t.name, t.bytes, at, at + t.bytes);
    at += t.bytes;
  }
  return shard_bytes(json + "}", at, salt);
}

std::string index_json(const std::vector<std::pair<std::string, std::string>>& weight_map) {
  std::string json = R"({"metadata":{"total_size":1},"weight_map":{)";
  bool first = true;
  for (const auto& [tensor, shard] : weight_map)
    json += fmt::format("{}\"{}\":\"{}\"", std::exchange(first, false) ? "" : ",", tensor, shard);
  return json + "}}";
}

// ---- storage ----

struct FakeObject {
  std::string location;
  std::string bytes;
};

struct FakeStorageCalls {
  static FakeStorage& of(weft_instance* self) { return *reinterpret_cast<FakeStorage*>(self); }

  static weft_status open_object(weft_instance* self, weft_str uri, weft_object** out,
                                 weft_object_info* info, weft_err* err) {
    FakeStorage& s = of(self);
    const auto file = s.files.find(std::string(uri.data, uri.len));
    if (file == s.files.end()) {
      err->sys = 2;
      std::snprintf(err->msg, sizeof err->msg, "no such object");
      return WEFT_E_IO;
    }
    info->size = file->second.size();
    info->align = 1;
    *out = reinterpret_cast<weft_object*>(new FakeObject{file->first, file->second});
    ++s.open_objects;
    return WEFT_OK;
  }
  static void close_object(weft_instance* self, weft_object* object) {
    --of(self).open_objects;
    delete reinterpret_cast<FakeObject*>(object);
  }
  static uint32_t submit(weft_instance* self, const weft_io* ios, uint32_t n) {
    FakeStorage& s = of(self);
    uint32_t accepted = 0;
    if (!s.accepting) return 0;
    while (accepted < std::min(n, s.accept_per_submit) && s.pending_.size() < s.queue)
      s.pending_.push_back({ios[accepted++], false});
    s.in_flight_peak = std::max(s.in_flight_peak, static_cast<uint32_t>(s.pending_.size()));
    return accepted;
  }
  static uint32_t reap(weft_instance* self, weft_done* out, uint32_t max, uint64_t) {
    FakeStorage& s = of(self);
    if (std::exchange(s.lie_about_id, false)) {
      out[0] = {12345, 0, WEFT_OK, 0};
      return 1;
    }
    if (s.pending_.empty() || max == 0) return 0;
    const size_t pick = s.random_() % s.pending_.size();
    out[0] = s.complete(s.pending_[pick]);
    s.pending_.erase(s.pending_.begin() + static_cast<long>(pick));
    return 1;
  }
  static weft_status cancel(weft_instance* self, uint64_t id) {
    FakeStorage& s = of(self);
    ++s.cancels;
    for (auto& read : s.pending_)
      if (read.io.id == id) read.cancelled = true;
    return WEFT_OK;
  }
  static weft_status list(weft_instance* self, weft_str prefix,
                          weft_status (*each)(void*, weft_str, const weft_object_info*), void* ctx,
                          weft_err*) {
    const std::string dir = std::string(prefix.data, prefix.len) + "/";
    for (const auto& [location, bytes] : of(self).files) {
      if (location.compare(0, dir.size(), dir) != 0) continue;
      const std::string name = location.substr(dir.size());
      weft_object_info info{};
      info.struct_size = sizeof info;
      info.size = bytes.size();
      const weft_status status = each(ctx, {name.data(), name.size()}, &info);
      if (status != WEFT_OK) return status;
    }
    return WEFT_OK;
  }
};

FakeStorage::FakeStorage() {
  table_.head = {sizeof table_, 1, WEFT_STORAGE_CAP_LIST | WEFT_STORAGE_CAP_CANCEL};
  table_.open_object = FakeStorageCalls::open_object;
  table_.close_object = FakeStorageCalls::close_object;
  table_.submit = FakeStorageCalls::submit;
  table_.reap = FakeStorageCalls::reap;
  table_.cancel = FakeStorageCalls::cancel;
  table_.list = FakeStorageCalls::list;
}

weft::engine::StorageRef FakeStorage::ref() {
  return {&table_, reinterpret_cast<weft_instance*>(this)};
}

weft_done FakeStorage::complete(const Pending& read) {
  const weft_io& io = read.io;
  ++reads;
  longest_read = std::max(longest_read, io.len);
  if (read.cancelled) return {io.id, 0, WEFT_E_CANCELLED, 0};
  const auto& object = *reinterpret_cast<const FakeObject*>(io.object);
  const auto at = static_cast<uint64_t>(fail_offset);
  if (fail_offset >= 0 && (fail_in.empty() || fail_in == object.location) && at >= io.offset &&
      at < io.offset + io.len)
    return {io.id, fail_bytes, fail_status, fail_sys};
  const std::string& bytes = object.bytes;
  const uint64_t n = io.offset >= bytes.size() ? 0 : std::min(io.len, bytes.size() - io.offset);
  if (n > 0) std::memcpy(io.dst, bytes.data() + io.offset, n);
  bytes_read += n;
  return {io.id, n, n == io.len ? WEFT_OK : WEFT_E_CORRUPT, 0};
}

// ---- model ----

struct FakeModelCalls {
  static FakeModel& of(weft_instance* self) { return *reinterpret_cast<FakeModel*>(self); }
  static std::string name(const FakeModel& m, uint64_t i) {
    return std::string(m.wants_[i].name.data, m.wants_[i].name.len);
  }
  static weft_status say(weft_err* err, weft_status status, const char* message) {
    std::snprintf(err->msg, sizeof err->msg, "%s", message);
    return status;
  }

  static weft_status want(weft_instance* self, uint64_t i, weft_want* out) {
    const FakeModel& m = of(self);
    if (static_cast<int64_t>(i) == m.want_status_at) return WEFT_E_STATE;
    if (i >= m.wants_.size()) return WEFT_END;
    out->name = m.wants_[i].name;
    out->bytes = m.wants_[i].bytes;
    return WEFT_OK;
  }
  static weft_status place(weft_instance* self, uint64_t i, void** dst, weft_err* err) {
    FakeModel& m = of(self);
    const std::string n = name(m, i);
    m.calls.push_back("place " + n);
    if (n == m.fail_place) return say(err, WEFT_E_NOMEM, "no room left");
    if (n == m.null_place) return *dst = nullptr, WEFT_OK;
    std::string& memory = m.memory[n];
    memory.assign(m.wants_[i].bytes, '\xEE');
    *dst = memory.data();
    return WEFT_OK;
  }
  static weft_status placed(weft_instance* self, uint64_t i, weft_err* err) {
    FakeModel& m = of(self);
    const std::string n = name(m, i);
    m.calls.push_back("placed " + n);
    return n == m.fail_placed ? say(err, WEFT_E_CORRUPT, "scale is NaN") : weft_status{WEFT_OK};
  }
};

FakeModel::FakeModel(std::vector<weft_want> wants) : wants_(std::move(wants)) {
  table_.head = {sizeof table_, 1, 0};
  table_.want = FakeModelCalls::want;
  table_.place = FakeModelCalls::place;
  table_.placed = FakeModelCalls::placed;
}

std::vector<weft_want> FakeModel::all_of(const weft_catalog* catalog,
                                         const std::vector<std::string>& skip) {
  std::vector<weft_want> wants;
  for (uint64_t i = catalog->n; i-- > 0;) {
    const weft_catalog_entry* entry = catalog->at(catalog, i);
    const std::string name(entry->name.data, entry->name.len);
    if (std::find(skip.begin(), skip.end(), name) == skip.end())
      wants.push_back({sizeof(weft_want), 0, entry->name, entry->bytes});
  }
  return wants;
}

weft::engine::ModelRef FakeModel::ref() {
  return {&table_, reinterpret_cast<weft_instance*>(this)};
}

}  // namespace weft_test
