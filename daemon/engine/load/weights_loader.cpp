#include "engine/load/weights_loader.h"

#include <algorithm>
#include <tuple>

#include "engine/load/quote.h"
#include "plugin/status.h"

namespace weft::engine {
namespace {

// How long a quiet storage may keep us from looking at the cancel flag.
constexpr uint64_t kReapWaitNs = 20'000'000;
constexpr uint32_t kReapBatch = 64;

struct Job {
  uint64_t want = 0;  // the model's number
  const CatalogTensor* tensor = nullptr;
  unsigned char* dst = nullptr;
  uint64_t submitted = 0;  // bytes whose reads have been prepared
  uint64_t arrived = 0;
};

// One piece of a tensor on its way. The index in Loader::reads_ is the id that the storage sees.
struct Read {
  weft_io io{};
  size_t job = 0;
  bool in_flight = false;
};

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, ModelRef model, const LoadOptions& options)
      : checkpoint_(checkpoint),
        storage_(checkpoint.storage()),
        model_(model),
        options_(options),
        piece_bytes_(std::max<uint64_t>(1, options.piece_bytes)),
        reads_(std::max(1u, options.reads_max)) {
    for (size_t i = reads_.size(); i-- > 0;) free_.push_back(i);
  }
  // Whatever ended the load (an error, cancel, an exception of the progress callback), nothing may
  // write into the model's memory afterwards.
  ~Loader() { drain(); }
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  Result<LoadReport> run() {
    WEFT_TRY(collect_wants());
    report_progress();
    WEFT_TRY(stream());
    return std::move(report_);
  }

 private:
  // ---- before the first read ----

  Status collect_wants() {
    std::vector<bool> wanted(checkpoint_.tensors().size(), false);
    for (uint64_t i = 0;; ++i) {
      weft_want want{};
      want.struct_size = sizeof want;
      const weft_status status = model_.table->want(model_.self, i, &want);
      if (status == WEFT_END) break;
      if (status != WEFT_OK)
        return make_error(ErrorCode::kInternal, "model: want({}) failed with status {}", i, status);
      const std::string_view name(want.name.data, want.name.len);
      const CatalogTensor* tensor = checkpoint_.find(name);
      if (tensor == nullptr)
        return make_error(ErrorCode::kNotFound,
                          "the model wants tensor {}, which the checkpoint does not have",
                          quote_name(name));
      if (want.bytes != tensor->entry.bytes)
        return make_error(ErrorCode::kCorrupt,
                          "the model wants {} bytes of tensor {}, the checkpoint has {}",
                          want.bytes, quote_name(name), tensor->entry.bytes);
      const auto index = static_cast<size_t>(tensor - checkpoint_.tensors().data());
      if (wanted[index])
        return make_error(ErrorCode::kInternal, "the model wants tensor {} twice",
                          quote_name(name));
      wanted[index] = true;
      jobs_.push_back({i, tensor});
      progress_.bytes_total += tensor->entry.bytes;
    }
    progress_.tensors_total = jobs_.size();
    report_.tensors = jobs_.size();
    report_.bytes = progress_.bytes_total;
    report_unused(wanted);
    // Disks and read-ahead like ascending offsets, whatever order the model has them in.
    std::sort(jobs_.begin(), jobs_.end(), [](const Job& a, const Job& b) {
      return std::tie(a.tensor->shard, a.tensor->offset, a.want) <
             std::tie(b.tensor->shard, b.tensor->offset, b.want);
    });
    return {};
  }

