// Bulk import: input of any size is staged beside the store, resumably, and becomes part of its next generation at
// once.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pymemstore/store.h"

namespace pymemstore {

struct BulkOptions {
  std::string format;  // "tsv", "ntriples", "wikidata"; "facts": only Add()
  std::map<std::string, std::string> reader_options;
  std::string identity;  // the same for the same input and options: then an interrupted load goes on
  uint64_t memory = 0;   // bytes; 0: a quarter of the machine's
  std::string source;    // of the facts that the load adds; "": none
  bool update = false;   // names follow their labels, and what an entity's input does not repeat is withdrawn
};

struct BulkReject {
  uint32_t input;
  uint64_t line;
  std::string why;
};

// One import into a store; another one into it waits (Locked). Not thread-safe.
class BulkLoad {
 public:
  static Result<std::unique_ptr<BulkLoad>> Open(Store* store, const BulkOptions& options,
                                                const InterruptCheck& interrupted = {});
  ~BulkLoad();  // keeps what was staged up to the last checkpoint
  BulkLoad(const BulkLoad&) = delete;
  BulkLoad& operator=(const BulkLoad&) = delete;

  // Where the load is; after Open, where an interrupted one goes on.
  bool resumed() const;
  bool sealed() const;         // it was sealed already, just before it was interrupted: only Seal() is left
  uint32_t input() const;      // inputs (files) that are done
  uint64_t consumed() const;   // bytes of the current input that are done: at a line's end
  uint64_t lines() const;      // its lines that are done
  const std::string& note() const;
  uint64_t discarded() const;  // triples of an interrupted load with another identity, which was dropped

  // A piece of the current input, cut anywhere. After Interrupted the rest of the piece counts as not given; after
  // another error the load can only be closed.
  Status Feed(std::string_view data, const InterruptCheck& interrupted = {});
  // The current input ends. `incomplete`: "" or what is missing of it.
  Status EndInput(std::string* incomplete);
  // Triples that another reader read; they count as lines.
  Status Add(std::string_view subject, std::string_view relation, std::string_view object);
  std::map<std::string, uint64_t> Counts() const;
  std::vector<BulkReject> TakeRejects();
  // Durable: a process that is killed afterwards goes on from here.
  Status Checkpoint(const std::string& note);

  // All that was fed becomes visible in one switch of generations. Readers go on; writers wait.
  Result<std::map<std::string, uint64_t>> Seal(const BuildProgress& progress, const InterruptCheck& interrupted);
  Status Discard();  // drops what was staged
  void Close();      // keeps it; others may import

 private:
  class Impl;
  explicit BulkLoad(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace pymemstore
