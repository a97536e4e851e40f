// Unique triples in both orders. Today all live in the delta tables; the sealed base's packed blocks join here,
// behind the same calls.
#pragma once

#include <string>
#include <vector>

#include "lmdb_env.h"

namespace pymemstore {

struct StoredTriple {
  TripleIds ids;
  TripleId id = kNoTriple;
};

class TripleTable {
 public:
  static TripleId Find(Txn* txn, const TripleIds& t);  // kNoTriple: not there
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
  constexpr int kStepsBeforeSeek = 8;  // a seek costs about as much as so many steps
  Cursor c(txn, object_known ? Table::kOps : Table::kSpo);
  auto wanted = relations.begin();
  int steps = 0;
  for (bool more = c.Seek(Key32x2(known, wanted->id)); more;) {
    const char* key = c.key().data();
    if (GetBe32(key) != known) return;
    const NameId r = GetBe32(key + 4);
    while (wanted != relations.end() && wanted->id < r) ++wanted;
    if (wanted == relations.end()) return;
    if (wanted->id == r) {
      StoredTriple t;
      if (object_known) {
        t.ids = {GetBe32(c.value().data()), r, known};
        t.id = GetBe64(key + 8);
      } else {
        t.ids = {known, r, GetBe32(key + 8)};
        t.id = GetBe64(c.value().data());
      }
      steps = 0;
      if (!fn(t, *wanted)) return;
      more = c.Next();
    } else if (++steps < kStepsBeforeSeek) {
      more = c.Next();
    } else {
      steps = 0;
      more = c.Seek(Key32x2(known, wanted->id));
    }
  }
}

}  // namespace pymemstore
