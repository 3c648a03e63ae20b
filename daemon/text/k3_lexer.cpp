#include "text/k3_lexer.h"

#include <array>

#include "text/k3_names.h"

namespace weft::text {
namespace {

struct Spelling {
  std::string_view text;
  K3Machine::Marker marker;
};
constexpr std::array<Spelling, 4> kSpellings = {{{kOpen, K3Machine::Marker::kOpenTag},
                                                 {kClose, K3Machine::Marker::kCloseTag},
                                                 {kSep, K3Machine::Marker::kTagEnd},
                                                 {kEndOfMsg, K3Machine::Marker::kMessageEnd}}};
constexpr size_t kBlankMax = 8;

enum class Fit { kNo, kPartial, kFull };

// Does `text` begin with `wanted` (kFull), or is all of it the beginning of `wanted` (kPartial)?
Fit fit(std::string_view text, std::string_view wanted) {
  if (text.starts_with(wanted)) return Fit::kFull;
  return wanted.starts_with(text) ? Fit::kPartial : Fit::kNo;
}

// The closing tag of a body: <|close|> blanks NAME blanks <|sep|>, at the start of `text`.
Fit fit_closer(std::string_view text, std::string_view name, size_t* length) {
  const std::string_view whole = text;
  for (const std::string_view part : {kClose, name, kSep}) {
    if (part != kClose) {
      size_t blanks = 0;
      while (blanks < text.size() &&
             std::string_view(" \t\r\n").find(text[blanks]) != std::string_view::npos)
        ++blanks;
      if (blanks > kBlankMax) return Fit::kNo;
      text.remove_prefix(blanks);
    }
    const Fit f = fit(text, part);
    if (f != Fit::kFull) return f;
    text.remove_prefix(part.size());
  }
  *length = whole.size() - text.size();
  return Fit::kFull;
}

}  // namespace

bool K3Lexer::in_body() const {
  return !machine_->in_tag() && (machine_->state() == K3Machine::State::kArgument ||
                                 machine_->state() == K3Machine::State::kJson);
}

void K3Lexer::feed(std::string_view text) {
  held_ += text;
  size_t done = 0;
  while (done < held_.size()) {
    const std::string_view rest = std::string_view(held_).substr(done);
    const size_t used = in_body() ? lex_body(rest) : lex_outside(rest);
    if (used == 0) break;  // all of it is held back
    done += used;
  }
  held_.erase(0, done);
}

// Consumes text up to the next '<' that may begin a marker, or one marker. Returns the bytes used.
size_t K3Lexer::lex_outside(std::string_view text) {
  for (size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at + 1)) {
    for (const Spelling& spelling : kSpellings) {
      const Fit f = fit(text.substr(at), spelling.text);
      if (f == Fit::kNo) continue;
      if (at > 0) {
        machine_->text(text.substr(0, at));
        return at;
      }
      if (f == Fit::kPartial) return 0;
      machine_->marker(spelling.marker);
      return spelling.text.size();
    }
  }
  machine_->text(text);
  return text.size();
}

size_t K3Lexer::lex_body(std::string_view text) {
  const std::string_view name =
      machine_->state() == K3Machine::State::kArgument ? "argument" : "json";
  for (size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at + 1)) {
    size_t length = 0;
    const Fit f = fit_closer(text.substr(at), name, &length);
    if (f == Fit::kNo) continue;
    if (at > 0) {
      machine_->text(text.substr(0, at));
      return at;
    }
    if (f == Fit::kPartial) return 0;
    machine_->marker(K3Machine::Marker::kCloseTag);
    machine_->text(name);
    machine_->marker(K3Machine::Marker::kTagEnd);
    return length;
  }
  machine_->text(text);
  return text.size();
}

void K3Lexer::finish() {
  // A whole closing marker with a part of its tag is an unfinished tag, which is dropped as
  // everywhere else.
  if (!(in_body() && held_.starts_with(kClose))) machine_->text(held_);
  held_.clear();
}

}  // namespace weft::text
