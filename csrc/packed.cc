#include "packed.h"

namespace pymemstore {
namespace {

// Values that tile a page: eight entries of LMDB, of 8 + 2 bytes beside key and value, fill its 4,080 bytes.
constexpr size_t TilingValue(size_t key, size_t a_page) { return (4080 / a_page - 10 - key) & ~size_t{1}; }
constexpr size_t kSpoBlock = TilingValue(12, 8), kOpsBlock = TilingValue(16, 8), kPairBlock = TilingValue(10, 8),
                 kTripleBlock = TilingValue(8, 8), kNameBlock = TilingValue(4, 4);

uint64_t ZigZag(int64_t v) { return static_cast<uint64_t>(v) << 1 ^ static_cast<uint64_t>(v >> 63); }
int64_t UnZigZag(uint64_t v) { return static_cast<int64_t>(v >> 1) ^ -static_cast<int64_t>(v & 1); }
int64_t Difference(uint64_t a, uint64_t b) { return static_cast<int64_t>(a - b); }

// A row as it is coded: a few varints, put together without a string.
class Entry {
 public:
  void Add(uint64_t v) {
    for (; v >= 0x80; v >>= 7) data_[size_++] = static_cast<char>(v | 0x80);
    data_[size_++] = static_cast<char>(v);
  }
  Bytes bytes() const { return {data_, size_}; }
  size_t size() const { return size_; }

