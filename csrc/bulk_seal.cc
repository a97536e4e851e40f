#include "bulk_seal.h"

#include <algorithm>
#include <chrono>
#include <tuple>
#include <unordered_set>

#include "bulk_names.h"
#include "external_sort.h"
#include "merge.h"

namespace pymemstore {
namespace {

int BitsFor(uint64_t count) {
  int bits = 1;
  while (bits < 64 && (count - (count > 0)) >> bits) ++bits;
  return bits;
}

// Triples in the order (s, r, o), in keys of 64 bits when they fit.
class TripleSorter {
 public:
  TripleSorter(const std::string& prefix, size_t memory, uint64_t entities, uint64_t relations)
      : o_bits_(BitsFor(entities)), r_bits_(BitsFor(relations)) {
    const std::vector<KeyField> fields = {{0, o_bits_}, {o_bits_, r_bits_}, {o_bits_ + r_bits_, o_bits_}};
    if (2 * o_bits_ + r_bits_ <= 64) {
      narrow_ = std::make_unique<ExternalSorter<uint64_t>>(prefix, memory / sizeof(uint64_t), fields);
    } else {
      wide_ = std::make_unique<ExternalSorter<Wide>>(prefix, memory / sizeof(Wide), fields);
    }
  }
  Status Add(const TripleIds& t) { return narrow_ ? narrow_->Add(Pack<uint64_t>(t)) : wide_->Add(Pack<Wide>(t)); }
  Status Finish() { return narrow_ ? narrow_->Finish() : wide_->Finish(); }
  bool Next(TripleIds* t) {
    if (narrow_) {
      uint64_t key;
      return narrow_->Next(&key) && Unpack(key, t);
    }
    Wide key;
    return wide_->Next(&key) && Unpack(key, t);
  }
  Status status() const { return narrow_ ? narrow_->status() : wide_->status(); }

 private:
  template <typename Key>
  Key Pack(const TripleIds& t) const {
    return (static_cast<Key>(t.s) << r_bits_ | t.r) << o_bits_ | t.o;
  }
  template <typename Key>
  bool Unpack(Key key, TripleIds* t) const {
    t->o = static_cast<NameId>(key & ((static_cast<Key>(1) << o_bits_) - 1));
    t->r = static_cast<NameId>(key >> o_bits_ & ((static_cast<Key>(1) << r_bits_) - 1));
    t->s = static_cast<NameId>(key >> (o_bits_ + r_bits_));
    return true;
  }
  const int o_bits_, r_bits_;
  std::unique_ptr<ExternalSorter<uint64_t>> narrow_;
  std::unique_ptr<ExternalSorter<Wide>> wide_;
};

class LoadInput : public BuildInput {
 public:
  LoadInput(const SealOptions& options, BulkSink* staged, Snapshot* old, const InterruptCheck& interrupted)
      : options_(options), staged_(*staged), old_(*old), interrupted_(interrupted),
        entities_(Kind::kEntity, &staged->names(Kind::kEntity), &staged->notes(), old, options.update),
        relations_(Kind::kRelation, &staged->names(Kind::kRelation), &staged->notes(), old, options.update),
        first_id_(old->counters.next_triple),
        time_us_(static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                           std::chrono::system_clock::now().time_since_epoch())
                                           .count())) {}

  // Names, then triples in order.
  Status Prepare(const BuildProgress& progress) {
    if (progress) progress("resolving names", 0, staged_.names(Kind::kEntity).count());
    PMS_RETURN_IF_ERROR(relations_.Resolve(interrupted_));
    PMS_RETURN_IF_ERROR(entities_.Resolve(interrupted_));
    staged_.names(Kind::kEntity).DropTable();
    const uint64_t entity_end = old_.counters.next_name[0] + entities_.new_count();
    // Of the new names' pairs: 40 bits of the hash, 32 of the id.
    pairs_ = std::make_unique<ExternalSorter<Wide>>(options_.dir + "/pairs", options_.memory / 4 / sizeof(Wide),
                                                    std::vector<KeyField>{{32, kPairHashBits}});
    PMS_RETURN_IF_ERROR(entities_.ForEachNew([&](NameId id, Bytes name) {
      return pairs_->Add(static_cast<Wide>(PairHash(NameHash(old_.gen->store_id, name))) << 32 | id);
    }));
    PMS_RETURN_IF_ERROR(pairs_->Finish());
    by_subject_ = std::make_unique<TripleSorter>(options_.dir + "/spo", options_.memory / 4, entity_end,
                                                 old_.counters.next_name[1] + relations_.new_count());
    by_object_ = std::make_unique<ExternalSorter<Wide>>(
        options_.dir + "/ops", options_.memory / 8 / sizeof(Wide),
        std::vector<KeyField>{{64, BitsFor(old_.counters.next_name[1] + relations_.new_count())},
                              {96, BitsFor(entity_end)}});
    const uint64_t total = staged_.triples().count();
    uint64_t done = 0;
    PMS_RETURN_IF_ERROR(staged_.triples().ForEach([&](const StagedTriple& t) -> Status {
      if (done++ % (1u << 20) == 0) {
        if (progress) progress("sorting", done, total);
        if (interrupted_ && interrupted_()) return Status::Interrupted();
      }
      return by_subject_->Add({entities_.id(t.s), relations_.id(t.r), entities_.id(t.o)});
    }));
    PMS_RETURN_IF_ERROR(by_subject_->Finish());
    return options_.update ? ReadWholes() : Status::Ok();
  }

