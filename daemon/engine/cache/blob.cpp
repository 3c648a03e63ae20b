#include "engine/cache/blob.h"

#include <sys/mman.h>
#include <unistd.h>

namespace weft::engine::cache {

std::shared_ptr<Blob> Blob::make(HostBudget* budget, uint64_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  budget->used += bytes;
  return std::shared_ptr<Blob>(new Blob(budget, static_cast<unsigned char*>(data), bytes));
}

void Blob::unmap() {
  if (data_ == nullptr) return;
  ::munmap(data_, bytes_);
  data_ = nullptr;
  budget_->used -= bytes_;
}

Blob::~Blob() {
  unmap();
  if (file_.empty()) return;
  ::unlink(file_.c_str());
  budget_->disk_used -= bytes_;
}

void Blob::spilled(bool ok, const std::string& path) {
  spilling = false;
  if (ok && readers == 0) {
    unmap();
    file_ = path;
    return;
  }
  if (!ok) ++budget_->disk_failures;
  ::unlink(path.c_str());
  budget_->disk_used -= bytes_;
}

}  // namespace weft::engine::cache
