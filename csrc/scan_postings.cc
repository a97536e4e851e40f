#include "scan_postings.h"

#include <algorithm>
#include <cmath>

#include "distance.h"

namespace pymemstore {
namespace {

constexpr size_t kSampleRows = 1024;
// Larger dimensions would leave sums too few bits: every term of a query may round up by one.
constexpr uint32_t kMaxDim = 16384;
// A posting costs about 0.5 ns; codes 1 to 3 ns a row, or 9 when they don't fit the inner caches.
constexpr double kMaxPostingsPerRow = 4;
constexpr uint16_t kPass = 0x8000;  // a row is a candidate when its sum has this bit
// More than the rounding of norms and of a few products in double.
constexpr double kUp = 1 + 1e-9;

double NormUp(const float* v, size_t n) { return std::sqrt(CanonicalDot(v, v, n)) * kUp; }

// Levels of magnitude are a half power of two wide. Any choice is safe: bounds use each list's own maximum.
size_t Level(float magnitude) {
  constexpr float kFloors[kPostingLevels - 1] = {0.70711F, 0.5F, 0.35355F, 0.25F, 0.17678F, 0.125F, 0.08839F};
  size_t level = 0;
  while (level < kPostingLevels - 1 && magnitude < kFloors[level]) ++level;
  return level;
}

// Calls f(i, v[i]) for all values that are not zero.
template <typename F>
void ForEachNonzero(const float* v, size_t dim, F f) {
  for (size_t i = 0; i < dim; ++i) {
    if (std::fpclassify(v[i]) != FP_ZERO) f(i, v[i]);
  }
}

std::shared_ptr<const PostingBlock> MakeBlock(const RowView& view, uint64_t first, uint32_t rows) {
  struct Entry {
    uint32_t list;
    uint16_t row;
  };
  std::vector<Entry> entries;
  auto block = std::make_shared<PostingBlock>();
  block->rows = rows;
  const size_t count = size_t{2} * view.dim * kPostingLevels;
  block->lists.assign(count + 1, PostingList{0, 0});
  for (uint32_t r = 0; r < rows; ++r) {
    const float* v = view.row(first + r);
    ForEachNonzero(v, view.dim, [&](size_t i, float x) {
      const float magnitude = std::fabs(x);
      const size_t list = (2 * i + (x < 0)) * kPostingLevels + Level(magnitude);
      ++block->lists[list + 1].begin;
      block->lists[list].upper = std::max(block->lists[list].upper, magnitude);
      entries.push_back({static_cast<uint32_t>(list), static_cast<uint16_t>(r)});
    });
  }
  for (size_t i = 0; i < count; ++i) block->lists[i + 1].begin += block->lists[i].begin;
  block->postings.resize(entries.size());
  std::vector<uint32_t> next(count);
  for (size_t i = 0; i < count; ++i) next[i] = block->lists[i].begin;
  std::vector<double> squares(rows);
  for (const Entry& e : entries) {
    block->postings[next[e.list]++] = e.row;
    const double upper = static_cast<double>(block->lists[e.list].upper);
    squares[e.row] += upper * upper;
  }
  for (double s : squares) block->max_upper_norm = std::max(block->max_upper_norm, std::sqrt(s) * kUp);
  return block;
}

}  // namespace

bool PostingsPay(const RowView& view) {
  if (view.dim > kMaxDim || view.rows == 0) return false;
  const uint64_t rows = std::min<uint64_t>(view.rows, kSampleRows);
  std::vector<double> shares(size_t{2} * view.dim);
  double nonzeros = 0;
  for (uint64_t i = 0; i < rows; ++i) {
    ForEachNonzero(view.row(view.rows * i / rows), view.dim, [&](size_t d, float x) {
      shares[2 * d + (x < 0)] += 1;
      nonzeros += 1;
    });
  }
  const double n = static_cast<double>(rows);
  double postings = 0;  // that a query like these rows meets, a row
  for (double s : shares) postings += s / n * (s / n);
  return nonzeros / n <= view.dim / 4.0 && postings <= kMaxPostingsPerRow;
}

Status ExtendPostings(const RowView& view, const std::shared_ptr<const ScanPostings>& old,
                      const std::function<bool()>& interrupted, std::shared_ptr<const ScanPostings>* out) {
  auto made = std::make_shared<ScanPostings>();
  if (old != nullptr) *made = *old;
  if (made->rows % kPostingRows != 0) {
    made->rows -= made->blocks.back()->rows;
    made->blocks.pop_back();
  }
  while (made->rows < view.rows) {
    if (interrupted && interrupted()) return Status::Interrupted();
    const uint32_t rows = static_cast<uint32_t>(std::min<uint64_t>(kPostingRows, view.rows - made->rows));
    made->blocks.push_back(MakeBlock(view, made->rows, rows));
    made->rows += rows;
  }
  *out = std::move(made);
  return Status::Ok();
}

PostingQuery MakePostingQuery(const float* q, size_t dim) {
  PostingQuery query;
  ForEachNonzero(q, dim, [&](size_t i, float x) {
    query.terms.push_back({static_cast<uint32_t>((2 * i + (x < 0)) * kPostingLevels), std::fabs(x)});
  });
  query.norm = NormUp(q, dim);
  return query;
}

bool PostingScanner::Candidates(const PostingBlock& block, const PostingQuery& query, double limit,
                                std::vector<uint32_t>* rows) {
  rows->clear();
  // 1e-9: the rounding of the canonical score. A limit cut to 2 only lets more through.
  const double target = std::min(limit, 2.0) - 1e-9;
  // With this scale no sum exceeds `largest`, by Cauchy and Schwarz, though each term is rounded up.
  const double largest = kPass - 1 - static_cast<double>(query.terms.size());
  const double scale = largest / std::max(query.norm * block.max_upper_norm * (1 + 1e-6), 2.0);
  const double threshold = std::floor(target * scale / kUp);
  if (!(threshold >= 1)) return false;

  // A multiple of 32 rows; those behind the last keep their start.
  sums_.assign((block.rows + 31) / 32 * 32, static_cast<uint16_t>(kPass - threshold));
  uint16_t* const sums = sums_.data();
  for (const PostingQuery::Term& term : query.terms) {
    const double factor = scale * static_cast<double>(term.magnitude) * kUp;
    const PostingList* list = block.lists.data() + term.first_list;
    for (const PostingList* end = list + kPostingLevels; list != end; ++list) {
      const uint16_t add = static_cast<uint16_t>(std::ceil(factor * static_cast<double>(list->upper)));
      const uint16_t* p = block.postings.data() + list[0].begin;
      const uint16_t* const stop = block.postings.data() + list[1].begin;
      for (; stop - p >= 4; p += 4) {  // rows of a list differ
        sums[p[0]] = static_cast<uint16_t>(sums[p[0]] + add);
        sums[p[1]] = static_cast<uint16_t>(sums[p[1]] + add);
        sums[p[2]] = static_cast<uint16_t>(sums[p[2]] + add);
        sums[p[3]] = static_cast<uint16_t>(sums[p[3]] + add);
      }
      for (; p != stop; ++p) sums[*p] = static_cast<uint16_t>(sums[*p] + add);
    }
  }
  for (size_t i = 0; i < sums_.size(); i += 32) {
    uint16_t any = 0;
    for (size_t j = 0; j < 32; ++j) any |= sums[i + j];
    if ((any & kPass) == 0) continue;
    for (size_t j = 0; j < 32; ++j) {
      if ((sums[i + j] & kPass) != 0) rows->push_back(static_cast<uint32_t>(i + j));
    }
  }
  return true;
}

}  // namespace pymemstore
