#include "maintenance.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "triple_table.h"

namespace pymemstore {
namespace {

constexpr size_t kProblemsKept = 100;

Stats StatsOf(Snapshot* snapshot, const std::string& path) {
  Txn* txn = snapshot->txn.get();
  Stats stats;
  for (Kind kind : {Kind::kEntity, Kind::kRelation}) {
    const size_t k = Index(kind);
    stats.names[k] = snapshot->counters.live[k];
    stats.unembedded[k] = snapshot->counters.live[k] - snapshot->counters.embedded[k];
    stats.vector_rows[k] = snapshot->counters.rows[k];
    stats.index[k] = snapshot->gen->index[k]->Info();
    stats.aliases += txn->Entries(KindTable(Table::kEntAlias, kind));
    stats.external_ids += txn->Entries(KindTable(Table::kEntExternal, kind));
  }
  stats.triples = snapshot->counters.triples;
  stats.delta_rows = txn->Entries(Table::kSpo);
  stats.sealed_names = snapshot->counters.sealed;
  stats.unruled = snapshot->counters.sealed - std::min(snapshot->counters.sealed, snapshot->counters.ruled);
  stats.seq = snapshot->counters.seq;
  stats.generation = snapshot->gen->number;
  stats.format_version = snapshot->gen->version;
  stats.store_id = Hex(snapshot->gen->store_id);
  stats.disk_bytes = DiskBytes(path);
  return stats;
}

// Walks every table and compares it with those it must agree with.
class Checker {
 public:
  Checker(Snapshot* snapshot, const InterruptCheck& interrupted, CheckReport* report)
      : snap_(*snapshot), txn_(snapshot->txn.get()), interrupted_(interrupted), report_(*report) {}

  Status Run() {
    for (Kind kind : {Kind::kEntity, Kind::kRelation}) {
      PMS_RETURN_IF_ERROR(CheckNames(kind));
      PMS_RETURN_IF_ERROR(CheckAliases(kind));
    }
    PMS_RETURN_IF_ERROR(CheckTriples());
    for (Kind kind : {Kind::kEntity, Kind::kRelation}) {
      const std::string problem = snap_.gen->index[Index(kind)]->CheckFiles();
      if (!problem.empty()) Problem(problem + " (reindex makes it anew)");
    }
    return CheckHistory();
  }

 private:
  void Problem(std::string text) {
    ++report_.problem_count;
    if (report_.problems.size() < kProblemsKept) report_.problems.push_back(std::move(text));
  }
  bool Stop() { return ++steps_ % 4096 == 0 && interrupted_ && interrupted_(); }

  Status CheckNames(Kind kind) {
    const NameTable& table = snap_.gen->names[Index(kind)];
    const std::string what = KindName(kind);
    PMS_ASSIGN_OR_RETURN(const PinnedRows rows,
                         snap_.gen->index[Index(kind)]->file().Rows(snap_.counters.rows[Index(kind)]));
    uint64_t live = 0, pending = 0, listed = 0, next = 0;
    NameCursor c(txn_, kind);
    for (bool more = c.Seek(0); more; more = c.Next()) {
      if (Stop()) return Status::Interrupted();
      const NameId id = c.id();
      const std::string label = what + " " + std::to_string(id);
      if (id != next) Problem(label + " does not follow the one before");
      next = id + 1;
      const NameRecord record = c.record();
      if (!record.live()) continue;
      ++live;
      NameRecord direct;
      if (!table.Get(txn_, id, &direct) || direct.name != record.name || direct.row_plus_1 != record.row_plus_1)
        Problem(label + ": two ways to its record differ");
      NameId found = kNoName;
      if (!table.Find(txn_, record.name, &found) || found != id)
        Problem(label + " " + Quote(record.name) + ": its name does not lead back to it");
      Bytes unused;
      const bool waits = txn_->Get(table.table(Table::kEntPending), Key32(id), &unused);
      const bool delta = txn_->Get(table.table(Table::kEntName), Key32(id), &unused);
      pending += record.row_plus_1 == 0;
      listed += waits;
      if (waits != (delta && record.row_plus_1 == 0))
        Problem(label + ": its vector and the list of those that wait disagree");
      const bool ruled = kind == Kind::kRelation || id < snap_.counters.ruled || id >= snap_.counters.sealed;
      NameTable::RuleKeys keys;
      table.CollectNameKeys(id, record.name, &keys);
      if (ruled) CheckKeys(table, keys, label + " " + Quote(record.name));
      if (!record.row_plus_1) continue;
      const uint64_t row = record.row_plus_1 - 1;
      if (row >= rows.view.rows || rows.owner(row) != id) {
        Problem(label + " " + Quote(record.name) + ": its vector is not in the vector file");
      } else if (!VectorFile::RowIsWhole(rows, row)) {
        Problem(label + " " + Quote(record.name) + ": the checksum of its vector does not fit");
      }
    }
    if (next != snap_.counters.next_name[Index(kind)]) Problem("the counter of " + what + " ids is not the next one");
    if (live != snap_.counters.live[Index(kind)]) Problem("the counter of " + what + " names is wrong");
    if (pending != live - snap_.counters.embedded[Index(kind)]) Problem("the counter of " + what + " vectors is wrong");
    if (listed != txn_->Entries(table.table(Table::kEntPending))) Problem("names that are not there wait for vectors");
    return txn_->status();
  }

