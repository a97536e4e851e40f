// The only door to the core.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "pymemstore/status.h"
#include "pymemstore/types.h"

namespace pymemstore {

class StoreImpl;
struct Counters;
struct Generation;

// What this build and CPU offer.
struct EngineInfo {
  uint32_t format_version;
  const char* kernel;       // "avx512vnni", "avx2", "neon", "scalar"
  const char* kernel_note;  // why it is not the one that PYMEMSTORE_KERNEL names; "" when it is
};
EngineInfo GetEngineInfo();

// Writes v at unit length. False when v holds a value that is not finite, or has no length to speak of.
bool NormaliseVector(const float* v, size_t dim, float* out);
// The score of two unit vectors, as every search computes it: a dot product in double precision.
double CanonicalScore(const float* a, const float* b, size_t dim);
// A text for a message: quoted, control and invisible characters escaped, cut at 80 bytes.
std::string QuoteName(std::string_view text);

// A handle on a store. A process has one store behind all its handles on the same files, told by (device,
// inode). Thread-safe, except that Close() must not race with the destructor. After a fork the child's calls
// give Closed: open the store again there.
class Store {
 public:
  // A second handle shares the first one's environment: its map_size and max_readers are not looked at; sync,
  // timeout and threads are the handle's own.
  static Result<std::unique_ptr<Store>> Open(const std::string& path, const Options& options,
                                             const InterruptCheck& interrupted = {});
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  void Close();  // a second call does nothing
  bool closed() const;
  const std::string& path() const { return path_; }
  bool read_only() const { return read_only_; }
  Result<std::pair<EmbedderStamp, EmbedderStamp>> Stamps();

  // All of the batch in one transaction, or nothing. Waits for the writer's lock up to the timeout (Locked).
  Result<ApplyResult> Apply(const Batch& batch, const InterruptCheck& interrupted = {});
  // Indices of names that are unknown or have no vector, first occurrences only.
  Result<std::vector<size_t>> Lacking(Kind kind, const std::vector<std::string_view>& names);

  // Each query of one call reads the same snapshot.
  Result<std::vector<QueryResult>> RunQueries(const std::vector<Query>& queries, NameMap* names,
                                              const InterruptCheck& interrupted = {});
  // Names with cosine >= tau, best first, ties by id, for each of n unit vectors of `dim`.
  Result<std::vector<std::vector<ScoredName>>> Similar(Kind kind, const float* vectors, size_t n, uint32_t dim,
                                                       double tau, int64_t limit, SearchMode search, NameMap* names,
                                                       const InterruptCheck& interrupted = {});

  Result<TripleId> Find(std::string_view s, std::string_view r, std::string_view o);  // kNoTriple: not there
  Result<Triple> GetTriple(TripleId id);
  // Pages: up to `count` names with id >= first.
  Result<std::vector<std::pair<NameId, std::string>>> Names(Kind kind, NameId first, size_t count);
  Result<std::vector<std::pair<NameId, std::string>>> Unembedded(Kind kind, NameId first, size_t count);
  // A page of the triples that match the given parts, from `cursor` ("" at first); the cursor of the next page
  // is left there, "" at the end.
  Result<std::vector<Triple>> Triples(const std::optional<std::string>& s, const std::optional<std::string>& r,
                                      const std::optional<std::string>& o, std::string* cursor, size_t count);
  Result<std::vector<Change>> Changes(uint64_t since, size_t count);
  // Empty while the name waits for its vector; NotFound for an unknown name.
  Result<std::vector<float>> Vector(Kind kind, std::string_view name);
  Result<std::vector<std::string>> Aliases(Kind kind, std::string_view name);
  Result<std::vector<std::string>> NamedBy(Kind kind, std::string_view alias);
  Result<std::vector<std::string>> ExternalIds(Kind kind, std::string_view name);
  Result<std::optional<std::string>> ByExternalId(Kind kind, std::string_view external_id);
  Result<std::vector<SourceRecord>> Sources(TripleId id);
  Result<Stats> GetStats();
  Result<CheckReport> Check(const InterruptCheck& interrupted = {});
  // Merges base and delta into the next generation, without free pages and dead vectors, while others read and
  // write. Returns bytes before, after.
  Result<std::pair<uint64_t, uint64_t>> Compact(const BuildProgress& progress = {}, const InterruptCheck& interrupted = {});
  // Embeds up to `most` entity names that wait for a vector, with surf256, in one commit; how many.
  // EmbedderMismatch when the store's entity embedder is another.
  Result<uint64_t> EmbedSurface(uint64_t most, const InterruptCheck& interrupted = {});
  // Makes the rule keys that names from a bulk import wait for.
  Status BuildRules(const BuildProgress& progress = {}, const InterruptCheck& interrupted = {});
  // Seals the vectors: makes the codes, and the graph when it is asked for, of all rows that there are. Others read
  // and write meanwhile. A graph that was interrupted goes on from what was saved. `force`: also what is there.
  // Phases: "clustering", "coding", "sealing", "linking", "finding". Locked while another process does this.
  Status Reindex(bool graph, bool force, const BuildProgress& progress = {}, const InterruptCheck& interrupted = {});
  // A consistent copy, as a store of its own, at a path that does not exist yet.
  Status Backup(const std::string& path);

 private:
  friend class BulkLoad;
  Store(std::shared_ptr<StoreImpl> impl, std::string path, const Options& options);
  // The store behind this handle, or why it can't be used (closed, forked).
  Result<std::shared_ptr<StoreImpl>> Get() const;

  // After a commit: whether the delta has grown so far that it should be merged.
  void MaybeMerge(const std::shared_ptr<StoreImpl>& impl, const Generation& gen, const Counters& counters,
                  uint64_t delta_rows);
  void EndMerge();

  std::shared_ptr<StoreImpl> impl_;
  const std::string path_;  // as it was given
  const bool read_only_;
  const Sync sync_;
  const double timeout_s_;
  const int threads_;
  const int pid_;
  std::atomic<bool> closed_{false};
  const bool auto_merge_;
  const uint64_t merge_rows_;
  mutable std::mutex merge_mutex_;  // of the next three
  std::thread merger_;
  bool merging_ = false;
  std::string merge_error_;
  mutable std::mutex mutex_;  // of impl_; never taken in a forked child, where another thread may have held it
};

}  // namespace pymemstore
