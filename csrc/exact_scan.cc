// The driver: keeps codes for the rows that have been asked about often enough, shares rows out to threads, and
// runs the stages. Every stage only drops rows whose canonical score is proven to miss the threshold.
#include "exact_scan.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <new>

#include "chunk_runner.h"
#include "distance.h"
#include "scan_codes.h"
#include "scan_postings.h"
#include "simd_kernels.h"

namespace pymemstore {
namespace {

constexpr uint64_t kMinCodedRows = 1024;   // smaller stores are scanned as float32
constexpr uint64_t kMinTail = 64;          // fewer new rows are left to the float32 scan
constexpr double kScansBeforeCoding = 24;  // coding a row costs about as much as this many float32 dot products
constexpr size_t kBlockRows = 512;         // rows whose codes stay in the inner caches while queries pass
constexpr size_t kTailBlockRows = 128;
constexpr size_t kQueryBatch = 256;        // queries coded and run together
constexpr double kWorkPerThread = 4e7;     // row x query x dim products that pay for a thread
constexpr double kWorkPerPoll = 4e8;
constexpr double kSparseSpeed = 6;         // how much faster such a product is with postings
constexpr size_t kSparseQueries = 16;      // queries of a chunk with postings
constexpr size_t kFetchAhead = 4;          // candidate rows that are fetched ahead
constexpr uint64_t kRejudgeGrowth = 4;     // grown rows are asked again whether they are sparse
// The direct scan's error bound takes norms up to this; unit vectors in float32 are far inside.
constexpr double kMaxNorm = 1.001;

// What is kept for rows [0, rows): one of the two, or neither. Immutable once published.
struct Index {
  std::shared_ptr<const ScanCodes> codes;        // dense rows
  std::shared_ptr<const ScanPostings> postings;  // sparse rows
  uint64_t rows = 0;
  uint64_t judged_rows = 0;  // the view's when the one or the other was chosen
};

struct Job {
  const RowView* view;
  const Index* index;
  uint64_t coded;          // rows that are scanned through the index
  const float* queries;
  size_t n;
  const double* limits;    // tau - kScoreSlack of each query
  const CodedQuery* coded_queries;
  const PostingQuery* posting_queries;
  uint64_t chunk_rows;
  size_t chunk_queries;  // n but with postings
};

// Rows [first, end) for queries [query, query_end).
struct Chunk {
  uint64_t first, end;
  size_t query, query_end;
};

struct Output {
  std::vector<ScoredRow>* results;  // of the job's queries
  ScanStats stats;
};

class Worker {
 public:
  Worker(const Job& job, Output* out) : job_(job), out_(*out), kernels_(ActiveKernels()) {
    if (job.index->codes == nullptr) return;
    dots_.reset(new int32_t[kSegmentRows]);
    for (size_t q = 0; q < std::min(kScanTile, job.n); ++q) survivors_[q].reset(new uint32_t[kSegmentRows]);
  }

  // No chunk straddles two segments or blocks, or the end of the coded rows.
  void Scan(const Chunk& c) {
    out_.stats.rows_scanned += (c.end - c.first) * (c.query_end - c.query);
    if (c.first >= job_.coded) {
      ScanDirect(c);
    } else if (job_.index->postings != nullptr) {
      ScanPostingBlock(c);
    } else {
      ScanCoded(c.first, c.end);
    }
  }

 private:
  void ScanDirect(const Chunk& c) {
    const RowView& v = *job_.view;
    const double margin = (DotError(v.dim) + 1e-9) * kMaxNorm * kMaxNorm;
    float dots[kTailBlockRows];
    for (uint64_t i = c.first; i < c.end; i += kTailBlockRows) {
      const size_t rows = static_cast<size_t>(std::min<uint64_t>(kTailBlockRows, c.end - i));
      for (size_t j = c.query; j < c.query_end; ++j) {
        const float* q = job_.queries + j * v.dim;
        kernels_.dot_rows(v.base + i * v.stride, v.stride, rows, q, v.dim, dots);
        const double limit = job_.limits[j] - margin;
        for (size_t r = 0; r < rows; ++r) {
          if (!(static_cast<double>(dots[r]) < limit)) Rescore(j, i + r);
        }
      }
    }
  }

  void ScanPostingBlock(const Chunk& c) {
    const PostingBlock& block = *job_.index->postings->blocks[c.first / kPostingRows];
    for (size_t j = c.query; j < c.query_end; ++j) {
      if (!scanner_.Candidates(block, job_.posting_queries[j], job_.limits[j], &candidates_)) {
        ScanDirect({c.first, c.end, j, j + 1});
        continue;
      }
      for (size_t i = 0; i < candidates_.size(); ++i) {
        if (i + kFetchAhead < candidates_.size()) Fetch(c.first + candidates_[i + kFetchAhead]);
        // The view may be older, and end within the block.
        if (c.first + candidates_[i] < c.end) Rescore(j, c.first + candidates_[i]);
      }
    }
  }

