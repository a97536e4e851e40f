#include "pymemstore/store.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <thread>
#include <unordered_set>

#include "distance.h"
#include "embed.h"
#include "maintenance.h"
#include "merge.h"
#include "query.h"
#include "store_impl.h"
#include "triple_table.h"
#include "writer.h"

namespace pymemstore {
namespace {

// Vectors behind the sealed ones that are worth sealing in the background, however few are sealed.
constexpr uint64_t kUnsealedRows = 100'000;

// Stores of this process, so that a second handle on the same files shares the first one's environment: LMDB
// loses its locks when one of two environments on a file closes. An entry stays until its store is gone for
// good, so that an open waits for a close that is under way.
struct Registry {
  std::mutex opening;  // before `mutex`
  std::mutex mutex;    // of `stores`
  std::condition_variable gone;
  std::vector<std::pair<StoreImpl*, std::weak_ptr<StoreImpl>>> stores;
  pid_t pid = ::getpid();
};

Registry& TheRegistry() {
  static std::atomic<Registry*> registry{new Registry};
  Registry* r = registry.load();
  if (r->pid != ::getpid()) {
    // After a fork: the parent's stores are not ours, and its mutex may have been held.
    Registry* fresh = new Registry;
    if (registry.compare_exchange_strong(r, fresh)) return *fresh;
    delete fresh;
    return *registry.load();
  }
  return *r;
}

// Deletes a store and tells those who wait to open it again.
void Retire(StoreImpl* impl) {
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> lock(registry.mutex);
  auto& stores = registry.stores;
  stores.erase(std::remove_if(stores.begin(), stores.end(), [&](auto& entry) { return entry.first == impl; }),
               stores.end());
  delete impl;
  registry.gone.notify_all();
}

// Absolute, without links as far as it exists, so that the store stays itself when the working directory changes.
Result<std::string> Canonical(const std::string& path) {
  if (path.empty()) return Status::InvalidArgument("the path of the store is empty");
  if (path.find('\0') != std::string::npos) return Status::InvalidArgument("the path of the store holds a NUL");
  std::error_code error;
  std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (!error) absolute = std::filesystem::weakly_canonical(absolute, error);
  std::string result = absolute.string();
  if (error) return Status::IOError("cannot resolve " + path + ": " + error.message(), error.value());
  while (result.size() > 1 && result.back() == '/') result.pop_back();
  return result;
}

std::shared_ptr<StoreImpl> FindOpen(Registry* registry, const std::string& path) {
  std::shared_ptr<StoreImpl> found;  // outlives the lock: Retire() takes it
  std::unique_lock<std::mutex> lock(registry->mutex);
  for (;;) {
    struct stat dir {};
    if (::stat(path.c_str(), &dir) != 0) return nullptr;
    ino_t data_inode = 0;
    auto current = ReadSmallFile(path + "/CURRENT");
    if (current.ok() && !current->empty()) {
      current->pop_back();
      struct stat data {};
      if (::stat((path + "/" + *current + "/data.mdb").c_str(), &data) == 0) data_inode = data.st_ino;
    }
    bool closing = false;
    for (auto& [impl, weak] : registry->stores) {
      if (!impl->SameFiles(dir.st_dev, dir.st_ino, data_inode)) continue;
      if ((found = weak.lock())) return found;
      closing = true;
    }
    if (!closing) return nullptr;
    registry->gone.wait(lock);
  }
}

}  // namespace

EngineInfo GetEngineInfo() { return {kFormatVersion, KernelName(), KernelNote()}; }
bool NormaliseVector(const float* v, size_t dim, float* out) { return Normalise(v, dim, out); }
double CanonicalScore(const float* a, const float* b, size_t dim) { return CanonicalDot(a, b, dim); }
std::string QuoteName(std::string_view text) { return Quote(text); }

Result<std::unique_ptr<Store>> Store::Open(const std::string& given_path, const Options& options,
                                           const InterruptCheck& interrupted) {
  PMS_ASSIGN_OR_RETURN(const std::string path, Canonical(given_path));
  Registry& registry = TheRegistry();
  // Opening may wait for another process, so closing, which only needs the list, has another mutex.
  std::lock_guard<std::mutex> one_by_one(registry.opening);
  std::shared_ptr<StoreImpl> impl = FindOpen(&registry, path);
  if (impl) {
    if (impl->options().read_only && !options.read_only)
      return Status::InvalidArgument(path + " is open read-only in this process; close it before opening it to write");
    if (!options.stamps_if_new) {
      PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Read());
      PMS_RETURN_IF_ERROR(CheckStamps(*snapshot.gen, options));
    }
  } else {
    PMS_ASSIGN_OR_RETURN(std::unique_ptr<StoreImpl> opened, StoreImpl::Open(path, options, interrupted));
    impl = std::shared_ptr<StoreImpl>(opened.release(), Retire);
    std::lock_guard<std::mutex> lock(registry.mutex);
    registry.stores.emplace_back(impl.get(), impl);
  }
  return std::unique_ptr<Store>(new Store(std::move(impl), given_path, options));
}

