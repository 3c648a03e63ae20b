// POST /v1/completions as a Generation: raw text (or bare token ids for models without a
// tokenizer).
#pragma once

#include <memory>
#include <vector>

#include "api/completion_writer.h"
#include "gateway/generation.h"
#include "gateway/prepare.h"
#include "text/output_parser.h"

namespace weft::gateway {

class CompletionGeneration final : public Generation {
 public:
  CompletionGeneration(GenerationContext context, http::Responder responder,
                       PreparedCompletion prepared);

 protected:
  wire::Generate build(const Choice& c) override;
  int32_t samples_per_prompt() const override { return prepared_.request.sampling.n; }
  void write_open(std::string* out) override;
  bool write_tokens(Choice& c, const wire::SequenceTokens& update, std::string* out) override;
  void write_finish(Choice& c, wire::Finish finish, bool stop_string, std::string* out) override;
  void write_end(std::string* out) override;
  void write_error(const api::ApiError& error, std::string* out) override;
  std::string whole_body() override;
  api::FinishReason finish_reason(int32_t choice) const override;
  bool has_text_stops() const override { return !prepared_.request.stop.empty(); }
  bool counts_output() const override { return !prompt_only(); }

 private:
  struct Output {
    std::unique_ptr<text::OutputParser> parser;  // null: token ids only
    api::CompletionChoice whole;                 // non-streaming
    api::FinishReason reason = api::FinishReason::kNone;
    int32_t last_id = -1;
    bool echoed = false;
  };
  Output& output(const Choice& c) { return outputs_[static_cast<size_t>(c.index)]; }
  bool streams() const { return prepared_.request.stream.stream; }
  // Echo without output: nothing is to be generated, only the prompt looked at.
  bool prompt_only() const { return prepared_.request.sampling.max_tokens == 0; }
  static api::CompletionWriterOptions writer_options(const PreparedCompletion& prepared,
                                                     const GenerationContext& context);
  void echo(Choice& c, const wire::SequenceTokens& update, std::string* out);
  void emit(Choice& c, api::CompletionPiece piece, std::string* out);
  static api::CompletionPiece join(std::vector<api::Delta> deltas);

  PreparedCompletion prepared_;
  const uint64_t fallback_seed_;
  const api::CompletionWriterOptions options_;
  api::CompletionStreamWriter writer_;
  std::vector<Output> outputs_;
};

}  // namespace weft::gateway
