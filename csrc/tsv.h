// Triples as lines of subject, relation and object, parted by tabs.
#pragma once

#include <memory>

#include "fact_sink.h"

namespace pymemstore {

// No quotes, escapes or header; blank lines are passed over. Texts go to FactSink::Triple().
std::unique_ptr<LineReader> NewTsvReader();

}  // namespace pymemstore
