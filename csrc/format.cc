#include "format.h"

#include <cstring>

namespace pymemstore {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "vector files hold little-endian floats as they are");

const TableInfo& Info(Table table) {
  static const TableInfo kInfo[] = {
      {"meta", false, false},
      {"ent_name", false, false},       {"rel_name", false, false},
      {"ent_hash", true, true},         {"rel_hash", true, true},
      {"ent_alias", false, false},      {"rel_alias", false, false},
      {"ent_alias_hash", true, true},   {"rel_alias_hash", true, true},
      {"ent_rule", true, true},         {"rel_rule", true, true},
      {"ent_pending", false, false},    {"rel_pending", false, false},
      {"ent_external", false, false},   {"rel_external", false, false},
      {"ent_external_of", true, false}, {"rel_external_of", true, false},
      {"delta_spo", false, false},      {"delta_ops", false, false},
      {"triple", false, false},         {"provenance", true, true},
      {"source", false, false},         {"source_hash", true, true},
      {"log", false, false},
      {"base_name", false, false},
      {"base_hash", false, false},      {"base_rule", false, false},
      {"base_row", false, false},
      {"base_spo", false, false},       {"base_ops", false, false},
      {"base_triple", false, false},
      {"load", false, false},
      {"journal", false, false},
  };
  static_assert(sizeof(kInfo) / sizeof(kInfo[0]) == kTableCount, "a row for each table");
  return kInfo[static_cast<size_t>(table)];
}

void AppendLe32(std::string* s, uint32_t v) { s->append(reinterpret_cast<const char*>(&v), 4); }
void AppendLe64(std::string* s, uint64_t v) { s->append(reinterpret_cast<const char*>(&v), 8); }
namespace {

// Reads the fields of a value in turn; `ok` turns false when it is too short.
struct Reader {
  Bytes rest;
  bool ok = true;
  const char* Take(size_t n) {
    static const char kZeros[16] = {};
    if (rest.size() < n) {
      ok = false;
      rest = {};
      return kZeros;  // n is at most 8 here
    }
    const char* p = rest.data();
    rest.remove_prefix(n);
    return p;
  }
  uint8_t U8() { return static_cast<uint8_t>(*Take(1)); }
  uint32_t U32() { return GetLe32(Take(4)); }
  uint64_t U64() { return GetLe64(Take(8)); }
  std::string Text() {
    const uint32_t n = U32();
    if (rest.size() < n) {
      ok = false;
      return {};
    }
    std::string s(rest.substr(0, n));
    rest.remove_prefix(n);
    return s;
  }
  bool Done() const { return ok && rest.empty(); }
};

void AppendText(std::string* s, Bytes text) {
  AppendLe32(s, static_cast<uint32_t>(text.size()));
  s->append(text);
}

}  // namespace

std::string EncodeName(const NameRecord& record) {
  std::string v;
  v.reserve(9 + record.name.size());
  AppendLe64(&v, record.row_plus_1);
  v.push_back(static_cast<char>(record.flags));
  v.append(record.name);
  return v;
}

bool DecodeName(Bytes value, NameRecord* record) {
  if (value.size() < 10) return false;  // a name has at least one byte
  record->row_plus_1 = GetLe64(value.data());
  record->flags = static_cast<uint8_t>(value[8]);
  record->name = value.substr(9);
  return true;
}

namespace {

std::array<uint64_t*, 14> Fields(Counters* c) {
  return {&c->next_name[0], &c->next_name[1], &c->next_triple, &c->seq,         &c->rows[0],
          &c->rows[1],      &c->next_source,  &c->live[0],     &c->live[1],     &c->embedded[0],
          &c->embedded[1],  &c->triples,      &c->sealed,      &c->ruled};
}

}  // namespace

std::string EncodeCounters(const Counters& c) {
  Counters copy = c;
  std::string v;
  for (const uint64_t* x : Fields(&copy)) AppendLe64(&v, *x);
  return v;
}

bool DecodeCounters(Bytes value, Counters* c) {
  Reader r{value};
  for (uint64_t* x : Fields(c))
    if (value.size() != kCounterBytesOfVersion1 || !r.rest.empty()) *x = r.U64();
  return r.ok;
}

std::string EncodeLoad(const LoadRecord& record) {
  std::string v;
  AppendLe64(&v, record.count);
  AppendLe32(&v, record.source);
  AppendLe64(&v, record.time_us);
  return v;
}

bool DecodeLoad(Bytes value, LoadRecord* record) {
  Reader r{value};
  record->count = r.U64();
  record->source = r.U32();
  record->time_us = r.U64();
  return r.Done();
}

std::string EncodeStamp(const EmbedderStamp& stamp) {
  std::string v;
  AppendLe32(&v, stamp.dim);
  AppendText(&v, stamp.name);
  AppendText(&v, stamp.version);
  return v;
}

