// Turns what a bulk import staged into the next generation of its store.
#pragma once

#include <map>
#include <string>

#include "bulk_sink.h"
#include "store_impl.h"

namespace pymemstore {

struct SealOptions {
  std::string dir;      // of the staging; sorted runs go there
  std::string load_id;  // noted in the generation, so that a load is not sealed twice
  std::string source;
  uint64_t memory = 0;
  bool update = false;
  double timeout_s = 0;
};

// Holds the writer's lock from the reading of the old generation to the switch.
Result<std::map<std::string, uint64_t>> SealLoad(StoreImpl* impl, const SealOptions& options, BulkSink* staged,
                                                 const BuildProgress& progress, const InterruptCheck& interrupted);

}  // namespace pymemstore
