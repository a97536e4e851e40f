// Sorts more fixed-size keys than fit in memory: sorted runs in files, merged. What fits stays in memory.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "file_util.h"

namespace pymemstore {

using Wide = unsigned __int128;

// A part of a key that is sorted by: its lowest bit, and how many.
struct KeyField {
  int shift, bits;
};

template <typename Key>
class ExternalSorter {
 public:
  // `prefix`: of the run files' paths. `most` keys are held at once (twice that memory while they are sorted).
  // `fields`: lowest first; keys that agree in all of them stay in the order in which they were added, and are
  // added in ascending order of the rest.
  ExternalSorter(std::string prefix, size_t most, std::vector<KeyField> fields)
      : prefix_(std::move(prefix)), most_(std::max<size_t>(most, 1024)) {
    for (const KeyField& f : fields)
      for (int done = 0, passes = (f.bits + kDigit - 1) / kDigit, left = passes; left; --left) {
        const int bits = (f.bits - done + left - 1) / left;
        digits_.push_back({f.shift + done, bits});
        done += bits;
      }
  }
  ~ExternalSorter() {
    std::free(keys_);
    for (size_t i = 0; i < runs_.size(); ++i) (void)::unlink(RunPath(i).c_str());
  }
  ExternalSorter(const ExternalSorter&) = delete;
  ExternalSorter& operator=(const ExternalSorter&) = delete;

  Status Add(Key key) {
    if (!keys_) {
      keys_ = static_cast<Key*>(std::malloc(most_ * sizeof(Key)));
      if (!keys_) return NoMemory();
    }
    if (count_ == most_) PMS_RETURN_IF_ERROR(Spill());
    keys_[count_++] = key;
    return Status::Ok();
  }
  // No more keys; then Next() gives them.
  Status Finish() {
    if (!runs_.empty()) {
      PMS_RETURN_IF_ERROR(Spill());
      std::free(keys_);
      keys_ = nullptr;
      for (size_t i = 0; i < runs_.size(); ++i) {
        PMS_ASSIGN_OR_RETURN(runs_[i].file, OpenFile(RunPath(i), O_RDONLY));
        PMS_RETURN_IF_ERROR(Fill(&runs_[i]));
        if (!runs_[i].buffer.empty()) heap_.emplace_back(runs_[i].buffer[0], i);
      }
      std::make_heap(heap_.begin(), heap_.end(), Later);
      return Status::Ok();
    }
    return Sort();
  }
  // False: that was the last, or status() says why not.
  bool Next(Key* key) {
    if (runs_.empty()) {
      if (at_ == count_) return false;
      *key = keys_[at_++];
      return true;
    }
    if (heap_.empty() || !status_.ok()) return false;
    std::pop_heap(heap_.begin(), heap_.end(), Later);
    auto& [next, i] = heap_.back();
    *key = next;
    Run& run = runs_[i];
    if (++run.at == run.buffer.size()) status_ = Fill(&run);
    if (run.buffer.empty() || !status_.ok()) {
      heap_.pop_back();
    } else {
      next = run.buffer[run.at];
      std::push_heap(heap_.begin(), heap_.end(), Later);
    }
    return status_.ok();
  }
  const Status& status() const { return status_; }
  size_t runs() const { return runs_.size(); }

 private:
  static constexpr int kDigit = 11;
  static constexpr size_t kBuffer = (4u << 20) / sizeof(Key);
  struct Run {
    Fd file;
    std::vector<Key> buffer;
    size_t at = 0;
  };
  static bool Later(const std::pair<Key, size_t>& a, const std::pair<Key, size_t>& b) { return a.first > b.first; }
  static Status NoMemory() { return Status::IOError("not enough memory to sort; give the import a smaller limit", ENOMEM); }
  std::string RunPath(size_t i) const { return prefix_ + "-" + std::to_string(i); }

  Status Sort() {
    if (count_ < 2) return Status::Ok();
    Key* other = static_cast<Key*>(std::malloc(count_ * sizeof(Key)));
    if (!other) return NoMemory();
    for (const KeyField& d : digits_) {
      const size_t buckets = size_t{1} << d.bits;
      const Key mask = buckets - 1;
      std::vector<size_t> at(buckets + 1, 0);
      for (size_t i = 0; i < count_; ++i) ++at[static_cast<size_t>(keys_[i] >> d.shift & mask) + 1];
      for (size_t b = 0; b < buckets; ++b) at[b + 1] += at[b];
      for (size_t i = 0; i < count_; ++i) other[at[static_cast<size_t>(keys_[i] >> d.shift & mask)]++] = keys_[i];
      std::swap(keys_, other);
    }
    std::free(other);
    return Status::Ok();
  }

  Status Spill() {
    PMS_RETURN_IF_ERROR(Sort());
    runs_.emplace_back();
    const std::string path = RunPath(runs_.size() - 1);
    PMS_ASSIGN_OR_RETURN(Fd file, OpenFile(path, O_WRONLY | O_CREAT | O_TRUNC));
    PMS_RETURN_IF_ERROR(WriteAll(file.get(), keys_, count_ * sizeof(Key), 0, path));
    count_ = 0;
    return Status::Ok();
  }

  Status Fill(Run* run) {
    run->buffer.resize(kBuffer);
    run->at = 0;
    size_t got = 0;
    while (got < kBuffer * sizeof(Key)) {
      const ssize_t n = ::read(run->file.get(), reinterpret_cast<char*>(run->buffer.data()) + got,
                               kBuffer * sizeof(Key) - got);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus("cannot read a sorted run of", prefix_, errno);
      if (n == 0) break;
      got += static_cast<size_t>(n);
    }
    run->buffer.resize(got / sizeof(Key));
    return Status::Ok();
  }

  const std::string prefix_;
  const size_t most_;
  std::vector<KeyField> digits_;
  Key* keys_ = nullptr;
  size_t count_ = 0, at_ = 0;
  std::vector<Run> runs_;
  std::vector<std::pair<Key, size_t>> heap_;
  Status status_;
};

}  // namespace pymemstore