  void CheckKeys(const NameTable& table, const NameTable::RuleKeys& keys, const std::string& label) {
    for (const auto& [key, owner] : keys) {
      const std::vector<NameId> ids = table.ByRuleKey(txn_, key);
      if (std::find(ids.begin(), ids.end(), owner) == ids.end())
        Problem(label + ": a rule key is missing");
    }
  }

  Status CheckAliases(Kind kind) {
    const NameTable& table = snap_.gen->names[Index(kind)];
    uint64_t rows = 0;
    Cursor c(txn_, table.table(Table::kEntAlias));
    for (bool more = c.Seek(Key32(0)); more; more = c.Next(), ++rows) {
      if (Stop()) return Status::Interrupted();
      const NameId id = GetBe32(c.key().data());
      NameRecord record;
      if (!table.Get(txn_, id, &record)) Problem("the alias " + Quote(c.value()) + " belongs to no name");
      const std::vector<NameId> named = table.NamedBy(txn_, std::string(c.value()));
      if (std::find(named.begin(), named.end(), id) == named.end())
        Problem("the alias " + Quote(c.value()) + " does not lead to its name");
      NameTable::RuleKeys keys;
      table.CollectAliasKeys(id, c.value(), &keys);
      if (kind == Kind::kRelation || id < snap_.counters.ruled || id >= snap_.counters.sealed)
        CheckKeys(table, keys, "the alias " + Quote(c.value()));
    }
    if (rows != txn_->Entries(table.table(Table::kEntAliasHash))) Problem("the alias index has other entries than aliases");
    Cursor x(txn_, table.table(Table::kEntExternal));
    for (bool more = x.Seek(Bytes("\0", 1)); more; more = x.Next()) {
      NameRecord record;
      if (x.value().size() != 4 || !table.Get(txn_, GetBe32(x.value().data()), &record))
        Problem("the external id " + Quote(x.key()) + " belongs to no name");
      Cursor back(txn_, table.table(Table::kEntExternalOf));
      if (!back.SeekPair(x.value(), x.key()) || back.value() != x.key())
        Problem("the external id " + Quote(x.key()) + " is missing at its name");
    }
    if (txn_->Entries(table.table(Table::kEntExternal)) != txn_->Entries(table.table(Table::kEntExternalOf)))
      Problem("the two orders of external ids differ in length");
    return txn_->status();
  }

