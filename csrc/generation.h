// Builds the next generation of a store in one pass: all that the live one has, packed, and what a bulk load adds.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "store_impl.h"
#include "triple_table.h"

namespace pymemstore {

// What a bulk load adds to a generation. The builder calls these in the order in which they stand.
class BuildInput {
 public:
  virtual ~BuildInput() = default;
  virtual uint64_t triple_count() const = 0;  // at most
  // The names of new entities: the first gets the next id.
  virtual Status ForEachName(const std::function<Status(Bytes)>& fn) = 0;
  // (PairHash of the name, id) of the new names, ascending.
  virtual bool NextNamePair(HashPair* pair) = 0;
  // The load's triples, ascending by (s, r, o), each once.
  virtual bool NextTriple(TripleIds* t) = 0;
  virtual Status Accepted(const TripleIds& t, TripleId id) = 0;  // it is new
  virtual void Existed(const TripleIds& t) = 0;                  // the store has it
  // Whether a stored triple that the load does not repeat goes.
  virtual bool Withdraws(Txn* old, const TripleIds& t, TripleId id) = 0;
  virtual Status TriplesDone() = 0;
  virtual bool Withdrawn(TripleId id) const = 0;
  // What was accepted, ascending by (o, r, id).
  virtual bool NextByObject(PackedRow* row) = 0;
  virtual Status status() const = 0;  // of the Next... calls
  // The rest (relations, aliases, external ids, the edit log), into the built environment.
  virtual Status Finish(Txn* txn, Counters* counters) = 0;
};

struct BuildOptions {
  bool rewrite_vectors[kKinds] = {false, false};  // into new files, without rows that nobody owns
  bool rules = false;                             // make the rule keys that sealed names wait for
  size_t sort_memory = size_t{1} << 30;           // bytes
  std::string scratch;                            // folder for sorted runs
};

// Writes generation `number` from `old`, which is not changed; synced when it returns. `counters` are the new ones.
Status BuildGeneration(StoreImpl* impl, Snapshot* old, uint32_t number, const BuildOptions& options, BuildInput* input,
                       const BuildProgress& progress, const InterruptCheck& interrupted, Counters* counters);

// The environment of a generation that is being built: no commit of it waits for the disk.
Result<std::unique_ptr<Env>> OpenUnfinished(const StoreImpl* impl, uint32_t number, bool create);

// Copies a row from one vector file to the end of another.
class RowCopier {
 public:
  RowCopier(PinnedRows from, VectorFile* to, uint64_t rows) : from_(std::move(from)), to_(to), written_(rows), rows_(rows) {}
  Status Copy(uint64_t row, NameId owner, Bytes name, uint64_t* new_row);
  Status Flush();
  uint64_t rows() const { return rows_; }

 private:
  PinnedRows from_;
  VectorFile* to_;
  std::string buffer_;
  uint64_t written_, rows_;
};

// Removes what an attempt that failed, or was cut short by a crash, left of a generation.
void RemoveGeneration(StoreImpl* impl, uint32_t number);

}  // namespace pymemstore
