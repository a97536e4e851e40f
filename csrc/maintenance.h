// Work on a whole store: statistics, integrity check, compaction into the next generation, backup.
#pragma once

#include <string>
#include <utility>

#include "store_impl.h"

namespace pymemstore {

Result<Stats> CollectStats(StoreImpl* impl);
Result<CheckReport> CheckStore(StoreImpl* impl, const InterruptCheck& interrupted);
Result<std::pair<uint64_t, uint64_t>> CompactStore(StoreImpl* impl, double timeout_s,
                                                  const InterruptCheck& interrupted);
Status BackupStore(StoreImpl* impl, const std::string& path);

}  // namespace pymemstore
