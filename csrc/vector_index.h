// Thresholded search over the vectors of one kind: all rows above a threshold, by the best mode there is.
// Exact today; sealed segments and the graph join here.
#pragma once

#include <memory>

#include "exact_scan.h"
#include "vector_file.h"

namespace pymemstore {

class VectorIndex {
 public:
  explicit VectorIndex(std::unique_ptr<VectorFile> file) : file_(std::move(file)), scan_(file_->dim()) {}

  VectorFile& file() { return *file_; }
  uint32_t dim() const { return file_->dim(); }

  // All of the first rows.view.rows rows with a canonical score >= taus[i] - kScoreSlack, ascending by row, for
  // each of n unit vectors. `asked` is a wish: the mode that answered is returned.
  Result<SearchMode> WithinThreshold(const PinnedRows& rows, const float* queries, size_t n, const double* taus,
                                     SearchMode asked, int threads, const InterruptCheck& interrupted,
                                     std::vector<std::vector<ScoredRow>>* out, ScanStats* stats) {
    (void)asked;  // the exact scan is complete, so it also serves those who would accept less
    PMS_RETURN_IF_ERROR(scan_.WithinThreshold(rows.view, queries, n, taus, threads, interrupted, out, stats));
    return SearchMode::kExact;
  }

 private:
  std::unique_ptr<VectorFile> file_;
  ExactScan scan_;
};

}  // namespace pymemstore