  void Fetch(uint64_t row) const {
    const uint8_t* p = reinterpret_cast<const uint8_t*>(job_.view->row(row));
    for (size_t i = 0; i < job_.view->dim * sizeof(float); i += 64) __builtin_prefetch(p + i);
  }

  void ScanCoded(uint64_t first, uint64_t end) {
    const ScanCodes& codes = *job_.index->codes;
    const ScanSegment& s = *codes.segments[first / kSegmentRows];
    const uint64_t base = first / kSegmentRows * kSegmentRows;
    const size_t group_bytes = GroupBytes(codes.basis->padded_k);
    const size_t k = codes.basis->padded_k;
    const uint32_t limit = static_cast<uint32_t>(end - base);
    queries_.resize(job_.n);
    for (size_t j = 0; j < job_.n; ++j) queries_[j] = job_.coded_queries[j].ForSegment(s, job_.limits[j]);
    // Few queries: long runs, so that the second stage can fetch rows ahead. Many: blocks that stay in cache.
    const size_t step = job_.n <= kScanTile ? kSegmentRows : kBlockRows;
    for (uint32_t row = static_cast<uint32_t>(first - base); row < limit; row += static_cast<uint32_t>(step)) {
      const size_t groups = (std::min<size_t>(step, limit - row) + kGroupRows - 1) / kGroupRows;
      for (size_t j = 0; j < job_.n; j += kScanTile) {
        const size_t nq = std::min(kScanTile, job_.n - j);
        kernels_.scan_groups(s.stage1.get() + row / kGroupRows * group_bytes, groups, k, queries_.data() + j, nq,
                             masks_);
        CollectSurvivors(row, limit, groups, nq);
        for (size_t q = 0; q < nq; ++q) {
          if (counts_[q] > 0) SecondStage(s, base, j + q, survivors_[q].get(), counts_[q]);
        }
      }
    }
  }

  void CollectSurvivors(uint32_t row, uint32_t limit, size_t groups, size_t nq) {
    std::fill(counts_, counts_ + nq, size_t{0});
    const size_t count = groups * nq;
    for (size_t i = 0; i < count; i += 4) {
      uint64_t four;  // most masks are empty: look at four at once
      std::memcpy(&four, masks_ + i, sizeof four);
      if (four == 0) continue;
      uint32_t first = row + static_cast<uint32_t>(i / nq * kGroupRows);
      size_t q = i % nq;
      for (size_t j = i; j < std::min(i + 4, count); ++j) {
        uint32_t* out = survivors_[q].get() + counts_[q];
        for (unsigned m = masks_[j]; m != 0; m &= m - 1) *out++ = first + static_cast<uint32_t>(__builtin_ctz(m));
        counts_[q] = static_cast<size_t>(out - survivors_[q].get());
        if (++q == nq) {
          q = 0;
          first += kGroupRows;
        }
      }
    }
    for (size_t q = 0; q < nq; ++q) {  // the last group may be padded
      while (counts_[q] > 0 && survivors_[q][counts_[q] - 1] >= limit) --counts_[q];
    }
  }

  void SecondStage(const ScanSegment& s, uint64_t base, size_t j, const uint32_t* survivors, size_t count) {
    const CodedQuery& q = job_.coded_queries[j];
    const size_t padded = job_.index->codes->PaddedDim();
    kernels_.dot_codes(reinterpret_cast<const int8_t*>(s.stage2.get()), padded, padded, survivors, count,
                       q.codes2.data(), dots_.get());
    for (size_t i = 0; i < count; ++i) {
      if (!(q.Bound2(s, survivors[i], dots_[i]) < job_.limits[j])) Rescore(j, base + survivors[i]);
    }
  }

  void Rescore(size_t j, uint64_t row) {
    ++out_.stats.rows_rescored;
    const RowView& v = *job_.view;
    const double score = kernels_.canonical_dot(job_.queries + j * v.dim, v.row(row), v.dim);
    if (score >= job_.limits[j]) out_.results[j].push_back({row, score});
  }

