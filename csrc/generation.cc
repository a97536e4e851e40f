#include "generation.h"

#include <algorithm>
#include <unordered_set>

#include "external_sort.h"

namespace pymemstore {
namespace {

constexpr uint64_t kChunkBytes = 32u << 20;  // committed at once

// Appends to the new environment, in transactions of bounded size.
class Appender {
 public:
  Appender(Env* env, const InterruptCheck& interrupted) : env_(env), interrupted_(interrupted) {}

  void Append(Table table, Bytes key, Bytes value) {
    if (!Ready(key.size() + value.size())) return;
    txn_->Append(table, key, value);
    if (!txn_->ok()) status_ = txn_->status();
  }
  // The transaction for writes of other kinds; nullptr when something failed.
  Txn* txn() { return Ready(0) ? txn_.get() : nullptr; }
  Status Commit() {
    if (status_.ok() && txn_) status_ = txn_->Commit();
    txn_.reset();
    return status_;
  }
  const Status& status() const { return status_; }
  // For stretches that append nothing.
  Status Poll() {
    if (interrupted_ && interrupted_()) Fail(Status::Interrupted());
    return status_;
  }

 private:
  void Fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  bool Ready(size_t bytes) {
    pending_ += bytes + 64;
    if (pending_ > kChunkBytes) {
      (void)Commit();
      pending_ = bytes;
      if (interrupted_ && interrupted_()) Fail(Status::Interrupted());
    }
    if (!status_.ok()) return false;
    if (txn_) return true;
    // Room for the chunk, so that no transaction meets a full map.
    for (EnvInfo info = env_->Info(); info.map_size - info.map_used < 3 * kChunkBytes + 2 * bytes; info = env_->Info()) {
      status_ = env_->Grow();
      if (!status_.ok()) return false;
    }
    auto txn = Txn::Begin(env_, true);
    status_ = txn.status();
    if (!status_.ok()) return false;
    txn_ = std::move(*txn);
    return true;
  }

  Env* env_;
  const InterruptCheck& interrupted_;
  std::unique_ptr<Txn> txn_;
  uint64_t pending_ = 0;
  Status status_;
};

class Builder {
 public:
  Builder(StoreImpl* impl, Snapshot* old, uint32_t number, const BuildOptions& options, BuildInput* input,
          const BuildProgress& progress, const InterruptCheck& interrupted, Env* env, Counters* counters)
      : impl_(impl), old_(*old), txn_(old->txn.get()), number_(number), options_(options), input_(input),
        progress_(progress), out_(env, interrupted), counters_(*counters) {}

  Status Run() {
    counters_ = old_.counters;
    PMS_RETURN_IF_ERROR(WriteNames());
    PMS_RETURN_IF_ERROR(WriteNamePairs());
    PMS_RETURN_IF_ERROR(WriteRulePairs());
    PMS_RETURN_IF_ERROR(WriteHistory());
    PMS_RETURN_IF_ERROR(WriteSpo());
    PMS_RETURN_IF_ERROR(WriteOps());
    PMS_RETURN_IF_ERROR(CopyTables());
    PMS_RETURN_IF_ERROR(RewriteRelationVectors());
    if (input_) {
      Txn* txn = out_.txn();
      if (!txn) return out_.status();
      PMS_RETURN_IF_ERROR(input_->Finish(txn, &counters_));
    }
    Txn* txn = out_.txn();
    if (!txn) return out_.status();
    txn->Put(Table::kMeta, "counters", EncodeCounters(counters_));
    return out_.Commit();
  }

 private:
  EmitBlock To(Table table) {
    return [this, table](Bytes key, Bytes value) { out_.Append(table, key, value); };
  }
  void Progress(const char* phase, uint64_t done, uint64_t total) {
    if (progress_) progress_(phase, done, total);
  }
  bool Tick(const char* phase, uint64_t done, uint64_t total) {
    if (done % (1u << 20) == 0) Progress(phase, done, total);
    return txn_->ok() && out_.status().ok();
  }
  Status Status_() const {
    PMS_RETURN_IF_ERROR(txn_->status());
    if (input_) PMS_RETURN_IF_ERROR(input_->status());
    return out_.status();
  }