  std::map<std::string, uint64_t> result() const {
    return {{"read", staged_.triples().count()},
            {"inserted", accepted_},
            {"existed", existed_},
            {"duplicates", staged_.triples().count() - accepted_ - existed_},
            {"new_entities", entities_.new_count()},
            {"new_relations", relations_.new_count()},
            {"aliases", aliases_},
            {"external_ids", external_ids_},
            {"renamed", entities_.renames().size() + relations_.renames().size()},
            {"withdrawn", withdrawn_.size()},
            {"redirects", entities_.redirects() + relations_.redirects()},
            {"redirect_loops", entities_.redirect_loops() + relations_.redirect_loops()}};
  }

  uint64_t triple_count() const override { return staged_.triples().count(); }
  Status ForEachName(const std::function<Status(Bytes)>& fn) override {
    return entities_.ForEachNew([&](NameId, Bytes name) { return fn(name); });
  }
  bool NextNamePair(HashPair* pair) override {
    Wide key;
    if (!pairs_->Next(&key)) return false;
    *pair = {static_cast<uint64_t>(key >> 32), static_cast<NameId>(key)};
    return true;
  }
  bool NextTriple(TripleIds* t) override {
    while (by_subject_->Next(t)) {
      if (any_ && *t == last_) continue;
      any_ = true;
      last_ = *t;
      return true;
    }
    return false;
  }
  Status Accepted(const TripleIds& t, TripleId id) override {
    ++accepted_;
    if (id - first_id_ > UINT32_MAX) return Status::InvalidArgument("an import can add 4,294,967,295 triples at most");
    return by_object_->Add((static_cast<Wide>(t.o) << 32 | t.r) << 64 | (id - first_id_) << 32 | t.s);
  }
  void Existed(const TripleIds&) override { ++existed_; }
  bool Withdraws(Txn* old, const TripleIds& t, TripleId id) override {
    if (t.s >= whole_.size() || !whole_[t.s] || !OnlySourceIsOurs(old, id)) return false;
    withdrawn_.insert(id);
    return true;
  }
  Status TriplesDone() override {
    by_subject_.reset();
    return by_object_->Finish();
  }
  bool Withdrawn(TripleId id) const override { return !withdrawn_.empty() && withdrawn_.count(id); }
  bool NextByObject(PackedRow* row) override {
    Wide key;
    if (!by_object_->Next(&key)) return false;
    row->a = static_cast<uint32_t>(key >> 96);
    row->b = static_cast<uint32_t>(key >> 64);
    row->c = first_id_ + static_cast<uint32_t>(key >> 32);
    row->x = static_cast<uint32_t>(key);
    return true;
  }
  Status status() const override {
    PMS_RETURN_IF_ERROR(pairs_->status());
    if (by_subject_) PMS_RETURN_IF_ERROR(by_subject_->status());
    return by_object_->status();
  }

