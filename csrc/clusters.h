// Cluster centroids for the sealed codes: k-means in two levels, so that finding a row's cluster looks at a few
// hundred centroids, not at all of them. Any assignment keeps every bound valid; a good one makes it tight.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "pymemstore/status.h"

namespace pymemstore {

class Clusters {
 public:
  // From `n` sample rows (row-major n x dim), about `wanted` centroids.
  static Status Train(const float* sample, size_t n, uint32_t dim, uint32_t wanted, int threads,
                      const std::function<void(uint64_t, uint64_t)>& progress,
                      const std::function<bool()>& interrupted, Clusters* out);

  uint32_t size() const { return static_cast<uint32_t>(half_norms_.size()); }
  const float* centroid(uint32_t i) const { return centroids_.data() + static_cast<size_t>(i) * dim_; }
  // The number of a near centroid. `scratch` is the caller's, to be used again.
  uint32_t Assign(const float* v, std::vector<float>* scratch) const;

 private:
  uint32_t dim_ = 0;
  std::vector<float> tops_, centroids_;            // row-major
  std::vector<float> top_halves_, half_norms_;     // |c|^2 / 2
  std::vector<uint32_t> first_;                    // a top's first centroid; ends with size()
};

}  // namespace pymemstore
