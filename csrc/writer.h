// One write transaction: applies a batch's operations, in order, to names, vectors, triples and the edit log.
#pragma once

#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "store_impl.h"

namespace pymemstore {

class Writer {
 public:
  Writer(Snapshot* snapshot, const Batch& batch);

  Status Run(const InterruptCheck& interrupted, ApplyResult* result);
  // Everything but the commit: vectors are on the disk, counters in the transaction.
  Status Finish(ApplyResult* result);
  const Counters& counters() const { return counters_; }  // with what was done so far

 private:
  Status Apply(const Op& op, OpResult* result);
  Status AddTriples(const Op& op, OpResult* result);
  Status Replace(const Op& op, OpResult* result);
  Status Forget(const Op& op, OpResult* result);
  Status Alias(const Op& op, OpResult* result);
  Status Rename(const Op& op);
  Status SetVectors(const Op& op);

  // The id of a name; made when it is new.
  Result<NameId> Resolve(Kind kind, std::string_view name, bool* is_new = nullptr);
  Result<NameId> Existing(Kind kind, std::string_view name);  // NotFound for an unknown one
  // Looks up the entities of many triples in the order of the tables, which costs less than one by one.
  Status FindAhead(const Op& op);
  bool FindAll(const Op& op, TripleIds* t);  // false: a name is unknown, so the triple is not there
  TripleId Insert(const TripleIds& t, TripleId sealed, bool* inserted);  // `sealed`: FindSealed's answer
  void RemoveTriple(const TripleIds& t, TripleId id);
  Result<uint32_t> Source(std::string_view text);
  void AddSource(TripleId id, uint32_t source);
  Status AppendVector(Kind kind, const float* v, NameId owner, uint64_t* row);
  Status FlushVectors(Kind kind);
  void FlushKeys();  // before anything that reads or removes rule keys
  void Log(LogRecord record);
  void FlushAdds();
  Triple Materialise(const TripleIds& t, TripleId id);
  bool Stop();

  std::string_view Text(Slice s) const { return batch_.Text(s); }

  Snapshot& snap_;
  Txn* txn_;
  Generation& gen_;
  const Batch& batch_;
  Counters counters_;
  const uint64_t time_us_;
  const InterruptCheck* interrupted_ = nullptr;
  uint64_t work_ = 0;
  std::unordered_map<std::string_view, NameId> ids_[kKinds];
  std::unordered_set<std::string_view> absent_;  // entities that FindAhead did not find; only during one addition
  std::unordered_map<std::string_view, uint32_t> sources_;
  NameTable::RuleKeys keys_[kKinds];
  std::string rows_[kKinds];      // encoded, not yet written
  uint64_t written_[kKinds];      // rows in the file
  uint64_t new_names_[kKinds] = {0, 0};
  TripleId first_added_ = kNoTriple;  // additions not yet logged: consecutive ids
  uint32_t added_ = 0;
};

}  // namespace pymemstore
