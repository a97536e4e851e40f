#include "triple_table.h"

namespace pymemstore {
namespace {

Status Damaged(const char* table) { return Status::Corruption(std::string("a row of ") + table + " is damaged"); }

}  // namespace

TripleCursor::TripleCursor(Txn* txn, bool by_object)
    : txn_(txn),
      by_object_(by_object),
      delta_(txn, by_object ? Table::kOps : Table::kSpo) {
  if (!txn->Empty(Table::kBaseSpo)) base_.emplace(txn, by_object ? Table::kBaseOps : Table::kBaseSpo);
}

bool TripleCursor::Seek(uint32_t a, uint32_t b, uint64_t c) {
  const PackedRow wanted{a, b, c, 0};
  // The keys stay with the cursors' moves, so they are made apart.
  const Fixed<16> ops = OpsKey(a, b, c);
  const Fixed<12> spo = SpoKey({a, b, static_cast<uint32_t>(c)});
  const Bytes key = by_object_ ? Bytes(ops) : Bytes(spo);
  ReadDelta(delta_.Seek(key));
  // Before the first block: begin there.
  in_base_ = base_ && (SeekBlock(&*base_, key) || base_->Seek(key));
  if (in_base_) in_base_ = LoadBlock();
  while (in_base_ && block_.row().Before(wanted)) NextBase();
  return Settle();
}

bool TripleCursor::Next() {
  if (from_delta_) {
    ReadDelta(delta_.Next());
  } else {
    NextBase();
  }
  return Settle();
}

bool TripleCursor::ReadDelta(bool found) {
  in_delta_ = found;
  if (!found) return false;
  const Bytes key = delta_.key(), value = delta_.value();
  if (by_object_ ? key.size() != 16 || (!value.empty() && value.size() != 4) : key.size() != 12 || value.size() != 8) {
    txn_->Fail(Damaged(by_object_ ? "delta_ops" : "delta_spo"));
    return in_delta_ = false;
  }
  delta_row_.a = GetBe32(key.data());
  delta_row_.b = GetBe32(key.data() + 4);
  if (by_object_) {
    delta_row_.c = GetBe64(key.data() + 8);
    gone_ = value.empty();
    delta_row_.x = gone_ ? 0 : GetBe32(value.data());
  } else {
    delta_row_.c = GetBe32(key.data() + 8);
    delta_row_.x = GetBe64(value.data());
    gone_ = delta_row_.x == kNoTriple;
  }
  return true;
}

bool TripleCursor::LoadBlock() {
  block_ = RowBlockReader(by_object_, base_->key(), base_->value());
  if (block_.ok()) return true;
  txn_->Fail(Damaged(by_object_ ? "base_ops" : "base_spo"));
  return false;
}

bool TripleCursor::NextBase() {
  if (block_.Next()) return true;
  if (!block_.ok()) txn_->Fail(Damaged(by_object_ ? "base_ops" : "base_spo"));
  return in_base_ = base_->Next() && LoadBlock();
}

bool TripleCursor::Settle() {
  while (in_delta_) {
    if (in_base_ && block_.row().Before(delta_row_)) break;
    if (in_base_ && block_.row().SameKey(delta_row_)) NextBase();  // overridden
    if (!gone_) {
      row_ = delta_row_;
      return from_delta_ = true;
    }
    ReadDelta(delta_.Next());
  }
  from_delta_ = false;
  if (!in_base_ || !txn_->ok()) return false;
  row_ = block_.row();
  return true;
}

TripleId TripleTable::FindSealed(Txn* txn, const TripleIds& t) {
  if (txn->Empty(Table::kBaseSpo)) return kNoTriple;
  Cursor c(txn, Table::kBaseSpo);
  if (!SeekBlock(&c, SpoKey(t))) return kNoTriple;
  RowBlockReader block(false, c.key(), c.value());
  const PackedRow wanted = SpoRow(t, 0);
  bool more = true;
  while (more && block.row().Before(wanted)) more = block.Next();
  if (!block.ok()) txn->Fail(Damaged("base_spo"));
  return more && block.ok() && block.row().SameKey(wanted) ? block.row().x : kNoTriple;
}

TripleId TripleTable::Find(Txn* txn, const TripleIds& t) {
  Bytes value;
  return txn->Get(Table::kSpo, SpoKey(t), &value) ? Find(txn, t, kNoTriple) : FindSealed(txn, t);
}

TripleId TripleTable::Find(Txn* txn, const TripleIds& t, TripleId sealed) {
  Bytes value;
  if (!txn->Get(Table::kSpo, SpoKey(t), &value)) return sealed;
  if (value.size() == 8) return GetBe64(value.data());
  txn->Fail(Damaged("delta_spo"));
  return kNoTriple;
}

void TripleTable::Insert(Txn* txn, const TripleIds& t, TripleId id) {
  txn->Put(Table::kSpo, SpoKey(t), Key64(id));
  txn->Put(Table::kOps, OpsKey(t.o, t.r, id), Key32(t.s));
  txn->Put(Table::kTriple, Key64(id), SpoKey(t));
}

void TripleTable::Remove(Txn* txn, const TripleIds& t, TripleId id) {
  const TripleId sealed = FindSealed(txn, t);
  if (sealed == kNoTriple) {
    txn->Delete(Table::kSpo, SpoKey(t));
  } else {
    txn->Put(Table::kSpo, SpoKey(t), Key64(kNoTriple));
  }
  if (sealed == id) {
    txn->Put(Table::kOps, OpsKey(t.o, t.r, id), {});
  } else {
    txn->Delete(Table::kOps, OpsKey(t.o, t.r, id));
  }
  txn->Delete(Table::kProvenance, Key64(id));
}

bool TripleTable::Lookup(Txn* txn, TripleId id, TripleIds* t) {
  Bytes value;
  if (txn->Get(Table::kTriple, Key64(id), &value)) {
    if (value.size() != 12) return false;
    *t = GetSpo(value.data());
    return true;
  }
  if (txn->Empty(Table::kBaseTriple)) return false;
  Cursor c(txn, Table::kBaseTriple);
  if (!SeekBlock(&c, Key64(id)) || c.key().size() != 8) return false;
  TripleBlockReader block(c.value());
  for (TripleId at = GetBe64(c.key().data()); block.Next(t); ++at)
    if (at == id) return true;
  return false;
}

std::vector<StoredTriple> TripleTable::Page(Txn* txn, const NameId* s, const NameId* r, const NameId* o,
                                            std::string* cursor, size_t count) {
  std::vector<StoredTriple> page;
  std::string next;
  // By subject, or by object when only that is known; otherwise all in (s, r, o) order.
  const bool by_object = o && !s;
  TripleCursor c(txn, by_object);
  bool more = false;
  if (cursor->size() == 16) {
    more = c.Seek(GetBe32(cursor->data()), GetBe32(cursor->data() + 4), GetBe64(cursor->data() + 8));
  } else if (by_object) {
    more = c.Seek(*o, r ? *r : 0, 0);
  } else {
    more = c.Seek(s ? *s : 0, s && r ? *r : 0, s && r && o ? *o : 0);
  }
  size_t steps = 0;
  for (; more; more = c.Next()) {
    const StoredTriple t = c.triple();
    if (by_object) {
      if (t.ids.o != *o || (r && t.ids.r != *r)) break;
    } else {
      if (s && (t.ids.s != *s || (r && t.ids.r != *r))) break;
      if (s && r && o && t.ids.o != *o) break;
    }
    // A page also ends after many rows that don't match, so that no read transaction lasts long.
    if (page.size() == count || steps++ == 100 * count) {
      next = std::string(Bytes(OpsKey(c.row().a, c.row().b, c.row().c)));
      break;
    }
    if ((!s || t.ids.s == *s) && (!r || t.ids.r == *r) && (!o || t.ids.o == *o)) page.push_back(t);
  }
  *cursor = next;
  return page;
}

}  // namespace pymemstore
