// The on-disk format: table names, keys, values, magic and version. Sole owner of byte layouts; FORMAT.md is
// its text and changes in the same commit.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "crc32.h"
#include "pymemstore/types.h"

namespace pymemstore {

using Bytes = std::string_view;

constexpr uint32_t kFormatVersion = 2;
constexpr uint32_t kVectorVersion = 1;             // of vector files
constexpr char kMetaMagic[] = "pymemstore";          // value of meta "magic"
constexpr char kVectorMagic[] = "PMSVEC1";           // 8 bytes with its NUL
constexpr size_t kVectorHeaderBytes = 4096;
using StoreId = std::array<uint8_t, 16>;

// LMDB tables. Those of a kind come in pairs: KindTable(base, kind).
enum class Table : uint8_t {
  kMeta,
  kEntName, kRelName,            // id -> name record
  kEntHash, kRelHash,            // hash of the name -> ids (dup)
  kEntAlias, kRelAlias,          // id, number -> alias text
  kEntAliasHash, kRelAliasHash,  // hash of the alias -> (id, number) (dup)
  kEntRule, kRelRule,            // rule key -> ids (dup)
  kEntPending, kRelPending,      // ids that wait for a vector
  kEntExternal, kRelExternal,    // external id -> id
  kEntExternalOf, kRelExternalOf,  // id -> external ids (dup)
  kSpo,                          // s, r, o -> triple id
  kOps,                          // o, r, triple id -> s
  kTriple,                       // triple id -> s, r, o: every triple there ever was
  kProvenance,                   // triple id -> (source id, time) (dup)
  kSource, kSourceHash,          // source id -> text; hash -> source ids (dup)
  kLog,                          // sequence number -> change
  // Since version 2. The sealed tables (packed.h has their blocks) are written once, when a generation is built.
  kBaseName,                     // first id -> names of a run of ids
  kBaseHash,                     // first 40 bits of a name's hash, id -> more such pairs
  kBaseRule,                     // first 40 bits of a rule key, id -> more such pairs
  kBaseRow,                      // first id -> first row, how many: vectors of sealed names
  kBaseSpo, kBaseOps,            // first triple -> triples of a run, in the two orders
  kBaseTriple,                   // first triple id -> s, r, o of a run of ids
  kLoad,                         // first triple id -> how many a bulk load added, from what source, when
  kJournal,                      // table, key -> transaction: what changed while a generation is being built
  kTables
};
constexpr size_t kTableCount = static_cast<size_t>(Table::kTables);
constexpr Table kFirstTableOfVersion2 = Table::kBaseName;
constexpr Table KindTable(Table entity_table, Kind kind) {
  return static_cast<Table>(static_cast<size_t>(entity_table) + Index(kind));
}
struct TableInfo {
  const char* name;
  bool dup;  // MDB_DUPSORT
  bool fixed;  // MDB_DUPFIXED
};
const TableInfo& Info(Table table);

// ---- integers: keys big-endian (they sort), values little-endian ---------------------------------
inline void PutBe32(char* p, uint32_t v) {
  for (int i = 3; i >= 0; --i, v >>= 8) p[i] = static_cast<char>(v & 0xff);
}
inline void PutBe64(char* p, uint64_t v) {
  for (int i = 7; i >= 0; --i, v >>= 8) p[i] = static_cast<char>(v & 0xff);
}
inline uint32_t GetBe32(const char* p) {
  uint32_t v = 0;
  for (int i = 0; i < 4; ++i) v = v << 8 | static_cast<uint8_t>(p[i]);
  return v;
}
inline uint64_t GetBe64(const char* p) {
  uint64_t v = 0;
  for (int i = 0; i < 8; ++i) v = v << 8 | static_cast<uint8_t>(p[i]);
  return v;
}
void AppendLe32(std::string* s, uint32_t v);
void AppendLe64(std::string* s, uint64_t v);
inline uint32_t GetLe32(const char* p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}
inline uint64_t GetLe64(const char* p) {
  uint64_t v;
  std::memcpy(&v, p, 8);
  return v;
}

// A key or value of fixed size on the stack.
template <size_t N>
struct Fixed {
  char data[N];
  operator Bytes() const { return {data, N}; }  // NOLINT: implicit by design
};
inline Fixed<4> Key32(uint32_t a) {
  Fixed<4> k;
  PutBe32(k.data, a);
  return k;
}
inline Fixed<8> Key64(uint64_t a) {
  Fixed<8> k;
  PutBe64(k.data, a);
  return k;
}
inline Fixed<8> Key32x2(uint32_t a, uint32_t b) {
  Fixed<8> k;
  PutBe32(k.data, a);
  PutBe32(k.data + 4, b);
  return k;
}
inline Fixed<12> SpoKey(const TripleIds& t) {
  Fixed<12> k;
  PutBe32(k.data, t.s);
  PutBe32(k.data + 4, t.r);
  PutBe32(k.data + 8, t.o);
  return k;
}
inline Fixed<16> OpsKey(NameId o, NameId r, TripleId id) {
  Fixed<16> k;
  PutBe32(k.data, o);
  PutBe32(k.data + 4, r);
  PutBe64(k.data + 8, id);
  return k;
}
inline TripleIds GetSpo(const char* p) { return {GetBe32(p), GetBe32(p + 4), GetBe32(p + 8)}; }

// A provenance value: source id, time in microseconds.
inline Fixed<12> ProvenanceValue(uint32_t source, uint64_t time_us) {
  Fixed<12> v;
  PutBe32(v.data, source);
  PutBe64(v.data + 4, time_us);
  return v;
}

// ---- records ------------------------------------------------------------------------------------
// id -> name: row + 1 (0: no vector) as little-endian u64, a flag byte, the name's bytes.
struct NameRecord {
  static constexpr uint8_t kForgotten = 1;
  uint64_t row_plus_1 = 0;
  uint8_t flags = 0;
  Bytes name;
  bool live() const { return !(flags & kForgotten); }
};
std::string EncodeName(const NameRecord& record);
bool DecodeName(Bytes value, NameRecord* record);  // false: damaged

// meta "counters": little-endian u64 each, in this order; later versions only append.
struct Counters {
  uint64_t next_name[kKinds] = {0, 0};
  uint64_t next_triple = 1;
  uint64_t seq = 0;
  uint64_t rows[kKinds] = {0, 0};  // committed rows of the vector files
  uint64_t next_source = 0;
  // Since version 2; computed for a store of version 1.
  uint64_t live[kKinds] = {0, 0};      // names that are not forgotten
  uint64_t embedded[kKinds] = {0, 0};  // those of them that have a vector
  uint64_t triples = 0;                // live ones
  uint64_t sealed = 0;                 // entity ids below are in the sealed tables
  uint64_t ruled = 0;                  // entity ids below have their rule keys
  uint64_t unembedded() const { return live[0] - embedded[0] + live[1] - embedded[1]; }
};
constexpr size_t kCounterBytesOfVersion1 = 7 * 8;
std::string EncodeCounters(const Counters& c);
bool DecodeCounters(Bytes value, Counters* c);

std::string EncodeStamp(const EmbedderStamp& stamp);
bool DecodeStamp(Bytes value, EmbedderStamp* stamp);

// A row of kLoad: the triples from its key on that one bulk load added.
struct LoadRecord {
  uint64_t count = 0;
  uint32_t source = 0;  // id + 1; 0: none was given
  uint64_t time_us = 0;
};
std::string EncodeLoad(const LoadRecord& record);
bool DecodeLoad(Bytes value, LoadRecord* record);

// A row of the edit log. An addition covers `count` sequence numbers from its key on; the others cover one.
struct LogRecord {
  ChangeType type = ChangeType::kAdd;
  uint64_t time_us = 0;
  TripleId triple = kNoTriple;  // kAdd: the first of `count` consecutive ids; kRemove; kReplace: the new fact
  uint32_t count = 1;
  std::vector<TripleId> removed;  // kReplace
  Kind kind = Kind::kEntity;
  NameId name = kNoName;
  std::string text, other;  // kAlias, kUnalias: alias; kRename: old, new; kForget: name; kExternalId: id
};
std::string EncodeLog(const LogRecord& record);
bool DecodeLog(Bytes value, LogRecord* record);

// ---- vector files -------------------------------------------------------------------------------
// Header of kVectorHeaderBytes, then rows of RowStride(dim) bytes: dim little-endian float32, the owner's id
// (u32), and the CRC-32 of what stands before it in the row.
constexpr size_t RowStride(uint32_t dim) { return 4 * static_cast<size_t>(dim) + 8; }
std::string EncodeVectorHeader(const StoreId& id, Kind kind, uint32_t dim);
// Empty: the header fits. Otherwise what is wrong.
std::string CheckVectorHeader(Bytes header, const StoreId& id, Kind kind, uint32_t dim);

// ---- derived files (index/) -----------------------------------------------------------------------
// A page with the header: magic, version, type, store id, kind, dim, number of the vector file, rows covered, the
// sections' (offset, bytes, CRC-32), and the CRC-32 of all that.
constexpr uint32_t kDerivedVersion = 1;
constexpr char kDerivedMagic[] = "PMSIDX1";  // 8 bytes with its NUL
constexpr size_t kDerivedHeaderBytes = 4096;
constexpr size_t kMaxSections = 64;
struct DerivedSection {
  uint64_t offset = 0, bytes = 0;
  uint32_t crc = 0;
};
struct DerivedHeader {
  uint32_t type = 0;
  StoreId store_id{};
  Kind kind = Kind::kEntity;
  uint32_t dim = 0, vector_file = 0;
  uint64_t rows = 0;
  std::vector<DerivedSection> sections;
};
std::string EncodeDerivedHeader(const DerivedHeader& header);
// Empty: decoded. Otherwise what is wrong.
std::string DecodeDerivedHeader(Bytes encoded, DerivedHeader* header);

// SipHash-2-4 keyed by the store's id, so that crafted names can't crowd one slot.
uint64_t NameHash(const StoreId& id, Bytes name);

std::string Hex(const StoreId& id);
// A name for a message: quoted, control and invisible characters escaped, cut at 80 bytes.
std::string Quote(Bytes name);

}  // namespace pymemstore
