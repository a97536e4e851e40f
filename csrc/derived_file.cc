#include "derived_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace pymemstore {
namespace {

constexpr size_t kBuffer = 4 << 20;
constexpr uint64_t kAlignment = 64;

std::string Folder(const std::string& path) { return path.substr(0, path.rfind('/')); }

DerivedHeader HeaderOf(const DerivedStamp& stamp, DerivedType type) {
  DerivedHeader header;
  header.type = static_cast<uint32_t>(type);
  header.store_id = stamp.store_id;
  header.kind = stamp.kind;
  header.dim = stamp.dim;
  header.vector_file = stamp.vector_file;
  return header;
}

}  // namespace

std::string DerivedPath(const std::string& store, const DerivedStamp& stamp, DerivedType type) {
  char name[64];
  std::snprintf(name, sizeof name, "/index/%s-%06u.%s", stamp.kind == Kind::kEntity ? "entities" : "relations",
                stamp.vector_file, type == DerivedType::kCodes ? "codes" : "graph");
  return store + name;
}

FileMark MarkOf(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) return {};
  return {static_cast<uint64_t>(st.st_ino), static_cast<uint64_t>(st.st_size),
          static_cast<int64_t>(st.st_mtim.tv_sec) * 1'000'000'000 + st.st_mtim.tv_nsec};
}

Result<std::unique_ptr<DerivedWriter>> DerivedWriter::Create(const std::string& path, const DerivedStamp& stamp,
                                                             DerivedType type) {
  PMS_RETURN_IF_ERROR(MakeDir(Folder(path)));
  PMS_ASSIGN_OR_RETURN(Fd fd, OpenFile(path + ".tmp", O_RDWR | O_CREAT | O_TRUNC));
  return std::unique_ptr<DerivedWriter>(new DerivedWriter(std::move(fd), path, stamp, type));
}

DerivedWriter::~DerivedWriter() {
  if (!finished_) ::unlink((path_ + ".tmp").c_str());
}

Status DerivedWriter::Append(const void* data, size_t size) {
  const Bytes bytes(static_cast<const char*>(data), size);
  current_.crc = Crc32(bytes, current_.crc);
  current_.bytes += size;
  buffer_.append(bytes);
  return buffer_.size() < kBuffer ? Status::Ok() : Flush();
}

Status DerivedWriter::Flush() {
  PMS_RETURN_IF_ERROR(WriteAll(fd_.get(), buffer_.data(), buffer_.size(), at_, path_ + ".tmp"));
  at_ += buffer_.size();
  buffer_.clear();
  return Status::Ok();
}

Status DerivedWriter::EndSection() {
  sections_.push_back(current_);
  buffer_.append((kAlignment - current_.bytes % kAlignment) % kAlignment, '\0');
  PMS_RETURN_IF_ERROR(Flush());
  current_ = {at_, 0, 0};
  return Status::Ok();
}

Status DerivedWriter::Finish(uint64_t rows) {
  const std::string temp = path_ + ".tmp";
  DerivedHeader header = HeaderOf(stamp_, type_);
  header.rows = rows;
  header.sections = sections_;
  const std::string encoded = EncodeDerivedHeader(header);
  PMS_RETURN_IF_ERROR(WriteAll(fd_.get(), encoded.data(), encoded.size(), 0, temp));
  PMS_RETURN_IF_ERROR(SyncFd(fd_.get(), temp));
  if (::rename(temp.c_str(), path_.c_str()) != 0) return ErrnoStatus("cannot rename to", path_, errno);
  finished_ = true;
  return SyncDir(Folder(path_));
}

Result<std::shared_ptr<const DerivedFile>> DerivedFile::Open(const std::string& path, const DerivedStamp& stamp,
                                                             DerivedType type) {
  const int raw = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (raw < 0 && errno == ENOENT) return Status::NotFound(path + " does not exist");
  if (raw < 0) return ErrnoStatus("cannot open", path, errno);
  const Fd fd(raw);
  struct stat st {};
  if (::fstat(raw, &st) != 0) return ErrnoStatus("cannot inspect", path, errno);
  std::string encoded(kDerivedHeaderBytes, '\0');
  const ssize_t n = ::pread(raw, encoded.data(), encoded.size(), 0);
  if (n < 0) return ErrnoStatus("cannot read", path, errno);
  encoded.resize(static_cast<size_t>(n));
  DerivedHeader header;
  const std::string problem = DecodeDerivedHeader(encoded, &header);
  if (!problem.empty()) return Status::Corruption(path + ": " + problem);
  if (header.type != static_cast<uint32_t>(type)) return Status::Corruption(path + " is another kind of file");
  if (!(DerivedStamp{header.store_id, header.kind, header.dim, header.vector_file} == stamp))
    return Status::Corruption(path + " belongs to another store or vector file");
  const uint64_t size = static_cast<uint64_t>(st.st_size);
  for (const DerivedSection& s : header.sections)
    if (s.offset < kDerivedHeaderBytes || s.offset % kAlignment != 0 || s.bytes > size || s.offset > size - s.bytes)
      return Status::Corruption(path + " is cut short: a section lies beyond its end");
  void* p = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, raw, 0);
  if (p == MAP_FAILED) return ErrnoStatus("cannot map", path, errno);
  std::shared_ptr<DerivedFile> file(new DerivedFile());
  file->base_ = static_cast<const uint8_t*>(p);
  file->bytes_ = size;
  file->rows_ = header.rows;
  file->sections_ = header.sections;
  file->path_ = path;
  return std::shared_ptr<const DerivedFile>(std::move(file));
}

DerivedFile::~DerivedFile() {
  if (base_ != nullptr) ::munmap(const_cast<uint8_t*>(base_), bytes_);
}

}  // namespace pymemstore
