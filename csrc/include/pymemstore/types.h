// Ids, triples, queries, hits and options: the plain data that crosses the door in store.h.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "pymemstore/surface.h"

namespace pymemstore {

using NameId = uint32_t;    // dense, per kind, from 0, never reused
using TripleId = uint64_t;  // from 1, given at first insertion, never reused

constexpr TripleId kNoTriple = 0;
constexpr NameId kNoName = std::numeric_limits<NameId>::max();
constexpr size_t kMaxNameBytes = 1 << 20;
constexpr size_t kMaxExternalIdBytes = 480;
constexpr uint32_t kMaxDim = 65536;

// Entities and relations live in separate tables; a text may name both.
enum class Kind : uint8_t { kEntity = 0, kRelation = 1 };
constexpr size_t kKinds = 2;
constexpr size_t Index(Kind kind) { return static_cast<size_t>(kind); }
constexpr const char* KindName(Kind kind) { return kind == Kind::kEntity ? "entity" : "relation"; }

struct TripleIds {
  NameId s = 0, r = 0, o = 0;
  bool operator==(const TripleIds& t) const { return s == t.s && r == t.r && o == t.o; }
};

struct Triple {
  std::string subject, relation, object;
  TripleId id = kNoTriple;
};

// Which embedder filled a vector space: a store refuses another one.
struct EmbedderStamp {
  std::string name;
  uint32_t dim = 0;
  std::string version;
};

enum class Sync {
  kFull,     // every commit is on the disk when it returns
  kRelaxed,  // a power loss may undo the last commits, never damage the store
};

using InterruptCheck = std::function<bool()>;  // true: stop. May be empty.
// Of long work: a phase, and how much of it is done; total 0: not known. May be empty.
using BuildProgress = std::function<void(const char* phase, uint64_t done, uint64_t total)>;

struct Options {
  bool create = true;
  bool read_only = false;
  double timeout_s = 30;      // how long a writer waits for the store's lock
  Sync sync = Sync::kFull;
  uint64_t map_size = 0;      // bytes of the first LMDB map; 0: chosen. The map grows by itself.
  int threads = 0;            // of a search; 0: the CPU's
  bool auto_merge = true;     // merge, and seal vectors, in a thread of the handle's own when what is new has grown
  uint64_t merge_rows = 250'000;  // not before it has so many rows, nor before it has 1 % of the store's triples
  uint32_t max_readers = 510;
  std::optional<EmbedderStamp> stamps[kKinds];
  bool stamps_if_new = false;  // stamps only apply to a store that is created by this call
};

// ---- writing -----------------------------------------------------------------------------------

enum class OpType : uint8_t {
  kAdd, kReplace, kRemove, kForget, kAlias, kUnalias, kRename, kAddNames, kSetVectors, kExternalId
};

// A piece of a Batch's arena.
struct Slice {
  size_t offset = 0;
  uint32_t size = 0;
};

// One entry of a batch. kAdd and kAddNames hold many items, the others one.
struct Op {
  OpType type;
  Kind kind = Kind::kEntity;
  std::vector<Slice> names;    // kAdd: s, r, o of each triple; kReplace, kRemove: s, r, o; else the operands
  std::vector<Slice> sources;  // kAdd: none, one for all, or one a triple (size 0: no source); kReplace: 0 or 1
  std::vector<float> vectors;  // kSetVectors: one unit vector a name
};

struct OpResult {
  uint64_t count = 0;                    // kForget: triples removed; kAddNames: new names
  bool flag = false;                     // kRemove, kAlias, kUnalias, kExternalId: something changed; kReplace: inserted
  std::vector<TripleId> ids;             // kAdd: one a triple; kReplace: one
  std::vector<uint8_t> inserted;         // kAdd
  std::vector<Triple> removed;           // kReplace
};

// Operations for one transaction, in order. Owns copies of all text, so that it can be applied without the GIL
// and applied again after the map has grown.
class Batch {
 public:
  Slice Intern(std::string_view text) {
    Slice s{arena_.size(), static_cast<uint32_t>(text.size())};
    arena_.append(text);
    return s;
  }
  std::string_view Text(Slice s) const { return std::string_view(arena_).substr(s.offset, s.size); }
  Op& Add(OpType type, Kind kind = Kind::kEntity) {
    ops_.push_back(Op{type, kind, {}, {}, {}});
    return ops_.back();
  }
  // A unit vector for a name that is new, or has none yet, when the batch is applied.
  void Supply(Kind kind, std::string_view name, const float* v, uint32_t dim) {
    auto& at = supplied_[Index(kind)];
    if (at.emplace(std::string(name), supplied_data_[Index(kind)].size()).second)
      supplied_data_[Index(kind)].insert(supplied_data_[Index(kind)].end(), v, v + dim);
  }
  const float* Supplied(Kind kind, std::string_view name) const {
    const auto& at = supplied_[Index(kind)];
    if (at.empty()) return nullptr;
    auto it = at.find(std::string(name));
    return it == at.end() ? nullptr : supplied_data_[Index(kind)].data() + it->second;
  }
  const std::vector<Op>& ops() const { return ops_; }
  size_t size() const { return ops_.size(); }
  Op& mutable_last() { return ops_.back(); }
  // Forgets the entry added last: used when its input turned out to be wrong half way.
  void DropLast() { ops_.pop_back(); }
  // The dimension of all vectors of a kind in this batch; 0 when there are none.
  uint32_t dim[kKinds] = {0, 0};

