// Unique triples in both orders: a sealed base of packed blocks, and beside it a small delta of plain rows that
// overrides it. A delta row of delta_spo with id 0, and one of delta_ops without value, say that the base's triple is gone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lmdb_env.h"
#include "packed.h"

namespace pymemstore {

struct StoredTriple {
  TripleIds ids;
  TripleId id = kNoTriple;
};

// Walks the live triples in the order (s, r, o), or (o, r, id) when `by_object`.
class TripleCursor {
 public:
  TripleCursor(Txn* txn, bool by_object);
  // The first triple at or behind (a, b, c): s, r, o or o, r, id.
  bool Seek(uint32_t a, uint32_t b, uint64_t c);
  bool Next();
  const PackedRow& row() const { return row_; }
  StoredTriple triple() const {
    if (by_object_) return {{static_cast<NameId>(row_.x), row_.b, row_.a}, row_.c};
    return {{row_.a, row_.b, static_cast<NameId>(row_.c)}, row_.x};
  }
  // A walk over so many rows costs about as much as a seek.
  int steps_a_seek() const { return base_ ? 64 : 8; }

 private:
  bool ReadDelta(bool found);
  bool LoadBlock();  // the block under base_
  bool NextBase();
  bool Settle();

  Txn* txn_;
  const bool by_object_;
  std::optional<Cursor> base_;
  Cursor delta_;
  RowBlockReader block_;
  bool in_base_ = false, in_delta_ = false;
  bool gone_ = false;         // the delta's row is about a triple of the base that was removed
  bool from_delta_ = false;   // which of the two row_ came from
  PackedRow delta_row_, row_;
};

class TripleTable {
 public:
  static TripleId Find(Txn* txn, const TripleIds& t);  // kNoTriple: not there
  // In the base alone, whatever the delta says of it; and the same as Find with that known.
  static TripleId FindSealed(Txn* txn, const TripleIds& t);
  static TripleId Find(Txn* txn, const TripleIds& t, TripleId sealed);
  // `id` is the next one; the triple is not there yet.
  static void Insert(Txn* txn, const TripleIds& t, TripleId id);
  static void Remove(Txn* txn, const TripleIds& t, TripleId id);
  // What the id stood for, live or removed; false: never given.
  static bool Lookup(Txn* txn, TripleId id, TripleIds* t);

  // A relation that a scan keeps, with its similarity. Sorted by id.
  struct Relation {
    NameId id;
    double similarity;
    Match match;
  };

  // <known, r, *> (object_known: <*, r, known>) for all r of the sorted `relations`: calls
  // fn(StoredTriple, const Relation&) -> bool in order of relation; false ends the scan.
  // One seek, then a walk that skips over runs of unwanted relations.
  template <typename Fn>
  static void Scan(Txn* txn, bool object_known, NameId known, const std::vector<Relation>& relations, Fn&& fn);

  // Pages over the triples that match the given parts, in the order of one table. `cursor` is where to begin
  // ("" at first) and where the next page begins ("" at the end).
  static std::vector<StoredTriple> Page(Txn* txn, const NameId* s, const NameId* r, const NameId* o,
                                        std::string* cursor, size_t count);
};

template <typename Fn>
void TripleTable::Scan(Txn* txn, bool object_known, NameId known, const std::vector<Relation>& relations, Fn&& fn) {
  if (relations.empty()) return;
  TripleCursor c(txn, object_known);
  auto wanted = relations.begin();
  int steps = 0;
  for (bool more = c.Seek(known, wanted->id, 0); more;) {
    if (c.row().a != known) return;
    const NameId r = c.row().b;
    while (wanted != relations.end() && wanted->id < r) ++wanted;
    if (wanted == relations.end()) return;
    if (wanted->id == r) {
      steps = 0;
      if (!fn(c.triple(), *wanted)) return;
      more = c.Next();
    } else if (++steps < c.steps_a_seek()) {
      more = c.Next();
    } else {
      steps = 0;
      more = c.Seek(known, wanted->id, 0);
    }
  }
}

}  // namespace pymemstore
