// A query's way: candidates of both slots, join, score.
#pragma once

#include <vector>

#include "store_impl.h"

namespace pymemstore {

// All queries read `snapshot`; names of the hits' ids are added to `names`.
Result<std::vector<QueryResult>> RunQueries(Snapshot* snapshot, const std::vector<Query>& queries, int threads,
                                            const InterruptCheck& interrupted, NameMap* names);

// Names of one kind with cosine >= tau, best first, ties by id, for each of n unit vectors.
Result<std::vector<std::vector<ScoredName>>> RunSimilar(Snapshot* snapshot, Kind kind, const float* vectors,
                                                        size_t n, double tau, int64_t limit, SearchMode search, int threads,
                                                        const InterruptCheck& interrupted, NameMap* names);

}  // namespace pymemstore
