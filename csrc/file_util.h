// The few file-system calls the core needs, with errors that name the path.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pymemstore/status.h"

namespace pymemstore {

// A file descriptor that closes itself.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Fd& operator=(Fd&& other) noexcept;
  ~Fd();
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Leak() { fd_ = -1; }

 private:
  int fd_ = -1;
};

Status ErrnoStatus(const std::string& what, const std::string& path, int error_number);
Result<Fd> OpenFile(const std::string& path, int flags, int mode = 0664);
Status WriteAll(int fd, const void* data, size_t size, uint64_t offset, const std::string& path);
Status SyncFd(int fd, const std::string& path);
Status SyncDir(const std::string& path);  // makes creations and renames in it durable
Status MakeDir(const std::string& path);  // fine when it is there already
Status WriteFileAtomically(const std::string& path, const std::string& text);  // temp, fsync, rename, fsync
Result<std::string> ReadSmallFile(const std::string& path);  // NotFound when absent
Result<std::vector<std::string>> ListDir(const std::string& path);
// Copies the first `size` bytes of a file and syncs the copy.
Status CopyPrefix(const std::string& from, const std::string& to, uint64_t size);
void RemoveTree(const std::string& path);  // best effort
uint64_t DiskBytes(const std::string& path);  // allocated blocks of a tree

}  // namespace pymemstore