 private:
  std::string arena_;
  std::vector<Op> ops_;
  std::unordered_map<std::string, size_t> supplied_[kKinds];
  std::vector<float> supplied_data_[kKinds];
};

struct ApplyResult {
  std::vector<OpResult> ops;
  uint64_t new_names[kKinds] = {0, 0};
  uint64_t unembedded = 0;  // names of both kinds that wait for a vector, after the batch
  uint64_t seq = 0;         // last sequence number of the edit log, after the batch
};

// ---- reading -----------------------------------------------------------------------------------

enum class SearchMode : uint8_t { kAuto, kExact, kGraph };

// <s, r, ?> or <?, r, o>: the known entity and the relation, each by text, vector or both.
struct Query {
  bool object_known = false;  // false: the subject is given and objects are the answers
  std::optional<std::string> entity_text, relation_text;
  std::vector<float> entity_vector, relation_vector;  // unit vectors; empty: none
  double tau_e = 0.7, tau_t = 0.7, tau_r = 0.85;
  int64_t limit = -1;  // -1: all
  SearchMode search = SearchMode::kAuto;
  uint32_t rules = kRulesCore;
  bool numbers_exact = false;
  std::vector<TripleId> exclude;
};

struct Hit {
  TripleIds ids;
  TripleId triple = kNoTriple;
  double score = 0;                // (entity + relation similarity) / 2
  double entity_similarity = 0;    // effective: by rule, or the cosine if higher
  double relation_similarity = 0;
  double cosine = 0;               // of the entity; nan while it has no vector, or the query has none
  Match match = Match::kVector;    // why the entity is a candidate
};

struct QueryResult {
  std::vector<Hit> hits;  // best first; ties: exact matches first, then by triple id
  bool truncated = false;  // cut by the caller's limit
  bool complete = true;    // false while names wait for vectors that the search would have used, and in graph mode
  uint64_t unembedded = 0;
  SearchMode mode = SearchMode::kExact;  // of the entities' search; relations are always searched exactly
  std::string reason;                    // why this mode
  uint64_t entity_candidates = 0, relation_candidates = 0, rows_scanned = 0;
};

// Names of the ids in a set of results.
struct NameMap {
  std::unordered_map<NameId, std::string> names[kKinds];
};

struct ScoredName {
  NameId id = 0;
  double score = 0;
};

enum class ChangeType : uint8_t {
  kAdd = 1, kRemove = 2, kReplace = 3, kForget = 4, kAlias = 5, kUnalias = 6, kRename = 7, kVector = 8,
  kExternalId = 9
};

struct Change {
  uint64_t seq = 0;
  ChangeType type = ChangeType::kAdd;
  double time = 0;               // seconds since 1970, when the batch began
  std::optional<Triple> triple;  // kAdd, kRemove, kReplace
  std::vector<Triple> removed;   // kReplace: what it displaced
  std::string name, other;       // kForget: name; kAlias: entity, alias; kRename: old, new; kExternalId: name, id
};

struct SourceRecord {
  std::string source;
  double time = 0;
};

// Of the files under index/ for the vectors of one kind.
struct IndexInfo {
  uint64_t sealed_rows = 0, graph_rows = 0;
  uint64_t missed = 0;     // rows that graph searches scan besides
  uint32_t clusters = 0;
  int bits1 = 0, bits2 = 0;  // of the codes' two stages
  std::string problem;     // why a file is not used; "": it is, or there is none
};

struct Stats {
  IndexInfo index[kKinds];
  uint64_t names[kKinds] = {0, 0};
  uint64_t unembedded[kKinds] = {0, 0};
  uint64_t vector_rows[kKinds] = {0, 0};  // with rows that replaced or forgotten names left behind
  uint64_t triples = 0, aliases = 0, external_ids = 0, seq = 0;
  uint64_t delta_rows = 0;    // changes to triples since the generation was built
  uint64_t sealed_names = 0;  // entities in the sealed tables
  uint64_t unruled = 0;       // those of them that wait for their rule keys
  uint64_t map_size = 0, map_used = 0, disk_bytes = 0;
  uint32_t readers = 0, max_readers = 0, generation = 0, format_version = 0;
  std::string store_id;
  std::string merge_error;  // why the last merge in the background failed; "": it did not
};

struct CheckReport {
  std::vector<std::string> problems;  // the first 100; `problem_count` has all
  uint64_t problem_count = 0;
  Stats stats;
};

}  // namespace pymemstore
