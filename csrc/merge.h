// Moving a store to its next generation while others read and write it.
#pragma once

#include <utility>

#include "generation.h"

namespace pymemstore {

// The lock of those who build a generation: one at a time, between processes too. Writers are not held up.
Result<WriterLock> LockBuilding(StoreImpl* impl, double timeout_s, const InterruptCheck& interrupted);

// Commits `superseded_by` in the old environment, which is the switch, and follows it.
// The writer's lock is held. `switched`: the commit is done, so that the new generation is the live one whatever follows.
Status SwitchGeneration(StoreImpl* impl, Generation* from, uint32_t to, bool* switched);

struct MergeOptions {
  bool vectors = false;  // rewrite vector files that hold rows that nobody owns
  bool rules = false;    // make the rule keys that sealed names wait for
  size_t memory = 0;     // bytes for sorting; 0: 1 GiB
  bool wait = true;      // for another merge to end, up to the timeout; else Locked at once
};

// Base and delta become the base of the next generation. Readers and writers go on; writers wait while what they
// changed in the meantime is taken over.
Status MergeStore(StoreImpl* impl, const MergeOptions& options, double timeout_s, const BuildProgress& progress,
                  const InterruptCheck& interrupted);

// Without free pages and dead vectors. Returns bytes before, after.
Result<std::pair<uint64_t, uint64_t>> CompactStore(StoreImpl* impl, double timeout_s, const BuildProgress& progress,
                                                   const InterruptCheck& interrupted);

}  // namespace pymemstore
