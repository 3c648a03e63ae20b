// Runs llama.cpp for scripts/bench/peer_llamacpp: loads one GGUF file, then answers commands from
// stdin, one JSON line each.
//
//   prefill N                      one sequence of N tokens, logits of the last only
//   decode B N                     B sequences of 32 tokens each (not timed), then N steps of B
//   tokens, logits of all logits-file PATH ids...        writes the logits after the last id as raw
//   F32 steps-file PATH K ids...       the last K ids one at a time: K + 1 rows (after the prompt,
//   then after every step) info                           which CPU library was chosen, and the
//   settings quit
//
// What a measurement does is what llama-bench and llama-batched-bench do: a context of just the
// size needed, a thread pool of their defaults, one warm-up run, memory cleared, then the timed run
// up to llama_synchronize. One thread reads and computes; llama.cpp's pool is created before a
// command and freed after it, so nothing spins while weft has its turn.
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int kPromptTokens = 32;

struct Settings {
  std::string model, libs;
  int threads = 1, batch = 2048, ubatch = 512;
  llama_flash_attn_type flash = LLAMA_FLASH_ATTN_TYPE_AUTO;
  llama_load_mode load = LLAMA_LOAD_MODE_AUTO;
  ggml_type cache = GGML_TYPE_F16;
  bool repack = true, verbose = false, unified = false;
};

using Model = std::unique_ptr<llama_model, decltype(&llama_model_free)>;
using Context = std::unique_ptr<llama_context, decltype(&llama_free)>;

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "peer_driver: %s\n", why.c_str());
  std::exit(1);
}

// Token ids that look random and are the same in every run.
class Ids {
 public:
  explicit Ids(int vocab) : vocab_(static_cast<uint64_t>(vocab)) {}
  llama_token next() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<llama_token>((state_ >> 33) % vocab_);
  }

 private:
  uint64_t vocab_, state_ = 1;
};