  Status Finish(Txn* txn, Counters* counters) override {
    PMS_RETURN_IF_ERROR(FinishRelations(txn, counters));
    PMS_RETURN_IF_ERROR(FinishKeys(txn, Kind::kEntity, entities_));
    PMS_RETURN_IF_ERROR(FinishKeys(txn, Kind::kRelation, relations_));
    PMS_RETURN_IF_ERROR(FinishAliases(txn, *counters));
    uint64_t seq = counters->seq;
    auto log = [&](LogRecord record) {
      record.time_us = time_us_;
      const uint64_t covers = record.type == ChangeType::kAdd ? record.count : 1;
      txn->Put(Table::kLog, Key64(seq + 1), EncodeLog(record));
      seq += covers;
    };
    for (const auto& [kind, names] : {std::make_pair(Kind::kEntity, &entities_), std::make_pair(Kind::kRelation, &relations_)})
      PMS_RETURN_IF_ERROR(FinishRenames(txn, counters, kind, *names, log));
    std::vector<TripleId> gone(withdrawn_.begin(), withdrawn_.end());
    std::sort(gone.begin(), gone.end());
    for (TripleId id : gone) {
      LogRecord record;
      record.type = ChangeType::kRemove;
      record.triple = id;
      log(std::move(record));
      (void)txn->Delete(Table::kProvenance, Key64(id));
    }
    if (accepted_) {
      LogRecord record;
      record.type = ChangeType::kAdd;
      record.triple = first_id_;
      record.count = static_cast<uint32_t>(accepted_);
      log(std::move(record));
      LoadRecord load;
      load.count = accepted_;
      load.time_us = time_us_;
      if (!options_.source.empty())
        load.source = InternSource(txn, old_.gen->store_id, options_.source, &counters->next_source) + 1;
      txn->Put(Table::kLoad, Key64(first_id_), EncodeLoad(load));
    }
    counters->seq = seq;
    auto result = this->result();
    txn->Put(Table::kMeta, "last_load", EncodeLastLoad(options_.load_id, result));
    return txn->status();
  }

 private:
  Status ReadWholes() {
    uint32_t source = 0;
    has_source_ = !options_.source.empty() && FindSource(old_.txn.get(), old_.gen->store_id, options_.source, &source);
    source_ = source;
    whole_.assign(old_.counters.next_name[0], false);
    return staged_.notes().ForEach([&](const Note& note) {
      if (note.type != NoteType::kWhole) return Status::Ok();
      const NameId id = entities_.id(note.ref);
      if (id < whole_.size()) whole_[id] = true;
      return Status::Ok();
    });
  }

  // Facts that somebody else vouches for too stay.
  bool OnlySourceIsOurs(Txn* old, TripleId id) {
    if (!has_source_) return false;
    bool ours = false;
    Cursor p(old, Table::kProvenance);
    for (bool more = p.SeekKey(Key64(id)); more; more = p.NextOfKey()) {
      if (GetBe32(p.value().data()) != source_) return false;
      ours = true;
    }
    Cursor c(old, Table::kLoad);
    LoadRecord load;
    if (SeekBlock(&c, Key64(id)) && DecodeLoad(c.value(), &load) && id - GetBe64(c.key().data()) < load.count)
      ours = ours || load.source == source_ + 1;
    return ours;
  }

  Status FinishRelations(Txn* txn, Counters* counters) {
    const NameTable& table = old_.gen->names[1];
    NameTable::RuleKeys keys;
    PMS_RETURN_IF_ERROR(relations_.ForEachNew([&](NameId id, Bytes name) {
      table.Create(txn, id, name, 0);
      table.CollectNameKeys(id, name, &keys);
      ++counters->next_name[1];
      ++counters->live[1];
      return txn->status();
    }));
    table.AddRuleKeys(txn, &keys);
    return txn->status();
  }

  Status FinishKeys(Txn* txn, Kind kind, const BulkNames& names) {
    std::vector<std::pair<std::string, NameId>> keys;
    PMS_RETURN_IF_ERROR(names.ForEachKey([&](Bytes key, NameId id) {
      keys.emplace_back(key, id);
      return Status::Ok();
    }));
    std::sort(keys.begin(), keys.end());
    std::vector<std::pair<NameId, Bytes>> by_name;
    for (const auto& [key, id] : keys)
      if (txn->PutNew(KindTable(Table::kEntExternal, kind), key, Key32(id))) by_name.emplace_back(id, key);
    external_ids_ += by_name.size();
    std::sort(by_name.begin(), by_name.end());
    for (const auto& [id, key] : by_name) txn->PutNew(KindTable(Table::kEntExternalOf, kind), Key32(id), key);
    return txn->status();
  }

