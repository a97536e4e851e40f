#include "merge.h"

#include <algorithm>
#include <set>

namespace pymemstore {
namespace {

// Applies to a built generation what changed in the old one since it was read. Tables that only grow are known by
// their keys; of the others kJournal tells the keys.
class CatchUp {
 public:
  CatchUp(Snapshot* old, Txn* txn, Counters* counters, RowCopier* (&copiers)[kKinds])
      : old_(*old), from_(old->txn.get()), to_(txn), counters_(*counters), copiers_(copiers) {}

  // Changes of transactions after `since`, and rows from the given counters on.
  Status Run(uint64_t since, const Counters& before, const InterruptCheck& interrupted) {
    CopyNewer(Table::kLog, before.seq + 1);
    CopyNewer(Table::kTriple, before.next_triple);
    std::vector<std::string> spo, row_runs;
    std::set<std::pair<Kind, NameId>> names;
    Cursor c(from_, Table::kJournal);
    for (bool more = c.Seek(Bytes("\0", 1)); more && to_->ok(); more = c.Next()) {
      if (interrupted && ++steps_ % 4096 == 0 && interrupted()) return Status::Interrupted();
      if (GetBe64(c.value().data()) <= since) continue;
      const auto table = static_cast<Table>(c.key()[0]);
      const std::string key(c.key().substr(1));
      switch (table) {
        case Table::kOps:  // follows from kSpo
          break;
        case Table::kSpo:
          spo.push_back(key);
          break;
        case Table::kBaseRow:
          row_runs.push_back(key);
          break;
        case Table::kEntName:
        case Table::kRelName:
          names.emplace(table == Table::kEntName ? Kind::kEntity : Kind::kRelation, GetBe32(key.data()));
          break;
        default:
          CopyKey(table, key);
      }
    }
    for (const std::string& key : spo) CopyTriple(GetSpo(key.data()));
    for (const auto& [kind, id] : names) PMS_RETURN_IF_ERROR(CopyName(kind, id));
    for (const std::string& key : row_runs) PMS_RETURN_IF_ERROR(CopyRowRun(key, before.rows[0]));
    for (Kind kind : {Kind::kEntity, Kind::kRelation}) {
      const size_t k = Index(kind);
      if (copiers_[k]) PMS_RETURN_IF_ERROR(copiers_[k]->Flush());
      counters_.rows[k] = copiers_[k] ? copiers_[k]->rows() : old_.counters.rows[k];
      counters_.next_name[k] = old_.counters.next_name[k];
      counters_.live[k] = old_.counters.live[k];
      counters_.embedded[k] = old_.counters.embedded[k];
    }
    counters_.next_triple = old_.counters.next_triple;
    counters_.seq = old_.counters.seq;
    counters_.next_source = old_.counters.next_source;
    counters_.triples = old_.counters.triples;
    to_->Put(Table::kMeta, "counters", EncodeCounters(counters_));
    PMS_RETURN_IF_ERROR(from_->status());
    return to_->status();
  }

 private:
  void CopyNewer(Table table, uint64_t first) {
    Cursor c(from_, table);
    for (bool more = c.Seek(Key64(first)); more && to_->ok(); more = c.Next()) to_->Put(table, c.key(), c.value());
  }

  // All values of a key, as they are now.
  void CopyKey(Table table, const std::string& key) {
    (void)to_->Delete(table, key);
    Cursor c(from_, table);
    for (bool more = c.SeekKey(key); more; more = Info(table).dup && c.NextOfKey()) to_->Put(table, key, c.value());
  }

  void CopyTriple(const TripleIds& t) {
    const TripleId now = TripleTable::Find(from_, t), built = TripleTable::Find(to_, t);
    if (now == built) return;
    if (built != kNoTriple) TripleTable::Remove(to_, t, built);
    if (now == kNoTriple) return;
    TripleTable::Insert(to_, t, now);
  }

  Result<uint64_t> Row(Kind kind, NameId id, Bytes name, uint64_t row) {
    RowCopier* copier = copiers_[Index(kind)];
    uint64_t copied = row;
    if (copier) PMS_RETURN_IF_ERROR(copier->Copy(row, id, name, &copied));
    return copied;
  }

  Status CopyName(Kind kind, NameId id) {
    NameRecord record;
    if (!old_.gen->names[Index(kind)].GetForgotten(from_, id, &record)) return from_->status();
    if (record.row_plus_1) {
      PMS_ASSIGN_OR_RETURN(const uint64_t row, Row(kind, id, record.name, record.row_plus_1 - 1));
      record.row_plus_1 = row + 1;
    }
    to_->Put(KindTable(Table::kEntName, kind), Key32(id), EncodeName(record));
    // The list of those that wait follows the records.
    const Table pending = KindTable(Table::kEntPending, kind);
    if (record.live() && !record.row_plus_1) {
      to_->Put(pending, Key32(id), {});
    } else {
      (void)to_->Delete(pending, Key32(id));
    }
    return to_->status();
  }

