// The first stage of an exact scan over sparse rows: inverted lists, with a proven upper bound on the canonical
// score. The proof is in docs/exact_scan.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "exact_scan.h"
#include "pymemstore/status.h"

namespace pymemstore {

// Rows of a block: their 16-bit sums, 32 KiB, stay in the innermost cache.
constexpr size_t kPostingRows = 16384;
// A list for each dimension, sign and level of magnitude.
constexpr size_t kPostingLevels = 8;

struct PostingList {
  uint32_t begin;  // its first posting; the next list's begin ends it
  float upper;     // the largest magnitude in it
};

// Up to kPostingRows rows; immutable once published.
struct PostingBlock {
  uint32_t rows = 0;
  std::vector<uint16_t> postings;  // rows, ascending in each list
  std::vector<PostingList> lists;  // (2 * dimension + negative) * kPostingLevels + level, and an end
  double max_upper_norm = 0;       // the largest norm of a row with its lists' `upper` for values
};

// An immutable snapshot: rows [0, rows) of a file are in lists.
struct ScanPostings {
  std::vector<std::shared_ptr<const PostingBlock>> blocks;
  uint64_t rows = 0;
};

// The values of a query that are not zero.
struct PostingQuery {
  struct Term {
    uint32_t first_list;
    float magnitude;
  };
  std::vector<Term> terms;
  double norm = 0;
};

// Whether lists pay: few values of a row are not zero, and few rows share them. Judged on a sample.
bool PostingsPay(const RowView& view);

// Lists for all rows of `view`: full blocks of `old` (may be null) are taken over, the others are made.
Status ExtendPostings(const RowView& view, const std::shared_ptr<const ScanPostings>& old,
                      const std::function<bool()>& interrupted, std::shared_ptr<const ScanPostings>* out);

PostingQuery MakePostingQuery(const float* q, size_t dim);

// Finds candidates; holds a thread's sums.
class PostingScanner {
 public:
  // Sets *rows to the rows of the block, ascending, whose score may reach `limit`: all others are proven to miss
  // it. False when the lists can't tell, as with limits that rows reach which share nothing with the query.
  bool Candidates(const PostingBlock& block, const PostingQuery& query, double limit, std::vector<uint32_t>* rows);

 private:
  std::vector<uint16_t> sums_;
};

}  // namespace pymemstore
