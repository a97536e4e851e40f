// What stands behind a Store handle: the live generation, the writer's lock, snapshots.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "file_util.h"
#include "lmdb_env.h"
#include "name_table.h"
#include "pymemstore/types.h"
#include "vector_index.h"

namespace pymemstore {

// One generation of a store: an environment with the vector files it points to.
struct Generation {
  ~Generation();
  uint32_t number = 0;
  uint32_t version = 0;  // of the format
  std::string dir;
  std::string superseded_by;  // when it was opened; then it has no index
  Fd use_lock;  // shared while the generation is in use; who can have it exclusively may delete the folder
  std::unique_ptr<Env> env;
  StoreId store_id{};
  EmbedderStamp stamp[kKinds];
  std::string vector_name[kKinds];  // file names below vectors/
  std::shared_ptr<VectorIndex> index[kKinds];
  NameTable names[kKinds] = {NameTable(Kind::kEntity, {}), NameTable(Kind::kRelation, {})};
  pid_t pid = 0;
};

// A read transaction with the generation it reads.
struct Snapshot {
  std::shared_ptr<Generation> gen;
  std::unique_ptr<Txn> txn;
  Counters counters;
  Txn* operator->() const { return txn.get(); }
};

// Who holds a lock keeps others from the same work; each kind is a byte of LOCK.
enum class LockKind : uint8_t {
  kWriter = 0,   // a write transaction
  kBuilder = 1,  // a generation is being built; taken before the writer's
  kImport = 2,   // a bulk import is under way; taken before the builder's
  kIndex = 3,    // vectors are being sealed; taken after the others, if at all
};
constexpr size_t kLockKinds = 4;

// Gives the lock back when it goes.
class WriterLock {
 public:
  WriterLock(std::unique_lock<std::mutex> local, int fd, LockKind kind)
      : local_(std::move(local)), fd_(fd), kind_(kind) {}
  WriterLock(WriterLock&& other) noexcept : local_(std::move(other.local_)), fd_(other.fd_), kind_(other.kind_) {
    other.fd_ = -1;
  }
  WriterLock& operator=(WriterLock&&) = delete;
  ~WriterLock();

 private:
  std::unique_lock<std::mutex> local_;
  int fd_;
  LockKind kind_;
};

class StoreImpl {
 public:
  // Opens, or makes, the store at `path`.
  // `path` is absolute: the working directory may change.
  static Result<std::unique_ptr<StoreImpl>> Open(const std::string& path, const Options& options,
                                                 const InterruptCheck& interrupted);
  ~StoreImpl();

  const Options& options() const { return options_; }
  const std::string& path() const { return path_; }
  pid_t pid() const { return pid_; }
  bool SameFiles(dev_t dev, ino_t dir, ino_t data) const;

  Result<Snapshot> Read();
  // Waits for the lock, in this process and between processes.
  Result<WriterLock> Lock(double timeout_s, const InterruptCheck& interrupted, LockKind kind = LockKind::kWriter);
  // A write transaction on the live generation; the lock is held.
  Result<Snapshot> Write(Sync sync);
  // After a commit in the live generation that wrote superseded_by: follow it.
  Status SwitchTo(const std::string& generation);
  Status PointCurrentAt(uint32_t number);
  void RemoveStaleGenerations();
  void RemoveStaleIndexFiles(const Generation& live);

 private:
  StoreImpl(std::string path, Options options);
  Status Create(const InterruptCheck& interrupted);
  Status Upgrade(const InterruptCheck& interrupted);
  Result<std::shared_ptr<Generation>> OpenGeneration(const std::string& name, const Generation* before);
  Result<Snapshot> Begin(bool write, Sync sync);
  std::shared_ptr<Generation> Current() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return gen_;
  }

  const std::string path_;
  const Options options_;
  const pid_t pid_;
  std::atomic<dev_t> dev_{0};
  std::atomic<ino_t> dir_inode_{0}, data_inode_{0};
  Fd lock_fd_;
  std::mutex locks_[kLockKinds];
  mutable std::mutex mutex_;
  std::shared_ptr<Generation> gen_;  // guarded by mutex_
};

std::string GenerationName(uint32_t number);
bool ParseGenerationName(const std::string& name, uint32_t* number);
std::string VectorFileName(Kind kind, uint32_t number);
// The number in the name of a vector file, or of one that is derived from it; 0: none.
uint32_t VectorFileNumber(const std::string& name);

// EmbedderMismatch when `options` names other embedders than the store's.
Status CheckStamps(const Generation& gen, const Options& options);

// Reads the counters and the generation that followed this one ("": none) out of meta.
Status ReadMeta(Txn* txn, Counters* counters, std::string* superseded_by);

}  // namespace pymemstore
