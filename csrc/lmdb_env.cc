#include "lmdb_env.h"

#include <fcntl.h>
#include <lmdb.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "file_util.h"

namespace pymemstore {
namespace {

constexpr uint64_t kMiB = 1ull << 20;
constexpr uint64_t kDefaultMap = 64ull << 30;
constexpr uint64_t kSmallestMap = 16 * kMiB;
constexpr unsigned kMaxTables = 64;
constexpr unsigned kAbsent = ~0u;  // a table that an older version of the format does not have

// An empty value has an address too: LMDB copies from it.
MDB_val Val(Bytes b) { return {b.size(), const_cast<char*>(b.data() ? b.data() : "")}; }
Bytes FromVal(const MDB_val& v) { return {static_cast<const char*>(v.mv_data), v.mv_size}; }

Status FromCode(int rc, const std::string& what) {
  const std::string message = what + ": " + mdb_strerror(rc);
  switch (rc) {
    case MDB_INVALID:
    case MDB_CORRUPTED:
    case MDB_PAGE_NOTFOUND:
    case MDB_PANIC:
    case MDB_VERSION_MISMATCH:
    case MDB_INCOMPATIBLE:
    case MDB_BAD_DBI:
      return Status::Corruption(message);
    case MDB_MAP_FULL:
      return Status::MapFull(message);
    case MDB_READERS_FULL:
      return Status::Locked(what + ": the reader table is full; raise max_readers or close readers");
    default:
      return Status::IOError(message, rc > 0 ? rc : 0);
  }
}

// The largest value that LMDB takes is bounded by the map; a key by its build.
int OpenOnce(const std::string& dir, const EnvOptions& options, uint64_t map_size, MDB_env** env) {
  int rc = mdb_env_create(env);
  if (rc) return rc;
  unsigned flags = MDB_NOTLS;
  if (options.read_only) flags |= MDB_RDONLY;
  if (options.no_sync) flags |= MDB_NOSYNC;
  rc = mdb_env_set_maxdbs(*env, kMaxTables);
  if (!rc) rc = mdb_env_set_maxreaders(*env, options.max_readers);
  if (!rc) rc = mdb_env_set_mapsize(*env, map_size);
  if (!rc) rc = mdb_env_open(*env, dir.c_str(), flags, 0664);
  if (rc) {
    mdb_env_close(*env);
    *env = nullptr;
  }
  return rc;
}

}  // namespace

Result<std::unique_ptr<Env>> Env::Open(const std::string& dir, const EnvOptions& options) {
  const std::string file = dir + "/data.mdb";
  struct stat st {};
  const bool there = ::stat(file.c_str(), &st) == 0;
  if (!options.create) {
    // LMDB would make a missing or empty file anew, and so turn damage into an empty store.
    if (!there) return Status::Corruption(file + " is missing");
    if (st.st_size == 0) return Status::Corruption(file + " is empty");
  }
  const uint64_t file_size = there ? static_cast<uint64_t>(st.st_size) : 0;
  uint64_t map_size = options.map_size ? options.map_size : std::max(kDefaultMap, 2 * file_size);
  map_size = std::max(map_size, std::max(file_size, kMiB));
  MDB_env* env = nullptr;
  int rc = OpenOnce(dir, options, map_size, &env);
  // Under a limit on the address space (ulimit -v) a smaller map will do: it grows when it must.
  while (rc == ENOMEM && !options.map_size && map_size / 2 >= std::max(file_size, kSmallestMap)) {
    map_size /= 2;
    rc = OpenOnce(dir, options, map_size, &env);
  }
  if (rc == ENOMEM)
    return Status::IOError("cannot map " + std::to_string(map_size) + " bytes of " + file +
                               ": not enough address space; pass a smaller map_size or raise ulimit -v",
                           ENOMEM);
  if (rc) return FromCode(rc, "cannot open " + file);
  std::unique_ptr<Env> result(new Env);
  result->env_ = env;
  result->dir_ = dir;
  result->ClearStaleReaders();
  PMS_RETURN_IF_ERROR(result->OpenTables(options.create));
  return result;
}

Env::~Env() {
  if (env_) mdb_env_close(env_);
}

Status Env::OpenTables(bool create) {
  MDB_txn* txn = nullptr;
  int rc = mdb_txn_begin(env_, nullptr, create ? 0 : MDB_RDONLY, &txn);
  if (rc == MDB_MAP_RESIZED) {
    PMS_RETURN_IF_ERROR(AdoptMapSize());
    rc = mdb_txn_begin(env_, nullptr, create ? 0 : MDB_RDONLY, &txn);
  }
  if (rc) return FromCode(rc, "cannot read " + dir_);
  for (size_t i = 0; i < kTableCount && !rc; ++i) {
    const TableInfo& info = pymemstore::Info(static_cast<Table>(i));
    const unsigned flags = (create ? MDB_CREATE : 0u) | (info.dup ? MDB_DUPSORT : 0u) | (info.fixed ? MDB_DUPFIXED : 0u);
    rc = mdb_dbi_open(txn, info.name, flags, &dbi_[i]);
    if (rc == MDB_NOTFOUND && static_cast<Table>(i) >= kFirstTableOfVersion2) {
      dbi_[i] = kAbsent;
      rc = 0;
      continue;
    }
    unsigned found = 0;
    if (!rc) rc = mdb_dbi_flags(txn, dbi_[i], &found);
    if (rc == MDB_NOTFOUND || (!rc && found != (flags & ~static_cast<unsigned>(MDB_CREATE)))) {
      mdb_txn_abort(txn);
      return Status::Corruption(dir_ + " is not a pymemstore environment: table " + info.name +
                                (rc ? " is missing" : " has other flags"));
    }
  }
  if (!rc) {
    rc = mdb_txn_commit(txn);
  } else {
    mdb_txn_abort(txn);
  }
  return rc ? FromCode(rc, "cannot open the tables of " + dir_) : Status::Ok();
}

void Env::LockShared() {
  std::lock_guard<std::mutex> pass(gate_);
  resize_mutex_.lock_shared();
}

Status Env::AdoptMapSize() {
  std::lock_guard<std::mutex> pass(gate_);
  std::unique_lock<std::shared_mutex> lock(resize_mutex_);
  const int rc = mdb_env_set_mapsize(env_, 0);
  return rc ? FromCode(rc, "cannot follow the growth of " + dir_) : Status::Ok();
}

Status Env::Grow() {
  std::lock_guard<std::mutex> pass(gate_);
  std::unique_lock<std::shared_mutex> lock(resize_mutex_);
  MDB_envinfo info;
  int rc = mdb_env_info(env_, &info);
  if (rc) return FromCode(rc, "cannot inspect " + dir_);
  const uint64_t size = info.me_mapsize;
  rc = mdb_env_set_mapsize(env_, size * 2);
  if (rc == ENOMEM) {
    // A failed remap leaves LMDB without a map: put the old size back, so that reads go on.
    mdb_env_set_mapsize(env_, size);
    return Status::MapFull("the map of " + dir_ + " (" + std::to_string(size) +
                           " bytes) is full and cannot be doubled: not enough address space (ulimit -v)");
  }
  return rc ? FromCode(rc, "cannot grow the map of " + dir_) : Status::Ok();
}

Status Env::CopyTo(const std::string& dir) {
  LockShared();
  const int rc = mdb_env_copy2(env_, dir.c_str(), MDB_CP_COMPACT);
  UnlockShared();
  if (rc) return FromCode(rc, "cannot copy " + dir_ + " to " + dir);
  PMS_ASSIGN_OR_RETURN(Fd copy, OpenFile(dir + "/data.mdb", O_RDONLY));
  return SyncFd(copy.get(), dir + "/data.mdb");
}

Status Env::Sync() {
  LockShared();
  const int rc = mdb_env_sync(env_, 1);
  UnlockShared();
  return rc ? FromCode(rc, "cannot sync " + dir_) : Status::Ok();
}

EnvInfo Env::Info() {
  LockShared();
  MDB_envinfo info{};
  MDB_stat stat{};
  mdb_env_info(env_, &info);
  mdb_env_stat(env_, &stat);
  UnlockShared();
  return {info.me_mapsize, (info.me_last_pgno + 1) * static_cast<uint64_t>(stat.ms_psize), info.me_numreaders,
          info.me_maxreaders};
}

void Env::ClearStaleReaders() {
  int dead = 0;
  mdb_reader_check(env_, &dead);
}

Result<std::unique_ptr<Txn>> Txn::Begin(Env* env, bool write, Sync sync) {
  for (int attempt = 0;; ++attempt) {
    env->LockShared();
    // A flag of the environment that only a commit looks at; the store's writer lock is held.
    if (write) mdb_env_set_flags(env->env_, MDB_NOMETASYNC, sync == Sync::kRelaxed);
    MDB_txn* txn = nullptr;
    const int rc = mdb_txn_begin(env->env_, nullptr, write ? 0 : MDB_RDONLY, &txn);
    if (!rc) return std::unique_ptr<Txn>(new Txn(env, txn));
    env->UnlockShared();
    if (attempt < 8 && rc == MDB_MAP_RESIZED) {
      PMS_RETURN_IF_ERROR(env->AdoptMapSize());
    } else if (attempt < 8 && rc == MDB_READERS_FULL) {
      env->ClearStaleReaders();
    } else {
      return FromCode(rc, "cannot begin a transaction on " + env->dir_);
    }
  }
}

Txn::~Txn() {
  if (!txn_) return;
  mdb_txn_abort(txn_);
  env_->UnlockShared();
}

bool Txn::Check(int rc, const char* what) {
  if (!rc) return true;
  if (rc == MDB_NOTFOUND) return false;
  if (rc == MDB_MAP_FULL) map_full_ = true;
  Fail(FromCode(rc, std::string(what) + " in " + env_->dir_));
  return false;
}

bool Txn::Has(Table table) const { return env_->dbi_[static_cast<size_t>(table)] != kAbsent; }

uint64_t Txn::id() const { return mdb_txn_id(txn_); }

Status Txn::CreateMissingTables() {
  for (size_t i = 0; i < kTableCount; ++i) {
    if (env_->dbi_[i] != kAbsent) continue;
    const TableInfo& info = pymemstore::Info(static_cast<Table>(i));
    const unsigned flags = MDB_CREATE | (info.dup ? MDB_DUPSORT : 0u) | (info.fixed ? MDB_DUPFIXED : 0u);
    if (!Check(mdb_dbi_open(txn_, info.name, flags, &env_->dbi_[i]), "cannot make a table")) break;
  }
  return status_;
}

// The append-only tables need no note: what is new in them is known by its key.
void Txn::Note(Table table, Bytes key) {
  if (!journal_ || table == Table::kMeta || table == Table::kJournal || table == Table::kLog || table == Table::kTriple)
    return;
  std::string noted(1, static_cast<char>(table));
  noted.append(key);
  Put(Table::kJournal, noted, Key64(id()));
}

bool Txn::Get(Table table, Bytes key, Bytes* value) {
  if (!ok() || !Has(table)) return false;
  MDB_val k = Val(key), v{};
  if (!Check(mdb_get(txn_, env_->dbi_[static_cast<size_t>(table)], &k, &v), "cannot read")) return false;
  *value = FromVal(v);
  return true;
}

void Txn::Put(Table table, Bytes key, Bytes value) {
  if (!ok()) return;
  MDB_val k = Val(key), v = Val(value);
  if (Check(mdb_put(txn_, env_->dbi_[static_cast<size_t>(table)], &k, &v, 0), "cannot write")) Note(table, key);
}

void Txn::Append(Table table, Bytes key, Bytes value) {
  if (!ok()) return;
  MDB_val k = Val(key), v = Val(value);
  const unsigned flag = pymemstore::Info(table).dup ? MDB_APPENDDUP : MDB_APPEND;
  Check(mdb_put(txn_, env_->dbi_[static_cast<size_t>(table)], &k, &v, flag), "cannot append");
}

bool Txn::PutNew(Table table, Bytes key, Bytes value) {
  if (!ok()) return false;
  MDB_val k = Val(key), v = Val(value);
  const unsigned flag = pymemstore::Info(table).dup ? MDB_NODUPDATA : MDB_NOOVERWRITE;
  const int rc = mdb_put(txn_, env_->dbi_[static_cast<size_t>(table)], &k, &v, flag);
  if (rc == MDB_KEYEXIST || !Check(rc, "cannot write")) return false;
  Note(table, key);
  return true;
}

bool Txn::Delete(Table table, Bytes key) {
  if (!ok()) return false;
  MDB_val k = Val(key);
  if (!Check(mdb_del(txn_, env_->dbi_[static_cast<size_t>(table)], &k, nullptr), "cannot delete")) return false;
  Note(table, key);
  return true;
}

bool Txn::DeletePair(Table table, Bytes key, Bytes value) {
  if (!ok()) return false;
  MDB_val k = Val(key), v = Val(value);
  if (!Check(mdb_del(txn_, env_->dbi_[static_cast<size_t>(table)], &k, &v), "cannot delete")) return false;
  Note(table, key);
  return true;
}

uint64_t Txn::Entries(Table table) {
  MDB_stat stat{};
  if (!ok() || !Has(table) || !Check(mdb_stat(txn_, env_->dbi_[static_cast<size_t>(table)], &stat), "cannot count")) return 0;
  return stat.ms_entries;
}

Status Txn::Commit() {
  if (!ok()) return status_;
  const int rc = mdb_txn_commit(txn_);
  txn_ = nullptr;
  env_->UnlockShared();
  Check(rc, "cannot commit");
  return status_;
}

Cursor::Cursor(Txn* txn, Table table) : txn_(txn) {
  if (!txn_->ok() || !txn_->Has(table)) return;
  if (!txn_->Check(mdb_cursor_open(txn_->txn_, txn_->env_->dbi_[static_cast<size_t>(table)], &cursor_),
                   "cannot open a cursor"))
    cursor_ = nullptr;
}

Cursor::~Cursor() {
  if (cursor_) mdb_cursor_close(cursor_);
}

bool Cursor::Move(int op) {
  if (!cursor_ || !txn_->ok()) return false;
  MDB_val k = Val(key_), v = Val(value_);
  if (!txn_->Check(mdb_cursor_get(cursor_, &k, &v, static_cast<MDB_cursor_op>(op)), "cannot read")) return false;
  // GET_BOTH_RANGE leaves the key as it was passed in, which may be a temporary of the caller.
  if (op != MDB_GET_BOTH_RANGE) key_ = FromVal(k);
  value_ = FromVal(v);
  return true;
}

bool Cursor::Seek(Bytes key) {
  key_ = key;
  return Move(MDB_SET_RANGE);
}
bool Cursor::SeekKey(Bytes key) {
  key_ = key;
  return Move(MDB_SET_KEY);
}
bool Cursor::SeekPair(Bytes key, Bytes value) {
  key_ = key;
  value_ = value;
  return Move(MDB_GET_BOTH_RANGE) && Move(MDB_GET_CURRENT);
}
bool Cursor::Next() { return Move(MDB_NEXT); }
bool Cursor::NextOfKey() { return Move(MDB_NEXT_DUP); }
bool Cursor::Prev() { return Move(MDB_PREV); }
bool Cursor::Last() { return Move(MDB_LAST); }

}  // namespace pymemstore
