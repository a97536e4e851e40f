// Shares the chunks of one piece of work out to threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "pymemstore/status.h"

namespace pymemstore {

// Runs work(worker, chunk) for the chunks [0, chunks), each once, in no fixed order, on the calling thread (worker
// 0) and up to `helpers` more (1 to helpers). `interrupted` (may be empty) is polled on the calling thread only,
// every 20 ms; when it returns true, the rest is left out and the result is Interrupted. A Status that is not ok
// ends the work as well, and is returned. Throws std::bad_alloc when work did.
Status RunChunks(uint64_t chunks, size_t helpers, const std::function<bool()>& interrupted,
                 const std::function<Status(size_t worker, uint64_t chunk)>& work);

}  // namespace pymemstore
