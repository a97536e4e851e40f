// Gives names that wait for one the vector of the default entity embedder.
#pragma once

#include "store_impl.h"

namespace pymemstore {

// Up to `most` entity names, in order of id, in one commit; how many. The store's entity embedder is surf256.
Result<uint64_t> EmbedSurfaceNames(StoreImpl* impl, uint64_t most, int threads, double timeout_s, Sync sync,
                                   const InterruptCheck& interrupted);

}  // namespace pymemstore
