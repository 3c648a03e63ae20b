// The note reader against files made byte by byte, cut at every length and with every byte changed.
#include "plugin/elf_note.h"

#include <doctest/doctest.h>
#include <elf.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

using namespace weft;
using namespace weft::plugin;

namespace {

using Bytes = std::vector<uint8_t>;

weft_note_record good_record() {
  weft_note_record r{};
  r.owner_size = 5;
  r.payload_size = sizeof(weft_note);
  r.type = WEFT_NOTE_TYPE;
  std::strcpy(r.owner, "weft");
  r.payload.note_version = WEFT_NOTE_VERSION;
  r.payload.abi_major = WEFT_ABI_MAJOR;
  std::strcpy(r.payload.name, "made");
  std::strcpy(r.payload.version, "1.2.3");
  return r;
}

// A file of one header, one PT_NOTE and the given notes; enough for the reader, not for the linker.
Bytes file_with(const Bytes& notes) {
  Elf64_Ehdr h{};
  std::memcpy(h.e_ident, ELFMAG, SELFMAG);
  h.e_ident[EI_CLASS] = ELFCLASS64;
  h.e_ident[EI_DATA] = ELFDATA2LSB;
  h.e_type = ET_DYN;
#if defined(__x86_64__)
  h.e_machine = EM_X86_64;
#else
  h.e_machine = EM_AARCH64;
#endif
  h.e_phoff = sizeof h;
  h.e_phentsize = sizeof(Elf64_Phdr);
  h.e_phnum = 1;
  Elf64_Phdr p{};
  p.p_type = PT_NOTE;
  p.p_offset = sizeof h + sizeof p;
  p.p_filesz = notes.size();
  p.p_align = 4;
  Bytes out(sizeof h + sizeof p + notes.size());
  std::memcpy(out.data(), &h, sizeof h);
  std::memcpy(out.data() + sizeof h, &p, sizeof p);
  std::memcpy(out.data() + sizeof h + sizeof p, notes.data(), notes.size());
  return out;
}

Bytes bytes_of_record(const weft_note_record& r) {
  Bytes out(sizeof r);
  std::memcpy(out.data(), &r, sizeof r);
  return out;
}

std::string read(const Bytes& file) {
  auto note = read_plugin_note(bytes_of(file));
  return note.ok() ? note->name + " " + note->version : note.error().message;
}

}  // namespace

TEST_CASE("a good note is read, also behind foreign notes and before empty ones") {
  Bytes notes = bytes_of_record(good_record());
  CHECK(read(file_with(notes)) == "made 1.2.3");
  weft_note_record foreign = good_record();
  std::strcpy(foreign.owner, "weav");
  Bytes mixed = bytes_of_record(foreign);
  mixed.insert(mixed.end(), notes.begin(), notes.end());
  mixed.resize(mixed.size() + 24);  // zeros: notes of no owner and no payload
  CHECK(read(file_with(mixed)) == "made 1.2.3");
}

TEST_CASE("fields of the note are checked") {
  weft_note_record r = good_record();
  r.payload.note_version = 9;
  CHECK(read(file_with(bytes_of_record(r))).starts_with("note version: expected 1, came 9"));
  r = good_record();
  r.payload.abi_major = 0;
  CHECK(read(file_with(bytes_of_record(r))) ==
        "note ABI major: expected 1, came 0 (plugin built for ABI 0.0); rebuild the plugin with "
        "this weft's headers");
  r = good_record();
  r.payload_size = 8;
  Bytes small = bytes_of_record(r);
  small.resize(28);
  CHECK(read(file_with(small)).starts_with("note size: expected 96 bytes, came 8"));
  for (const char* name : {"", "Upper", "9lives", "a-b", "a/b", "../x"}) {
    r = good_record();
    std::memset(r.payload.name, 0, sizeof r.payload.name);
    std::memcpy(r.payload.name, name, std::strlen(name));
    CAPTURE(std::string(name));
    CHECK(read(file_with(bytes_of_record(r))).starts_with("note name: expected [a-z][a-z0-9_]*"));
  }
  r = good_record();
  std::memset(r.payload.name, 'a', sizeof r.payload.name);  // no NUL
  CHECK(read(file_with(bytes_of_record(r))).find("came \"(no end)\"") != std::string::npos);
  r = good_record();
  r.payload.version[0] = '\x1b';
  CHECK(read(file_with(bytes_of_record(r)))
            .starts_with("note version text: expected printable text"));
}

TEST_CASE("sizes that lie are caught") {
  weft_note_record r = good_record();
  r.payload_size = 0xFFFFFFFFu;
  CHECK(read(file_with(bytes_of_record(r)))
            .starts_with("ELF note: expected it to end within its segment"));
  r = good_record();
  r.owner_size = 0xFFFFFFFFu;
  CHECK(read(file_with(bytes_of_record(r)))
            .starts_with("ELF note: expected it to end within its segment"));
  Bytes file = file_with(bytes_of_record(good_record()));
  Elf64_Ehdr h;
  std::memcpy(&h, file.data(), sizeof h);
  h.e_phoff = UINT64_MAX - 8;
  std::memcpy(file.data(), &h, sizeof h);
  CHECK(read(file).find("it is cut short") != std::string::npos);
  h.e_phoff = sizeof h;
  h.e_phnum = kProgramHeadersMax + 1;
  std::memcpy(file.data(), &h, sizeof h);
  CHECK(read(file).starts_with("ELF program headers: expected 1 to 128 of 56 bytes, came 129"));
}

TEST_CASE(
    "a real plugin cut anywhere or with any early byte changed is read or refused, never more") {
  std::ifstream in(WEFT_PLUGIN_DIR "/example_null.so", std::ios::binary);
  const Bytes whole((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  REQUIRE(read(whole) == "example_null 1.0.0");
  for (size_t n = 0; n < std::min<size_t>(whole.size(), 3000); ++n) {
    const std::string text =
        read(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n)));
    REQUIRE(!text.empty());
    REQUIRE(text != "example_null 1.0.0");  // too short to be whole
  }
  const Bytes made = file_with(bytes_of_record(good_record()));
  for (size_t at = 0; at < made.size(); ++at) {
    for (const int value : {0x00, 0x01, 0x7F, 0x80, 0xFF}) {
      Bytes changed = made;
      changed[at] = static_cast<uint8_t>(value);
      REQUIRE(!read(changed).empty());
    }
  }
}

TEST_CASE("ABI versions: the major must fit, the minor may be anything") {
  CHECK(check_abi("note", WEFT_ABI_MAJOR, 0).ok());
  CHECK(check_abi("note", WEFT_ABI_MAJOR, 4000).ok());
  CHECK(!check_abi("note", WEFT_ABI_MAJOR + 1, 0).ok());
}