  // Rows from `first_new` on were not there when the generation was built.
  Status CopyRowRun(const std::string& key, uint64_t first_new) {
    const NameTable& table = old_.gen->names[0];
    Bytes value;
    if (!from_->Get(Table::kBaseRow, key, &value) || value.size() != 12) return from_->status();
    const NameId first = GetBe32(key.data());
    const uint64_t first_row = GetBe64(value.data());
    const uint64_t count = GetBe32(value.data() + 8);
    for (uint64_t at = first_new > first_row ? first_new - first_row : 0; at < count && to_->ok(); ++at) {
      const auto i = static_cast<NameId>(at);
      NameRecord record;
      if (!table.Get(to_, first + i, &record) || record.row_plus_1) continue;
      PMS_ASSIGN_OR_RETURN(const uint64_t row, Row(Kind::kEntity, first + i, std::string(record.name), first_row + i));
      (void)table.SetRow(to_, first + i, row);
    }
    return to_->status();
  }

  Snapshot& old_;
  Txn* from_;
  Txn* to_;
  Counters& counters_;
  RowCopier* (&copiers_)[kKinds];
  uint64_t steps_ = 0;
};

// The vector file of a built generation, open to take over rows that the old file got meanwhile.
struct Takeover {
  std::unique_ptr<VectorFile> file;
  std::unique_ptr<RowCopier> copier;
};

class Merge {
 public:
  Merge(StoreImpl* impl, const MergeOptions& options, double timeout_s, const BuildProgress& progress,
        const InterruptCheck& interrupted)
      : impl_(impl), options_(options), timeout_s_(timeout_s), progress_(progress), interrupted_(interrupted) {}

  Status Run() {
    PMS_RETURN_IF_ERROR(Begin());
    const Status status = Build();
    if (status.ok() || switched_) return status;
    RemoveGeneration(impl_, number_);
    StopJournal();
    return status;
  }

 private:
  // From a point that the journal begins at.
  Status Begin() {
    PMS_ASSIGN_OR_RETURN(WriterLock lock, impl_->Lock(timeout_s_, interrupted_));
    {
      PMS_ASSIGN_OR_RETURN(Snapshot txn, impl_->Write(Sync::kFull));
      ClearJournal(txn.txn.get());
      txn->Put(Table::kMeta, "merging", "1");
      PMS_RETURN_IF_ERROR(txn->Commit());
    }
    PMS_ASSIGN_OR_RETURN(old_, impl_->Read());
    number_ = old_.gen->number + 1;
    RemoveGeneration(impl_, number_);
    return Status::Ok();
  }

  static void ClearJournal(Txn* txn) {
    std::vector<std::string> keys;
    {
      Cursor c(txn, Table::kJournal);
      for (bool more = c.Seek(Bytes("\0", 1)); more; more = c.Next()) keys.emplace_back(c.key());
    }
    for (const std::string& key : keys) (void)txn->Delete(Table::kJournal, key);
    (void)txn->Delete(Table::kMeta, "merging");
  }

  // After a failure; if this fails too, the journal goes on until the next merge.
  void StopJournal() {
    old_.txn.reset();
    auto lock = impl_->Lock(timeout_s_, {});
    if (!lock.ok()) return;
    auto txn = impl_->Write(Sync::kFull);
    if (!txn.ok()) return;
    ClearJournal(txn->txn.get());
    (void)(*txn)->Commit();
  }

