#include "plugin/validate.h"

#include <weft/weft.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "plugin/elf_note.h"
#include "plugin/params.h"
#include "plugin/status.h"

namespace weft::plugin {
namespace {

constexpr size_t kTextMax = 1024;  // descriptor strings are labels, not documents

struct Member {
  const char* name;
  size_t offset;
  uint64_t caps;  // must be set when the table announces one of these capabilities; 0 = always
};

struct TableRule {
  std::string_view id;
  size_t size;  // of the table at revision 1, minor 0
  bool needs_life;
  std::span<const Member> members;
};

#define WEFT_MEMBER(type, field) \
  { #field, offsetof(type, field), 0 }
#define WEFT_MEMBER_IF(type, field, caps) \
  { #field, offsetof(type, field), caps }

constexpr Member kStorage[] = {WEFT_MEMBER(weft_storage_v1, probe),
                               WEFT_MEMBER(weft_storage_v1, open_object),
                               WEFT_MEMBER(weft_storage_v1, close_object),
                               WEFT_MEMBER(weft_storage_v1, submit),
                               WEFT_MEMBER(weft_storage_v1, reap),
                               WEFT_MEMBER_IF(weft_storage_v1, cancel, WEFT_STORAGE_CAP_CANCEL),
                               WEFT_MEMBER_IF(weft_storage_v1, list, WEFT_STORAGE_CAP_LIST)};
constexpr Member kKernels[] = {
    WEFT_MEMBER(weft_kernels_v1, probe), WEFT_MEMBER(weft_kernels_v1, info),
    WEFT_MEMBER(weft_kernels_v1, get), WEFT_MEMBER(weft_kernels_v1, pack_plan),
    WEFT_MEMBER(weft_kernels_v1, pack)};
constexpr Member kModel[] = {WEFT_MEMBER(weft_model_v1, probe),
                             WEFT_MEMBER(weft_model_v1, declare),
                             WEFT_MEMBER(weft_model_v1, info),
                             WEFT_MEMBER(weft_model_v1, plan),
                             WEFT_MEMBER(weft_model_v1, want),
                             WEFT_MEMBER(weft_model_v1, place),
                             WEFT_MEMBER(weft_model_v1, placed),
                             WEFT_MEMBER(weft_model_v1, ready),
                             WEFT_MEMBER(weft_model_v1, step),
                             WEFT_MEMBER_IF(weft_model_v1, encode_media, WEFT_MODEL_CAP_MEDIA)};
constexpr Member kScheduler[] = {WEFT_MEMBER(weft_scheduler_v1, admit),
                                 WEFT_MEMBER(weft_scheduler_v1, plan),
                                 WEFT_MEMBER(weft_scheduler_v1, finished)};
constexpr Member kSpeculator[] = {
    WEFT_MEMBER(weft_speculator_v1, bind),
    WEFT_MEMBER(weft_speculator_v1, event),
    WEFT_MEMBER_IF(weft_speculator_v1, observe, WEFT_SPECULATOR_CAP_TAPS),
    WEFT_MEMBER(weft_speculator_v1, propose),
    WEFT_MEMBER(weft_speculator_v1, commit),
    WEFT_MEMBER_IF(weft_speculator_v1, save, WEFT_SPECULATOR_CAP_STATE),
    WEFT_MEMBER_IF(weft_speculator_v1, load, WEFT_SPECULATOR_CAP_STATE)};
constexpr Member kCollective[] = {
    WEFT_MEMBER(weft_collective_v1, token),
    WEFT_MEMBER(weft_collective_v1, join),
    WEFT_MEMBER_IF(weft_collective_v1, register_region, WEFT_COLLECTIVE_CAP_P2P),
    WEFT_MEMBER_IF(weft_collective_v1, unregister, WEFT_COLLECTIVE_CAP_P2P),
    WEFT_MEMBER(weft_collective_v1, run),
    WEFT_MEMBER_IF(weft_collective_v1, send, WEFT_COLLECTIVE_CAP_P2P),
    WEFT_MEMBER_IF(weft_collective_v1, recv, WEFT_COLLECTIVE_CAP_P2P),
    WEFT_MEMBER_IF(weft_collective_v1, reap, WEFT_COLLECTIVE_CAP_P2P),
    WEFT_MEMBER(weft_collective_v1, health),
    WEFT_MEMBER(weft_collective_v1, abort),
    WEFT_MEMBER(weft_collective_v1, leave)};

constexpr TableRule kRules[] = {
    {WEFT_STORAGE_ID, sizeof(weft_storage_v1), true, kStorage},
    {WEFT_KERNELS_ID, sizeof(weft_kernels_v1), false, kKernels},
    {WEFT_MODEL_ID, sizeof(weft_model_v1), true, kModel},
    {WEFT_SCHEDULER_ID, sizeof(weft_scheduler_v1), true, kScheduler},
    {WEFT_SPECULATOR_ID, sizeof(weft_speculator_v1), true, kSpeculator},
    {WEFT_COLLECTIVE_ID, sizeof(weft_collective_v1), true, kCollective},
};

constexpr const char* kRepair = "the plugin must be repaired by its author";

// Function pointers are read as bytes: the rule table knows offsets, not types.
bool is_null_at(const void* table, size_t offset) {
  void* value = nullptr;
  std::memcpy(&value, static_cast<const char*>(table) + offset, sizeof value);
  return value == nullptr;
}

Status check_text(const char* field, const char* text) {
  if (text == nullptr)
    return make_error(ErrorCode::kInvalid, "descriptor {}: expected text, came NULL; {}", field,
                      kRepair);
  const size_t n = strnlen(text, kTextMax + 1);
  if (n == 0 || n > kTextMax) {
    return make_error(ErrorCode::kInvalid,
                      "descriptor {}: expected 1 to {} bytes of text, came {}; {}", field, kTextMax,
                      n == 0 ? "none" : "more", kRepair);
  }
  if (clean_text(std::string_view(text, n)) != std::string_view(text, n)) {
    return make_error(ErrorCode::kInvalid,
                      "descriptor {}: expected printable UTF-8, came \"{}\"; {}", field,
                      clean_text(std::string_view(text, n)), kRepair);
  }
  return {};
}

// "weft.storage/1" -> 1; nothing when the id does not end in "/number".
std::optional<uint32_t> revision_in(std::string_view id) {
  const size_t slash = id.rfind('/');
  if (slash == std::string_view::npos || slash == 0) return std::nullopt;
  uint32_t revision = 0;
  const char* end = id.data() + id.size();
  const auto [ptr, ec] = std::from_chars(id.data() + slash + 1, end, revision);
  if (ec != std::errc() || ptr != end || revision == 0) return std::nullopt;
  return revision;
}

Status check_life(const weft_life& life, std::string_view id) {
  if (life.struct_size < sizeof(weft_life)) {
    return make_error(ErrorCode::kInvalid, "{} life struct_size: expected at least {}, came {}; {}",
                      id, sizeof(weft_life), life.struct_size, kRepair);
  }
  const char* missing = life.create == nullptr    ? "create"
                        : life.start == nullptr   ? "start"
                        : life.drain == nullptr   ? "drain"
                        : life.stop == nullptr    ? "stop"
                        : life.destroy == nullptr ? "destroy"
                                                  : nullptr;
  if (missing == nullptr) return {};
  return make_error(ErrorCode::kInvalid, "{} life {}: expected a function, came NULL; {}", id,
                    missing, kRepair);
}

Status check_key(const weft_key& key, uint32_t i, std::string_view id) {
  if (key.type < WEFT_KEY_STR || key.type > WEFT_KEY_DURATION) {
    return make_error(
        ErrorCode::kInvalid,
        "{} key {} \"{}\" type: expected WEFT_KEY_STR ({}) to WEFT_KEY_DURATION ({}), came "
        "{}; {}",
        id, i, clean_text(key.name), +WEFT_KEY_STR, +WEFT_KEY_DURATION, key.type, kRepair);
  }
  if (key.doc == nullptr) {
    return make_error(ErrorCode::kInvalid,
                      "{} key \"{}\" doc: expected one sentence, came NULL; {}", id,
                      clean_text(key.name), kRepair);
  }
  if (key.dflt == nullptr) return {};
  if (auto value = parse_value(key, key.dflt); !value.ok()) {
    return make_error(ErrorCode::kInvalid, "{} key default: {}; {}", id, value.error().message,
                      kRepair);
  }
  return {};
}

}  // namespace

Status validate_keys(const weft_key* keys, std::string_view id) {
  if (keys == nullptr) return {};
  std::set<std::string_view> names;
  for (uint32_t i = 0; keys[i].name != nullptr; ++i) {
    if (i == kKeysMax) {
      return make_error(
          ErrorCode::kInvalid,
          "{} keys: expected at most {} before the entry with name NULL, came more; {}", id,
          kKeysMax, kRepair);
    }
    const std::string_view name(keys[i].name, strnlen(keys[i].name, 65));
    if (name.empty() || name.size() > 64 || clean_text(name) != name) {
      return make_error(ErrorCode::kInvalid,
                        "{} key {} name: expected 1 to 64 printable bytes, came \"{}\"; {}", id, i,
                        clean_text(name), kRepair);
    }
    if (!names.insert(name).second) {
      return make_error(ErrorCode::kInvalid,
                        "{} key \"{}\": expected each name once, came twice; {}", id, name,
                        kRepair);
    }
    WEFT_TRY(check_key(keys[i], i, id));
  }
  return {};
}

Status validate_interface(const weft_interface& interface) {
  WEFT_TRY(check_text("interface id", interface.id));
  const std::string_view id = interface.id;
  const auto revision = revision_in(id);
  if (!revision) {
    return make_error(
        ErrorCode::kInvalid,
        "interface id: expected name/revision such as weft.storage/1, came \"{}\"; {}", id,
        kRepair);
  }
  if (interface.table == nullptr) {
    return make_error(ErrorCode::kInvalid, "{} table: expected a table, came NULL; {}", id,
                      kRepair);
  }
  if (interface.table->revision != *revision) {
    return make_error(ErrorCode::kInvalid,
                      "{} table revision: expected {} as in the id, came {}; {}", id, *revision,
                      interface.table->revision, kRepair);
  }
  WEFT_TRY(validate_keys(interface.keys, id));
  if (interface.life != nullptr) WEFT_TRY(check_life(*interface.life, id));
  const auto* rule = std::find_if(std::begin(kRules), std::end(kRules),
                                  [&](const TableRule& r) { return r.id == id; });
  if (rule == std::end(kRules)) return {};  // an interface of someone else: listed, never called
  if (interface.table->struct_size < rule->size) {
    return make_error(
        ErrorCode::kInvalid,
        "{} table struct_size: expected at least {}, came {}; rebuild the plugin with "
        "weft's headers",
        id, rule->size, interface.table->struct_size);
  }
  for (const Member& member : rule->members) {
    const bool wanted = member.caps == 0 || (interface.table->caps & member.caps) != 0;
    if (wanted && is_null_at(interface.table, member.offset)) {
      return make_error(ErrorCode::kInvalid, "{} {}: expected a function{}, came NULL; {}", id,
                        member.name, member.caps == 0 ? "" : " because caps announces it", kRepair);
    }
  }
  if (rule->needs_life && interface.life == nullptr) {
    return make_error(ErrorCode::kInvalid, "{} life: expected a table, came NULL; {}", id, kRepair);
  }
  return {};
}

Status validate_descriptor(const weft_desc* desc, std::string_view note_name,
                           std::string_view note_version) {
  if (desc == nullptr) {
    return make_error(
        ErrorCode::kInvalid,
        "{}: expected a descriptor for host ABI {}.{}, came NULL: the plugin refuses this "
        "host; install the plugin's release for this weft",
        WEFT_PLUGIN_SYMBOL, WEFT_ABI_MAJOR, WEFT_ABI_MINOR);
  }
  if (desc->magic != WEFT_MAGIC) {
    return make_error(ErrorCode::kInvalid, "descriptor magic: expected {:#010x}, came {:#010x}; {}",
                      WEFT_MAGIC, desc->magic, kRepair);
  }
  if (desc->struct_size < sizeof(weft_desc)) {
    return make_error(ErrorCode::kInvalid,
                      "descriptor struct_size: expected at least {}, came {}; {}",
                      sizeof(weft_desc), desc->struct_size, kRepair);
  }
  WEFT_TRY(check_abi("descriptor", desc->abi_major, desc->abi_minor));
  WEFT_TRY(check_text("name", desc->name));
  WEFT_TRY(check_text("version", desc->version));
  WEFT_TRY(check_text("vendor", desc->vendor));
  WEFT_TRY(check_text("license", desc->license));
  if (desc->name != note_name) {
    return make_error(ErrorCode::kInvalid,
                      "descriptor name: expected \"{}\" as in the note, came \"{}\"; {}", note_name,
                      desc->name, kRepair);
  }
  if (desc->version != note_version) {
    return make_error(ErrorCode::kInvalid,
                      "descriptor version: expected \"{}\" as in the note, came \"{}\"; {}",
                      note_version, desc->version, kRepair);
  }
  if (desc->open == nullptr || desc->close == nullptr) {
    return make_error(ErrorCode::kInvalid, "descriptor {}: expected a function, came NULL; {}",
                      desc->open == nullptr ? "open" : "close", kRepair);
  }
  if (desc->interfaces == nullptr) {
    return make_error(
        ErrorCode::kInvalid,
        "descriptor interfaces: expected an array that ends with id NULL, came NULL; {}", kRepair);
  }
  std::set<std::string_view> ids;
  for (uint32_t i = 0; desc->interfaces[i].id != nullptr; ++i) {
    if (i == kInterfacesMax) {
      return make_error(
          ErrorCode::kInvalid,
          "descriptor interfaces: expected at most {} before the entry with id NULL, came "
          "more; {}",
          kInterfacesMax, kRepair);
    }
    WEFT_TRY(validate_interface(desc->interfaces[i]));
    if (!ids.insert(desc->interfaces[i].id).second) {
      return make_error(ErrorCode::kInvalid, "interface {}: expected once, came twice; {}",
                        desc->interfaces[i].id, kRepair);
    }
  }
  if (ids.empty()) {
    return make_error(ErrorCode::kInvalid,
                      "descriptor interfaces: expected at least one, came none; {}", kRepair);
  }
  return {};
}

}  // namespace weft::plugin
