// Two stages of codes for the rows of an exact scan, with proven upper bounds on the canonical score. The proof
// is in docs/exact_scan.md; names here follow it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "exact_scan.h"
#include "pymemstore/status.h"
#include "scan_basis.h"
#include "simd_kernels.h"

namespace pymemstore {

constexpr size_t kSegmentRows = 4096;  // a multiple of kGroupRows

struct FreeDeleter {
  void operator()(void* p) const { std::free(p); }
};

// Codes of up to kSegmentRows rows; immutable once published.
struct ScanSegment {
  uint32_t rows = 0;
  std::unique_ptr<uint8_t, FreeDeleter> stage1;  // groups of GroupBytes(padded_k), 64-aligned
  std::unique_ptr<uint8_t, FreeDeleter> stage2;  // int8 rows of padded_dim bytes, 64-aligned
  std::vector<float> scale2, error2;             // per row: scale of the int8 row, |v - v^|, rounded up
  double max_code_norm = 0;                      // max |v1^| over rows
  double max_norm = 0;                           // max |v| over rows
};

// An immutable snapshot: rows [0, rows) of a file are coded.
struct ScanCodes {
  std::shared_ptr<const ScanBasis> basis;
  std::vector<std::shared_ptr<const ScanSegment>> segments;
  uint64_t rows = 0;

  size_t PaddedDim() const { return (basis->dim + 31) / 32 * 32; }
};

// What both stages need of a query.
struct CodedQuery {
  std::vector<int8_t> codes1;
  std::vector<int16_t> codes2;
  double scale1 = 1, scale2 = 1;
  int32_t offset1 = 0;
  double slack1 = 0;      // |z - q1^|, to be multiplied by |v1^|
  double norm1 = 0;       // |z|
  double rest = 0;        // |q2|
  double slack2 = 0;      // |q - q^|, to be multiplied by |v^|
  double norm = 0;        // |q|
  double gram_error = 0;

  // The first stage's parameters against a segment for the threshold `tau` (slack included).
  ScanQuery ForSegment(const ScanSegment& s, double tau) const;
  // An upper bound of the canonical score of row r of s, given the integer dot product.
  double Bound2(const ScanSegment& s, uint32_t r, int32_t dot) const {
    const double v = static_cast<double>(s.scale2[r]);
    const double e = static_cast<double>(s.error2[r]);
    return scale2 * v * dot + slack2 * (s.max_norm + e) + norm * e + 1e-9;
  }
};

CodedQuery CodeQuery(const ScanBasis& basis, const float* q);
// Only what int8 rows need: codes2, scale2, slack2, norm.
CodedQuery CodeWholeQuery(const float* q, uint32_t dim);

// Codes for all rows of `view`: those of `old` (may be null) are taken over, the others are made. A new basis is
// built when there is none, or the rows have grown fourfold since.
Status ExtendCodes(const RowView& view, const std::shared_ptr<const ScanCodes>& old,
                   const std::function<bool()>& interrupted, std::shared_ptr<const ScanCodes>* out);

}  // namespace pymemstore
