#include "vector_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace pymemstore {

Status VectorFile::Create(const std::string& path, const StoreId& id, Kind kind, uint32_t dim) {
  PMS_ASSIGN_OR_RETURN(Fd fd, OpenFile(path, O_WRONLY | O_CREAT | O_TRUNC));
  const std::string header = EncodeVectorHeader(id, kind, dim);
  PMS_RETURN_IF_ERROR(WriteAll(fd.get(), header.data(), header.size(), 0, path));
  return SyncFd(fd.get(), path);
}

Result<std::unique_ptr<VectorFile>> VectorFile::Open(const std::string& path, const StoreId& id, Kind kind,
                                                     uint32_t dim, bool read_only) {
  auto opened = OpenFile(path, read_only ? O_RDONLY : O_RDWR);
  if (!opened.ok()) {
    if (opened.status().error_number() == ENOENT) return Status::Corruption(path + " is missing");
    return opened.status();
  }
  Fd fd = std::move(*opened);
  std::string header(kVectorHeaderBytes, '\0');
  const ssize_t n = ::pread(fd.get(), header.data(), header.size(), 0);
  if (n < 0) return ErrnoStatus("cannot read", path, errno);
  header.resize(static_cast<size_t>(n));
  const std::string problem = CheckVectorHeader(header, id, kind, dim);
  if (!problem.empty()) return Status::Corruption(path + ": " + problem);
  return std::unique_ptr<VectorFile>(new VectorFile(std::move(fd), path, dim));
}

Result<PinnedRows> VectorFile::Rows(uint64_t rows) {
  const size_t stride = RowStride(dim_);
  const size_t need = kVectorHeaderBytes + rows * stride;
  std::lock_guard<std::mutex> lock(mutex_);
  if (!map_ || map_bytes_ < need) {
    struct stat st {};
    if (::fstat(fd_.get(), &st) != 0) return ErrnoStatus("cannot inspect", path_, errno);
    if (static_cast<uint64_t>(st.st_size) < need)
      return Status::Corruption(path_ + " has " + std::to_string(st.st_size) + " bytes, fewer than its " +
                                std::to_string(rows) + " committed rows need");
    // Beyond the end of the file on purpose: pages turn valid as the file grows, so growth needs no new map.
    size_t size = std::max<size_t>(64u << 20, 2 * static_cast<size_t>(st.st_size));
    void* p = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd_.get(), 0);
    if (p == MAP_FAILED) {
      size = static_cast<size_t>(st.st_size);
      p = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd_.get(), 0);
    }
    if (p == MAP_FAILED) return ErrnoStatus("cannot map", path_, errno);
    map_ = std::shared_ptr<const void>(p, [size](const void* base) { ::munmap(const_cast<void*>(base), size); });
    map_bytes_ = size;
  }
  PinnedRows result;
  result.pin = map_;
  result.view.base = static_cast<const uint8_t*>(map_.get()) + kVectorHeaderBytes;
  result.view.stride = stride;
  result.view.dim = dim_;
  result.view.rows = rows;
  return result;
}

Status VectorFile::Write(uint64_t row, const std::string& encoded) {
  return WriteAll(fd_.get(), encoded.data(), encoded.size(), kVectorHeaderBytes + row * RowStride(dim_), path_);
}

void VectorFile::Encode(const float* vector, uint32_t dim, NameId owner, std::string* out) {
  const size_t start = out->size();
  out->append(reinterpret_cast<const char*>(vector), 4 * static_cast<size_t>(dim));
  AppendLe32(out, owner);
  AppendLe32(out, Crc32(Bytes(*out).substr(start)));
}

bool VectorFile::RowIsWhole(const PinnedRows& rows, uint64_t row) {
  const size_t covered = rows.view.stride - 4;
  return GetLe32(rows.Raw(row) + covered) == Crc32(Bytes(rows.Raw(row), covered));
}

}  // namespace pymemstore
