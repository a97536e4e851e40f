#include "triple_table.h"

namespace pymemstore {

TripleId TripleTable::Find(Txn* txn, const TripleIds& t) {
  Bytes value;
  if (!txn->Get(Table::kSpo, SpoKey(t), &value)) return kNoTriple;
  if (value.size() == 8) return GetBe64(value.data());
  txn->Fail(Status::Corruption("a row of delta_spo is damaged"));
  return kNoTriple;
}

void TripleTable::Insert(Txn* txn, const TripleIds& t, TripleId id) {
  txn->Put(Table::kSpo, SpoKey(t), Key64(id));
  txn->Put(Table::kOps, OpsKey(t.o, t.r, id), Key32(t.s));
  txn->Put(Table::kTriple, Key64(id), SpoKey(t));
}

void TripleTable::Remove(Txn* txn, const TripleIds& t, TripleId id) {
  txn->Delete(Table::kSpo, SpoKey(t));
  txn->Delete(Table::kOps, OpsKey(t.o, t.r, id));
  txn->Delete(Table::kProvenance, Key64(id));
}

bool TripleTable::Lookup(Txn* txn, TripleId id, TripleIds* t) {
  Bytes value;
  if (!txn->Get(Table::kTriple, Key64(id), &value) || value.size() != 12) return false;
  *t = GetSpo(value.data());
  return true;
}

std::vector<StoredTriple> TripleTable::Page(Txn* txn, const NameId* s, const NameId* r, const NameId* o,
                                            std::string* cursor, size_t count) {
  std::vector<StoredTriple> page;
  std::string next;
  // By subject, or by object when only that is known; otherwise the whole table in (s, r, o) order.
  const bool by_object = o && !s;
  Cursor c(txn, by_object ? Table::kOps : Table::kSpo);
  std::string start = *cursor;
  if (start.empty()) {
    const NameId first = by_object ? *o : s ? *s : 0;
    if (s && r && o) {
      start = std::string(Bytes(SpoKey({*s, *r, *o})));
    } else {
      start = std::string(Bytes(Key32x2(first, (s || o) && r ? *r : 0)));
    }
  }
  size_t steps = 0;
  for (bool more = c.Seek(start); more; more = c.Next()) {
    const char* key = c.key().data();
    StoredTriple t;
    if (by_object) {
      t.ids = {GetBe32(c.value().data()), GetBe32(key + 4), GetBe32(key)};
      t.id = GetBe64(key + 8);
      if (t.ids.o != *o || (r && t.ids.r != *r)) break;
    } else {
      t.ids = GetSpo(key);
      t.id = GetBe64(c.value().data());
      if (s && (t.ids.s != *s || (r && t.ids.r != *r))) break;
      if (s && r && o && t.ids.o != *o) break;
    }
    // A page also ends after many rows that don't match, so that no read transaction lasts long.
    if (page.size() == count || steps++ == 100 * count) {
      next = std::string(c.key());
      break;
    }
    if ((!s || t.ids.s == *s) && (!r || t.ids.r == *r) && (!o || t.ids.o == *o)) page.push_back(t);
  }
  *cursor = next;
  return page;
}

}  // namespace pymemstore
