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
    stats.names[k] = txn->Entries(KindTable(Table::kEntHash, kind));
    stats.unembedded[k] = txn->Entries(KindTable(Table::kEntPending, kind));
    stats.vector_rows[k] = snapshot->counters.rows[k];
    stats.aliases += txn->Entries(KindTable(Table::kEntAlias, kind));
    stats.external_ids += txn->Entries(KindTable(Table::kEntExternal, kind));
  }
  stats.triples = txn->Entries(Table::kSpo);
  stats.seq = snapshot->counters.seq;
  stats.generation = snapshot->gen->number;
  stats.format_version = kFormatVersion;
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
    uint64_t live = 0, pending = 0, next = 0;
    Cursor c(txn_, table.table(Table::kEntName));
    for (bool more = c.Seek(Key32(0)); more; more = c.Next()) {
      if (Stop()) return Status::Interrupted();
      const NameId id = GetBe32(c.key().data());
      const std::string label = what + " " + std::to_string(id);
      next = id + 1;
      NameRecord record;
      if (!DecodeName(c.value(), &record)) {
        Problem(label + ": its record is damaged");
        continue;
      }
      if (!record.live()) continue;
      ++live;
      NameId found = kNoName;
      if (!table.Find(txn_, record.name, &found) || found != id)
        Problem(label + " " + Quote(record.name) + ": its name does not lead back to it");
      Bytes unused;
      const bool waits = txn_->Get(table.table(Table::kEntPending), Key32(id), &unused);
      pending += waits;
      if (waits != (record.row_plus_1 == 0)) Problem(label + ": its vector and the list of those that wait disagree");
      NameTable::RuleKeys keys;
      table.CollectNameKeys(id, record.name, &keys);
      CheckKeys(table, keys, label + " " + Quote(record.name));
      if (!record.row_plus_1) continue;
      const uint64_t row = record.row_plus_1 - 1;
      if (row >= rows.view.rows || rows.owner(row) != id) {
        Problem(label + " " + Quote(record.name) + ": its vector is not in the vector file");
      } else if (!VectorFile::RowIsWhole(rows, row)) {
        Problem(label + " " + Quote(record.name) + ": the checksum of its vector does not fit");
      }
    }
    if (next > snap_.counters.next_name[Index(kind)]) Problem("the counter of " + what + " ids is behind");
    if (live != txn_->Entries(table.table(Table::kEntHash))) Problem("the name index of " + what + " names has other entries than names");
    if (pending != txn_->Entries(table.table(Table::kEntPending))) Problem("names that are not there wait for vectors");
    return txn_->status();
  }

  void CheckKeys(const NameTable& table, const NameTable::RuleKeys& keys, const std::string& label) {
    for (const auto& [key, owner] : keys) {
      Cursor k(txn_, table.table(Table::kEntRule));
      if (!k.SeekPair(Key64(key), Key32(owner)) || GetBe32(k.value().data()) != owner)
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

  Status CheckTriples() {
    NameRecord record;
    uint64_t rows = 0;
    Cursor c(txn_, Table::kSpo);
    for (bool more = c.Seek(Key32(0)); more; more = c.Next(), ++rows) {
      if (Stop()) return Status::Interrupted();
      if (c.key().size() != 12 || c.value().size() != 8) {
        Problem("a row of delta_spo is damaged");
        continue;
      }
      const TripleIds t = GetSpo(c.key().data());
      const TripleId id = GetBe64(c.value().data());
      const std::string label = "triple " + std::to_string(id);
      if (!snap_.gen->names[0].Get(txn_, t.s, &record)) Problem(label + ": its subject is unknown");
      if (!snap_.gen->names[1].Get(txn_, t.r, &record)) Problem(label + ": its relation is unknown");
      if (!snap_.gen->names[0].Get(txn_, t.o, &record)) Problem(label + ": its object is unknown");
      Bytes value;
      if (!txn_->Get(Table::kOps, OpsKey(t.o, t.r, id), &value) || value != Bytes(Key32(t.s)))
        Problem(label + ": it is missing in the order by object");
      TripleIds by_id;
      if (!TripleTable::Lookup(txn_, id, &by_id) || !(by_id == t)) Problem(label + ": its id leads elsewhere");
      if (id >= snap_.counters.next_triple) Problem(label + ": the counter of ids is behind");
    }
    if (rows != txn_->Entries(Table::kOps)) Problem("the two orders of triples differ in length");
    return txn_->status();
  }

  Snapshot& snap_;
  Txn* txn_;
  const InterruptCheck& interrupted_;
  CheckReport& report_;
  uint64_t steps_ = 0;
};

// Writes the live vectors of a kind, in order of id, to a new file, and points the copied environment at it.
Status RewriteVectors(StoreImpl* impl, const Generation& from, Kind kind, uint32_t number, Txn* txn,
                      Counters* counters, const InterruptCheck& interrupted) {
  const size_t k = Index(kind);
  const std::string name = VectorFileName(kind, number), path = impl->path() + "/vectors/" + name;
  const uint32_t dim = from.stamp[k].dim;
  PMS_ASSIGN_OR_RETURN(const PinnedRows old, from.index[k]->file().Rows(counters->rows[k]));
  PMS_RETURN_IF_ERROR(VectorFile::Create(path, from.store_id, kind, dim));
  PMS_ASSIGN_OR_RETURN(std::unique_ptr<VectorFile> file, VectorFile::Open(path, from.store_id, kind, dim, false));
  std::string buffer;
  uint64_t rows = 0, written = 0;
  for (NameId id = 0; id < counters->next_name[k]; ++id) {
    NameRecord record;
    if (id % 4096 == 0 && interrupted && interrupted()) return Status::Interrupted();
    if (!from.names[k].Get(txn, id, &record) || !record.row_plus_1) continue;
    const uint64_t row = record.row_plus_1 - 1;
    if (row >= old.view.rows || old.owner(row) != id || !VectorFile::RowIsWhole(old, row))
      return Status::Corruption("the vector of " + Quote(record.name) + " is damaged: not compacted");
    buffer.append(old.Raw(row), old.view.stride);
    from.names[k].SetRow(txn, id, rows++);
    if (buffer.size() > (8u << 20)) {
      PMS_RETURN_IF_ERROR(file->Write(written, buffer));
      written = rows;
      buffer.clear();
    }
  }
  PMS_RETURN_IF_ERROR(file->Write(written, buffer));
  PMS_RETURN_IF_ERROR(file->Sync());
  counters->rows[k] = rows;
  txn->Put(Table::kMeta, std::string("vectors.") + KindName(kind), name);
  return txn->status();
}

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

namespace {

// The live generation, rewritten as generation `number`, synced. Writers wait; readers go on.
Status BuildGeneration(StoreImpl* impl, const Generation& gen, const Counters& counters,
                       const uint64_t (&live_rows)[kKinds], uint32_t number, const InterruptCheck& interrupted) {
  const std::string dir = impl->path() + "/" + GenerationName(number);
  PMS_RETURN_IF_ERROR(MakeDir(dir));
  PMS_RETURN_IF_ERROR(gen.env->CopyTo(dir));
  if (live_rows[0] < counters.rows[0] || live_rows[1] < counters.rows[1]) {
    EnvOptions options;
    options.map_size = gen.env->Info().map_size;
    PMS_ASSIGN_OR_RETURN(std::unique_ptr<Env> env, Env::Open(dir, options));
    for (;;) {
      PMS_ASSIGN_OR_RETURN(std::unique_ptr<Txn> txn, Txn::Begin(env.get(), true));
      Counters moved = counters;
      Status status;
      for (Kind kind : {Kind::kEntity, Kind::kRelation})
        if (status.ok() && live_rows[Index(kind)] < counters.rows[Index(kind)])
          status = RewriteVectors(impl, gen, kind, number, txn.get(), &moved, interrupted);
      txn->Put(Table::kMeta, "counters", EncodeCounters(moved));
      if (status.ok()) status = txn->Commit();
      if (status.ok()) break;
      if (!txn->map_full()) return status;
      txn.reset();
      PMS_RETURN_IF_ERROR(env->Grow());
    }
    PMS_RETURN_IF_ERROR(SyncDir(impl->path() + "/vectors"));
  }
  PMS_RETURN_IF_ERROR(SyncDir(dir));
  PMS_RETURN_IF_ERROR(SyncDir(impl->path()));
  return interrupted && interrupted() ? Status::Interrupted() : Status::Ok();
}

// Of an attempt that failed, or was cut short by a crash.
void RemoveGeneration(StoreImpl* impl, uint32_t number) {
  RemoveTree(impl->path() + "/" + GenerationName(number));
  for (Kind kind : {Kind::kEntity, Kind::kRelation}) RemoveTree(impl->path() + "/vectors/" + VectorFileName(kind, number));
}

}  // namespace

Result<std::pair<uint64_t, uint64_t>> CompactStore(StoreImpl* impl, double timeout_s,
                                                  const InterruptCheck& interrupted) {
  const uint64_t before = DiskBytes(impl->path());
  {
    PMS_ASSIGN_OR_RETURN(WriterLock lock, impl->Lock(timeout_s, interrupted));
    std::shared_ptr<Generation> gen;
    Counters counters;
    uint64_t live_rows[kKinds];
    {
      PMS_ASSIGN_OR_RETURN(Snapshot snapshot, impl->Read());
      gen = snapshot.gen;
      counters = snapshot.counters;
      for (Kind kind : {Kind::kEntity, Kind::kRelation})
        live_rows[Index(kind)] = snapshot.txn->Entries(KindTable(Table::kEntHash, kind)) -
                                 snapshot.txn->Entries(KindTable(Table::kEntPending, kind));
      PMS_RETURN_IF_ERROR(snapshot->status());
    }
    const uint32_t number = gen->number + 1;
    const std::string name = GenerationName(number);
    RemoveGeneration(impl, number);
    Status status = BuildGeneration(impl, *gen, counters, live_rows, number, interrupted);
    if (status.ok()) {
      // The switch is this commit: from here on every transaction goes to the new generation. CURRENT follows.
      auto txn = Txn::Begin(gen->env.get(), true);
      status = txn.status();
      if (status.ok()) {
        (*txn)->Put(Table::kMeta, "superseded_by", name);
        status = (*txn)->Commit();
      }
    }
    if (!status.ok()) {
      RemoveGeneration(impl, number);
      return status;
    }
    PMS_RETURN_IF_ERROR(impl->PointCurrentAt(number));
    PMS_RETURN_IF_ERROR(impl->SwitchTo(name));
  }
  impl->RemoveStaleGenerations();
  return std::make_pair(before, DiskBytes(impl->path()));
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
      if (!superseded_by.empty()) txn->Delete(Table::kMeta, "superseded_by");
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