  const Job& job_;
  Output& out_;
  const Kernels& kernels_;
  std::vector<ScanQuery> queries_;
  std::unique_ptr<uint32_t[]> survivors_[kScanTile];  // room for a segment's rows
  size_t counts_[kScanTile] = {};
  std::unique_ptr<int32_t[]> dots_;
  PostingScanner scanner_;
  std::vector<uint32_t> candidates_;
  uint16_t masks_[kSegmentRows / kGroupRows * kScanTile + 4] = {};
};

// Chunks are numbered over the coded rows first, then over the others; over groups of queries innermost, so that
// a block of rows stays in the caches.
struct Chunks {
  explicit Chunks(const Job& j) : job(j) {
    groups = (job.n + job.chunk_queries - 1) / job.chunk_queries;
    coded = (job.coded + job.chunk_rows - 1) / job.chunk_rows;
    count = (coded + (job.view->rows - job.coded + job.chunk_rows - 1) / job.chunk_rows) * groups;
  }
  Chunk At(uint64_t number) const {
    const uint64_t rows = number / groups;
    Chunk c;
    if (rows < coded) {
      c.first = rows * job.chunk_rows;
      c.end = std::min(c.first + job.chunk_rows, job.coded);
    } else {
      c.first = job.coded + (rows - coded) * job.chunk_rows;
      c.end = std::min(c.first + job.chunk_rows, job.view->rows);
    }
    c.query = static_cast<size_t>(number % groups) * job.chunk_queries;
    c.query_end = std::min(c.query + job.chunk_queries, job.n);
    return c;
  }
  const Job& job;
  uint64_t groups, coded, count;
};

// Runs the job on the calling thread and up to `helpers` more.
Status RunJob(const Job& job, size_t helpers, const std::function<bool()>& interrupted, Output* out) {
  const Chunks chunks(job);
  std::vector<std::vector<std::vector<ScoredRow>>> results(helpers, std::vector<std::vector<ScoredRow>>(job.n));
  std::vector<Output> outputs(helpers);
  for (size_t i = 0; i < helpers; ++i) outputs[i].results = results[i].data();
  std::vector<std::unique_ptr<Worker>> workers(helpers + 1);
  PMS_RETURN_IF_ERROR(RunChunks(chunks.count, helpers, interrupted, [&](size_t worker, uint64_t chunk) {
    if (!workers[worker]) workers[worker] = std::make_unique<Worker>(job, worker == 0 ? out : &outputs[worker - 1]);
    workers[worker]->Scan(chunks.At(chunk));
    return Status::Ok();
  }));
  for (size_t i = 0; i < helpers; ++i) {
    for (size_t j = 0; j < job.n; ++j) {
      out->results[j].insert(out->results[j].end(), results[i][j].begin(), results[i][j].end());
    }
    out->stats.rows_scanned += outputs[i].stats.rows_scanned;
    out->stats.rows_rescored += outputs[i].stats.rows_rescored;
  }
  if (helpers > 0) {  // chunks came to the threads in no fixed pattern
    for (size_t j = 0; j < job.n; ++j) {
      std::sort(out->results[j].begin(), out->results[j].end(),
                [](const ScoredRow& a, const ScoredRow& b) { return a.row < b.row; });
    }
  }
  return Status::Ok();
}

}  // namespace

struct ExactScan::Impl {
  explicit Impl(uint32_t d) : dim(d) {}

  // The index to use for a call of n queries: builds or extends it when the float32 scans that this and earlier
  // calls would do cost more.
  Status Acquire(const RowView& view, size_t n, const std::function<bool()>& interrupted,
                 std::shared_ptr<const Index>* out) {
    std::shared_ptr<const Index> old;
    {
      std::lock_guard<std::mutex> lock(mu);
      *out = old = index;
      if (view.rows < kMinCodedRows || view.rows < old->rows + kMinTail || building) return Status::Ok();
      // A block of postings that is not full is made anew.
      const uint64_t kept = old->postings != nullptr ? old->rows / kPostingRows * kPostingRows : old->rows;
      direct_work += static_cast<double>(view.rows - old->rows) * static_cast<double>(n);
      if (direct_work < kScansBeforeCoding * static_cast<double>(view.rows - kept)) return Status::Ok();
      building = true;
    }
    struct Done {
      Impl* impl;
      std::shared_ptr<const Index> made;
      ~Done() {
        std::lock_guard<std::mutex> lock(impl->mu);
        impl->building = false;
        impl->direct_work = 0;
        if (made != nullptr) impl->index = made;
      }
    } done{this, nullptr};
    try {
      PMS_RETURN_IF_ERROR(Extend(view, *old, interrupted, &done.made));
    } catch (const std::bad_alloc&) {
      return Status::Ok();  // an index only saves time: go on with what there is
    }
    *out = done.made;
    return Status::Ok();
  }