Store::Store(std::shared_ptr<StoreImpl> impl, std::string path, const Options& options)
    : impl_(std::move(impl)),
      path_(std::move(path)),
      read_only_(options.read_only),
      sync_(options.sync),
      timeout_s_(options.timeout_s),
      threads_(options.threads > 0 ? options.threads
                                   : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))),
      pid_(::getpid()),
      auto_merge_(options.auto_merge && !options.read_only),
      merge_rows_(options.merge_rows) {}

Store::~Store() { Close(); }

void Store::Close() {
  closed_ = true;
  EndMerge();
  std::shared_ptr<StoreImpl> last;  // goes after the lock: closing takes a while
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  if (pid_ == ::getpid()) lock.lock();
  last.swap(impl_);
}

bool Store::closed() const { return closed_; }

Result<std::shared_ptr<StoreImpl>> Store::Get() const {
  if (closed_) return Status::Closed(path_ + " is closed");
  if (pid_ != ::getpid())
    return Status::Closed(path_ + " was opened by process " + std::to_string(pid_) +
                          ", which forked this one: open it again here");
  std::lock_guard<std::mutex> lock(mutex_);
  if (!impl_) return Status::Closed(path_ + " is closed");
  return impl_;
}

Result<std::pair<EmbedderStamp, EmbedderStamp>> Store::Stamps() {
  PMS_ASSIGN_OR_RETURN(auto impl, Get());
  PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Read());
  return std::make_pair(snapshot.gen->stamp[0], snapshot.gen->stamp[1]);
}

Result<ApplyResult> Store::Apply(const Batch& batch, const InterruptCheck& interrupted) {
  PMS_ASSIGN_OR_RETURN(auto impl, Get());
  if (read_only_) return Status::ReadOnly(path_ + " is open read-only");
  PMS_ASSIGN_OR_RETURN(WriterLock lock, impl->Lock(timeout_s_, interrupted));
  for (;;) {
    PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Write(sync_));
    ApplyResult result;
    Writer writer(&snapshot, batch);
    Status status = writer.Run(interrupted, &result);
    if (status.ok()) status = writer.Finish(&result);
    const uint64_t delta_rows = snapshot->Entries(Table::kSpo);
    if (status.ok()) status = snapshot.txn->Commit();
    if (status.ok()) {
      MaybeMerge(impl, *snapshot.gen, writer.counters(), delta_rows);
      return result;
    }
    // A full map dooms the transaction: grow with none live, then all of the batch again.
    if (!snapshot.txn->map_full()) return status;
    snapshot.txn.reset();
    PMS_RETURN_IF_ERROR(snapshot.gen->env->Grow());
  }
}

