// Exact thresholded search over the rows of a vector file: complete by construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "pymemstore/status.h"

namespace pymemstore {

// Immutable rows of float32 unit vectors: row i is float[dim] at base + i * stride (stride is a multiple of 4;
// rows are not aligned further). Rows [0, rows) never change while the memory is alive; later views of the
// same file only have more rows.
struct RowView {
  const uint8_t* base = nullptr;
  size_t stride = 0;
  uint32_t dim = 0;
  uint64_t rows = 0;
  const float* row(uint64_t i) const { return reinterpret_cast<const float*>(base + i * stride); }
};

struct ScoredRow {
  uint64_t row;
  double score;  // the canonical dot product, CanonicalDot(query, row), unclamped
};

struct ScanStats {
  uint64_t rows_scanned = 0;   // rows that the first stage looked at, summed over queries
  uint64_t rows_rescored = 0;  // rows whose canonical score was computed
};

// A score passes a threshold t when score >= t - kScoreSlack.
constexpr double kScoreSlack = 1e-6;

class ExactScan {
 public:
  explicit ExactScan(uint32_t dim);
  ~ExactScan();
  ExactScan(const ExactScan&) = delete;
  ExactScan& operator=(const ExactScan&) = delete;

  // For each of n queries (unit float32 vectors, row-major n x dim): all rows of `view` whose canonical score
  // is >= taus[i] - kScoreSlack, in ascending row order, in (*out)[i]. Uses up to `threads` threads. Safe to
  // call from several threads at once. `interrupted` (may be empty) is polled on the calling thread only;
  // when it returns true the call ends with Interrupted.
  Status WithinThreshold(const RowView& view, const float* queries, size_t n, const double* taus, int threads,
                         const std::function<bool()>& interrupted, std::vector<std::vector<ScoredRow>>* out,
                         ScanStats* stats);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pymemstore
