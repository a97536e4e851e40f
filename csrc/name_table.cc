#include "name_table.h"

#include <algorithm>

namespace pymemstore {
namespace {

// Which rules the keys of stored names serve: all, so that a query may choose.
uint32_t IndexedRules(Kind kind) { return kind == Kind::kEntity ? kRulesWide : kRulesRelation; }

Status Damaged(Kind kind, NameId id) {
  return Status::Corruption(std::string("the record of ") + KindName(kind) + " " + std::to_string(id) + " is damaged");
}

Fixed<12> RowRun(uint64_t row, uint32_t count) {
  Fixed<12> v;
  PutBe64(v.data, row);
  PutBe32(v.data + 8, count);
  return v;
}

}  // namespace

void FindSealedPairs(Txn* txn, Table table, uint64_t hash, std::vector<NameId>* ids) {
  if (txn->Empty(table)) return;
  const uint64_t wanted = PairHash(hash);
  Cursor c(txn, table);
  const Fixed<9> key = PairKey(wanted, 0);
  for (bool more = SeekBlock(&c, key) || c.Seek(key); more; more = c.Next()) {
    PairBlockReader block(c.key(), c.value());
    bool inside = true;
    for (; inside && block.pair().first <= wanted; inside = block.Next())
      if (block.pair().first == wanted) ids->push_back(block.pair().second);
    if (!block.ok()) txn->Fail(Status::Corruption(std::string("a row of ") + Info(table).name + " is damaged"));
    if (inside) return;
  }
}

uint64_t SealedRow(Txn* txn, NameId id) {
  if (txn->Empty(Table::kBaseRow)) return 0;
  Cursor c(txn, Table::kBaseRow);
  if (!SeekBlock(&c, Key32(id)) || c.key().size() != 4 || c.value().size() != 12) return 0;
  const uint32_t at = id - GetBe32(c.key().data());
  return at < GetBe32(c.value().data() + 8) ? GetBe64(c.value().data()) + at + 1 : 0;
}

Status NameTable::CheckName(Kind kind, Bytes name) {
  if (name.empty()) return Status::InvalidArgument(std::string("the name of ") + (kind == Kind::kEntity ? "an entity" : "a relation") + " is empty");
  if (name.size() > kMaxNameBytes)
    return Status::InvalidArgument("the name " + Quote(name) + " has " + std::to_string(name.size()) +
                                   " bytes; the limit is " + std::to_string(kMaxNameBytes));
  return Status::Ok();
}

bool NameTable::Find(Txn* txn, Bytes name, NameId* id) const {
  const uint64_t hash = Hash(name);
  NameRecord record;
  Cursor c(txn, table(Table::kEntHash));
  for (bool more = c.SeekKey(Key64(hash)); more; more = c.NextOfKey()) {
    const NameId candidate = GetBe32(c.value().data());
    if (Get(txn, candidate, &record) && record.name == name) {
      *id = candidate;
      return true;
    }
  }
  if (!sealed(txn)) return false;
  std::vector<NameId> found;
  FindSealedPairs(txn, Table::kBaseHash, hash, &found);
  for (NameId candidate : found)
    if (Get(txn, candidate, &record) && record.name == name) {
      *id = candidate;
      return true;
    }
  return false;
}

bool NameTable::GetForgotten(Txn* txn, NameId id, NameRecord* record) const {
  Bytes value;
  if (!txn->Get(table(Table::kEntName), Key32(id), &value)) return sealed(txn) && GetSealed(txn, id, record);
  if (DecodeName(value, record)) return true;
  txn->Fail(Damaged(kind_, id));
  return false;
}

bool NameTable::GetSealed(Txn* txn, NameId id, NameRecord* record) const {
  Cursor c(txn, Table::kBaseName);
  PackedName name;
  if (!SeekBlock(&c, Key32(id))) return false;
  if (!NameBlockReader::Find(c.key(), c.value(), id, &name)) {
    if (!NameBlockReader(c.key(), c.value()).ok()) txn->Fail(Damaged(kind_, id));
    return false;
  }
  record->name = name.name;
  record->flags = name.forgotten ? NameRecord::kForgotten : 0;
  record->row_plus_1 = name.forgotten ? 0 : SealedRow(txn, id);
  return true;
}

bool NameTable::Get(Txn* txn, NameId id, NameRecord* record) const {
  return GetForgotten(txn, id, record) && record->live();
}

void NameTable::Create(Txn* txn, NameId id, Bytes name, uint64_t row_plus_1) const {
  txn->Put(table(Table::kEntName), Key32(id), EncodeName({row_plus_1, 0, name}));
  txn->Put(table(Table::kEntHash), Key64(Hash(name)), Key32(id));
  if (!row_plus_1) txn->Put(table(Table::kEntPending), Key32(id), {});
}

bool NameTable::SetRow(Txn* txn, NameId id, uint64_t row) const {
  NameRecord record;
  if (!Get(txn, id, &record)) return false;
  const bool first = record.row_plus_1 == 0;
  Bytes unused;
  if (first && sealed(txn) && !txn->Get(table(Table::kEntName), Key32(id), &unused)) {
    SetSealedRows(txn, id, row, 1);
    return true;
  }
  if (first) txn->Delete(table(Table::kEntPending), Key32(id));
  record.row_plus_1 = row + 1;
  txn->Put(table(Table::kEntName), Key32(id), EncodeName(record));
  return first;
}

void NameTable::SetSealedRows(Txn* txn, NameId first, uint64_t row, uint32_t count) const {
  // Sealed names get their first vectors in order of id, so one run grows over all of them.
  NameId run = first;
  uint64_t run_row = row;
  {
    Cursor c(txn, Table::kBaseRow);
    if (SeekBlock(&c, Key32(first)) && c.value().size() == 12) {
      const NameId before = GetBe32(c.key().data());
      const uint32_t length = GetBe32(c.value().data() + 8);
      if (before + length == first && GetBe64(c.value().data()) + length == row) {
        run = before;
        run_row = row - length;
        count += length;
      }
    }
  }
  txn->Put(Table::kBaseRow, Key32(run), RowRun(run_row, count));
}

bool NameTable::NextUnembedded(Txn* txn, uint64_t sealed_end, NameId* id) const {
  // Those with a delta record are listed; sealed ones are where no run of rows is, and come first when they do.
  NameId listed = kNoName;
  {
    Cursor c(txn, table(Table::kEntPending));
    if (c.Seek(Key32(*id))) listed = GetBe32(c.key().data());
  }
  if (kind_ == Kind::kEntity) {
    const uint64_t end = std::min<uint64_t>(sealed_end, listed);
    Cursor c(txn, Table::kBaseRow);
    while (*id < end && txn->ok()) {
      if (SeekBlock(&c, Key32(*id)) && c.value().size() == 12) {
        const uint64_t run_end = static_cast<uint64_t>(GetBe32(c.key().data())) + GetBe32(c.value().data() + 8);
        if (run_end > *id) {
          *id = static_cast<NameId>(std::min(run_end, end));
          continue;
        }
      }
      const uint64_t gap_end = c.Seek(Key32(*id)) ? std::min<uint64_t>(end, GetBe32(c.key().data())) : end;
      for (; *id < gap_end && txn->ok(); ++*id) {
        NameRecord record;
        if (Get(txn, *id, &record) && !record.row_plus_1) return true;
      }
    }
  }
  *id = listed;
  return listed != kNoName;
}

void NameTable::RemoveKeys(Txn* txn, NameId id, Bytes name) const {
  txn->DeletePair(table(Table::kEntHash), Key64(Hash(name)), Key32(id));
  RuleKeys keys;
  CollectNameKeys(id, name, &keys);
  for (const auto& [key, owner] : keys) txn->DeletePair(table(Table::kEntRule), Key64(key), Key32(owner));
}

void NameTable::Rename(Txn* txn, NameId id, Bytes name) const {
  NameRecord record;
  if (!Get(txn, id, &record)) return;
  const std::string old(record.name);
  const uint64_t row_plus_1 = record.row_plus_1;
  RemoveKeys(txn, id, old);
  txn->Put(table(Table::kEntName), Key32(id), EncodeName({row_plus_1, 0, name}));
  if (!row_plus_1) txn->PutNew(table(Table::kEntPending), Key32(id), {});  // a sealed name was not listed there
  txn->Put(table(Table::kEntHash), Key64(Hash(name)), Key32(id));
  RuleKeys keys;
  CollectNameKeys(id, name, &keys);
  // An alias of this name may share a key with the old text, which went with it.
  for (const std::string& alias : Aliases(txn, id)) CollectAliasKeys(id, alias, &keys);
  AddRuleKeys(txn, &keys);
}

void NameTable::Forget(Txn* txn, NameId id) const {
  NameRecord record;
  if (!Get(txn, id, &record)) return;
  const std::string name(record.name);
  for (const std::string& alias : Aliases(txn, id)) RemoveAlias(txn, id, alias);
  for (const std::string& external : ExternalIds(txn, id)) txn->Delete(table(Table::kEntExternal), external);
  txn->Delete(table(Table::kEntExternalOf), Key32(id));
  RemoveKeys(txn, id, name);
  txn->Delete(table(Table::kEntPending), Key32(id));
  txn->Put(table(Table::kEntName), Key32(id), EncodeName({0, NameRecord::kForgotten, name}));
}

bool NameTable::AddAlias(Txn* txn, NameId id, Bytes alias) const {
  uint32_t number = 0;
  {
    Cursor c(txn, table(Table::kEntAliasHash));
    for (bool more = c.SeekPair(Key64(Hash(alias)), Key32x2(id, 0)); more && GetBe32(c.value().data()) == id;
         more = c.NextOfKey()) {
      Bytes text;
      if (txn->Get(table(Table::kEntAlias), c.value(), &text) && text == alias) return false;
    }
  }
  {
    // The next number of this name: behind its last alias.
    Cursor c(txn, table(Table::kEntAlias));
    const bool behind = c.Seek(Key32x2(id + 1, 0)) ? c.Prev() : c.Last();
    if (behind && GetBe32(c.key().data()) == id) number = GetBe32(c.key().data() + 4) + 1;
  }
  txn->Put(table(Table::kEntAlias), Key32x2(id, number), alias);
  txn->Put(table(Table::kEntAliasHash), Key64(Hash(alias)), Key32x2(id, number));
  return txn->ok();
}

bool NameTable::RemoveAlias(Txn* txn, NameId id, Bytes alias) const {
  std::string row;
  {
    Cursor c(txn, table(Table::kEntAliasHash));
    for (bool more = c.SeekPair(Key64(Hash(alias)), Key32x2(id, 0)); more && GetBe32(c.value().data()) == id;
         more = c.NextOfKey()) {
      Bytes text;
      if (txn->Get(table(Table::kEntAlias), c.value(), &text) && text == alias) {
        row = std::string(c.value());
        break;
      }
    }
  }
  if (row.empty()) return false;
  RuleKeys gone, kept;
  CollectAliasKeys(id, alias, &gone);
  txn->DeletePair(table(Table::kEntAliasHash), Key64(Hash(alias)), row);
  txn->Delete(table(Table::kEntAlias), row);
  // The name and its other aliases may share the key.
  NameRecord record;
  if (Get(txn, id, &record)) CollectNameKeys(id, std::string(record.name), &kept);
  for (const std::string& other : Aliases(txn, id)) CollectAliasKeys(id, other, &kept);
  for (const auto& key : gone)
    if (std::find(kept.begin(), kept.end(), key) == kept.end())
      txn->DeletePair(table(Table::kEntRule), Key64(key.first), Key32(id));
  return txn->ok();
}

std::vector<std::string> NameTable::Aliases(Txn* txn, NameId id) const {
  std::vector<std::string> result;
  Cursor c(txn, table(Table::kEntAlias));
  for (bool more = c.Seek(Key32x2(id, 0)); more && GetBe32(c.key().data()) == id; more = c.Next())
    result.emplace_back(c.value());
  return result;
}

std::vector<NameId> NameTable::NamedBy(Txn* txn, Bytes alias) const {
  std::vector<NameId> ids;
  Cursor c(txn, table(Table::kEntAliasHash));
  for (bool more = c.SeekKey(Key64(Hash(alias))); more; more = c.NextOfKey()) {
    Bytes text;
    if (txn->Get(table(Table::kEntAlias), c.value(), &text) && text == alias)
      ids.push_back(GetBe32(c.value().data()));
  }
  return ids;
}

Result<bool> NameTable::SetExternalId(Txn* txn, Bytes external_id, NameId id) const {
  if (external_id.empty() || external_id.size() > kMaxExternalIdBytes)
    return Status::InvalidArgument("the external id " + Quote(external_id) + " has " +
                                   std::to_string(external_id.size()) + " bytes; 1 to " +
                                   std::to_string(kMaxExternalIdBytes) + " are allowed");
  NameId old = kNoName;
  if (ByExternalId(txn, external_id, &old)) {
    if (old == id) return false;
    NameRecord record;
    const std::string holder = Get(txn, old, &record) ? std::string(record.name) : "?";
    return Status::InvalidArgument("the external id " + Quote(external_id) + " belongs to " + Quote(holder));
  }
  txn->Put(table(Table::kEntExternal), external_id, Key32(id));
  txn->Put(table(Table::kEntExternalOf), Key32(id), external_id);
  return true;
}

bool NameTable::ByExternalId(Txn* txn, Bytes external_id, NameId* id) const {
  Bytes value;
  if (external_id.empty() || external_id.size() > kMaxExternalIdBytes) return false;
  if (!txn->Get(table(Table::kEntExternal), external_id, &value) || value.size() != 4) return false;
  *id = GetBe32(value.data());
  return true;
}

std::vector<std::string> NameTable::ExternalIds(Txn* txn, NameId id) const {
  std::vector<std::string> result;
  Cursor c(txn, table(Table::kEntExternalOf));
  for (bool more = c.SeekKey(Key32(id)); more; more = c.NextOfKey()) result.emplace_back(c.value());
  return result;
}

void NameTable::CollectNameKeys(NameId id, Bytes name, RuleKeys* keys) const {
  std::vector<uint64_t> found;
  IndexKeys(ParseName(name), IndexedRules(kind_), &found);
  for (uint64_t key : found) keys->emplace_back(key, id);
}

void NameTable::CollectAliasKeys(NameId id, Bytes alias, RuleKeys* keys) const {
  std::vector<uint64_t> found;
  IndexKeys(ParseName(alias), RuleBit(Match::kFolded), &found);
  for (uint64_t key : found) keys->emplace_back(key, id);
}

void NameTable::AddRuleKeys(Txn* txn, RuleKeys* keys) const {
  std::sort(keys->begin(), keys->end());
  keys->erase(std::unique(keys->begin(), keys->end()), keys->end());
  for (const auto& [key, id] : *keys) txn->PutNew(table(Table::kEntRule), Key64(key), Key32(id));
  keys->clear();
}

std::vector<NameId> NameTable::ByRuleKey(Txn* txn, uint64_t key) const {
  std::vector<NameId> ids;
  Cursor c(txn, table(Table::kEntRule));
  for (bool more = c.SeekKey(Key64(key)); more; more = c.NextOfKey()) ids.push_back(GetBe32(c.value().data()));
  if (kind_ == Kind::kEntity) FindSealedPairs(txn, Table::kBaseRule, key, &ids);
  return ids;
}

NameCursor::NameCursor(Txn* txn, Kind kind)
    : txn_(txn),
      sealed_(kind == Kind::kEntity && !txn->Empty(Table::kBaseName)),
      delta_(txn, KindTable(Table::kEntName, kind)),
      base_(txn, Table::kBaseName),
      rows_(txn, Table::kBaseRow) {}

bool NameCursor::Seek(NameId id) {
  in_delta_ = delta_.Seek(Key32(id));
  block_ = NameBlockReader();
  if (sealed_ && (SeekBlock(&base_, Key32(id)) || base_.Seek(Key32(id)))) {
    block_ = NameBlockReader(base_.key(), base_.value());
    if (!block_.ok()) txn_->Fail(Damaged(Kind::kEntity, id));
  }
  run_first_ = run_count_ = 0;
  if (sealed_ && SeekBlock(&rows_, Key32(id)) && rows_.value().size() == 12) {
    run_first_ = GetBe32(rows_.key().data());
    run_row_ = GetBe64(rows_.value().data());
    run_count_ = GetBe32(rows_.value().data() + 8);
  }
  return Settle(id);
}

bool NameCursor::Next() {
  if (in_delta_ && GetBe32(delta_.key().data()) == id_) in_delta_ = delta_.Next();
  return id_ != kNoName && Settle(id_ + 1);
}

bool NameCursor::Settle(NameId at_least) {
  // The next sealed name, then the delta's if it comes first or overrides it.
  while (block_.ok() && block_.end() <= at_least && block_.end() > block_.first()) {
    if (!base_.Next()) {
      block_ = NameBlockReader();
      break;
    }
    block_ = NameBlockReader(base_.key(), base_.value());
    if (!block_.ok()) txn_->Fail(Damaged(Kind::kEntity, at_least));
  }
  if (!txn_->ok()) return false;
  const bool in_base = block_.end() > block_.first();
  const NameId base_id = in_base ? std::max(at_least, block_.first()) : kNoName;
  if (in_delta_ && GetBe32(delta_.key().data()) <= base_id) {
    id_ = GetBe32(delta_.key().data());
    from_delta_ = true;
    if (DecodeName(delta_.value(), &record_)) return true;
    txn_->Fail(Damaged(Kind::kEntity, id_));
    return false;
  }
  if (!in_base) return false;
  id_ = base_id;
  from_delta_ = false;
  while (id_ - run_first_ >= run_count_ && id_ >= run_first_) {
    // The next run, which may begin behind this name.
    const bool more = run_count_ || run_first_ ? rows_.Next() : rows_.Seek(Key32(0));
    if (!more || rows_.value().size() != 12) {
      run_first_ = kNoName;
      break;
    }
    run_first_ = GetBe32(rows_.key().data());
    run_row_ = GetBe64(rows_.value().data());
    run_count_ = GetBe32(rows_.value().data() + 8);
  }
  const PackedName& name = block_.name(id_);
  record_.name = name.name;
  record_.flags = name.forgotten ? NameRecord::kForgotten : 0;
  const bool in_run = id_ >= run_first_ && id_ - run_first_ < run_count_;
  record_.row_plus_1 = in_run && !name.forgotten ? run_row_ + (id_ - run_first_) + 1 : 0;
  return true;
}

bool FindSource(Txn* txn, const StoreId& store, Bytes source, uint32_t* id) {
  Cursor c(txn, Table::kSourceHash);
  for (bool more = c.SeekKey(Key64(NameHash(store, source))); more; more = c.NextOfKey()) {
    Bytes text;
    if (txn->Get(Table::kSource, c.value(), &text) && text == source) {
      *id = GetBe32(c.value().data());
      return true;
    }
  }
  return false;
}

uint32_t InternSource(Txn* txn, const StoreId& store, Bytes source, uint64_t* next_source) {
  uint32_t id = 0;
  if (FindSource(txn, store, source, &id)) return id;
  id = static_cast<uint32_t>((*next_source)++);
  txn->Put(Table::kSource, Key32(id), source);
  txn->Put(Table::kSourceHash, Key64(NameHash(store, source)), Key32(id));
  return id;
}

bool SourceText(Txn* txn, uint32_t id, std::string* text) {
  Bytes value;
  if (!txn->Get(Table::kSource, Key32(id), &value)) return false;
  *text = std::string(value);
  return true;
}

}  // namespace pymemstore