  Status FinishAliases(Txn* txn, const Counters& counters) {
    struct Named {
      Kind kind;
      NameId id;
      uint64_t offset;
      bool operator<(const Named& other) const {
        return std::tie(kind, id, offset) < std::tie(other.kind, other.id, other.offset);
      }
    };
    std::vector<Named> aliases;
    PMS_RETURN_IF_ERROR(staged_.notes().ForEach([&](const Note& note) {
      if (note.type == NoteType::kAlias) aliases.push_back({note.kind, names(note.kind).id(note.ref), note.offset});
      return Status::Ok();
    }));
    std::sort(aliases.begin(), aliases.end());
    NameTable::RuleKeys keys[kKinds];
    for (const Named& a : aliases) {
      const size_t k = Index(a.kind);
      const NameTable& table = old_.gen->names[k];
      const Bytes alias = staged_.notes().At(a.offset).text;
      NameRecord record;
      if (table.Get(txn, a.id, &record) && record.name == alias) continue;  // its own name
      if (!table.AddAlias(txn, a.id, alias)) continue;
      ++aliases_;
      // Names whose own keys are still to be made get those of their aliases then.
      if (a.kind == Kind::kRelation || a.id < counters.ruled) table.CollectAliasKeys(a.id, alias, &keys[k]);
    }
    for (size_t k = 0; k < kKinds; ++k) old_.gen->names[k].AddRuleKeys(txn, &keys[k]);
    return txn->status();
  }

  // A renamed entity waits for the vector of its new name.
  template <typename Log>
  Status FinishRenames(Txn* txn, Counters* counters, Kind kind, const BulkNames& names, Log&& log) {
    const NameTable& table = old_.gen->names[Index(kind)];
    for (const auto& [id, name] : names.renames()) {
      NameRecord record;
      if (!table.Get(txn, id, &record)) continue;
      LogRecord change;
      change.type = ChangeType::kRename;
      change.kind = kind;
      change.name = id;
      change.text = std::string(record.name);
      change.other = name;
      const bool had_vector = record.row_plus_1 != 0;
      table.Rename(txn, id, name);
      if (had_vector) {
        txn->Put(KindTable(Table::kEntName, kind), Key32(id), EncodeName({0, 0, name}));
        txn->PutNew(KindTable(Table::kEntPending, kind), Key32(id), {});
        --counters->embedded[Index(kind)];
      }
      log(std::move(change));
    }
    return txn->status();
  }

  const BulkNames& names(Kind kind) const { return kind == Kind::kEntity ? entities_ : relations_; }

  const SealOptions& options_;
  BulkSink& staged_;
  Snapshot& old_;
  const InterruptCheck& interrupted_;
  BulkNames entities_, relations_;
  std::unique_ptr<ExternalSorter<Wide>> pairs_, by_object_;
  std::unique_ptr<TripleSorter> by_subject_;
  const TripleId first_id_;
  const uint64_t time_us_;
  TripleIds last_;
  bool any_ = false;
  uint64_t accepted_ = 0, existed_ = 0, aliases_ = 0, external_ids_ = 0;
  std::vector<bool> whole_;
  bool has_source_ = false;
  uint32_t source_ = 0;
  std::unordered_set<TripleId> withdrawn_;
};

}  // namespace

Result<std::map<std::string, uint64_t>> SealLoad(StoreImpl* impl, const SealOptions& options, BulkSink* staged,
                                                 const BuildProgress& progress, const InterruptCheck& interrupted) {
  PMS_ASSIGN_OR_RETURN(WriterLock building, LockBuilding(impl, options.timeout_s, interrupted));
  PMS_ASSIGN_OR_RETURN(WriterLock writing, impl->Lock(options.timeout_s, interrupted));
  std::map<std::string, uint64_t> result;
  {
    PMS_ASSIGN_OR_RETURN(Snapshot old, impl->Read());
    const uint32_t number = old.gen->number + 1;
    RemoveGeneration(impl, number);
    LoadInput input(options, staged, &old, interrupted);
    PMS_RETURN_IF_ERROR(input.Prepare(progress));
    BuildOptions build;
    build.scratch = options.dir;
    build.sort_memory = options.memory / 2;
    Counters counters;
    const Status status = BuildGeneration(impl, &old, number, build, &input, progress, interrupted, &counters);
    if (!status.ok()) {
      RemoveGeneration(impl, number);
      return status;
    }
    result = input.result();
    const std::shared_ptr<Generation> from = old.gen;
    old.txn.reset();
    bool switched = false;
    const Status moved = SwitchGeneration(impl, from.get(), number, &switched);
    if (!moved.ok()) {
      if (!switched) RemoveGeneration(impl, number);
      return moved;
    }
  }
  return result;
}

}  // namespace pymemstore