  Result<std::unique_ptr<VectorFile>> NewVectorFile(Kind kind) {
    const std::string path = impl_->path() + "/vectors/" + VectorFileName(kind, number_);
    const uint32_t dim = old_.gen->stamp[Index(kind)].dim;
    PMS_RETURN_IF_ERROR(VectorFile::Create(path, old_.gen->store_id, kind, dim));
    return VectorFile::Open(path, old_.gen->store_id, kind, dim, false);
  }

  // All names become sealed ones. Their vectors stay where they are, unless they are rewritten.
  Status WriteNames() {
    NameBlockWriter names(0, To(Table::kBaseName));
    std::unique_ptr<VectorFile> file;
    std::unique_ptr<RowCopier> copier;
    if (options_.rewrite_vectors[0]) {
      PMS_ASSIGN_OR_RETURN(file, NewVectorFile(Kind::kEntity));
      PMS_ASSIGN_OR_RETURN(PinnedRows rows, old_.gen->index[0]->file().Rows(counters_.rows[0]));
      copier = std::make_unique<RowCopier>(std::move(rows), file.get(), 0);
    }
    NameId next = 0, run_first = 0;
    uint64_t run_row = 0, run_count = 0;
    auto flush_run = [&] {
      if (!run_count) return;
      Fixed<12> value;
      PutBe64(value.data, run_row);
      PutBe32(value.data + 8, static_cast<uint32_t>(run_count));
      out_.Append(Table::kBaseRow, Key32(run_first), value);
      run_count = 0;
    };
    const uint64_t total = counters_.next_name[0];
    NameCursor c(txn_, Kind::kEntity);
    for (bool more = total && c.Seek(0); more && Tick("names", next, total); more = c.Next(), ++next) {
      if (c.id() != next)
        return Status::Corruption("entity " + std::to_string(next) + " is missing: no generation can be built");
      const NameRecord& record = c.record();
      names.Add(record.name, !record.live());
      if (!record.live() || !record.row_plus_1) continue;
      uint64_t row = record.row_plus_1 - 1;
      if (copier) PMS_RETURN_IF_ERROR(copier->Copy(row, next, record.name, &row));
      if (run_count && run_first + run_count == next && run_row + run_count == row) {
        ++run_count;
      } else {
        flush_run();
        run_first = next;
        run_row = row;
        run_count = 1;
      }
    }
    PMS_RETURN_IF_ERROR(Status_());
    if (next != total)
      return Status::Corruption("entity " + std::to_string(next) + " is missing: no generation can be built");
    flush_run();
    if (copier) {
      PMS_RETURN_IF_ERROR(copier->Flush());
      PMS_RETURN_IF_ERROR(file->Sync());
      counters_.rows[0] = copier->rows();
    }
    if (input_)
      PMS_RETURN_IF_ERROR(input_->ForEachName([&](Bytes name) {
        names.Add(name, false);
        ++next;
        ++counters_.live[0];
        return Tick("names", next, total) ? Status::Ok() : out_.status();
      }));
    names.Flush();
    counters_.next_name[0] = counters_.sealed = next;
    // Names of the delta had their keys; those of a load don't.
    if (old_.counters.ruled >= old_.counters.sealed) counters_.ruled = old_.counters.next_name[0];
    return Status_();
  }

  // Pairs of a sealed table, of the delta and of the input, merged.
  Status WritePairs(Table base, Table delta, const char* phase, const std::function<bool(NameId)>& keep,
                    const std::function<bool(HashPair*)>& added) {
    std::vector<HashPair> newer;
    {
      Cursor c(txn_, delta);
      for (bool more = c.Seek(Bytes("\0", 1)); more; more = c.Next())
        newer.emplace_back(PairHash(GetBe64(c.key().data())), GetBe32(c.value().data()));
      std::sort(newer.begin(), newer.end());
    }
    PairBlockWriter writer(To(base));
    Cursor c(txn_, base);
    bool in_base = !txn_->Empty(base) && c.Seek(Bytes("\0", 1));
    PairBlockReader block = in_base ? PairBlockReader(c.key(), c.value()) : PairBlockReader();
    HashPair add;
    bool in_added = added && added(&add);
    size_t at = 0;
    uint64_t done = 0;
    auto next_of_base = [&] {
      if (block.Next()) return;
      if (!block.ok()) txn_->Fail(Status::Corruption(std::string("a row of ") + Info(base).name + " is damaged"));
      if ((in_base = c.Next())) block = PairBlockReader(c.key(), c.value());
    };
    while ((in_base || in_added || at < newer.size()) && Tick(phase, done++, 0)) {
      const HashPair* least = in_base ? &block.pair() : nullptr;
      if (at < newer.size() && (!least || newer[at] < *least)) least = &newer[at];
      if (in_added && (!least || add < *least)) least = &add;
      if (least == &add) {
        writer.Add(add);
        in_added = added(&add);
      } else if (in_base && least == &block.pair()) {
        if (keep(block.pair().second)) writer.Add(block.pair());
        next_of_base();
      } else {
        writer.Add(newer[at++]);
      }
    }
    writer.Flush();
    return Status_();
  }