void Store::MaybeMerge(const std::shared_ptr<StoreImpl>& impl, const Generation& gen, const Counters& counters,
                       uint64_t delta_rows) {
  if (!auto_merge_) return;
  const bool merge = delta_rows >= std::max(merge_rows_, counters.triples / 100);
  const uint64_t rows = counters.rows[0], sealed = gen.index[0]->SealedRows();
  const bool seal = rows >= sealed + std::max(kUnsealedRows, sealed / 4);
  if (!merge && !seal) return;
  std::lock_guard<std::mutex> lock(merge_mutex_);
  if (merging_ || closed_) return;
  if (merger_.joinable()) merger_.join();  // it has ended
  merging_ = true;
  merger_ = std::thread([this, impl, merge, seal] {
    // Signals are for the caller's threads: one that came here would not wake them.
    sigset_t all;
    sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, nullptr);
    // Somebody else's merge is as good. The writer's lock is still the caller's at first.
    MergeOptions options;
    options.wait = false;
    const InterruptCheck closing = [this] { return closed_.load(); };
    Status status = merge ? MergeStore(impl.get(), options, 3600, {}, closing) : Status::Ok();
    // With one thread: nobody waits for it.
    if (status.ok() && seal) status = ReindexStore(impl.get(), {}, 1, 0, {}, closing);
    const bool told = !status.ok() && status.code() != Code::kLocked && status.code() != Code::kInterrupted;
    std::lock_guard<std::mutex> done(merge_mutex_);
    merge_error_ = told ? status.message() : "";
    merging_ = false;
  });
}

void Store::EndMerge() {
  if (pid_ != ::getpid()) {
    if (merger_.joinable()) merger_.detach();  // a forked child has no such thread
    return;
  }
  std::thread ending;
  {
    std::lock_guard<std::mutex> lock(merge_mutex_);
    ending.swap(merger_);
  }
  if (ending.joinable()) ending.join();
}

Result<std::vector<size_t>> Store::Lacking(Kind kind, const std::vector<std::string_view>& names) {
  PMS_ASSIGN_OR_RETURN(auto impl, Get());
  PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Read());
  std::vector<size_t> result;
  std::unordered_set<std::string_view> seen;
  const NameTable& table = snapshot.gen->names[Index(kind)];
  for (size_t i = 0; i < names.size(); ++i) {
    NameId id = kNoName;
    NameRecord record;
    if (!seen.insert(names[i]).second) continue;
    if (!table.Find(snapshot.txn.get(), names[i], &id) || !table.Get(snapshot.txn.get(), id, &record) ||
        !record.row_plus_1)
      result.push_back(i);
  }
  PMS_RETURN_IF_ERROR(snapshot->status());
  return result;
}

Result<std::vector<QueryResult>> Store::RunQueries(const std::vector<Query>& queries, NameMap* names,
                                                   const InterruptCheck& interrupted) {
  PMS_ASSIGN_OR_RETURN(auto impl, Get());
  PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Read());
  return pymemstore::RunQueries(&snapshot, queries, threads_, interrupted, names);
}

Result<std::vector<std::vector<ScoredName>>> Store::Similar(Kind kind, const float* vectors, size_t n, uint32_t dim,
                                                            double tau, int64_t limit, SearchMode search,
                                                            NameMap* names,
                                                            const InterruptCheck& interrupted) {
  PMS_ASSIGN_OR_RETURN(auto impl, Get());
  if (!(tau >= -1 && tau <= 1))
    return Status::InvalidArgument("tau is " + std::to_string(tau) + "; a threshold lies in [-1, 1]");
  PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Read());
  const uint32_t stored = snapshot.gen->index[Index(kind)]->dim();
  if (dim != stored)
    return Status::InvalidArgument("the vector has dimension " + std::to_string(dim) + "; the store's have " +
                                   std::to_string(stored));
  return RunSimilar(&snapshot, kind, vectors, n, tau, limit, search, threads_, interrupted, names);
}

