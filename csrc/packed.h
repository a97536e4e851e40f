// Blocks of the sealed tables: sorted runs of rows, each delta-coded after the first, which is the LMDB key.
// Sole owner of their layout, which FORMAT.md describes.
#pragma once

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "format.h"

namespace pymemstore {

void AppendVarint(std::string* s, uint64_t v);

// Reads varints; past the end, or damaged, everything is 0 and ok() is false.
class VarintReader {
 public:
  VarintReader() = default;
  explicit VarintReader(Bytes bytes)
      : p_(reinterpret_cast<const uint8_t*>(bytes.data())), end_(p_ + bytes.size()) {}
  bool done() const { return p_ == end_; }
  bool ok() const { return ok_; }
  uint64_t Next() {
    if (p_ != end_ && *p_ < 0x80) return *p_++;
    return NextLong();
  }
  Bytes Take(uint64_t n);

 private:
  uint64_t NextLong();
  const uint8_t* p_ = nullptr;
  const uint8_t* end_ = nullptr;
  bool ok_ = true;
};

// A triple in one of the two orders: (s, r, o) with x = its id, or (o, r, id) with x = s. Sorted by (a, b, c).
struct PackedRow {
  uint32_t a = 0, b = 0;
  uint64_t c = 0, x = 0;
  bool Before(const PackedRow& other) const {
    if (a != other.a) return a < other.a;
    return b != other.b ? b < other.b : c < other.c;
  }
  bool SameKey(const PackedRow& other) const { return a == other.a && b == other.b && c == other.c; }
};

// The two orders differ in the width of `c` in their keys.
inline PackedRow SpoRow(const TripleIds& t, TripleId id) { return {t.s, t.r, t.o, id}; }
inline PackedRow OpsRow(const TripleIds& t, TripleId id) { return {t.o, t.r, id, t.s}; }

class RowBlockReader {
 public:
  RowBlockReader() = default;
  RowBlockReader(bool by_object, Bytes key, Bytes value);  // on the first row
  bool Next();
  const PackedRow& row() const { return row_; }
  bool ok() const { return reader_.ok() && whole_; }

 private:
  VarintReader reader_;
  PackedRow row_;
  bool whole_ = true;
};

// Takes rows in ascending order and hands out blocks. Call Flush() at the end.
using EmitBlock = std::function<void(Bytes key, Bytes value)>;
class RowBlockWriter {
 public:
  RowBlockWriter(bool by_object, EmitBlock emit) : by_object_(by_object), emit_(std::move(emit)) {}
  void Add(const PackedRow& row);
  void Flush();

 private:
  const bool by_object_;
  EmitBlock emit_;
  std::string key_, value_;
  PackedRow last_;
};

// (hash, id) pairs, sorted. Of a hash its upper 40 bits are kept: who finds an id compares the real bytes.
constexpr int kPairHashBits = 40;
constexpr uint64_t PairHash(uint64_t hash) { return hash >> (64 - kPairHashBits); }
using HashPair = std::pair<uint64_t, NameId>;

class PairBlockReader {
 public:
  PairBlockReader() = default;
  PairBlockReader(Bytes key, Bytes value);
  bool Next();
  const HashPair& pair() const { return pair_; }
  bool ok() const { return reader_.ok() && whole_; }

 private:
  VarintReader reader_;
  HashPair pair_;
  bool whole_ = true;
};

Fixed<9> PairKey(uint64_t pair_hash, NameId id);

class PairBlockWriter {
 public:
  explicit PairBlockWriter(EmitBlock emit) : emit_(std::move(emit)) {}
  void Add(HashPair pair);  // ascending; one that equals the last is dropped
  void Flush();

 private:
  EmitBlock emit_;
  std::string key_, value_;
  HashPair last_;
};

// Names of consecutive ids.
struct PackedName {
  Bytes name;
  bool forgotten = false;
};

class NameBlockReader {
 public:
  NameBlockReader() = default;
  NameBlockReader(Bytes key, Bytes value);
  NameId first() const { return first_; }
  NameId end() const { return first_ + static_cast<NameId>(names_.size()); }
  const PackedName& name(NameId id) const { return names_[id - first_]; }
  bool ok() const { return ok_; }
  // The same for one name, without reading the others; false: not in this block, or damaged.
  static bool Find(Bytes key, Bytes value, NameId id, PackedName* name);

 private:
  NameId first_ = 0;
  std::vector<PackedName> names_;
  bool ok_ = true;
};

class NameBlockWriter {
 public:
  NameBlockWriter(NameId first, EmitBlock emit) : first_(first), emit_(std::move(emit)) {}
  void Add(Bytes name, bool forgotten);  // of the next id
  void Flush();

 private:
  NameId first_;
  EmitBlock emit_;
  uint32_t count_ = 0;
  std::string lengths_, names_;
};

// Triples of consecutive ids, in any order.
class TripleBlockReader {
 public:
  explicit TripleBlockReader(Bytes value) : reader_(value) {}
  bool Next(TripleIds* t);

 private:
  VarintReader reader_;
  TripleIds last_;
};

class TripleBlockWriter {
 public:
  explicit TripleBlockWriter(EmitBlock emit) : emit_(std::move(emit)) {}
  void Add(TripleId id, const TripleIds& t);  // ids ascending; a gap begins a new block
  void Flush();

 private:
  EmitBlock emit_;
  TripleId first_ = kNoTriple, next_ = kNoTriple;
  std::string value_;
  TripleIds last_;
};

// The block whose first key is the greatest one <= `key`: where a row of that key would be.
// (In lmdb_env's terms: Seek, and Prev unless it is the key itself.)
template <typename Cursor>
bool SeekBlock(Cursor* cursor, Bytes key) {
  if (!cursor->Seek(key)) return cursor->Last();
  return cursor->key() == key || cursor->Prev();
}

}  // namespace pymemstore