  Status WriteNamePairs() {
    // A sealed name that was renamed or forgotten has another pair now, or none.
    std::unordered_set<NameId> overridden;
    Cursor c(txn_, Table::kEntName);
    for (bool more = c.Seek(Key32(0)); more && GetBe32(c.key().data()) < old_.counters.sealed; more = c.Next())
      overridden.insert(GetBe32(c.key().data()));
    // One that only has another vector keeps the pair of its block.
    for (auto it = overridden.begin(); it != overridden.end();) {
      NameRecord record;
      PackedName sealed;
      Cursor b(txn_, Table::kBaseName);
      const bool same = old_.gen->names[0].Get(txn_, *it, &record) && SeekBlock(&b, Key32(*it)) &&
                        NameBlockReader::Find(b.key(), b.value(), *it, &sealed) && sealed.name == record.name;
      it = same ? overridden.erase(it) : std::next(it);
    }
    std::function<bool(HashPair*)> added;
    if (input_) added = [this](HashPair* pair) { return input_->NextNamePair(pair); };
    return WritePairs(Table::kBaseHash, Table::kEntHash, "name index", [&](NameId id) { return !overridden.count(id); },
                      added);
  }

  Status WriteRulePairs() {
    std::unordered_set<NameId> forgotten;
    Cursor c(txn_, Table::kEntName);
    for (bool more = c.Seek(Key32(0)); more && GetBe32(c.key().data()) < old_.counters.sealed; more = c.Next()) {
      NameRecord record;
      if (DecodeName(c.value(), &record) && !record.live()) forgotten.insert(GetBe32(c.key().data()));
    }
    std::unique_ptr<ExternalSorter<Wide>> keys;
    std::function<bool(HashPair*)> added;
    if (options_.rules && old_.counters.ruled < old_.counters.sealed) {
      // 40 bits of the key, 32 of the id.
      keys = std::make_unique<ExternalSorter<Wide>>(options_.scratch + "/rules", options_.sort_memory / 2 / sizeof(Wide),
                                                    std::vector<KeyField>{{0, 32}, {32, kPairHashBits}});
      PMS_RETURN_IF_ERROR(CollectRuleKeys(keys.get()));
      PMS_RETURN_IF_ERROR(keys->Finish());
      added = [&](HashPair* pair) {
        Wide key;
        if (!keys->Next(&key)) return false;
        *pair = {static_cast<uint64_t>(key >> 32), static_cast<NameId>(key)};
        return true;
      };
      counters_.ruled = old_.counters.next_name[0];
    }
    PMS_RETURN_IF_ERROR(WritePairs(Table::kBaseRule, Table::kEntRule, "rule index",
                                   [&](NameId id) { return !forgotten.count(id); }, added));
    return keys ? keys->status() : Status::Ok();
  }

  Status CollectRuleKeys(ExternalSorter<Wide>* sorter) {
    const NameTable& table = old_.gen->names[0];
    NameTable::RuleKeys keys;
    auto add = [&]() -> Status {
      for (const auto& [key, id] : keys) PMS_RETURN_IF_ERROR(sorter->Add(static_cast<Wide>(PairHash(key)) << 32 | id));
      keys.clear();
      return Status::Ok();
    };
    const uint64_t first = old_.counters.ruled, end = old_.counters.sealed;
    NameCursor c(txn_, Kind::kEntity);
    for (bool more = c.Seek(static_cast<NameId>(first)); more && c.id() < end; more = c.Next()) {
      if (c.id() % 65536 == 0) {
        Progress("rule keys", c.id() - first, end - first);
        PMS_RETURN_IF_ERROR(out_.Poll());
      }
      if (c.record().live()) table.CollectNameKeys(c.id(), c.record().name, &keys);
      PMS_RETURN_IF_ERROR(add());
    }
    Cursor a(txn_, Table::kEntAlias);
    for (bool more = a.Seek(Key32(static_cast<uint32_t>(first))); more; more = a.Next()) {
      table.CollectAliasKeys(GetBe32(a.key().data()), a.value(), &keys);
      PMS_RETURN_IF_ERROR(add());
    }
    return txn_->status();
  }

