#include "file_util.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace pymemstore {

Fd& Fd::operator=(Fd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

Status ErrnoStatus(const std::string& what, const std::string& path, int error_number) {
  return Status::IOError(what + " " + path + ": " + std::strerror(error_number), error_number);
}

Result<Fd> OpenFile(const std::string& path, int flags, int mode) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  if (fd < 0) return ErrnoStatus("cannot open", path, errno);
  return Fd(fd);
}

Status WriteAll(int fd, const void* data, size_t size, uint64_t offset, const std::string& path) {
  const char* p = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = ::pwrite(fd, p, size, static_cast<off_t>(offset));
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus("cannot write", path, errno);
    }
    p += n;
    offset += static_cast<uint64_t>(n);
    size -= static_cast<size_t>(n);
  }
  return Status::Ok();
}

Status SyncFd(int fd, const std::string& path) {
  return ::fsync(fd) == 0 ? Status::Ok() : ErrnoStatus("cannot sync", path, errno);
}

Status SyncDir(const std::string& path) {
  PMS_ASSIGN_OR_RETURN(Fd fd, OpenFile(path, O_RDONLY | O_DIRECTORY));
  return SyncFd(fd.get(), path);
}

Status MakeDir(const std::string& path) {
  if (::mkdir(path.c_str(), 0775) == 0 || errno == EEXIST) return Status::Ok();
  return ErrnoStatus("cannot create", path, errno);
}

Status WriteFileAtomically(const std::string& path, const std::string& text) {
  const std::string temp = path + ".tmp";
  {
    PMS_ASSIGN_OR_RETURN(Fd fd, OpenFile(temp, O_WRONLY | O_CREAT | O_TRUNC));
    PMS_RETURN_IF_ERROR(WriteAll(fd.get(), text.data(), text.size(), 0, temp));
    PMS_RETURN_IF_ERROR(SyncFd(fd.get(), temp));
  }
  if (::rename(temp.c_str(), path.c_str()) != 0) return ErrnoStatus("cannot rename to", path, errno);
  const size_t slash = path.rfind('/');
  return SyncDir(slash == std::string::npos ? "." : path.substr(0, slash));
}

Result<std::string> ReadSmallFile(const std::string& path) {
  const int raw = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (raw < 0 && errno == ENOENT) return Status::NotFound(path + " does not exist");
  if (raw < 0) return ErrnoStatus("cannot open", path, errno);
  const Fd fd(raw);
  std::string text(4096, '\0');
  const ssize_t n = ::pread(fd.get(), text.data(), text.size(), 0);
  if (n < 0) return ErrnoStatus("cannot read", path, errno);
  text.resize(static_cast<size_t>(n));
  return text;
}

Result<std::vector<std::string>> ListDir(const std::string& path) {
  std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(path.c_str()), ::closedir);
  if (!dir) return ErrnoStatus("cannot list", path, errno);
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(dir.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

Status CopyPrefix(const std::string& from, const std::string& to, uint64_t size) {
  PMS_ASSIGN_OR_RETURN(Fd in, OpenFile(from, O_RDONLY));
  PMS_ASSIGN_OR_RETURN(Fd out, OpenFile(to, O_WRONLY | O_CREAT | O_TRUNC));
  std::vector<char> buffer(1 << 20);
  for (uint64_t at = 0; at < size;) {
    const ssize_t n = ::pread(in.get(), buffer.data(), std::min<uint64_t>(buffer.size(), size - at),
                              static_cast<off_t>(at));
    if (n < 0) return ErrnoStatus("cannot read", from, errno);
    if (n == 0) return Status::Corruption(from + " is shorter than its committed length");
    PMS_RETURN_IF_ERROR(WriteAll(out.get(), buffer.data(), static_cast<size_t>(n), at, to));
    at += static_cast<uint64_t>(n);
  }
  return SyncFd(out.get(), to);
}

void RemoveTree(const std::string& path) {
  struct stat st {};
  if (::lstat(path.c_str(), &st) != 0) return;
  if (!S_ISDIR(st.st_mode)) {
    ::unlink(path.c_str());
    return;
  }
  auto names = ListDir(path);
  if (names.ok())
    for (const std::string& name : *names) RemoveTree(path + "/" + name);
  ::rmdir(path.c_str());
}

uint64_t DiskBytes(const std::string& path) {
  struct stat st {};
  if (::lstat(path.c_str(), &st) != 0) return 0;
  uint64_t bytes = static_cast<uint64_t>(st.st_blocks) * 512;
  if (!S_ISDIR(st.st_mode)) return bytes;
  auto names = ListDir(path);
  if (names.ok())
    for (const std::string& name : *names) bytes += DiskBytes(path + "/" + name);
  return bytes;
}

}  // namespace pymemstore