 private:
  char data_[40];  // at most four varints of ten bytes
  size_t size_ = 0;
};

enum : uint64_t { kSamePair = 0, kSameFirst = 1, kOther = 2 };

}  // namespace

void AppendVarint(std::string* s, uint64_t v) {
  Entry entry;
  entry.Add(v);
  s->append(entry.bytes());
}

uint64_t VarintReader::NextLong() {
  uint64_t v = 0;
  for (int shift = 0; shift < 64 && p_ != end_; shift += 7) {
    const uint8_t byte = *p_++;
    v |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return v;
  }
  ok_ = false;
  p_ = end_;
  return 0;
}

Bytes VarintReader::Take(uint64_t n) {
  if (n > static_cast<uint64_t>(end_ - p_)) {
    ok_ = false;
    p_ = end_;
    return {};
  }
  const Bytes taken(reinterpret_cast<const char*>(p_), n);
  p_ += n;
  return taken;
}

// ---- triples in an order -------------------------------------------------------------------------

RowBlockReader::RowBlockReader(bool by_object, Bytes key, Bytes value) : reader_(value) {
  if (key.size() != (by_object ? 16u : 12u)) {
    whole_ = false;
    return;
  }
  row_.a = GetBe32(key.data());
  row_.b = GetBe32(key.data() + 4);
  row_.c = by_object ? GetBe64(key.data() + 8) : GetBe32(key.data() + 8);
  row_.x = reader_.Next();
}

bool RowBlockReader::Next() {
  if (reader_.done() || !ok()) return false;
  const uint64_t head = reader_.Next();
  const uint64_t delta = head >> 3;
  switch (head >> 1 & 3) {
    case kSamePair:
      row_.c += delta;
      break;
    case kSameFirst:
      row_.b += static_cast<uint32_t>(delta);
      row_.c = reader_.Next();
      break;
    default:
      row_.a += static_cast<uint32_t>(delta);
      row_.b = static_cast<uint32_t>(reader_.Next());
      row_.c = reader_.Next();
  }
  if (head & 1) {
    row_.x += static_cast<uint64_t>(UnZigZag(reader_.Next()));
  } else {
    ++row_.x;
  }
  return reader_.ok();
}

void RowBlockWriter::Add(const PackedRow& row) {
  if (!key_.empty()) {
    Entry entry;
    const bool follows = row.x == last_.x + 1;
    if (row.a == last_.a && row.b == last_.b) {
      entry.Add((row.c - last_.c) << 3 | kSamePair << 1 | !follows);
    } else if (row.a == last_.a) {
      entry.Add(static_cast<uint64_t>(row.b - last_.b) << 3 | kSameFirst << 1 | !follows);
      entry.Add(row.c);
    } else {
      entry.Add(static_cast<uint64_t>(row.a - last_.a) << 3 | kOther << 1 | !follows);
      entry.Add(row.b);
      entry.Add(row.c);
    }
    if (!follows) entry.Add(ZigZag(Difference(row.x, last_.x)));
    if (value_.size() + entry.size() <= (by_object_ ? kOpsBlock : kSpoBlock)) {
      value_.append(entry.bytes());
      last_ = row;
      return;
    }
    Flush();
  }
  key_ = by_object_ ? std::string(Bytes(OpsKey(row.a, row.b, row.c)))
                    : std::string(Bytes(SpoKey({row.a, row.b, static_cast<uint32_t>(row.c)})));
  AppendVarint(&value_, row.x);
  last_ = row;
}

void RowBlockWriter::Flush() {
  if (key_.empty()) return;
  emit_(key_, value_);
  key_.clear();
  value_.clear();
}

// ---- (hash, id) pairs ----------------------------------------------------------------------------

Fixed<9> PairKey(uint64_t pair_hash, NameId id) {
  Fixed<9> k;
  k.data[0] = static_cast<char>(pair_hash >> 32);
  PutBe32(k.data + 1, static_cast<uint32_t>(pair_hash));
  PutBe32(k.data + 5, id);
  return k;
}

PairBlockReader::PairBlockReader(Bytes key, Bytes value) : reader_(value) {
  whole_ = key.size() == 9;
  if (!whole_) return;
  pair_.first = static_cast<uint64_t>(static_cast<uint8_t>(key[0])) << 32 | GetBe32(key.data() + 1);
  pair_.second = GetBe32(key.data() + 5);
}

bool PairBlockReader::Next() {
  if (reader_.done() || !ok()) return false;
  const uint64_t delta = reader_.Next();
  const uint64_t id = reader_.Next();
  pair_.first += delta;
  pair_.second = static_cast<NameId>(delta ? id : pair_.second + id);
  return reader_.ok();
}

void PairBlockWriter::Add(HashPair pair) {
  if (!key_.empty()) {
    if (pair == last_) return;
    const uint64_t delta = pair.first - last_.first;
    Entry entry;
    entry.Add(delta);
    entry.Add(delta ? pair.second : pair.second - last_.second);
    if (value_.size() + entry.size() <= kPairBlock) {
      value_.append(entry.bytes());
      last_ = pair;
      return;
    }
    Flush();
  }
  key_ = std::string(Bytes(PairKey(pair.first, pair.second)));
  last_ = pair;
}

void PairBlockWriter::Flush() {
  if (key_.empty()) return;
  emit_(key_, value_);
  key_.clear();
  value_.clear();
}

// ---- names ---------------------------------------------------------------------------------------

NameBlockReader::NameBlockReader(Bytes key, Bytes value) {
  ok_ = key.size() == 4;
  if (!ok_) return;
  first_ = GetBe32(key.data());
  VarintReader reader(value);
  const uint64_t count = reader.Next();
  std::vector<uint64_t> lengths;
  for (uint64_t i = 0; i < count && reader.ok(); ++i) lengths.push_back(reader.Next());
  for (uint64_t length : lengths) names_.push_back({reader.Take(length >> 1), (length & 1) != 0});
  ok_ = reader.ok() && reader.done() && count > 0;
}

bool NameBlockReader::Find(Bytes key, Bytes value, NameId id, PackedName* name) {
  if (key.size() != 4 || id < GetBe32(key.data())) return false;
  const uint64_t at = id - GetBe32(key.data());
  VarintReader reader(value);
  const uint64_t count = reader.Next();
  if (at >= count) return false;
  uint64_t before = 0, length = 0;
  for (uint64_t i = 0; i < count && reader.ok(); ++i) {
    const uint64_t l = reader.Next();
    if (i < at) before += l >> 1;
    if (i == at) length = l;
  }
  reader.Take(before);
  *name = {reader.Take(length >> 1), (length & 1) != 0};
  return reader.ok();
}

void NameBlockWriter::Add(Bytes name, bool forgotten) {
  if (count_ && 1 + lengths_.size() + names_.size() + name.size() + 2 > kNameBlock) Flush();
  AppendVarint(&lengths_, static_cast<uint64_t>(name.size()) << 1 | forgotten);
  names_.append(name);
  ++count_;
}

void NameBlockWriter::Flush() {
  if (!count_) return;
  std::string value;
  AppendVarint(&value, count_);
  value.append(lengths_).append(names_);
  emit_(Key32(first_), value);
  first_ += count_;
  count_ = 0;
  lengths_.clear();
  names_.clear();
}

// ---- triples by id -------------------------------------------------------------------------------

bool TripleBlockReader::Next(TripleIds* t) {
  if (reader_.done() || !reader_.ok()) return false;
  const uint64_t head = reader_.Next();
  const auto ds = static_cast<uint32_t>(UnZigZag(head >> 1));
  const bool same = ds == 0 && !(head & 1);
  last_.s += ds;
  if (head & 1) last_.r = static_cast<uint32_t>(reader_.Next());
  const uint64_t o = reader_.Next();
  last_.o = same ? last_.o + static_cast<uint32_t>(UnZigZag(o)) : static_cast<uint32_t>(o);
  *t = last_;
  return reader_.ok();
}

void TripleBlockWriter::Add(TripleId id, const TripleIds& t) {
  if (first_ != kNoTriple && id != next_) Flush();
  for (;;) {
    Entry entry;
    const bool other_r = t.r != last_.r;
    const int64_t ds = Difference(t.s, last_.s);
    entry.Add(ZigZag(ds) << 1 | other_r);
    if (other_r) entry.Add(t.r);
    entry.Add(ds == 0 && !other_r ? ZigZag(Difference(t.o, last_.o)) : t.o);
    if (value_.size() + entry.size() <= kTripleBlock) {
      value_.append(entry.bytes());
      break;
    }
    Flush();
  }
  if (first_ == kNoTriple) first_ = id;
  next_ = id + 1;
  last_ = t;
}

void TripleBlockWriter::Flush() {
  if (first_ == kNoTriple) return;
  emit_(Key64(first_), value_);
  first_ = kNoTriple;
  last_ = {};
  value_.clear();
}

}  // namespace pymemstore