  // What every id stood for: the sealed blocks as they are, then the delta's rows.
  Status WriteHistory() {
    CopyTable(Table::kBaseTriple);
    TripleBlockWriter blocks(To(Table::kBaseTriple));
    Cursor c(txn_, Table::kTriple);
    uint64_t done = 0;
    for (bool more = c.Seek(Key64(0)); more && Tick("history", done++, 0); more = c.Next())
      blocks.Add(GetBe64(c.key().data()), GetSpo(c.value().data()));
    blocks.Flush();
    return Status_();
  }

  Status WriteSpo() {
    const uint64_t total = counters_.triples + (input_ ? input_->triple_count() : 0);
    RowBlockWriter rows(false, To(Table::kBaseSpo));
    TripleBlockWriter history(To(Table::kBaseTriple));
    TripleCursor c(txn_, false);
    bool in_old = c.Seek(0, 0, 0);
    TripleIds add;
    bool in_new = input_ && input_->NextTriple(&add);
    uint64_t done = 0;
    while ((in_old || in_new) && Tick("by subject", done++, total)) {
      const PackedRow wanted = SpoRow(add, 0);
      if (in_old && (!in_new || !wanted.Before(c.row()))) {
        const bool repeated = in_new && wanted.SameKey(c.row());
        const StoredTriple t = c.triple();
        if (repeated) {
          input_->Existed(t.ids);
          in_new = input_->NextTriple(&add);
        }
        if (repeated || !input_ || !input_->Withdraws(txn_, t.ids, t.id)) {
          rows.Add(c.row());
        } else {
          --counters_.triples;
        }
        in_old = c.Next();
      } else {
        const TripleId id = counters_.next_triple++;
        ++counters_.triples;
        rows.Add(SpoRow(add, id));
        history.Add(id, add);
        PMS_RETURN_IF_ERROR(input_->Accepted(add, id));
        in_new = input_->NextTriple(&add);
      }
    }
    rows.Flush();
    history.Flush();
    PMS_RETURN_IF_ERROR(Status_());
    return input_ ? input_->TriplesDone() : Status::Ok();
  }

  Status WriteOps() {
    RowBlockWriter rows(true, To(Table::kBaseOps));
    TripleCursor c(txn_, true);
    bool in_old = c.Seek(0, 0, 0);
    PackedRow add;
    bool in_new = input_ && input_->NextByObject(&add);
    uint64_t done = 0;
    while ((in_old || in_new) && Tick("by object", done++, counters_.triples)) {
      if (in_old && (!in_new || !add.Before(c.row()))) {
        if (!input_ || !input_->Withdrawn(c.row().c)) rows.Add(c.row());
        in_old = c.Next();
      } else {
        rows.Add(add);
        in_new = input_->NextByObject(&add);
      }
    }
    rows.Flush();
    return Status_();
  }

  void CopyTable(Table table) {
    Cursor c(txn_, table);
    uint64_t done = 0;
    for (bool more = c.Seek(Bytes("\0", 1)); more && Tick(Info(table).name, done++, 0); more = c.Next())
      out_.Append(table, c.key(), c.value());
  }

  Status CopyTables() {
    for (Table table : {Table::kMeta, Table::kRelName, Table::kRelHash, Table::kEntAlias, Table::kRelAlias,
                        Table::kEntAliasHash, Table::kRelAliasHash, Table::kRelRule, Table::kRelPending,
                        Table::kEntExternal, Table::kRelExternal, Table::kEntExternalOf, Table::kRelExternalOf,
                        Table::kProvenance, Table::kSource, Table::kSourceHash, Table::kLog, Table::kLoad}) {
      CopyTable(table);
      PMS_RETURN_IF_ERROR(Status_());
    }
    Txn* txn = out_.txn();
    if (!txn) return out_.status();
    for (const char* key : {"merging", "superseded_by"}) (void)txn->Delete(Table::kMeta, key);
    for (Kind kind : {Kind::kEntity, Kind::kRelation})
      if (options_.rewrite_vectors[Index(kind)])
        txn->Put(Table::kMeta, std::string("vectors.") + KindName(kind), VectorFileName(kind, number_));
    return txn->status();
  }

