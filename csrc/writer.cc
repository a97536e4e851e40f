#include "writer.h"

#include <algorithm>
#include <chrono>
#include <tuple>

#include "triple_table.h"

namespace pymemstore {
namespace {

constexpr size_t kFlushBytes = 16 << 20;
constexpr uint64_t kWorkBetweenChecks = 2048;

uint64_t NowMicros() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace

Writer::Writer(Snapshot* snapshot, const Batch& batch)
    : snap_(*snapshot),
      txn_(snapshot->txn.get()),
      gen_(*snapshot->gen),
      batch_(batch),
      counters_(snapshot->counters),
      time_us_(NowMicros()) {
  for (size_t k = 0; k < kKinds; ++k) written_[k] = counters_.rows[k];
}

bool Writer::Stop() { return ++work_ % kWorkBetweenChecks == 0 && *interrupted_ && (*interrupted_)(); }

Status Writer::Run(const InterruptCheck& interrupted, ApplyResult* result) {
  interrupted_ = &interrupted;
  for (Kind kind : {Kind::kEntity, Kind::kRelation}) {
    const uint32_t dim = batch_.dim[Index(kind)];
    if (dim && dim != gen_.index[Index(kind)]->dim())
      return Status::InvalidArgument(std::string("the ") + KindName(kind) + " vectors have dimension " +
                                     std::to_string(dim) + "; the store's have " +
                                     std::to_string(gen_.index[Index(kind)]->dim()));
  }
  for (const Op& op : batch_.ops()) {
    OpResult r;
    PMS_RETURN_IF_ERROR(Apply(op, &r));
    PMS_RETURN_IF_ERROR(txn_->status());
    result->ops.push_back(std::move(r));
  }
  return Status::Ok();
}

Status Writer::Finish(ApplyResult* result) {
  FlushAdds();
  FlushKeys();
  for (Kind kind : {Kind::kEntity, Kind::kRelation}) {
    const size_t k = Index(kind);
    PMS_RETURN_IF_ERROR(FlushVectors(kind));
    // Also with Sync::kRelaxed: a commit that reaches the disk before its vectors would be damage, not a lost commit.
    if (counters_.rows[k] != snap_.counters.rows[k]) PMS_RETURN_IF_ERROR(gen_.index[k]->file().Sync());
    result->new_names[k] = new_names_[k];
  }
  result->unembedded = counters_.unembedded();
  result->seq = counters_.seq;
  txn_->Put(Table::kMeta, "counters", EncodeCounters(counters_));
  return txn_->status();
}

Status Writer::Apply(const Op& op, OpResult* result) {
  switch (op.type) {
    case OpType::kAdd:
      return AddTriples(op, result);
    case OpType::kReplace:
      return Replace(op, result);
    case OpType::kRemove: {
      TripleIds t;
      if (!FindAll(op, &t)) return Status::Ok();
      const TripleId id = TripleTable::Find(txn_, t);
      if (id == kNoTriple) return Status::Ok();
      RemoveTriple(t, id);
      result->flag = true;
      return Status::Ok();
    }
    case OpType::kForget:
      return Forget(op, result);
    case OpType::kAlias:
    case OpType::kUnalias:
      return Alias(op, result);
    case OpType::kRename:
      return Rename(op);
    case OpType::kAddNames:
      for (Slice name : op.names) {
        bool is_new = false;
        PMS_RETURN_IF_ERROR(Resolve(op.kind, Text(name), &is_new).status());
        result->count += is_new;
        if (Stop()) return Status::Interrupted();
      }
      return Status::Ok();
    case OpType::kSetVectors:
      return SetVectors(op);
    case OpType::kExternalId: {
      PMS_ASSIGN_OR_RETURN(const NameId id, Existing(op.kind, Text(op.names[1])));
      PMS_ASSIGN_OR_RETURN(result->flag, gen_.names[Index(op.kind)].SetExternalId(txn_, Text(op.names[0]), id));
      if (!result->flag) return Status::Ok();
      LogRecord record;
      record.type = ChangeType::kExternalId;
      record.kind = op.kind;
      record.name = id;
      record.text = std::string(Text(op.names[0]));
      Log(std::move(record));
      return Status::Ok();
    }
  }
  return Status::InvalidArgument("unknown operation");
}

Result<NameId> Writer::Resolve(Kind kind, std::string_view name, bool* is_new) {
  const size_t k = Index(kind);
  auto known = ids_[k].find(name);
  if (known != ids_[k].end()) return known->second;
  PMS_RETURN_IF_ERROR(NameTable::CheckName(kind, name));
  const NameTable& table = gen_.names[k];
  NameId id = kNoName;
  const float* vector = batch_.Supplied(kind, name);
  uint64_t row = 0;
  if (!(kind == Kind::kEntity && absent_.count(name)) && table.Find(txn_, name, &id)) {
    NameRecord record;
    if (vector && table.Get(txn_, id, &record) && !record.row_plus_1) {
      PMS_RETURN_IF_ERROR(AppendVector(kind, vector, id, &row));
      counters_.embedded[k] += table.SetRow(txn_, id, row);
    }
  } else {
    PMS_RETURN_IF_ERROR(txn_->status());
    if (counters_.next_name[k] >= kNoName - 1)
      return Status::InvalidArgument(std::string("the store holds the most ") + KindName(kind) + " names it can");
    id = static_cast<NameId>(counters_.next_name[k]++);
    if (vector) PMS_RETURN_IF_ERROR(AppendVector(kind, vector, id, &row));
    table.Create(txn_, id, name, vector ? row + 1 : 0);
    table.CollectNameKeys(id, name, &keys_[k]);
    ++new_names_[k];
    ++counters_.live[k];
    counters_.embedded[k] += vector != nullptr;
    if (is_new) *is_new = true;
  }
  PMS_RETURN_IF_ERROR(txn_->status());
  ids_[k].emplace(name, id);
  return id;
}

Result<NameId> Writer::Existing(Kind kind, std::string_view name) {
  NameId id = kNoName;
  if (gen_.names[Index(kind)].Find(txn_, name, &id)) return id;
  PMS_RETURN_IF_ERROR(txn_->status());
  return Status::NotFound(std::string("there is no ") + KindName(kind) + " " + Quote(name));
}

bool Writer::FindAll(const Op& op, TripleIds* t) {
  return gen_.names[0].Find(txn_, Text(op.names[0]), &t->s) && gen_.names[1].Find(txn_, Text(op.names[1]), &t->r) &&
         gen_.names[0].Find(txn_, Text(op.names[2]), &t->o);
}

TripleId Writer::Insert(const TripleIds& t, TripleId sealed, bool* inserted) {
  TripleId id = TripleTable::Find(txn_, t, sealed);
  *inserted = id == kNoTriple;
  if (!*inserted) return id;
  id = counters_.next_triple++;
  TripleTable::Insert(txn_, t, id);
  ++counters_.triples;
  return id;
}

Status Writer::FindAhead(const Op& op) {
  const NameTable& table = gen_.names[0];
  std::vector<std::pair<uint64_t, std::string_view>> wanted;
  for (size_t i = 0; i < op.names.size(); ++i)
    if (i % 3 != 1) wanted.emplace_back(NameHash(gen_.store_id, Text(op.names[i])), Text(op.names[i]));
  std::sort(wanted.begin(), wanted.end());
  for (size_t i = 0; i < wanted.size(); ++i) {
    const std::string_view name = wanted[i].second;
    if ((i && name == wanted[i - 1].second) || ids_[0].count(name)) continue;
    NameId id = kNoName;
    // One that lacks a vector which this batch brings is Resolve's.
    if (!table.Find(txn_, name, &id)) {
      absent_.insert(name);
    } else if (!batch_.Supplied(Kind::kEntity, name)) {
      ids_[0].emplace(name, id);
    }
    if (Stop()) return Status::Interrupted();
  }
  return txn_->status();
}

Status Writer::AddTriples(const Op& op, OpResult* result) {
  const size_t n = op.names.size() / 3;
  constexpr size_t kMany = 256;
  absent_.clear();
  if (n >= kMany) PMS_RETURN_IF_ERROR(FindAhead(op));
  result->ids.reserve(n);
  result->inserted.reserve(n);
  std::vector<TripleIds> triples(n);
  for (size_t i = 0; i < n; ++i) {
    TripleIds& t = triples[i];
    auto resolve = [&](Kind kind, size_t part, NameId* id) -> Status {
      auto found = Resolve(kind, Text(op.names[3 * i + part]));
      if (!found.ok()) {
        if (found.status().code() != Code::kInvalidArgument) return found.status();
        static const char* kParts[] = {"subject", "relation", "object"};
        return Status::InvalidArgument("triple " + std::to_string(i) + ", " + kParts[part] + ": " +
                                       found.status().message());
      }
      *id = *found;
      return Status::Ok();
    };
    PMS_RETURN_IF_ERROR(resolve(Kind::kEntity, 0, &t.s));
    PMS_RETURN_IF_ERROR(resolve(Kind::kRelation, 1, &t.r));
    PMS_RETURN_IF_ERROR(resolve(Kind::kEntity, 2, &t.o));
    if (Stop()) return Status::Interrupted();
  }
  absent_.clear();
  // The base is asked in its own order.
  std::vector<size_t> order(n);
  for (size_t i = 0; i < n; ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const TripleIds &x = triples[a], &y = triples[b];
    return std::tie(x.s, x.r, x.o) < std::tie(y.s, y.r, y.o);
  });
  std::vector<TripleId> sealed(n);
  for (size_t i : order) sealed[i] = TripleTable::FindSealed(txn_, triples[i]);
  for (size_t i = 0; i < n; ++i) {
    bool inserted = false;
    const TripleId id = Insert(triples[i], sealed[i], &inserted);
    PMS_RETURN_IF_ERROR(txn_->status());
    if (inserted) {
      if (!added_) first_added_ = id;
      ++added_;
    }
    if (!op.sources.empty()) {
      const std::string_view source = Text(op.sources.size() == 1 ? op.sources[0] : op.sources[i]);
      if (!source.empty()) {
        PMS_ASSIGN_OR_RETURN(const uint32_t source_id, Source(source));
        AddSource(id, source_id);
      }
    }
    result->ids.push_back(id);
    result->inserted.push_back(inserted);
    if (Stop()) return Status::Interrupted();
  }
  return Status::Ok();
}

Status Writer::Replace(const Op& op, OpResult* result) {
  FlushAdds();
  TripleIds t;
  PMS_ASSIGN_OR_RETURN(t.s, Resolve(Kind::kEntity, Text(op.names[0])));
  PMS_ASSIGN_OR_RETURN(t.r, Resolve(Kind::kRelation, Text(op.names[1])));
  PMS_ASSIGN_OR_RETURN(t.o, Resolve(Kind::kEntity, Text(op.names[2])));
  std::vector<StoredTriple> displaced;
  TripleTable::Scan(txn_, false, t.s, {{t.r, 0, Match::kExact}},
                    [&](const StoredTriple& found, const TripleTable::Relation&) {
                      if (found.ids.o != t.o) displaced.push_back(found);
                      return true;
                    });
  bool inserted = false;
  LogRecord record;
  record.type = ChangeType::kReplace;
  record.triple = Insert(t, TripleTable::FindSealed(txn_, t), &inserted);
  for (const StoredTriple& old : displaced) {
    result->removed.push_back(Materialise(old.ids, old.id));
    record.removed.push_back(old.id);
    TripleTable::Remove(txn_, old.ids, old.id);
    --counters_.triples;
  }
  result->ids.push_back(record.triple);
  result->flag = inserted;
  if (!op.sources.empty() && op.sources[0].size) {
    PMS_ASSIGN_OR_RETURN(const uint32_t source, Source(Text(op.sources[0])));
    AddSource(record.triple, source);
  }
  if (inserted || !displaced.empty()) Log(std::move(record));
  return txn_->status();
}

Status Writer::Forget(const Op& op, OpResult* result) {
  FlushKeys();
  const NameTable& table = gen_.names[0];
  PMS_ASSIGN_OR_RETURN(const NameId id, Existing(Kind::kEntity, Text(op.names[0])));
  for (bool as_object : {false, true}) {
    std::string cursor;
    do {
      for (const StoredTriple& t :
           TripleTable::Page(txn_, as_object ? nullptr : &id, nullptr, as_object ? &id : nullptr, &cursor, 1000)) {
        RemoveTriple(t.ids, t.id);
        ++result->count;
        if (Stop()) return Status::Interrupted();
      }
    } while (!cursor.empty() && txn_->ok());
  }
  LogRecord record;
  record.type = ChangeType::kForget;
  record.name = id;
  record.text = std::string(Text(op.names[0]));
  Log(std::move(record));
  NameRecord name;
  counters_.embedded[0] -= table.Get(txn_, id, &name) && name.row_plus_1;
  --counters_.live[0];
  table.Forget(txn_, id);
  ids_[0].erase(Text(op.names[0]));
  return txn_->status();
}

Status Writer::Alias(const Op& op, OpResult* result) {
  const std::string_view alias = Text(op.names[0]);
  PMS_RETURN_IF_ERROR(NameTable::CheckName(op.kind, alias));
  const NameTable& table = gen_.names[Index(op.kind)];
  PMS_ASSIGN_OR_RETURN(const NameId id, Existing(op.kind, Text(op.names[1])));
  if (op.type == OpType::kAlias) {
    result->flag = table.AddAlias(txn_, id, alias);
    if (result->flag) table.CollectAliasKeys(id, alias, &keys_[Index(op.kind)]);
  } else {
    FlushKeys();
    result->flag = table.RemoveAlias(txn_, id, alias);
  }
  if (!result->flag) return txn_->status();
  LogRecord record;
  record.type = op.type == OpType::kAlias ? ChangeType::kAlias : ChangeType::kUnalias;
  record.kind = op.kind;
  record.name = id;
  record.text = std::string(alias);
  Log(std::move(record));
  return txn_->status();
}

Status Writer::Rename(const Op& op) {
  FlushKeys();
  const size_t k = Index(op.kind);
  const std::string_view old = Text(op.names[0]), name = Text(op.names[1]);
  PMS_RETURN_IF_ERROR(NameTable::CheckName(op.kind, name));
  const NameTable& table = gen_.names[k];
  PMS_ASSIGN_OR_RETURN(const NameId id, Existing(op.kind, old));
  if (old == name) return Status::Ok();
  NameId other = kNoName;
  if (table.Find(txn_, name, &other))
    return Status::InvalidArgument(std::string("cannot rename ") + Quote(old) + ": there is already " +
                                   (op.kind == Kind::kEntity ? "an entity " : "a relation ") + Quote(name) +
                                   "; names are never merged");
  table.Rename(txn_, id, name);
  if (const float* vector = batch_.Supplied(op.kind, name)) {
    uint64_t row = 0;
    PMS_RETURN_IF_ERROR(AppendVector(op.kind, vector, id, &row));
    counters_.embedded[k] += table.SetRow(txn_, id, row);
  }
  ids_[k].erase(old);
  LogRecord record;
  record.type = ChangeType::kRename;
  record.kind = op.kind;
  record.name = id;
  record.text = std::string(old);
  record.other = std::string(name);
  Log(std::move(record));
  return txn_->status();
}

Status Writer::SetVectors(const Op& op) {
  const uint32_t dim = gen_.index[Index(op.kind)]->dim();
  for (size_t i = 0; i < op.names.size(); ++i) {
    PMS_ASSIGN_OR_RETURN(const NameId id, Existing(op.kind, Text(op.names[i])));
    uint64_t row = 0;
    PMS_RETURN_IF_ERROR(AppendVector(op.kind, op.vectors.data() + i * dim, id, &row));
    counters_.embedded[Index(op.kind)] += gen_.names[Index(op.kind)].SetRow(txn_, id, row);
    LogRecord record;
    record.type = ChangeType::kVector;
    record.kind = op.kind;
    record.name = id;
    Log(std::move(record));
    if (Stop()) return Status::Interrupted();
  }
  return txn_->status();
}

void Writer::RemoveTriple(const TripleIds& t, TripleId id) {
  TripleTable::Remove(txn_, t, id);
  --counters_.triples;
  LogRecord record;
  record.type = ChangeType::kRemove;
  record.triple = id;
  Log(std::move(record));
}

Result<uint32_t> Writer::Source(std::string_view text) {
  auto known = sources_.find(text);
  if (known != sources_.end()) return known->second;
  if (text.size() > kMaxNameBytes)
    return Status::InvalidArgument("a source has " + std::to_string(text.size()) + " bytes; the limit is " +
                                   std::to_string(kMaxNameBytes));
  const uint32_t id = InternSource(txn_, gen_.store_id, text, &counters_.next_source);
  PMS_RETURN_IF_ERROR(txn_->status());
  sources_.emplace(text, id);
  return id;
}

void Writer::AddSource(TripleId id, uint32_t source) {
  {
    // A source is recorded once for a triple, when it first said so.
    Cursor c(txn_, Table::kProvenance);
    if (c.SeekPair(Key64(id), ProvenanceValue(source, 0)) && GetBe32(c.value().data()) == source) return;
  }
  txn_->Put(Table::kProvenance, Key64(id), ProvenanceValue(source, time_us_));
}

Status Writer::AppendVector(Kind kind, const float* v, NameId owner, uint64_t* row) {
  const size_t k = Index(kind);
  *row = counters_.rows[k]++;
  VectorFile::Encode(v, gen_.index[k]->dim(), owner, &rows_[k]);
  return rows_[k].size() >= kFlushBytes ? FlushVectors(kind) : Status::Ok();
}

Status Writer::FlushVectors(Kind kind) {
  const size_t k = Index(kind);
  if (rows_[k].empty()) return Status::Ok();
  PMS_RETURN_IF_ERROR(gen_.index[k]->file().Write(written_[k], rows_[k]));
  written_[k] += rows_[k].size() / RowStride(gen_.index[k]->dim());
  rows_[k].clear();
  return Status::Ok();
}

void Writer::FlushKeys() {
  for (size_t k = 0; k < kKinds; ++k) gen_.names[k].AddRuleKeys(txn_, &keys_[k]);
}

void Writer::Log(LogRecord record) {
  FlushAdds();
  record.time_us = time_us_;
  txn_->Put(Table::kLog, Key64(++counters_.seq), EncodeLog(record));
}

void Writer::FlushAdds() {
  if (!added_) return;
  LogRecord record;
  record.type = ChangeType::kAdd;
  record.time_us = time_us_;
  record.triple = first_added_;
  record.count = added_;
  txn_->Put(Table::kLog, Key64(counters_.seq + 1), EncodeLog(record));
  counters_.seq += added_;
  added_ = 0;
}

Triple Writer::Materialise(const TripleIds& t, TripleId id) {
  auto text = [&](Kind kind, NameId name) {
    NameRecord record;
    return gen_.names[Index(kind)].GetForgotten(txn_, name, &record) ? std::string(record.name) : std::string();
  };
  return {text(Kind::kEntity, t.s), text(Kind::kRelation, t.r), text(Kind::kEntity, t.o), id};
}

}  // namespace pymemstore