bool DecodeStamp(Bytes value, EmbedderStamp* stamp) {
  Reader r{value};
  stamp->dim = r.U32();
  stamp->name = r.Text();
  stamp->version = r.Text();
  return r.Done() && stamp->dim >= 1 && stamp->dim <= kMaxDim;
}

std::string EncodeLog(const LogRecord& record) {
  std::string v;
  v.push_back(static_cast<char>(record.type));
  AppendLe64(&v, record.time_us);
  switch (record.type) {
    case ChangeType::kAdd:
      AppendLe64(&v, record.triple);
      AppendLe32(&v, record.count);
      break;
    case ChangeType::kRemove:
      AppendLe64(&v, record.triple);
      break;
    case ChangeType::kReplace:
      AppendLe64(&v, record.triple);
      AppendLe32(&v, static_cast<uint32_t>(record.removed.size()));
      for (TripleId id : record.removed) AppendLe64(&v, id);
      break;
    default:
      v.push_back(static_cast<char>(record.kind));
      AppendLe32(&v, record.name);
      AppendText(&v, record.text);
      AppendText(&v, record.other);
  }
  return v;
}

bool DecodeLog(Bytes value, LogRecord* record) {
  Reader r{value};
  record->type = static_cast<ChangeType>(r.U8());
  record->time_us = r.U64();
  switch (record->type) {
    case ChangeType::kAdd:
      record->triple = r.U64();
      record->count = r.U32();
      return r.Done() && record->count > 0;
    case ChangeType::kRemove:
      record->triple = r.U64();
      return r.Done();
    case ChangeType::kReplace: {
      record->triple = r.U64();
      const uint32_t n = r.U32();
      if (!r.ok || r.rest.size() != 8 * static_cast<size_t>(n)) return false;
      for (uint32_t i = 0; i < n; ++i) record->removed.push_back(r.U64());
      return true;
    }
    case ChangeType::kForget:
    case ChangeType::kAlias:
    case ChangeType::kUnalias:
    case ChangeType::kRename:
    case ChangeType::kVector:
    case ChangeType::kExternalId: {
      const uint8_t kind = r.U8();
      record->kind = static_cast<Kind>(kind);
      record->name = r.U32();
      record->text = r.Text();
      record->other = r.Text();
      return r.Done() && kind < kKinds;
    }
  }
  return false;
}

std::string EncodeVectorHeader(const StoreId& id, Kind kind, uint32_t dim) {
  std::string h(kVectorMagic, 8);
  AppendLe32(&h, kVectorVersion);
  AppendLe32(&h, static_cast<uint32_t>(kind));
  AppendLe32(&h, dim);
  AppendLe32(&h, 0);  // element type: 0 is float32
  h.append(reinterpret_cast<const char*>(id.data()), id.size());
  AppendLe32(&h, Crc32(h));
  h.resize(kVectorHeaderBytes, '\0');
  return h;
}

std::string CheckVectorHeader(Bytes header, const StoreId& id, Kind kind, uint32_t dim) {
  if (header.size() < kVectorHeaderBytes) return "it is shorter than its header";
  if (header.substr(0, 8) != Bytes(kVectorMagic, 8)) return "it is not a pymemstore vector file";
  if (GetLe32(header.data() + 40) != Crc32(header.substr(0, 40))) return "its header is damaged";
  if (GetLe32(header.data() + 8) != kVectorVersion) return "its format is not version 1";
  if (GetLe32(header.data() + 12) != static_cast<uint32_t>(kind)) return "it holds the other kind of name";
  if (std::memcmp(header.data() + 24, id.data(), id.size()) != 0) return "it belongs to another store";
  if (GetLe32(header.data() + 16) != dim) return "its dimension is not the store's";
  if (GetLe32(header.data() + 20) != 0) return "its element type is unknown";
  return {};
}

std::string EncodeDerivedHeader(const DerivedHeader& header) {
  std::string h(kDerivedMagic, 8);
  AppendLe32(&h, kDerivedVersion);
  AppendLe32(&h, header.type);
  h.append(reinterpret_cast<const char*>(header.store_id.data()), header.store_id.size());
  AppendLe32(&h, static_cast<uint32_t>(header.kind));
  AppendLe32(&h, header.dim);
  AppendLe32(&h, header.vector_file);
  AppendLe32(&h, static_cast<uint32_t>(header.sections.size()));
  AppendLe64(&h, header.rows);
  for (const DerivedSection& s : header.sections) {
    AppendLe64(&h, s.offset);
    AppendLe64(&h, s.bytes);
    AppendLe32(&h, s.crc);
  }
  AppendLe32(&h, Crc32(h));
  h.resize(kDerivedHeaderBytes, '\0');
  return h;
}