  void report_unused(const std::vector<bool>& wanted) {
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i]) continue;
      const CatalogTensor& tensor = checkpoint_.tensors()[i];
      ++report_.unused;
      report_.unused_bytes += tensor.entry.bytes;
      if (report_.unused_names.size() < kUnusedNamesMax)
        report_.unused_names.push_back(tensor.name);
    }
  }

  // ---- streaming ----

  Status stream() {
    while (next_job_ < jobs_.size() || !queued_.empty() || in_flight_ > 0) {
      if (cancelled()) return make_error(ErrorCode::kCancelled, "loading was cancelled");
      WEFT_TRY(prepare());
      WEFT_TRY(submit());
      WEFT_TRY(reap());
    }
    return {};
  }

  bool cancelled() const {
    return options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed);
  }

  // Cuts the next tensors into reads until as many are under way as may be.
  Status prepare() {
    while (next_job_ < jobs_.size() && !free_.empty()) {
      Job& job = jobs_[next_job_];
      const uint64_t bytes = job.tensor->entry.bytes;
      if (job.submitted == 0) WEFT_TRY(place(&job));
      if (bytes == 0) {
        WEFT_TRY(placed(&job));
        ++next_job_;
        continue;
      }
      const uint64_t len = std::min(bytes - job.submitted, piece_bytes_);
      const size_t id = free_.back();
      free_.pop_back();
      reads_[id].job = next_job_;
      reads_[id].io = {id,
                       checkpoint_.shards()[job.tensor->shard].object.get(),
                       job.tensor->offset + job.submitted,
                       len,
                       job.dst + job.submitted,
                       WEFT_MEM_HOST,
                       0};
      queued_.push_back(id);
      job.submitted += len;
      if (job.submitted == bytes) ++next_job_;
    }
    return {};
  }

  Status place(Job* job) {
    weft_err err = plugin::make_err();
    void* dst = nullptr;
    const weft_status status = model_.table->place(model_.self, job->want, &dst, &err);
    if (status != WEFT_OK) return model_error(*job, status, err, "place");
    if (dst == nullptr && job->tensor->entry.bytes > 0)
      return make_error(ErrorCode::kInternal, "the model gave no memory for tensor {}",
                        quote_name(job->tensor->name));
    job->dst = static_cast<unsigned char*>(dst);
    return {};
  }

  Status placed(Job* job) {
    weft_err err = plugin::make_err();
    const weft_status status = model_.table->placed(model_.self, job->want, &err);
    if (status != WEFT_OK) return model_error(*job, status, err, "placed");
    ++progress_.tensors_done;
    return {};
  }

  static Error model_error(const Job& job, weft_status status, const weft_err& err,
                           std::string_view call) {
    return error_of(status, err)
        .within(fmt::format("model: {} of tensor {}", call, quote_name(job.tensor->name)));
  }

  // Offers what is prepared; what the storage does not accept now is offered again after the next
  // completion.
  Status submit() {
    if (queued_.empty()) return {};
    std::vector<weft_io> ios;
    ios.reserve(queued_.size());
    for (size_t id : queued_) ios.push_back(reads_[id].io);
    const uint32_t accepted =
        storage_.table->submit(storage_.self, ios.data(), static_cast<uint32_t>(ios.size()));
    if (accepted > ios.size())
      return make_error(ErrorCode::kPeer, "the storage plugin accepted {} of {} reads", accepted,
                        ios.size());
    for (uint32_t i = 0; i < accepted; ++i) reads_[queued_[i]].in_flight = true;
    in_flight_ += accepted;
    queued_.erase(queued_.begin(), queued_.begin() + accepted);
    if (in_flight_ == 0)
      return make_error(ErrorCode::kUnavailable,
                        "the storage instance takes no reads although none is in flight: not "
                        "started or draining");
    return {};
  }

  Status reap() {
    if (in_flight_ == 0) return {};
    weft_done done[kReapBatch];
    const uint32_t n = storage_.table->reap(storage_.self, done, kReapBatch, kReapWaitNs);
    const LoadProgress before = progress_;
    // All of the batch is accounted for, also after a failure: these reads are no longer in flight.
    Status status;
    for (uint32_t i = 0; i < n; ++i) {
      Status one = complete(done[i], status.ok());
      if (status.ok()) status = std::move(one);
    }
    if (status.ok() && (before.bytes_done != progress_.bytes_done ||
                        before.tensors_done != progress_.tensors_done))
      report_progress();
    return status;
  }

  Status complete(const weft_done& done, bool deliver) {
    if (done.id >= reads_.size() || !reads_[done.id].in_flight)
      return make_error(ErrorCode::kPeer,
                        "the storage plugin completed read {}, which is not in flight", done.id);
    Read& read = reads_[done.id];
    read.in_flight = false;
    --in_flight_;
    free_.push_back(done.id);
    if (!deliver) return {};
    Job& job = jobs_[read.job];
    if (done.status != WEFT_OK || done.bytes != read.io.len)
      return error_of_read(read.io, done)
          .within(fmt::format("{}: tensor {}", checkpoint_.shards()[job.tensor->shard].name,
                              quote_name(job.tensor->name)));
    job.arrived += read.io.len;
    progress_.bytes_done += read.io.len;
    return job.arrived == job.tensor->entry.bytes ? placed(&job) : Status();
  }

  void report_progress() const {
    if (options_.progress) options_.progress(progress_);
  }

  // ---- after a failure ----

  // Reads in flight write into the model's memory, so there is no way around waiting for them;
  // cancel makes it short.
  void drain() {
    const bool can_cancel = (storage_.table->head.caps & WEFT_STORAGE_CAP_CANCEL) != 0;
    for (size_t id = 0; id < reads_.size(); ++id)
      if (reads_[id].in_flight && can_cancel) storage_.table->cancel(storage_.self, id);
    while (in_flight_ > 0) {
      weft_done done[kReapBatch];
      const uint32_t n = storage_.table->reap(storage_.self, done, kReapBatch, kReapWaitNs);
      for (uint32_t i = 0; i < n; ++i) (void)complete(done[i], false);
    }
  }

  const Checkpoint& checkpoint_;
  const StorageRef storage_;
  const ModelRef model_;
  const LoadOptions& options_;
  const uint64_t piece_bytes_;

  std::vector<Job> jobs_;  // in file order
  size_t next_job_ = 0;    // the first whose reads are not all prepared
  std::vector<Read> reads_;
  std::vector<size_t> free_;    // reads_ not in use
  std::vector<size_t> queued_;  // prepared, not yet accepted; oldest first
  uint32_t in_flight_ = 0;
  LoadProgress progress_;
  LoadReport report_;
};

}  // namespace

Result<LoadReport> load_weights(const Checkpoint& checkpoint, ModelRef model,
                                const LoadOptions& options) {
  return Loader(checkpoint, model, options).run();
}

}  // namespace weft::engine
