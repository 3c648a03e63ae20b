#include <algorithm>

#include "text/grammar/grammar.h"
#include "text/grammar/stepper.h"

namespace weft::text::grammar {

Acceptor::Acceptor(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {
  Frame first;
  first.node = grammar_->program().start;
  first.depth = 1;
  threads_.push_back(std::move(first));
}

bool Acceptor::accept(Symbol symbol) {
  if (finished_) return false;
  const Program& program = grammar_->program();
  std::vector<Frame> next;
  Stepper stepper(program, &next);
  for (const Frame& frame : threads_) stepper.step(frame, symbol);
  if (next.empty()) return false;
  threads_ = std::move(next);
  finished_ = symbol == kEndToken &&
              std::any_of(threads_.begin(), threads_.end(),
                          [&](const Frame& frame) { return Stepper::may_end(program, frame); });
  return true;
}

bool Acceptor::accept_text(std::string_view bytes) {
  Acceptor trial = *this;
  for (char c : bytes)
    if (!trial.accept(static_cast<uint8_t>(c))) return false;
  *this = std::move(trial);
  return true;
}

bool Acceptor::allows_text(std::string_view bytes) const {
  Acceptor trial = *this;
  return trial.accept_text(bytes);
}

bool Acceptor::finished() const { return finished_; }

Acceptor::Allowed Acceptor::allowed() const {
  Allowed allowed;
  if (finished_) return allowed;
  std::vector<Frame> next;
  const auto try_symbol = [&](Symbol symbol) {
    next.clear();
    Stepper stepper(grammar_->program(), &next);
    for (const Frame& frame : threads_) {
      stepper.step(frame, symbol);
      if (!next.empty()) return true;
    }
    return false;
  };
  for (Symbol b = 0; b < 256; ++b) allowed.bytes[b] = try_symbol(b);
  allowed.open = try_symbol(kOpenToken);
  allowed.close = try_symbol(kCloseToken);
  allowed.sep = try_symbol(kSepToken);
  allowed.end = try_symbol(kEndToken);
  return allowed;
}

Acceptor::PlainRun Acceptor::plain_run() const {
  const Program& program = grammar_->program();
  PlainRun run;
  if (finished_) return run;
  for (const Frame& frame : threads_) {
    const Node& node = program.nodes[frame.node];
    std::optional<uint32_t> left = 0;
    if (node.kind == NodeKind::kFree) {
      const auto& limit = program.frees[node.index].bytes_max;
      left = limit ? std::optional((*limit - frame.count) / 4) : std::nullopt;
      run.any_bytes = run.any_bytes || !limit;
    } else if (node.kind == NodeKind::kString) {
      left = Stepper::text_left(program.strings[node.index], frame);
      run.exact = threads_.size() == 1 && Stepper::between_characters(frame);
    } else if (Stepper(program, nullptr).takes_any_key(frame)) {
      left = std::nullopt;
    }
    if (!left)
      run.unlimited = true;
    else
      run.code_points = std::max(run.code_points, *left);
  }
  return run;
}

}  // namespace weft::text::grammar
