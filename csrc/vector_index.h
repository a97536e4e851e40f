// Thresholded search over the vectors of one kind: all rows above a threshold, by the best mode there is. The first
// rows are sealed in derived files (codes, and perhaps a graph), the newer ones are scanned from the vector file.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "exact_scan.h"
#include "graph.h"
#include "sealed_codes.h"
#include "search_cost.h"
#include "vector_file.h"

namespace pymemstore {

// How a search was done, and why so.
struct SearchChoice {
  SearchMode mode = SearchMode::kExact;
  std::string reason;
};

struct ReindexOptions {
  bool graph = false;
  bool force = false;  // also when all rows are sealed
};

// Thread-safe.
class VectorIndex {
 public:
  // `store`: the store's folder; `number`: of the vector file.
  VectorIndex(std::unique_ptr<VectorFile> file, std::string store, const StoreId& id, Kind kind, uint32_t number)
      : file_(std::move(file)), store_(std::move(store)), stamp_{id, kind, file_->dim(), number} {}

  VectorFile& file() { return *file_; }
  uint32_t dim() const { return file_->dim(); }

  // All of the first rows.view.rows rows with a canonical score >= taus[i] - kScoreSlack, ascending by row, for
  // each of n unit vectors; with SearchMode::kGraph some may be left out. `asked` is a wish: a store without a graph
  // answers exactly.
  Result<SearchChoice> WithinThreshold(const PinnedRows& rows, const float* queries, size_t n, const double* taus,
                                       SearchMode asked, int threads, const InterruptCheck& interrupted,
                                       std::vector<std::vector<ScoredRow>>* out, ScanStats* stats);

  // Seals rows.view.rows rows; fewer than kMinSealedRows are left as they are.
  Status Reindex(const PinnedRows& rows, const ReindexOptions& options, int threads, const BuildProgress& progress,
                 const InterruptCheck& interrupted);
  IndexInfo Info();
  uint64_t SealedRows() {
    const std::shared_ptr<State> state = Current(false);
    return state->codes ? state->codes->rows() : 0;
  }
  // Damage in what derived files hold: their checksums, all read. Empty: none.
  std::string CheckFiles();

 private:
  // Replaced as a whole when the files are.
  struct State {
    explicit State(uint32_t dim) : tail(dim) {}
    std::shared_ptr<const SealedCodes> codes;
    std::shared_ptr<const Graph> graph;
    ExactScan tail;  // of the rows behind the sealed ones
    FileMark codes_mark, graph_mark;
    std::string problem;  // why a file is refused
    std::string note;     // why a file that is sound is not used
  };
  std::shared_ptr<State> Current(bool look_again);
  // Whether the codes are of this file's rows: of some of them, or of all. Empty: they are.
  std::string OtherRows(const SealedCodes& codes, bool all);
  SearchChoice Choose(const State& state, SearchMode asked, size_t n, const double* taus) const;

  const std::unique_ptr<VectorFile> file_;
  const std::string store_;
  const DerivedStamp stamp_;
  SearchCost cost_;
  std::mutex mutex_;
  std::shared_ptr<State> state_;                    // guarded by mutex_
  std::chrono::steady_clock::time_point looked_{};  // guarded by mutex_
};

}  // namespace pymemstore