namespace {

// The readers below share these steps.
Result<Triple> Materialise(Snapshot* snapshot, const TripleIds& t, TripleId id, bool forgotten_too) {
  auto text = [&](Kind kind, NameId name) {
    NameRecord record;
    const NameTable& table = snapshot->gen->names[Index(kind)];
    const bool found = forgotten_too ? table.GetForgotten(snapshot->txn.get(), name, &record)
                                     : table.Get(snapshot->txn.get(), name, &record);
    if (found) return std::string(record.name);
    snapshot->txn->Fail(Status::Corruption("triple " + std::to_string(id) + " names " + KindName(kind) + " " +
                                           std::to_string(name) + ", which the store does not have"));
    return std::string();
  };
  Triple triple{text(Kind::kEntity, t.s), text(Kind::kRelation, t.r), text(Kind::kEntity, t.o), id};
  PMS_RETURN_IF_ERROR(snapshot->txn->status());
  return triple;
}

Result<NameId> KnownName(Snapshot* snapshot, Kind kind, std::string_view name) {
  NameId id = kNoName;
  if (snapshot->gen->names[Index(kind)].Find(snapshot->txn.get(), name, &id)) return id;
  PMS_RETURN_IF_ERROR(snapshot->txn->status());
  return Status::NotFound(std::string("there is no ") + KindName(kind) + " " + Quote(name));
}

double Seconds(uint64_t micros) { return static_cast<double>(micros) * 1e-6; }

}  // namespace

Result<TripleId> Store::Find(std::string_view s, std::string_view r, std::string_view o) {
  PMS_ASSIGN_OR_RETURN(auto impl, Get());
  PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Read());
  Txn* txn = snapshot.txn.get();
  const auto& names = snapshot.gen->names;
  TripleIds t;
  TripleId id = kNoTriple;
  if (names[0].Find(txn, s, &t.s) && names[1].Find(txn, r, &t.r) && names[0].Find(txn, o, &t.o))
    id = TripleTable::Find(txn, t);
  PMS_RETURN_IF_ERROR(txn->status());
  return id;
}

Result<Triple> Store::GetTriple(TripleId id) {
  PMS_ASSIGN_OR_RETURN(auto impl, Get());
  PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Read());
  TripleIds t;
  if (TripleTable::Lookup(snapshot.txn.get(), id, &t) && TripleTable::Find(snapshot.txn.get(), t) == id)
    return Materialise(&snapshot, t, id, false);
  PMS_RETURN_IF_ERROR(snapshot->status());
  return Status::NotFound("there is no triple " + std::to_string(id));
}

Result<std::vector<std::pair<NameId, std::string>>> Store::Names(Kind kind, NameId first, size_t count) {
  PMS_ASSIGN_OR_RETURN(auto impl, Get());
  PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Read());
  std::vector<std::pair<NameId, std::string>> result;
  NameCursor c(snapshot.txn.get(), kind);
  for (bool more = c.Seek(first); more && result.size() < count; more = c.Next())
    if (c.record().live()) result.emplace_back(c.id(), c.record().name);
  PMS_RETURN_IF_ERROR(snapshot->status());
  return result;
}

Result<std::vector<std::pair<NameId, std::string>>> Store::Unembedded(Kind kind, NameId first, size_t count) {
  PMS_ASSIGN_OR_RETURN(auto impl, Get());
  PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Read());
  std::vector<std::pair<NameId, std::string>> result;
  const NameTable& table = snapshot.gen->names[Index(kind)];
  for (NameId id = first; result.size() < count && table.NextUnembedded(snapshot.txn.get(), snapshot.counters.sealed, &id);
       ++id) {
    NameRecord record;
    if (table.Get(snapshot.txn.get(), id, &record)) result.emplace_back(id, record.name);
  }
  PMS_RETURN_IF_ERROR(snapshot->status());
  return result;
}

