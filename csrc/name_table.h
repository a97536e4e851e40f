// Unique names of one kind and their ids; aliases, rule keys and external ids beside them. Names of entities that a
// generation was built with are in sealed blocks; a row of ent_name overrides its block. A sealed pair (hash or rule
// key, id) may be out of date: who finds a name compares its text.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lmdb_env.h"
#include "packed.h"

namespace pymemstore {

// Stateless but for the hash key: every call works on the transaction it is given.
class NameTable {
 public:
  NameTable(Kind kind, const StoreId& id) : kind_(kind), store_(id) {}
  Kind kind() const { return kind_; }

  // Fails the caller's input: empty, too long. (UTF-8 is the binding's to check: Python's text is Unicode.)
  static Status CheckName(Kind kind, Bytes name);

  bool Find(Txn* txn, Bytes name, NameId* id) const;
  // False for an id that no name has, or a forgotten one. The record's name lives as long as the page does.
  bool Get(Txn* txn, NameId id, NameRecord* record) const;
  bool GetForgotten(Txn* txn, NameId id, NameRecord* record) const;  // forgotten ones too

  // `name` is not there yet; `id` is the next one. Its rule keys are the caller's (AddRuleKeys), in bulk.
  void Create(Txn* txn, NameId id, Bytes name, uint64_t row_plus_1) const;
  // True: it had no vector yet.
  bool SetRow(Txn* txn, NameId id, uint64_t row) const;
  // The same for consecutive sealed names that have none and that no delta record overrides: consecutive rows.
  void SetSealedRows(Txn* txn, NameId first, uint64_t row, uint32_t count) const;
  void Rename(Txn* txn, NameId id, Bytes name) const;
  // Marks it; aliases, external ids and keys go. The text stays for the edit log.
  void Forget(Txn* txn, NameId id) const;
  // The first id >= `id` whose name waits for a vector; false: none. `sealed` is the counter.
  bool NextUnembedded(Txn* txn, uint64_t sealed, NameId* id) const;

  bool AddAlias(Txn* txn, NameId id, Bytes alias) const;     // false: there already
  bool RemoveAlias(Txn* txn, NameId id, Bytes alias) const;  // false: not there
  std::vector<std::string> Aliases(Txn* txn, NameId id) const;
  std::vector<NameId> NamedBy(Txn* txn, Bytes alias) const;  // ascending

  // One external id belongs to one name; a name may have many. False: it was set so already.
  Result<bool> SetExternalId(Txn* txn, Bytes external_id, NameId id) const;
  bool ByExternalId(Txn* txn, Bytes external_id, NameId* id) const;
  std::vector<std::string> ExternalIds(Txn* txn, NameId id) const;

  using RuleKeys = std::vector<std::pair<uint64_t, NameId>>;
  void CollectNameKeys(NameId id, Bytes name, RuleKeys* keys) const;
  void CollectAliasKeys(NameId id, Bytes alias, RuleKeys* keys) const;
  void AddRuleKeys(Txn* txn, RuleKeys* keys) const;  // sorts them, writes and clears
  std::vector<NameId> ByRuleKey(Txn* txn, uint64_t key) const;

  Table table(Table entity_table) const { return KindTable(entity_table, kind_); }

 private:
  bool sealed(Txn* txn) const { return kind_ == Kind::kEntity && !txn->Empty(Table::kBaseName); }
  bool GetSealed(Txn* txn, NameId id, NameRecord* record) const;
  uint64_t Hash(Bytes text) const { return NameHash(store_, text); }
  void RemoveKeys(Txn* txn, NameId id, Bytes name) const;

  Kind kind_;
  StoreId store_;
};

// The sealed ids of a pair's hash.
void FindSealedPairs(Txn* txn, Table table, uint64_t hash, std::vector<NameId>* ids);
// The vector's row + 1 of a sealed name that no delta record overrides; 0: none.
uint64_t SealedRow(Txn* txn, NameId id);

// Walks the names of a kind, forgotten ones too, in order of id.
class NameCursor {
 public:
  NameCursor(Txn* txn, Kind kind);
  bool Seek(NameId id);
  bool Next();
  NameId id() const { return id_; }
  const NameRecord& record() const { return record_; }  // its text lives until the next move
  bool from_delta() const { return from_delta_; }

 private:
  bool Settle(NameId at_least);
  Txn* txn_;
  const bool sealed_;
  Cursor delta_, base_, rows_;
  NameBlockReader block_;
  bool in_delta_ = false, from_delta_ = false;
  NameId id_ = 0, run_first_ = 0, run_count_ = 0;
  uint64_t run_row_ = 0;
  NameRecord record_;
};

// Interned source texts of provenance records.
bool FindSource(Txn* txn, const StoreId& store, Bytes source, uint32_t* id);
uint32_t InternSource(Txn* txn, const StoreId& store, Bytes source, uint64_t* next_source);
bool SourceText(Txn* txn, uint32_t id, std::string* text);

}  // namespace pymemstore