  Status Build() {
    BuildOptions build;
    build.rules = options_.rules;
    build.scratch = impl_->path();
    if (options_.memory) build.sort_memory = options_.memory;
    for (Kind kind : {Kind::kEntity, Kind::kRelation})
      build.rewrite_vectors[Index(kind)] =
          options_.vectors && old_.counters.embedded[Index(kind)] < old_.counters.rows[Index(kind)];
    PMS_RETURN_IF_ERROR(BuildGeneration(impl_, &old_, number_, build, nullptr, progress_, interrupted_, &counters_));
    PMS_ASSIGN_OR_RETURN(std::unique_ptr<Env> env, OpenUnfinished(impl_, number_, false));
    for (Kind kind : {Kind::kEntity, Kind::kRelation}) {
      if (!build.rewrite_vectors[Index(kind)]) continue;
      PMS_ASSIGN_OR_RETURN(takeover_[Index(kind)].file,
                           VectorFile::Open(impl_->path() + "/vectors/" + VectorFileName(kind, number_),
                                            old_.gen->store_id, kind, old_.gen->stamp[Index(kind)].dim, false));
    }
    if (progress_) progress_("switch", 0, 1);
    // What came during the build, first without the lock, then what came during that.
    uint64_t since = old_->id();
    Counters before = old_.counters;
    old_.txn.reset();
    PMS_RETURN_IF_ERROR(TakeOver(env.get(), &since, &before));
    PMS_ASSIGN_OR_RETURN(WriterLock lock, impl_->Lock(std::max(timeout_s_, 3600.0), interrupted_));
    PMS_RETURN_IF_ERROR(TakeOver(env.get(), &since, &before));
    PMS_RETURN_IF_ERROR(env->Sync());
    for (const Takeover& t : takeover_)
      if (t.file) PMS_RETURN_IF_ERROR(t.file->Sync());
    env.reset();
    return SwitchGeneration(impl_, old_.gen.get(), number_, &switched_);
  }

  Status TakeOver(Env* env, uint64_t* since, Counters* before) {
    PMS_ASSIGN_OR_RETURN(Snapshot now, impl_->Read());
    if (now.gen != old_.gen) return Status::Corruption(impl_->path() + ": its generation changed during a merge");
    const uint64_t seen = now->id();
    if (seen == *since) return Status::Ok();
    for (;;) {
      RowCopier* copiers[kKinds] = {nullptr, nullptr};
      for (size_t k = 0; k < kKinds; ++k) {
        if (!takeover_[k].file) continue;
        PMS_ASSIGN_OR_RETURN(PinnedRows rows, now.gen->index[k]->file().Rows(now.counters.rows[k]));
        takeover_[k].copier = std::make_unique<RowCopier>(std::move(rows), takeover_[k].file.get(), counters_.rows[k]);
        copiers[k] = takeover_[k].copier.get();
      }
      PMS_ASSIGN_OR_RETURN(std::unique_ptr<Txn> txn, Txn::Begin(env, true));
      Counters counters = counters_;
      Status status = CatchUp(&now, txn.get(), &counters, copiers).Run(*since, *before, interrupted_);
      if (status.ok()) status = txn->Commit();
      if (status.ok()) {
        counters_ = counters;
        break;
      }
      if (!txn->map_full()) return status;
      txn.reset();
      PMS_RETURN_IF_ERROR(env->Grow());
    }
    *since = seen;
    *before = now.counters;
    return Status::Ok();
  }

  StoreImpl* impl_;
  const MergeOptions& options_;
  const double timeout_s_;
  const BuildProgress& progress_;
  const InterruptCheck& interrupted_;
  Snapshot old_;
  uint32_t number_ = 0;
  bool switched_ = false;
  Counters counters_;
  Takeover takeover_[kKinds];
};

}  // namespace

Result<WriterLock> LockBuilding(StoreImpl* impl, double timeout_s, const InterruptCheck& interrupted) {
  return impl->Lock(timeout_s, interrupted, LockKind::kBuilder);
}

Status SwitchGeneration(StoreImpl* impl, Generation* from, uint32_t to, bool* switched) {
  const std::string name = GenerationName(to);
  {
    PMS_ASSIGN_OR_RETURN(std::unique_ptr<Txn> txn, Txn::Begin(from->env.get(), true));
    txn->Put(Table::kMeta, "superseded_by", name);
    PMS_RETURN_IF_ERROR(txn->Commit());
    *switched = true;
  }
  PMS_RETURN_IF_ERROR(impl->PointCurrentAt(to));
  return impl->SwitchTo(name);
}

Status MergeStore(StoreImpl* impl, const MergeOptions& options, double timeout_s, const BuildProgress& progress,
                  const InterruptCheck& interrupted) {
  {
    PMS_ASSIGN_OR_RETURN(WriterLock building, LockBuilding(impl, options.wait ? timeout_s : 0, interrupted));
    PMS_RETURN_IF_ERROR(Merge(impl, options, timeout_s, progress, interrupted).Run());
  }
  impl->RemoveStaleGenerations();
  return Status::Ok();
}

Result<std::pair<uint64_t, uint64_t>> CompactStore(StoreImpl* impl, double timeout_s, const BuildProgress& progress,
                                                   const InterruptCheck& interrupted) {
  const uint64_t before = DiskBytes(impl->path());
  MergeOptions options;
  options.vectors = true;
  PMS_RETURN_IF_ERROR(MergeStore(impl, options, timeout_s, progress, interrupted));
  return std::make_pair(before, DiskBytes(impl->path()));
}

}  // namespace pymemstore
