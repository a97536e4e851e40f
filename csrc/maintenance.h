// Looking at a whole store, and copying it: statistics, integrity check, backup.
#pragma once

#include <string>
#include <utility>

#include "store_impl.h"

namespace pymemstore {

Result<Stats> CollectStats(StoreImpl* impl);
Result<CheckReport> CheckStore(StoreImpl* impl, const InterruptCheck& interrupted);
// Seals the vectors of both kinds.
Status ReindexStore(StoreImpl* impl, const ReindexOptions& options, int threads, double timeout_s,
                    const BuildProgress& progress, const InterruptCheck& interrupted);
Status BackupStore(StoreImpl* impl, const std::string& path);

}  // namespace pymemstore