  Status CheckHistory() {
    uint64_t next = 1;
    Cursor c(txn_, Table::kLog);
    for (bool more = c.Seek(Key64(0)); more; more = c.Next()) {
      if (Stop()) return Status::Interrupted();
      const uint64_t seq = GetBe64(c.key().data());
      const std::string label = "row " + std::to_string(seq) + " of the edit log";
      LogRecord record;
      if (!DecodeLog(c.value(), &record)) {
        Problem(label + " is damaged");
        next = seq + 1;
        continue;
      }
      if (seq != next) Problem(label + " does not follow the one before");
      next = seq + (record.type == ChangeType::kAdd ? record.count : 1);
      if (record.type == ChangeType::kAdd) CheckAdded(record, label);
      std::vector<TripleId> ids = record.removed;
      if (record.type == ChangeType::kAdd || record.type == ChangeType::kRemove || record.type == ChangeType::kReplace)
        ids.push_back(record.triple);
      TripleIds unused;
      for (TripleId id : ids)
        if (!TripleTable::Lookup(txn_, id, &unused)) Problem(label + " names a triple that the store never had");
    }
    if (next != snap_.counters.seq + 1) Problem("the edit log ends before its counter");
    Cursor p(txn_, Table::kProvenance);
    for (bool more = p.Seek(Key64(0)); more; more = p.Next()) {
      if (Stop()) return Status::Interrupted();
      std::string text;
      TripleIds t;
      const TripleId id = GetBe64(p.key().data());
      if (!SourceText(txn_, GetBe32(p.value().data()), &text)) Problem("triple " + std::to_string(id) + ": a source has no text");
      if (!TripleTable::Lookup(txn_, id, &t) || TripleTable::Find(txn_, t) != id)
        Problem("sources are kept for triple " + std::to_string(id) + ", which is not there");
    }
    return txn_->status();
  }

  // The last of a run of additions; the first is looked up like every id of the log.
  void CheckAdded(const LogRecord& record, const std::string& label) {
    TripleIds unused;
    if (!TripleTable::Lookup(txn_, record.triple + record.count - 1, &unused))
      Problem(label + " names a triple that the store never had");
  }

  Status CheckTriples() {
    NameRecord record;
    uint64_t rows = 0, by_object = 0;
    TripleCursor c(txn_, false), back(txn_, true);
    for (bool more = c.Seek(0, 0, 0); more; more = c.Next(), ++rows) {
      if (Stop()) return Status::Interrupted();
      const auto [t, id] = c.triple();
      const std::string label = "triple " + std::to_string(id);
      if (!snap_.gen->names[0].Get(txn_, t.s, &record)) Problem(label + ": its subject is unknown");
      if (!snap_.gen->names[1].Get(txn_, t.r, &record)) Problem(label + ": its relation is unknown");
      if (!snap_.gen->names[0].Get(txn_, t.o, &record)) Problem(label + ": its object is unknown");
      if (TripleTable::Find(txn_, t) != id) Problem(label + ": it is not found by its parts");
      if (!back.Seek(t.o, t.r, id) || !back.row().SameKey(OpsRow(t, id)) || back.row().x != t.s)
        Problem(label + ": it is missing in the order by object");
      TripleIds by_id;
      if (!TripleTable::Lookup(txn_, id, &by_id) || !(by_id == t)) Problem(label + ": its id leads elsewhere");
      if (id >= snap_.counters.next_triple) Problem(label + ": the counter of ids is behind");
    }
    for (bool more = back.Seek(0, 0, 0); more; more = back.Next(), ++by_object)
      if (Stop()) return Status::Interrupted();
    if (rows != by_object) Problem("the two orders of triples differ in length");
    if (rows != snap_.counters.triples) Problem("the counter of triples is wrong");
    return txn_->status();
  }

  Snapshot& snap_;
  Txn* txn_;
  const InterruptCheck& interrupted_;
  CheckReport& report_;
  uint64_t steps_ = 0;
};

}  // namespace

Result<Stats> CollectStats(StoreImpl* impl) {
  PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Read());
  Stats stats = StatsOf(&snapshot, impl->path());
  PMS_RETURN_IF_ERROR(snapshot->status());
  auto gen = snapshot.gen;
  snapshot.txn.reset();
  const EnvInfo info = gen->env->Info();
  stats.map_size = info.map_size;
  stats.map_used = info.map_used;
  stats.readers = info.readers;
  stats.max_readers = info.max_readers;
  return stats;
}

Result<CheckReport> CheckStore(StoreImpl* impl, const InterruptCheck& interrupted) {
  PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Read());
  CheckReport report;
  report.stats = StatsOf(&snapshot, impl->path());
  const Status status = Checker(&snapshot, interrupted, &report).Run();
  if (status.code() == Code::kCorruption) {
    // What the walk itself ran into; the rest could not be looked at.
    ++report.problem_count;
    report.problems.push_back(status.message());
    return report;
  }
  PMS_RETURN_IF_ERROR(status);
  return report;
}

