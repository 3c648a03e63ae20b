// Generation: one client request from admission to its last byte, whatever the protocol. It submits
// its choices to a backend, keeps the token updates that arrive, and turns them into bytes only
// when the client's socket can take them (pull), so a slow reader holds token ids, not text. Chat
// and completions derive from it.
//
// Loop thread. Owned by the Gateway's request table; ends itself by calling `on_done` of its
// context exactly once.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "api/api_error.h"
#include "api/delta.h"
#include "api/policy.h"
#include "gateway/backend.h"
#include "gateway/metrics.h"
#include "gateway/served_model.h"
#include "http/responder.h"
#include "loop/loop.h"

namespace weft::gateway {

struct GenerationContext {
  Loop* loop = nullptr;
  Metrics* metrics = nullptr;
  std::shared_ptr<const ServedModel> model;
  std::shared_ptr<const api::ApiPolicy> policy;
  std::string id;          // "chatcmpl-..."
  std::string request_id;  // x-request-id
  std::string endpoint;
  std::string peer;
  std::string tenant;  // empty: nobody in particular
  uint32_t tenant_weight = 1;
  int64_t deadline_ms = 0;  // from arrival to the first token; 0: none
  int64_t created = 0;      // Unix time
  uint64_t arrived_ms = 0;  // loop clock
  uint64_t keepalive_ms = 15'000;
  std::function<void(const std::string& id)> on_done;
};

// For `weftctl requests`.
struct GenerationView {
  std::string id, model, endpoint, peer, tenant;
  const char* state = "queued";
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  uint64_t age_ms = 0;
  bool stream = false;
};

class Generation {
 public:
  // A Choice is one sequence at the backend.
  class Choice final : public GenerationListener {
   public:
    Choice(Generation& owner, int32_t number, const std::vector<int32_t>& prompt_ids)
        : owner_(owner), index(number), prompt(prompt_ids) {}
    void on_tokens(const wire::SequenceTokens& update) override { owner_.on_tokens(*this, update); }
    void on_lost(const Error& why) override;

   private:
    Generation& owner_;

   public:
    const int32_t index;
    const std::vector<int32_t>& prompt;
    uint64_t backend_id = 0;                   // 0: not with the backend (any more)
    std::deque<wire::SequenceTokens> pending;  // arrived, not yet turned into bytes
    int64_t received = 0;                      // tokens that arrived
    int64_t consumed = 0;                      // tokens turned into bytes
    uint32_t max_tokens = 0;
    bool finished = false;  // its finish has been written
    uint64_t last_token_ms = 0;
  };

  Generation(GenerationContext context, http::Responder responder, bool stream);
  virtual ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  // Submits all choices. Errors are answered; on_done may run inside.
  void start();
  // Ends the request from our side with an error the client sees.
  void abort(const api::ApiError& error, const char* origin);
  GenerationView view() const;
  const std::string& id() const { return context_.id; }

 protected:
  // The prompt is not copied: it belongs to the derived class and stays where it is.
  void add_choice(const std::vector<int32_t>& prompt);
  int32_t choice_count() const { return static_cast<int32_t>(choices_.size()); }
  Choice& choice(int32_t i) { return *choices_[static_cast<size_t>(i)]; }
  const GenerationContext& context() const { return context_; }
  api::Usage usage_of(const Choice& c) const;
  // All choices. A prompt shared by n choices counts once, with the cached tokens of the first of
  // them that was admitted.
  api::Usage usage() const;

  // The protocol. `out` collects bytes of the stream; non-streaming protocols keep what they need
  // and ignore it.
  virtual wire::Generate build(const Choice& c) = 0;
  virtual int32_t samples_per_prompt() const = 0;
  virtual void write_open(std::string* out) = 0;
  // Returns true when a stop string ended the choice. With text stops every update has one token at
  // most, so that nothing after the end is looked at or counted.
  virtual bool write_tokens(Choice& c, const wire::SequenceTokens& update, std::string* out) = 0;
  virtual void write_finish(Choice& c, wire::Finish finish, bool stop_string, std::string* out) = 0;
  virtual void write_end(std::string* out) = 0;
  virtual void write_error(const api::ApiError& error, std::string* out) = 0;
  virtual std::string whole_body() = 0;
  virtual api::FinishReason finish_reason(int32_t choice) const = 0;
  virtual int64_t reasoning_tokens(int32_t) const { return 0; }
  virtual bool has_text_stops() const { return false; }
  // False: what the engine generates is not part of the answer.
  virtual bool counts_output() const { return true; }

 private:
  friend class Choice;
  void on_tokens(Choice& c, const wire::SequenceTokens& update);
  void note_admission(const Choice& c, const wire::SequenceTokens& update);
  void note_timing(Choice& c, const wire::SequenceTokens& update);
  void note_end(const Choice& c, const wire::SequenceTokens& update);
  ModelMetrics& model_metrics() const;
  void pump();
  void consume(Choice& c, const wire::SequenceTokens& update, std::string* out);
  bool consume_piece(Choice& c, const wire::SequenceTokens& update, std::string* out);
  void finish_choice(Choice& c, wire::Finish finish, bool stop_string, std::string* out);
  void fail(const api::ApiError& error);
  void complete(std::string* out);
  void open_stream();
  bool flush(std::string* out);
  void on_disconnect();
  void keep_alive();
  void cancel_choices(const char* origin);
  void done();

  // What the worker said when it took a prompt in: the one record behind usage and metrics.
  struct Admission {
    bool seen = false;
    int64_t cached = 0;
  };
  size_t prompt_index(const Choice& c) const {
    return static_cast<size_t>(c.index / samples_per_prompt());
  }

  GenerationContext context_;
  http::Responder responder_;
  http::StreamWriter stream_;
  const bool streaming_;
  bool stream_open_ = false;
  bool opened_ = false;  // write_open ran
  bool writable_ = true;
  bool pumping_ = false;
  bool over_ = false;  // answered or given up
  bool admitted_ = false;
  uint64_t first_token_ms_ = 0;
  uint64_t last_write_ms_ = 0;
  std::vector<std::unique_ptr<Choice>> choices_;
  std::vector<Admission> admissions_;  // by prompt
  Timer keepalive_timer_;
};

}  // namespace weft::gateway