// A llama_batch with room for `capacity` tokens of one sequence each.
class Batch {
 public:
  explicit Batch(int capacity) : batch_(llama_batch_init(capacity, 0, 1)) {}
  ~Batch() { llama_batch_free(batch_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  void clear() { batch_.n_tokens = 0; }
  void add(llama_token id, int position, int sequence, bool wants_logits) {
    const int i = batch_.n_tokens++;
    batch_.token[i] = id;
    batch_.pos[i] = position;
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = sequence;
    batch_.logits[i] = wants_logits ? 1 : 0;
  }
  // Hands the tokens to llama.cpp in pieces of at most `piece`.
  void decode(llama_context* context, int piece) const {
    for (int i = 0; i < batch_.n_tokens; i += piece) {
      llama_batch view = batch_;
      view.n_tokens = std::min(piece, batch_.n_tokens - i);
      view.token += i, view.pos += i, view.n_seq_id += i, view.seq_id += i, view.logits += i;
      if (llama_decode(context, view) != 0) fail("llama_decode failed");
    }
  }

 private:
  llama_batch batch_;
};

// The thread pool llama-bench makes: its default polling, no pinning. Functions come from the CPU
// library chosen at run time.
class Pool {
 public:
  explicit Pool(int threads) {
    auto* device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    auto* registry = ggml_backend_dev_backend_reg(device);
    auto find = [&](const char* name) { return ggml_backend_reg_get_proc_address(registry, name); };
    auto make = reinterpret_cast<decltype(ggml_threadpool_new)*>(find("ggml_threadpool_new"));
    free_ = reinterpret_cast<decltype(ggml_threadpool_free)*>(find("ggml_threadpool_free"));
    ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    pool_ = make(&params);
    if (pool_ == nullptr) fail("no thread pool");
  }
  ~Pool() { free_(pool_); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ggml_threadpool* get() const { return pool_; }

 private:
  ggml_threadpool* pool_ = nullptr;
  decltype(ggml_threadpool_free)* free_ = nullptr;
};

// Which of the CPU libraries llama.cpp has picked, and what that library says it was compiled with.
std::string backend_json() {
  std::string line, file = "unknown", features;
  for (std::ifstream maps("/proc/self/maps"); std::getline(maps, line);)
    if (const auto at = line.find("libggml-cpu"); at != std::string::npos) file = line.substr(at);
  auto* registry =
      ggml_backend_dev_backend_reg(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
  auto* get = reinterpret_cast<ggml_backend_get_features_t>(
      ggml_backend_reg_get_proc_address(registry, "ggml_backend_get_features"));
  for (auto* f = get == nullptr ? nullptr : get(registry); f != nullptr && f->name != nullptr; ++f)
    features += std::string(features.empty() ? "" : " ") + f->name + "=" + f->value;
  return "\"backend\":\"" + file + "\",\"features\":\"" + features + "\"";
}

class Peer {
 public:
  explicit Peer(Settings settings) : settings_(std::move(settings)), model_(load(settings_)) {
    vocab_ = llama_vocab_n_tokens(llama_model_get_vocab(model_.get()));
  }

  void info() const {
    std::printf(
        "{\"what\":\"info\",%s,\"threads\":%d,\"batch\":%d,\"ubatch\":%d,\"flash\":\"%s\",\"load\":"
        "\"%s\","
        "\"cache\":\"%s\",\"repack\":%s,\"unified\":%s}\n",
        backend_json().c_str(), settings_.threads, settings_.batch, settings_.ubatch,
        llama_flash_attn_type_name(settings_.flash), llama_load_mode_name(settings_.load),
        ggml_type_name(settings_.cache), settings_.repack ? "true" : "false",
        settings_.unified ? "true" : "false");
    std::fflush(stdout);
  }

  double prefill(int tokens) {
    Pool pool(settings_.threads);
    const Context context = make_context(tokens, 1, pool);
    Batch batch(tokens);
    double seconds = 0;
    for (const int length :
         {std::min(tokens, settings_.ubatch), tokens}) {  // the first is the warm-up
      Ids ids(vocab_);
      batch.clear();
      for (int i = 0; i < length; ++i) batch.add(ids.next(), i, 0, i == length - 1);
      llama_memory_clear(llama_get_memory(context.get()), true);
      seconds = timed(context.get(), [&] { batch.decode(context.get(), settings_.batch); });
    }
    return seconds;
  }

  double decode(int sequences, int steps) {
    Pool pool(settings_.threads);
    const Context context = make_context(sequences * (kPromptTokens + steps + 1), sequences, pool);
    Batch batch(sequences * kPromptTokens);
    Ids ids(vocab_);
    for (int s = 0; s < sequences; ++s)
      for (int i = 0; i < kPromptTokens; ++i) batch.add(ids.next(), i, s, i == kPromptTokens - 1);
    batch.decode(context.get(), settings_.batch);
    auto step = [&](int position) {
      batch.clear();
      for (int s = 0; s < sequences; ++s) batch.add(ids.next(), position, s, true);
      batch.decode(context.get(), settings_.batch);
      llama_synchronize(context.get());
    };
    step(kPromptTokens);  // warm-up
    return timed(context.get(), [&] {
      for (int i = 1; i <= steps; ++i) step(kPromptTokens + i);
    });
  }

  double logits(const std::string& path, int steps, const std::vector<int>& ids) {
    const int total = static_cast<int>(ids.size()), prompt = total - steps;
    if (prompt < 1) fail("no prompt");
    for (const int id : ids)
      if (id < 0 || id >= vocab_) fail("token id out of range");
    Pool pool(settings_.threads);
    const Context context = make_context(total, 1, pool);
    std::ofstream out(path, std::ios::binary);
    Batch batch(prompt);
    auto run = [&] {
      batch.decode(context.get(), settings_.batch);
      llama_synchronize(context.get());
      out.write(reinterpret_cast<const char*>(llama_get_logits_ith(context.get(), -1)),
                static_cast<std::streamsize>(sizeof(float)) * vocab_);
    };
    const double seconds = timed(context.get(), [&] {
      for (int i = 0; i < prompt; ++i)
        batch.add(ids[static_cast<size_t>(i)], i, 0, i == prompt - 1);
      run();
      for (int i = prompt; i < total; ++i) {
        batch.clear();
        batch.add(ids[static_cast<size_t>(i)], i, 0, true);
        run();
      }
    });
    out.flush();
    if (!out) fail("cannot write " + path);
    return seconds;
  }

 private:
  static Model load(const Settings& settings) {
    llama_model_params params = llama_model_default_params();
    params.load_mode = settings.load;
    params.use_extra_bufts = settings.repack;
    Model model(llama_model_load_from_file(settings.model.c_str(), params), &llama_model_free);
    if (!model) fail("cannot load " + settings.model);
    return model;
  }

  Context make_context(int tokens, int sequences, const Pool& pool) const {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<uint32_t>(tokens);
    params.n_seq_max = static_cast<uint32_t>(sequences);
    params.n_batch = static_cast<uint32_t>(settings_.batch);
    params.n_ubatch = static_cast<uint32_t>(settings_.ubatch);
    params.n_threads = params.n_threads_batch = settings_.threads;
    params.flash_attn_type = settings_.flash;
    params.type_k = params.type_v = settings_.cache;
    params.kv_unified = settings_.unified;
    Context context(llama_init_from_model(model_.get(), params), &llama_free);
    if (!context) fail("cannot make a context");
    llama_attach_threadpool(context.get(), pool.get(), pool.get());
    return context;
  }

  template <typename Work>
  static double timed(llama_context* context, const Work& work) {
    llama_synchronize(context);
    const auto start = std::chrono::steady_clock::now();
    work();
    llama_synchronize(context);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  Settings settings_;
  Model model_;
  int vocab_ = 0;
};

Settings parse(int argc, char** argv) {
  Settings s;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--verbose") {
      s.verbose = true;
      continue;
    }
    if (i + 1 == argc) fail("a value is missing after " + flag);
    const std::string value = argv[++i];
    if (flag == "--model")
      s.model = value;
    else if (flag == "--libs")
      s.libs = value;
    else if (flag == "--threads")
      s.threads = std::stoi(value);
    else if (flag == "--batch")
      s.batch = std::stoi(value);
    else if (flag == "--ubatch")
      s.ubatch = std::stoi(value);
    else if (flag == "--repack")
      s.repack = value == "on";
    else if (flag == "--unified")
      s.unified = value == "on";
    else if (flag == "--cache")
      s.cache = value == "f32" ? GGML_TYPE_F32 : GGML_TYPE_F16;
    else if (flag == "--load")
      s.load = llama_load_mode_from_str(value.c_str());
    else if (flag == "--flash")
      s.flash = value == "on"    ? LLAMA_FLASH_ATTN_TYPE_ENABLED
                : value == "off" ? LLAMA_FLASH_ATTN_TYPE_DISABLED
                                 : LLAMA_FLASH_ATTN_TYPE_AUTO;
    else
      fail("unknown flag " + flag);
  }
  if (s.model.empty() || s.libs.empty()) fail("--model and --libs are needed");
  return s;
}

void log_line(ggml_log_level level, const char* text, void* data) {
  if (level == GGML_LOG_LEVEL_ERROR || *static_cast<bool*>(data)) std::fputs(text, stderr);
}

void report(const char* what, size_t tokens, double seconds) {
  std::printf("{\"what\":\"%s\",\"tokens\":%zu,\"seconds\":%.6f,\"tok_s\":%.3f}\n", what, tokens,
              seconds, static_cast<double>(tokens) / seconds);
  std::fflush(stdout);
}

// Contexts and thread pools are gone before the answer is printed: from then on weft has the
// machine.
void answer(Peer& peer, const std::string& line) {
  std::istringstream in(line);
  std::string command, path;
  in >> command;
  int a = 0, b = 0;
  if (command == "prefill" && in >> a && a > 0) {
    report("prefill", static_cast<size_t>(a), peer.prefill(a));
  } else if (command == "decode" && in >> a >> b && a > 0 && b > 0) {
    report("decode", static_cast<size_t>(a) * static_cast<size_t>(b), peer.decode(a, b));
  } else if ((command == "logits-file" && in >> path) ||
             (command == "steps-file" && in >> path >> a)) {
    std::vector<int> ids;
    for (int id = 0; in >> id;) ids.push_back(id);
    report("logits", ids.size(), peer.logits(path, a, ids));
  } else if (command == "info") {
    peer.info();
  } else if (!command.empty()) {
    std::printf("{\"error\":\"unknown command\"}\n");
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings = parse(argc, argv);
  bool verbose = settings.verbose;
  llama_log_set(log_line, &verbose);
  ggml_backend_load_all_from_path(settings.libs.c_str());
  llama_backend_init();
  if (ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) == nullptr)
    fail("no CPU library in " + settings.libs);
  Peer peer(std::move(settings));
  for (std::string line; std::getline(std::cin, line) && line != "quit";) answer(peer, line);
  return 0;
}
