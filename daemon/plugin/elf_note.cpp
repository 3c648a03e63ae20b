#include "plugin/elf_note.h"

#include <elf.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "plugin/status.h"

namespace weft::plugin {
namespace {

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
constexpr const char* kMachineName = "x86-64";
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
constexpr const char* kMachineName = "aarch64";
#else
#error "elf_note.cpp: add this machine's ELF number"
#endif

constexpr const char* kRebuild =
    "build the plugin as a shared object for this machine, with WEFT_PLUGIN from weft/note.h";

template <class T>
bool read_struct(const ByteSource& file, uint64_t offset, T* out) {
  return file.read(offset, std::span<uint8_t>(reinterpret_cast<uint8_t*>(out), sizeof(T)));
}

Status check_header(const Elf64_Ehdr& h) {
  if (std::memcmp(h.e_ident, ELFMAG, SELFMAG) != 0) {
    return make_error(ErrorCode::kInvalid,
                      "file: expected an ELF shared object (first bytes 7f 45 4c 46), came "
                      "{:02x} {:02x} {:02x} {:02x}; {}",
                      h.e_ident[0], h.e_ident[1], h.e_ident[2], h.e_ident[3], kRebuild);
  }
  if (h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_ident[EI_DATA] != ELFDATA2LSB) {
    return make_error(ErrorCode::kInvalid,
                      "ELF class: expected 64-bit little-endian (2, 1), came ({}, {}); {}",
                      h.e_ident[EI_CLASS], h.e_ident[EI_DATA], kRebuild);
  }
  if (h.e_type != ET_DYN) {
    return make_error(ErrorCode::kInvalid, "ELF type: expected a shared object ({}), came {}; {}",
                      ET_DYN, h.e_type, kRebuild);
  }
  if (h.e_machine != kMachine) {
    return make_error(ErrorCode::kInvalid, "ELF machine: expected {} ({}), came {}; {}",
                      kMachineName, kMachine, h.e_machine, kRebuild);
  }
  if (h.e_phentsize != sizeof(Elf64_Phdr) || h.e_phnum == 0 || h.e_phnum > kProgramHeadersMax) {
    return make_error(ErrorCode::kInvalid,
                      "ELF program headers: expected 1 to {} of {} bytes, came {} of {} bytes; {}",
                      kProgramHeadersMax, sizeof(Elf64_Phdr), h.e_phnum, h.e_phentsize, kRebuild);
  }
  return {};
}

// A fixed char field of the note: its text up to the NUL, or nothing when the NUL is missing.
std::optional<std::string> field_text(const char* field, size_t size) {
  const size_t n = strnlen(field, size);
  if (n == size) return std::nullopt;
  return std::string(field, n);
}

Result<PluginNote> decode_payload(std::span<const uint8_t> payload) {
  if (payload.size() != sizeof(weft_note)) {
    return make_error(ErrorCode::kInvalid, "note size: expected {} bytes, came {}; {}",
                      sizeof(weft_note), payload.size(), kRebuild);
  }
  weft_note note;
  std::memcpy(&note, payload.data(), sizeof note);
  if (note.note_version != WEFT_NOTE_VERSION) {
    return make_error(ErrorCode::kInvalid, "note version: expected {}, came {}; {}",
                      WEFT_NOTE_VERSION, note.note_version, kRebuild);
  }
  WEFT_TRY(check_abi("note", note.abi_major, note.abi_minor));
  const auto name = field_text(note.name, sizeof note.name);
  const auto version = field_text(note.version, sizeof note.version);
  if (!name || !is_plugin_name(*name)) {
    return make_error(ErrorCode::kInvalid,
                      "note name: expected [a-z][a-z0-9_]* of at most {} bytes, came \"{}\"; {}",
                      WEFT_NAME_MAX - 1, clean_text(name.value_or("(no end)")), kRebuild);
  }
  if (!version || version->empty() || clean_text(*version) != *version) {
    return make_error(
        ErrorCode::kInvalid,
        "note version text: expected printable text of 1 to {} bytes such as 1.0.0, came "
        "\"{}\"; {}",
        WEFT_VERSION_MAX - 1, clean_text(version.value_or("(no end)")), kRebuild);
  }
  return PluginNote{note.abi_major, note.abi_minor, *name, *version};
}

// Walks one PT_NOTE segment. Looks for our owner and type; other notes are stepped over.
Status scan_segment(std::span<const uint8_t> bytes, uint64_t align,
                    std::optional<PluginNote>* found) {
  const uint64_t unit = align == 8 ? 8 : 4;  // property notes are 8-aligned, all others 4-aligned
  const auto padded = [unit](uint64_t n) { return (n + unit - 1) & ~(unit - 1); };
  uint64_t pos = 0;
  while (bytes.size() - pos >= sizeof(Elf64_Nhdr)) {
    Elf64_Nhdr head;
    std::memcpy(&head, bytes.data() + pos, sizeof head);
    const uint64_t name_at = pos + sizeof head;
    const uint64_t desc_at = name_at + padded(head.n_namesz);
    const uint64_t end = desc_at + head.n_descsz;  // 32-bit sizes: these sums cannot wrap
    if (end > bytes.size()) {
      return make_error(
          ErrorCode::kInvalid,
          "ELF note: expected it to end within its segment of {} bytes, came an end at {}; "
          "the file is damaged, copy it again or rebuild it",
          bytes.size(), end);
    }
    const bool ours =
        head.n_type == WEFT_NOTE_TYPE && head.n_namesz == sizeof WEFT_NOTE_OWNER &&
        std::memcmp(bytes.data() + name_at, WEFT_NOTE_OWNER, sizeof WEFT_NOTE_OWNER) == 0;
    if (ours) {
      if (found->has_value()) {
        return make_error(
            ErrorCode::kInvalid,
            "note: expected exactly one weft note, came two; link only one WEFT_PLUGIN "
            "into a plugin");
      }
      WEFT_ASSIGN(*found, decode_payload(bytes.subspan(desc_at, head.n_descsz)));
    }
    pos = std::min<uint64_t>(padded(end), bytes.size());
  }
  return {};
}

}  // namespace

ByteSource bytes_of(std::span<const uint8_t> data) {
  return {data.size(), [data](uint64_t offset, std::span<uint8_t> out) {
            if (offset > data.size() || out.size() > data.size() - offset) return false;
            if (!out.empty()) std::memcpy(out.data(), data.data() + offset, out.size());
            return true;
          }};
}

ByteSource bytes_of_fd(int fd, uint64_t size) {
  return {size, [fd, size](uint64_t offset, std::span<uint8_t> out) {
            if (offset > size || out.size() > size - offset) return false;
            while (!out.empty()) {
              const ssize_t n = pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
              if (n < 0 && errno == EINTR) continue;
              if (n <= 0) return false;
              offset += static_cast<uint64_t>(n);
              out = out.subspan(static_cast<size_t>(n));
            }
            return true;
          }};
}

Result<PluginNote> read_plugin_note(const ByteSource& file) {
  if (file.size == 0) {
    return make_error(ErrorCode::kInvalid,
                      "file: expected an ELF shared object, came an empty file; copy it again");
  }
  Elf64_Ehdr header{};
  const size_t ident = std::min<uint64_t>(file.size, SELFMAG);
  if (!file.read(0, std::span<uint8_t>(header.e_ident, ident)) ||
      (ident == SELFMAG && std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
       !read_struct(file, 0, &header))) {
    return make_error(
        ErrorCode::kInvalid,
        "ELF header: expected {} bytes, the file has {}; it is cut short, copy it again",
        sizeof header, file.size);
  }
  WEFT_TRY(check_header(header));
  std::optional<PluginNote> found;
  for (uint32_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    const uint64_t at = header.e_phoff + uint64_t{i} * sizeof segment;
    if (header.e_phoff > file.size || !read_struct(file, at, &segment)) {
      return make_error(
          ErrorCode::kInvalid,
          "ELF program header {}: expected it at byte {}, the file has {}; it is cut short, "
          "copy it again",
          i, at, file.size);
    }
    if (segment.p_type == PT_LOAD &&
        (segment.p_offset > file.size || segment.p_filesz > file.size - segment.p_offset)) {
      return make_error(
          ErrorCode::kInvalid,
          "ELF segment {}: expected {} bytes at byte {}, the file has {}; it is cut short, "
          "copy it again",
          i, segment.p_filesz, segment.p_offset, file.size);
    }
    if (segment.p_type != PT_NOTE) continue;
    if (segment.p_filesz > kNoteSegmentMax) {
      return make_error(ErrorCode::kInvalid,
                        "ELF note segment: expected at most {} bytes, came {}; {}", kNoteSegmentMax,
                        segment.p_filesz, kRebuild);
    }
    std::vector<uint8_t> bytes(segment.p_filesz);
    if (!file.read(segment.p_offset, bytes)) {
      return make_error(
          ErrorCode::kInvalid,
          "ELF note segment: expected {} bytes at byte {}, the file has {}; it is cut "
          "short, copy it again",
          segment.p_filesz, segment.p_offset, file.size);
    }
    WEFT_TRY(scan_segment(bytes, segment.p_align, &found));
  }
  if (!found) {
    return make_error(ErrorCode::kInvalid,
                      "note: expected an ELF note of owner \"weft\", came none; {}", kRebuild);
  }
  return *std::move(found);
}

Status check_abi(const char* where, uint32_t major, uint32_t minor) {
  if (major == WEFT_ABI_MAJOR) return {};
  return make_error(
      ErrorCode::kInvalid, "{} ABI major: expected {}, came {} (plugin built for ABI {}.{}); {}",
      where, WEFT_ABI_MAJOR, major, major, minor,
      major < WEFT_ABI_MAJOR ? "rebuild the plugin with this weft's headers"
                             : "update weft, or install the plugin's release for this weft");
}

bool is_plugin_name(std::string_view name) {
  const auto tail = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !name.empty() && name.size() < WEFT_NAME_MAX && name[0] >= 'a' && name[0] <= 'z' &&
         std::all_of(name.begin(), name.end(), tail);
}

}  // namespace weft::plugin