  Status RewriteRelationVectors() {
    if (!options_.rewrite_vectors[1]) return Status::Ok();
    PMS_ASSIGN_OR_RETURN(auto file, NewVectorFile(Kind::kRelation));
    PMS_ASSIGN_OR_RETURN(PinnedRows rows, old_.gen->index[1]->file().Rows(counters_.rows[1]));
    RowCopier copier(std::move(rows), file.get(), 0);
    const NameTable& table = old_.gen->names[1];
    Cursor c(txn_, Table::kRelName);
    for (bool more = c.Seek(Key32(0)); more; more = c.Next()) {
      NameRecord record;
      if (!DecodeName(c.value(), &record) || !record.live() || !record.row_plus_1) continue;
      uint64_t row = 0;
      PMS_RETURN_IF_ERROR(copier.Copy(record.row_plus_1 - 1, GetBe32(c.key().data()), record.name, &row));
      Txn* txn = out_.txn();
      if (!txn) return out_.status();
      (void)table.SetRow(txn, GetBe32(c.key().data()), row);
    }
    PMS_RETURN_IF_ERROR(copier.Flush());
    counters_.rows[1] = copier.rows();
    PMS_RETURN_IF_ERROR(file->Sync());
    return Status_();
  }

  StoreImpl* impl_;
  Snapshot& old_;
  Txn* txn_;
  const uint32_t number_;
  const BuildOptions& options_;
  BuildInput* input_;
  const BuildProgress& progress_;
  Appender out_;
  Counters& counters_;
};

}  // namespace

Status RowCopier::Copy(uint64_t row, NameId owner, Bytes name, uint64_t* new_row) {
  if (row >= from_.view.rows || from_.owner(row) != owner || !VectorFile::RowIsWhole(from_, row))
    return Status::Corruption("the vector of " + Quote(name) + " is damaged: not compacted");
  buffer_.append(from_.Raw(row), from_.view.stride);
  *new_row = rows_++;
  return buffer_.size() > (8u << 20) ? Flush() : Status::Ok();
}

Status RowCopier::Flush() {
  PMS_RETURN_IF_ERROR(to_->Write(written_, buffer_));
  written_ = rows_;
  buffer_.clear();
  return Status::Ok();
}

Result<std::unique_ptr<Env>> OpenUnfinished(const StoreImpl* impl, uint32_t number, bool create) {
  EnvOptions options;
  options.create = create;
  options.no_sync = true;
  options.max_readers = impl->options().max_readers;
  return Env::Open(impl->path() + "/" + GenerationName(number), options);
}

Status BuildGeneration(StoreImpl* impl, Snapshot* old, uint32_t number, const BuildOptions& options, BuildInput* input,
                       const BuildProgress& progress, const InterruptCheck& interrupted, Counters* counters) {
  const std::string dir = impl->path() + "/" + GenerationName(number);
  PMS_RETURN_IF_ERROR(MakeDir(dir));
  PMS_ASSIGN_OR_RETURN(std::unique_ptr<Env> env, OpenUnfinished(impl, number, true));
  PMS_RETURN_IF_ERROR(
      Builder(impl, old, number, options, input, progress, interrupted, env.get(), counters).Run());
  if (progress) progress("sync", 0, 1);
  PMS_RETURN_IF_ERROR(env->Sync());
  PMS_RETURN_IF_ERROR(SyncDir(impl->path() + "/vectors"));
  PMS_RETURN_IF_ERROR(SyncDir(dir));
  PMS_RETURN_IF_ERROR(SyncDir(impl->path()));
  return interrupted && interrupted() ? Status::Interrupted() : Status::Ok();
}

void RemoveGeneration(StoreImpl* impl, uint32_t number) {
  RemoveTree(impl->path() + "/" + GenerationName(number));
  for (Kind kind : {Kind::kEntity, Kind::kRelation}) RemoveTree(impl->path() + "/vectors/" + VectorFileName(kind, number));
}

}  // namespace pymemstore