  static Status Extend(const RowView& view, const Index& old, const std::function<bool()>& interrupted,
                       std::shared_ptr<const Index>* out) {
    auto made = std::make_shared<Index>(old);
    bool sparse = old.postings != nullptr;
    if (view.rows >= kRejudgeGrowth * old.judged_rows) {
      sparse = PostingsPay(view);
      made->judged_rows = view.rows;
    }
    if (sparse) {
      made->codes = nullptr;
      PMS_RETURN_IF_ERROR(ExtendPostings(view, old.postings, interrupted, &made->postings));
    } else {
      made->postings = nullptr;
      PMS_RETURN_IF_ERROR(ExtendCodes(view, old.codes, interrupted, &made->codes));
    }
    made->rows = view.rows;
    *out = std::move(made);
    return Status::Ok();
  }

  const uint32_t dim;
  std::mutex mu;
  std::shared_ptr<const Index> index = std::make_shared<const Index>();  // under mu
  double direct_work = 0;                  // under mu: row x query products over rows without an index
  bool building = false;                   // under mu
};

ExactScan::ExactScan(uint32_t dim) : impl_(std::make_unique<Impl>(dim)) {}
ExactScan::~ExactScan() = default;

Status ExactScan::WithinThreshold(const RowView& view, const float* queries, size_t n, const double* taus,
                                  int threads, const std::function<bool()>& interrupted,
                                  std::vector<std::vector<ScoredRow>>* out, ScanStats* stats) {
  if (view.dim != impl_->dim) return Status::InvalidArgument("exact scan: rows of another dimension");
  if (view.dim == 0 || view.stride % sizeof(float) != 0 || view.stride < view.dim * sizeof(float)) {
    return Status::InvalidArgument("exact scan: bad row stride");
  }
  for (size_t i = 0; i < n; ++i) {
    if (std::isnan(taus[i])) return Status::InvalidArgument("exact scan: threshold is NaN");
  }
  if (stats != nullptr) *stats = ScanStats();
  try {
    out->assign(n, {});
    if (view.rows == 0 || n == 0) return Status::Ok();
    std::shared_ptr<const Index> index;
    const Status acquired = impl_->Acquire(view, n, interrupted, &index);
    if (!acquired.ok()) {
      out->clear();
      return acquired;
    }
    std::vector<double> limits(n);
    for (size_t i = 0; i < n; ++i) limits[i] = taus[i] - kScoreSlack;
    std::vector<CodedQuery> coded_queries;
    std::vector<PostingQuery> posting_queries;
    const bool sparse = index->postings != nullptr;
    for (size_t first = 0; first < n; first += kQueryBatch) {
      const size_t count = std::min(kQueryBatch, n - first);
      Job job{&view, index.get(), std::min(index->rows, view.rows), queries + first * view.dim, count,
              limits.data() + first, nullptr, nullptr, sparse ? kPostingRows : kSegmentRows,
              sparse ? kSparseQueries : count};
      coded_queries.clear();
      posting_queries.clear();
      for (size_t i = 0; i < count && job.coded > 0; ++i) {
        const float* q = job.queries + i * view.dim;
        if (sparse) {
          posting_queries.push_back(MakePostingQuery(q, view.dim));
        } else {
          coded_queries.push_back(CodeQuery(*index->codes->basis, q));
        }
      }
      job.coded_queries = coded_queries.data();
      job.posting_queries = posting_queries.data();
      const double work = static_cast<double>(view.rows) * static_cast<double>(count) * view.dim /
                          (sparse ? kSparseSpeed : 1);
      double helpers = std::min(work / kWorkPerThread, static_cast<double>(std::max(threads, 1))) - 1;
      helpers = std::clamp(helpers, 0.0, 255.0);
      if (sparse) {
        // Whole blocks, whatever the threads: they share out groups of queries as well.
      } else if (helpers >= 1) {
        // Some chunks for each thread, so that none waits long for the last one; a divisor of a segment.
        while (job.chunk_rows > kBlockRows &&
               static_cast<double>(view.rows) / static_cast<double>(job.chunk_rows) < 8 * (helpers + 1)) {
          job.chunk_rows /= 2;
        }
      } else if (work > kWorkPerPoll) {
        job.chunk_rows = kBlockRows;  // so that an interruption is seen soon
      }
      Output output{out->data() + first, {}};
      const Status status = RunJob(job, static_cast<size_t>(helpers), interrupted, &output);
      if (!status.ok()) {
        out->clear();
        return status;
      }
      if (stats != nullptr) {
        stats->rows_scanned += output.stats.rows_scanned;
        stats->rows_rescored += output.stats.rows_rescored;
      }
    }
    return Status::Ok();
  } catch (const std::bad_alloc&) {
    out->clear();
    return Status::IOError("exact scan: out of memory");
  }
}

}  // namespace pymemstore
