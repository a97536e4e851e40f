// RAII over LMDB: environment, transactions, cursors, map growth, stale readers. Sole includer of lmdb.h.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "format.h"
#include "pymemstore/status.h"

struct MDB_env;
struct MDB_txn;
struct MDB_cursor;

namespace pymemstore {

struct EnvOptions {
  bool create = false;  // make data.mdb; without it a missing or empty one is an error
  bool read_only = false;
  uint64_t map_size = 0;  // 0: as large as the address space allows, up to 64 GiB or twice the file
  uint32_t max_readers = 510;
  bool no_sync = false;  // commits don't wait for the disk: only while a new environment is built; then Sync()
};

struct EnvInfo {
  uint64_t map_size = 0, map_used = 0;
  uint32_t readers = 0, max_readers = 0;
};

class Env {
 public:
  static Result<std::unique_ptr<Env>> Open(const std::string& dir, const EnvOptions& options);
  ~Env();  // no transaction may be live
  Env(const Env&) = delete;
  Env& operator=(const Env&) = delete;

  // Doubles the map (at least). Waits until no transaction of this process is live.
  Status Grow();
  // A compacted copy as dir/data.mdb; dir exists and is empty. fsynced.
  Status CopyTo(const std::string& dir);
  // Everything committed is on the disk.
  Status Sync();
  EnvInfo Info();
  void ClearStaleReaders();
  // After a fork the child may not touch the environment, not even to close it.
  void Abandon() { env_ = nullptr; }

 private:
  friend class Txn;
  friend class Cursor;
  Env() = default;
  Status OpenTables(bool create);
  // Readers pass the gate one by one, so that Grow() is not starved by a stream of them.
  void LockShared();
  void UnlockShared() { resize_mutex_.unlock_shared(); }
  Status AdoptMapSize();

  MDB_env* env_ = nullptr;
  std::string dir_;
  std::array<unsigned, kTableCount> dbi_{};
  std::mutex gate_;
  std::shared_mutex resize_mutex_;
};

// A transaction. The first failure sticks: later calls do nothing and find nothing, and status() and Commit()
// give it. So a caller may check once, at the end of a step.
class Txn {
 public:
  // `sync`: what the commit of a write transaction waits for.
  static Result<std::unique_ptr<Txn>> Begin(Env* env, bool write, Sync sync = Sync::kFull);
  ~Txn();  // aborts
  Txn(const Txn&) = delete;
  Txn& operator=(const Txn&) = delete;

  // The (first) value of a key. Valid until the next write or the end of the transaction.
  bool Get(Table table, Bytes key, Bytes* value);
  void Put(Table table, Bytes key, Bytes value);
  // False when the key (in a dup table: the pair) is there already; nothing is changed then.
  bool PutNew(Table table, Bytes key, Bytes value);
  bool Delete(Table table, Bytes key);  // with all its values
  bool DeletePair(Table table, Bytes key, Bytes value);
  uint64_t Entries(Table table);
  bool Empty(Table table) { return Entries(table) == 0; }
  // Behind the last key (in a dup table: pair) of the table.
  void Append(Table table, Bytes key, Bytes value);
  uint64_t id() const;
  // From here on the keys of what this transaction writes are noted in kJournal.
  void StartJournal() { journal_ = true; }
  // Makes the tables that an environment of an older version lacks; they can be used after the commit.
  Status CreateMissingTables();

  const Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }
  void Fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  bool map_full() const { return map_full_; }
  Status Commit();

 private:
  friend class Cursor;
  Txn(Env* env, MDB_txn* txn) : env_(env), txn_(txn) {}
  bool Has(Table table) const;
  void Note(Table table, Bytes key);
  bool Check(int rc, const char* what);  // true: rc is 0; not-found is false without failure

  Env* env_;
  MDB_txn* txn_;
  Status status_;
  bool map_full_ = false;
  bool journal_ = false;
};

class Cursor {
 public:
  Cursor(Txn* txn, Table table);
  ~Cursor();
  Cursor(const Cursor&) = delete;
  Cursor& operator=(const Cursor&) = delete;

  bool Seek(Bytes key);       // first entry with key >= `key`
  bool SeekKey(Bytes key);    // first entry of exactly `key`
  bool SeekPair(Bytes key, Bytes value);  // dup tables: of `key`, the first value >= `value`
  bool Next();
  bool NextOfKey();           // dup tables
  bool Prev();
  bool Last();
  Bytes key() const { return key_; }
  Bytes value() const { return value_; }

 private:
  bool Move(int op);
  Txn* txn_;
  MDB_cursor* cursor_ = nullptr;
  Bytes key_, value_;
};

}  // namespace pymemstore