Result<std::vector<Triple>> Store::Triples(const std::optional<std::string>& s, const std::optional<std::string>& r,
                                           const std::optional<std::string>& o, std::string* cursor, size_t count) {
  PMS_ASSIGN_OR_RETURN(auto impl, Get());
  PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Read());
  Txn* txn = snapshot.txn.get();
  const auto& names = snapshot.gen->names;
  NameId si = kNoName, ri = kNoName, oi = kNoName;
  if ((s && !names[0].Find(txn, *s, &si)) || (r && !names[1].Find(txn, *r, &ri)) || (o && !names[0].Find(txn, *o, &oi))) {
    PMS_RETURN_IF_ERROR(txn->status());
    cursor->clear();
    return std::vector<Triple>();
  }
  std::vector<Triple> result;
  for (const StoredTriple& t :
       TripleTable::Page(txn, s ? &si : nullptr, r ? &ri : nullptr, o ? &oi : nullptr, cursor, count)) {
    PMS_ASSIGN_OR_RETURN(Triple triple, Materialise(&snapshot, t.ids, t.id, false));
    result.push_back(std::move(triple));
  }
  PMS_RETURN_IF_ERROR(txn->status());
  return result;
}

Result<std::vector<Change>> Store::Changes(uint64_t since, size_t count) {
  PMS_ASSIGN_OR_RETURN(auto impl, Get());
  PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Read());
  Txn* txn = snapshot.txn.get();
  std::vector<Change> result;
  auto triple_of = [&](TripleId id) -> Result<Triple> {
    TripleIds t;
    if (TripleTable::Lookup(txn, id, &t)) return Materialise(&snapshot, t, id, true);
    PMS_RETURN_IF_ERROR(txn->status());
    return Status::Corruption("the edit log names triple " + std::to_string(id) + ", which the store never had");
  };
  Cursor c(txn, Table::kLog);
  // An addition's row covers the sequence numbers up to the next row's.
  bool more = c.Seek(Key64(since + 1));
  if (!more || GetBe64(c.key().data()) > since + 1) {
    const bool before = more ? c.Prev() : c.Last();
    more = before || (more && c.Seek(Key64(since + 1)));
  }
  for (; more && result.size() < count; more = c.Next()) {
    LogRecord record;
    const uint64_t first = GetBe64(c.key().data());
    if (!DecodeLog(c.value(), &record))
      return Status::Corruption("row " + std::to_string(first) + " of the edit log is damaged");
    const uint64_t last = first + (record.type == ChangeType::kAdd ? record.count : 1) - 1;
    for (uint64_t seq = std::max(first, since + 1); seq <= last && result.size() < count; ++seq) {
      Change change;
      change.seq = seq;
      change.type = record.type;
      change.time = Seconds(record.time_us);
      if (record.type == ChangeType::kAdd || record.type == ChangeType::kRemove ||
          record.type == ChangeType::kReplace) {
        PMS_ASSIGN_OR_RETURN(change.triple, triple_of(record.triple + (seq - first)));
        for (TripleId id : record.removed) {
          PMS_ASSIGN_OR_RETURN(Triple removed, triple_of(id));
          change.removed.push_back(std::move(removed));
        }
      } else if (record.type == ChangeType::kForget || record.type == ChangeType::kRename) {
        change.name = record.text;
        change.other = record.other;
      } else {
        NameRecord name;
        if (snapshot.gen->names[Index(record.kind)].GetForgotten(txn, record.name, &name))
          change.name = std::string(name.name);
        change.other = record.text;
      }
      result.push_back(std::move(change));
    }
  }
  PMS_RETURN_IF_ERROR(txn->status());
  return result;
}

