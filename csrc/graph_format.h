// Sections of a graph file.
#pragma once

#include <cstddef>
#include <cstdint>

#include "graph.h"

namespace pymemstore {

enum GraphSection : size_t { kGraphMeta, kGraphLinksLow, kGraphUpper, kGraphTwins, kGraphMissed, kGraphSections };

struct GraphMeta {
  uint32_t entry = 0, top_level = 0;
  uint64_t upper = 0, twins = 0, missed = 0;
};
static_assert(sizeof(GraphMeta) == 32, "stored as it is");

// Another row with the codes of a node's row. Sorted.
struct Twin {
  uint32_t node, row;
  bool operator<(const Twin& o) const { return node != o.node ? node < o.node : row < o.row; }
};

constexpr uint32_t kLinkWords = 2 + 2 * kGraphLinks;
constexpr uint32_t kUpperWords = 1 + kGraphLinks;

}  // namespace pymemstore
