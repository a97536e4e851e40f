// An append-only file of float32 unit vectors with their owners, mapped read-only. How many rows count is
// written in LMDB, in the transaction that appended them: what lies beyond is the rest of an aborted one.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "exact_scan.h"
#include "file_util.h"
#include "format.h"

namespace pymemstore {

// A view with what keeps its memory mapped.
struct PinnedRows {
  RowView view;
  std::shared_ptr<const void> pin;
  NameId owner(uint64_t row) const { return GetLe32(Raw(row) + 4 * static_cast<size_t>(view.dim)); }
  const char* Raw(uint64_t row) const { return reinterpret_cast<const char*>(view.base + row * view.stride); }
};

// Thread-safe; one writer at a time (the store's lock).
class VectorFile {
 public:
  static Status Create(const std::string& path, const StoreId& id, Kind kind, uint32_t dim);
  static Result<std::unique_ptr<VectorFile>> Open(const std::string& path, const StoreId& id, Kind kind,
                                                  uint32_t dim, bool read_only);

  Result<PinnedRows> Rows(uint64_t rows);
  // Writes rows at `row`; nothing is durable before Sync().
  Status Write(uint64_t row, const std::string& encoded);
  Status Sync() { return SyncFd(fd_.get(), path_); }
  // Appends one encoded row to `out`.
  static void Encode(const float* vector, uint32_t dim, NameId owner, std::string* out);
  static bool RowIsWhole(const PinnedRows& rows, uint64_t row);  // its checksum fits

  uint32_t dim() const { return dim_; }
  const std::string& path() const { return path_; }

 private:
  VectorFile(Fd fd, std::string path, uint32_t dim) : fd_(std::move(fd)), path_(std::move(path)), dim_(dim) {}

  Fd fd_;
  const std::string path_;
  const uint32_t dim_;
  std::mutex mutex_;
  std::shared_ptr<const void> map_;  // guarded by mutex_
  size_t map_bytes_ = 0;
};

}  // namespace pymemstore