std::string DecodeDerivedHeader(Bytes encoded, DerivedHeader* header) {
  constexpr size_t kFixed = 56, kEach = 20;
  if (encoded.size() < kDerivedHeaderBytes) return "it is shorter than its header";
  if (encoded.substr(0, 8) != Bytes(kDerivedMagic, 8)) return "it is not an index file of pymemstore";
  const char* p = encoded.data();
  if (GetLe32(p + 8) != kDerivedVersion) return "its format is not version " + std::to_string(kDerivedVersion);
  const size_t count = GetLe32(p + 44);
  if (count > kMaxSections) return "its header is damaged";
  const size_t end = kFixed + count * kEach;
  if (GetLe32(p + end) != Crc32(encoded.substr(0, end))) return "its header is damaged";
  header->type = GetLe32(p + 12);
  std::memcpy(header->store_id.data(), p + 16, header->store_id.size());
  if (GetLe32(p + 32) >= kKinds) return "its header is damaged";
  header->kind = static_cast<Kind>(GetLe32(p + 32));
  header->dim = GetLe32(p + 36);
  header->vector_file = GetLe32(p + 40);
  header->rows = GetLe64(p + 48);
  header->sections.clear();
  for (size_t i = 0; i < count; ++i) {
    const char* s = p + kFixed + i * kEach;
    header->sections.push_back({GetLe64(s), GetLe64(s + 8), GetLe32(s + 16)});
  }
  return {};
}

uint64_t NameHash(const StoreId& id, Bytes name) {
  const char* key = reinterpret_cast<const char*>(id.data());
  const uint64_t k0 = GetLe64(key), k1 = GetLe64(key + 8);
  uint64_t v0 = k0 ^ 0x736f6d6570736575ull, v1 = k1 ^ 0x646f72616e646f6dull;
  uint64_t v2 = k0 ^ 0x6c7967656e657261ull, v3 = k1 ^ 0x7465646279746573ull;
  auto rotl = [](uint64_t x, int b) { return x << b | x >> (64 - b); };
  auto round = [&] {
    v0 += v1, v1 = rotl(v1, 13), v1 ^= v0, v0 = rotl(v0, 32);
    v2 += v3, v3 = rotl(v3, 16), v3 ^= v2;
    v0 += v3, v3 = rotl(v3, 21), v3 ^= v0;
    v2 += v1, v1 = rotl(v1, 17), v1 ^= v2, v2 = rotl(v2, 32);
  };
  auto absorb = [&](uint64_t m) {
    v3 ^= m;
    round();
    round();
    v0 ^= m;
  };
  size_t i = 0;
  for (; i + 8 <= name.size(); i += 8) absorb(GetLe64(name.data() + i));
  uint64_t last = static_cast<uint64_t>(name.size()) << 56;
  for (size_t j = 0; i + j < name.size(); ++j)
    last |= static_cast<uint64_t>(static_cast<uint8_t>(name[i + j])) << (8 * j);
  absorb(last);
  v2 ^= 0xff;
  for (int r = 0; r < 4; ++r) round();
  return v0 ^ v1 ^ v2 ^ v3;
}

std::string Hex(const StoreId& id) {
  static const char kDigits[] = "0123456789abcdef";
  std::string s;
  for (uint8_t b : id) s += {kDigits[b >> 4], kDigits[b & 15]};
  return s;
}

std::string Quote(Bytes name) {
  static const char kDigits[] = "0123456789abcdef";
  std::string s = "'";
  size_t n = 0;
  for (; n < name.size() && n < 80; ++n) {
    const uint8_t c = static_cast<uint8_t>(name[n]);
    const uint8_t next = n + 1 < name.size() ? static_cast<uint8_t>(name[n + 1]) : 0;
    const uint8_t after = n + 2 < name.size() ? static_cast<uint8_t>(name[n + 2]) : 0;
    // C0, DEL; C1 (c2 80..9f); U+200B..F, U+2028..E (e2 80 8b..), U+2060..F (e2 81 a0..af); U+FEFF
    const bool hidden = c < 0x20 || c == 0x7f || (c == 0xc2 && next >= 0x80 && next <= 0xa0) ||
                        (c == 0xe2 && ((next == 0x80 && after >= 0x8b && after != 0x90 &&
                                        (after <= 0x8f || (after >= 0xa8 && after <= 0xaf))) ||
                                       (next == 0x81 && after >= 0xa0 && after <= 0xaf))) ||
                        (c == 0xef && next == 0xbb && after == 0xbf);
    const size_t length = !hidden ? 0 : c == 0xc2 ? 2 : c >= 0xe0 ? 3 : 1;
    if (!hidden) s.push_back(static_cast<char>(c));
    for (size_t k = 0; k < length; ++k) {
      const uint8_t b = static_cast<uint8_t>(name[n + k]);
      s += {'\\', 'x', kDigits[b >> 4], kDigits[b & 15]};
    }
    if (length > 1) n += length - 1;
  }
  while (n < name.size() && (static_cast<uint8_t>(name[n]) & 0xc0) == 0x80) s.push_back(name[n++]);
  s += n < name.size() ? "'... (" + std::to_string(name.size()) + " bytes)" : "'";
  return s;
}

}  // namespace pymemstore
