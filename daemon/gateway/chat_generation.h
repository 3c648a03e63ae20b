// POST /v1/chat/completions as a Generation: the K3 output parser between tokens and deltas, OpenAI
// chunks or one JSON body.
#pragma once

#include <memory>
#include <vector>

#include "api/chat_writer.h"
#include "gateway/generation.h"
#include "gateway/prepare.h"
#include "text/output_parser.h"

namespace weft::gateway {

class ChatGeneration final : public Generation {
 public:
  ChatGeneration(GenerationContext context, http::Responder responder, PreparedChat prepared,
                 bool promote_orphan);

 protected:
  wire::Generate build(const Choice& c) override;
  int32_t samples_per_prompt() const override { return choice_count(); }
  void write_open(std::string* out) override;
  bool write_tokens(Choice& c, const wire::SequenceTokens& update, std::string* out) override;
  void write_finish(Choice& c, wire::Finish finish, bool stop_string, std::string* out) override;
  void write_end(std::string* out) override;
  void write_error(const api::ApiError& error, std::string* out) override;
  std::string whole_body() override;
  api::FinishReason finish_reason(int32_t choice) const override;
  int64_t reasoning_tokens(int32_t choice) const override;
  bool has_text_stops() const override { return !prepared_.request.stop.empty(); }

 private:
  struct Output {
    std::unique_ptr<text::OutputParser> parser;
    api::ChatChoice message;  // non-streaming
    api::FinishReason reason = api::FinishReason::kNone;
    int32_t last_id = -1;
  };
  void emit(Choice& c, const std::vector<api::Delta>& deltas, std::string* out);
  api::StopReason stop_reason(const Output& o, wire::Finish finish, bool stop_string) const;

  PreparedChat prepared_;
  const uint64_t fallback_seed_;
  const api::ChatWriterOptions options_;
  api::ChatStreamWriter writer_;
  std::vector<Output> outputs_;
};

// A seed for requests that give none.
uint64_t random_seed();

}  // namespace weft::gateway