Result<std::vector<float>> Store::Vector(Kind kind, std::string_view name) {
  PMS_ASSIGN_OR_RETURN(auto impl, Get());
  PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Read());
  PMS_ASSIGN_OR_RETURN(const NameId id, KnownName(&snapshot, kind, name));
  NameRecord record;
  if (!snapshot.gen->names[Index(kind)].Get(snapshot.txn.get(), id, &record) || !record.row_plus_1) {
    PMS_RETURN_IF_ERROR(snapshot->status());
    return std::vector<float>();
  }
  PMS_ASSIGN_OR_RETURN(PinnedRows rows,
                       snapshot.gen->index[Index(kind)]->file().Rows(snapshot.counters.rows[Index(kind)]));
  const uint64_t row = record.row_plus_1 - 1;
  if (row >= rows.view.rows || rows.owner(row) != id || !VectorFile::RowIsWhole(rows, row))
    return Status::Corruption("the vector of " + Quote(name) + " is damaged");
  return std::vector<float>(rows.view.row(row), rows.view.row(row) + rows.view.dim);
}

Result<std::vector<std::string>> Store::Aliases(Kind kind, std::string_view name) {
  PMS_ASSIGN_OR_RETURN(auto impl, Get());
  PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Read());
  PMS_ASSIGN_OR_RETURN(const NameId id, KnownName(&snapshot, kind, name));
  auto result = snapshot.gen->names[Index(kind)].Aliases(snapshot.txn.get(), id);
  PMS_RETURN_IF_ERROR(snapshot->status());
  return result;
}

Result<std::vector<std::string>> Store::NamedBy(Kind kind, std::string_view alias) {
  PMS_ASSIGN_OR_RETURN(auto impl, Get());
  PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Read());
  std::vector<std::string> result;
  const NameTable& table = snapshot.gen->names[Index(kind)];
  for (NameId id : table.NamedBy(snapshot.txn.get(), alias)) {
    NameRecord record;
    if (table.Get(snapshot.txn.get(), id, &record)) result.emplace_back(record.name);
  }
  PMS_RETURN_IF_ERROR(snapshot->status());
  return result;
}

Result<std::vector<std::string>> Store::ExternalIds(Kind kind, std::string_view name) {
  PMS_ASSIGN_OR_RETURN(auto impl, Get());
  PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Read());
  PMS_ASSIGN_OR_RETURN(const NameId id, KnownName(&snapshot, kind, name));
  auto result = snapshot.gen->names[Index(kind)].ExternalIds(snapshot.txn.get(), id);
  PMS_RETURN_IF_ERROR(snapshot->status());
  return result;
}

Result<std::optional<std::string>> Store::ByExternalId(Kind kind, std::string_view external_id) {
  PMS_ASSIGN_OR_RETURN(auto impl, Get());
  PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Read());
  std::optional<std::string> result;
  const NameTable& table = snapshot.gen->names[Index(kind)];
  NameId id = kNoName;
  NameRecord record;
  if (table.ByExternalId(snapshot.txn.get(), external_id, &id) && table.Get(snapshot.txn.get(), id, &record))
    result = std::string(record.name);
  PMS_RETURN_IF_ERROR(snapshot->status());
  return result;
}

