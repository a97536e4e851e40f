// The leading axes that the first stage of an exact scan projects on. Bounds hold for any axes; good axes only
// make them tighter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "exact_scan.h"
#include "pymemstore/status.h"

namespace pymemstore {

struct ScanBasis {
  uint32_t dim = 0;
  uint32_t k = 0;            // axes; identity: dim
  uint32_t padded_k = 0;     // k rounded up to a multiple of 8
  bool identity = false;     // small dimension: the axes are the coordinates
  std::vector<float> axes;   // k x dim, near-orthonormal; empty for identity
  double gram_error = 0;     // spectral norm of (axes * axes^T - I) is at most this
  double rotate_error = 0;   // |computed Rotate(v) - exact| <= rotate_error * |v|
  uint64_t built_rows = 0;   // rows of the view it was built from

  // out[0..padded_k) = float32 coordinates of v, zero-padded.
  void Rotate(const float* v, float* out) const;
};

// |float32 dot product - exact| <= DotError(dim) * |a| * |b|, for any order of summation, fused or not.
double DotError(size_t dim);

// Builds axes from a sample of `view` (at least 64 rows). Costs about as much as projecting a few thousand rows
// on 128 axes, whatever the number of rows. `all_axes`: up to 128, instead of as many as make a scan of 4-bit codes
// cheapest.
Status BuildScanBasis(const RowView& view, const std::function<bool()>& interrupted, ScanBasis* basis,
                      bool all_axes = false);

}  // namespace pymemstore