Status ReindexStore(StoreImpl* impl, const ReindexOptions& options, int threads, double timeout_s,
                    const BuildProgress& progress, const InterruptCheck& interrupted) {
  PMS_ASSIGN_OR_RETURN(WriterLock lock, impl->Lock(timeout_s, interrupted, LockKind::kIndex));
  for (int attempt = 0; attempt < 3; ++attempt) {
    std::shared_ptr<Generation> gen;
    PinnedRows rows[kKinds];
    {
      PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Read());
      gen = snapshot.gen;
      for (size_t k = 0; k < kKinds; ++k) {
        PMS_ASSIGN_OR_RETURN(rows[k], gen->index[k]->file().Rows(snapshot.counters.rows[k]));
      }
    }  // no transaction is held while it takes long
    for (size_t k = 0; k < kKinds; ++k)
      PMS_RETURN_IF_ERROR(gen->index[k]->Reindex(rows[k], options, threads, progress, interrupted));
    // A compaction may have moved the vectors to another file meanwhile.
    PMS_ASSIGN_OR_RETURN(Snapshot now, impl->Read());
    if (now.gen->vector_name[0] == gen->vector_name[0] && now.gen->vector_name[1] == gen->vector_name[1])
      return Status::Ok();
    impl->RemoveStaleIndexFiles(*now.gen);
  }
  return Status::Locked(impl->path() + " was compacted again and again while its vectors were sealed");
}

Status BackupStore(StoreImpl* impl, const std::string& path) {
  struct stat st {};
  if (path.empty()) return Status::InvalidArgument("the path of the backup is empty");
  if (::lstat(path.c_str(), &st) == 0) return Status::InvalidArgument("there is already something at " + path);
  const size_t slash = path.find_last_of('/');
  const std::string parent = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  // A folder of this call's own: another backup to the same path, or the rest of one, has another name.
  std::string temp;
  for (int n = 0;; ++n) {
    temp = path + ".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(n);
    if (::mkdir(temp.c_str(), 0775) == 0) break;
    if (errno != EEXIST || n == 10000) return ErrnoStatus("cannot create", temp, errno);
  }
  // Holding the generation keeps its files; the copied environment says how many rows belong to it.
  auto snapshot = impl->Read();
  if (!snapshot.ok()) {
    RemoveTree(temp);
    return snapshot.status();
  }
  const std::shared_ptr<Generation> gen = snapshot->gen;
  snapshot->txn.reset();
  const std::string dir = temp + "/" + GenerationName(gen->number);
  auto copy = [&]() -> Status {
    PMS_RETURN_IF_ERROR(MakeDir(dir));
    PMS_RETURN_IF_ERROR(MakeDir(temp + "/vectors"));
    PMS_RETURN_IF_ERROR(gen->env->CopyTo(dir));
    Counters counters;
    std::string superseded_by;
    {
      EnvOptions options;
      PMS_ASSIGN_OR_RETURN(std::unique_ptr<Env> env, Env::Open(dir, options));
      PMS_ASSIGN_OR_RETURN(std::unique_ptr<Txn> txn, Txn::Begin(env.get(), true));
      PMS_RETURN_IF_ERROR(ReadMeta(txn.get(), &counters, &superseded_by));
      for (const char* key : {"superseded_by", "merging"}) (void)txn->Delete(Table::kMeta, key);
      PMS_RETURN_IF_ERROR(txn->Commit());
    }
    for (size_t k = 0; k < kKinds; ++k)
      PMS_RETURN_IF_ERROR(CopyPrefix(gen->index[k]->file().path(), temp + "/vectors/" + gen->vector_name[k],
                                     kVectorHeaderBytes + counters.rows[k] * RowStride(gen->stamp[k].dim)));
    PMS_RETURN_IF_ERROR(SyncDir(dir));
    PMS_RETURN_IF_ERROR(SyncDir(temp + "/vectors"));
    PMS_RETURN_IF_ERROR(WriteFileAtomically(temp + "/CURRENT", GenerationName(gen->number) + "\n"));
    if (::rename(temp.c_str(), path.c_str()) != 0) return ErrnoStatus("cannot rename to", path, errno);
    return SyncDir(parent);
  };
  const Status status = copy();
  if (!status.ok()) RemoveTree(temp);
  return status;
}

}  // namespace pymemstore