Result<std::vector<SourceRecord>> Store::Sources(TripleId id) {
  PMS_ASSIGN_OR_RETURN(auto impl, Get());
  PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Read());
  Txn* txn = snapshot.txn.get();
  TripleIds t;
  if (!TripleTable::Lookup(txn, id, &t) || TripleTable::Find(txn, t) != id) {
    PMS_RETURN_IF_ERROR(txn->status());
    return Status::NotFound("there is no triple " + std::to_string(id));
  }
  std::vector<std::pair<uint64_t, uint32_t>> found;
  {
    Cursor c(txn, Table::kProvenance);
    for (bool more = c.SeekKey(Key64(id)); more; more = c.NextOfKey())
      found.emplace_back(GetBe64(c.value().data() + 4), GetBe32(c.value().data()));
  }
  if (!txn->Empty(Table::kLoad)) {
    Cursor c(txn, Table::kLoad);
    LoadRecord load;
    if (SeekBlock(&c, Key64(id))) {
      if (!DecodeLoad(c.value(), &load)) return Status::Corruption("the record of a bulk load is damaged");
      if (load.source && id - GetBe64(c.key().data()) < load.count) found.emplace_back(load.time_us, load.source - 1);
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<SourceRecord> result;
  for (const auto& [time_us, source] : found) {
    SourceRecord record;
    record.time = Seconds(time_us);
    if (!SourceText(txn, source, &record.source)) return Status::Corruption("a provenance record names no source");
    result.push_back(std::move(record));
  }
  PMS_RETURN_IF_ERROR(txn->status());
  return result;
}

Result<Stats> Store::GetStats() {
  PMS_ASSIGN_OR_RETURN(auto impl, Get());
  PMS_ASSIGN_OR_RETURN(Stats stats, CollectStats(impl.get()));
  std::lock_guard<std::mutex> lock(merge_mutex_);
  stats.merge_error = merge_error_;
  return stats;
}

Result<CheckReport> Store::Check(const InterruptCheck& interrupted) {
  PMS_ASSIGN_OR_RETURN(auto impl, Get());
  return CheckStore(impl.get(), interrupted);
}

Result<std::pair<uint64_t, uint64_t>> Store::Compact(const BuildProgress& progress, const InterruptCheck& interrupted) {
  PMS_ASSIGN_OR_RETURN(auto impl, Get());
  if (read_only_) return Status::ReadOnly(path_ + " is open read-only");
  const IndexInfo before = [&]() -> IndexInfo {
    auto snapshot = impl->Read();
    return snapshot.ok() ? snapshot->gen->index[0]->Info() : IndexInfo();
  }();
  PMS_ASSIGN_OR_RETURN(auto bytes, CompactStore(impl.get(), timeout_s_, progress, interrupted));
  if (before.sealed_rows == 0) return bytes;
  // Its vectors may have moved to a new file.
  ReindexOptions options;
  options.graph = before.graph_rows > 0;
  PMS_RETURN_IF_ERROR(ReindexStore(impl.get(), options, threads_, timeout_s_, progress, interrupted));
  return std::make_pair(bytes.first, DiskBytes(impl->path()));
}

Result<uint64_t> Store::EmbedSurface(uint64_t most, const InterruptCheck& interrupted) {
  PMS_ASSIGN_OR_RETURN(auto impl, Get());
  if (read_only_) return Status::ReadOnly(path_ + " is open read-only");
  PMS_ASSIGN_OR_RETURN(const uint64_t count, EmbedSurfaceNames(impl.get(), most, threads_, timeout_s_, sync_, interrupted));
  PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Read());
  MaybeMerge(impl, *snapshot.gen, snapshot.counters, 0);
  return count;
}

Status Store::BuildRules(const BuildProgress& progress, const InterruptCheck& interrupted) {
  PMS_ASSIGN_OR_RETURN(auto impl, Get());
  if (read_only_) return Status::ReadOnly(path_ + " is open read-only");
  {
    PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Read());
    if (snapshot.counters.ruled >= snapshot.counters.sealed) return Status::Ok();
  }
  MergeOptions options;
  options.rules = true;
  return MergeStore(impl.get(), options, timeout_s_, progress, interrupted);
}

Status Store::Reindex(bool graph, bool force, const BuildProgress& progress, const InterruptCheck& interrupted) {
  PMS_ASSIGN_OR_RETURN(auto impl, Get());
  if (read_only_) return Status::ReadOnly(path_ + " is open read-only");
  ReindexOptions options;
  options.graph = graph;
  options.force = force;
  return ReindexStore(impl.get(), options, threads_, timeout_s_, progress, interrupted);
}

Status Store::Backup(const std::string& path) {
  PMS_ASSIGN_OR_RETURN(auto impl, Get());
  PMS_ASSIGN_OR_RETURN(const std::string target, Canonical(path));
  return BackupStore(impl.get(), target);
}

}  // namespace pymemstore
