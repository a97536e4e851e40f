// The scan against brute force on the canonical score: the same rows, the same bits, for every kernel set.
#include "exact_scan.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "distance.h"
#include "rows.h"
#include "scan_codes.h"
#include "scan_postings.h"
#include "simd_kernels.h"

using namespace pymemstore;
using namespace pymemstore::test;

namespace {

void CheckScan(ExactScan* scan, const RowView& view, const std::vector<float>& queries,
               const std::vector<double>& taus, int threads, ScanStats* stats = nullptr) {
  const size_t n = taus.size();
  ScanStats own;
  if (stats == nullptr) stats = &own;
  std::vector<std::vector<ScoredRow>> got(3);
  CHECK_OK(scan->WithinThreshold(view, queries.data(), n, taus.data(), threads, nullptr, &got, stats));
  CHECK_EQ(got.size(), n);
  uint64_t results = 0;
  for (size_t j = 0; j < n; ++j) {
    const float* q = queries.data() + j * view.dim;
    size_t at = 0;
    for (uint64_t i = 0; i < view.rows; ++i) {
      const double score = Truth(q, view.row(i), view.dim);
      if (!(score >= taus[j] - kScoreSlack)) continue;
      CHECK(at < got[j].size());
      CHECK_EQ(got[j][at].row, i);
      CHECK_EQ(std::memcmp(&got[j][at].score, &score, sizeof score), 0);
      ++at;
    }
    CHECK_EQ(got[j].size(), at);
    results += at;
  }
  CHECK_EQ(stats->rows_scanned, view.rows * n);
  CHECK(stats->rows_rescored >= results);
}

}  // namespace

void CheckDimension(uint32_t dim, size_t count) {
  Source source(dim, dim % 2 != 0 ? Shape::kUniform : Shape::kClustered, dim);
  Rows rows(dim);
  for (size_t i = 0; i < count; ++i) rows.Add(source.Next());
  ExactScan scan(dim);
  for (size_t n : {1U, 26U, 3U, 9U}) {  // float32 rows at first, codes from the second call on
    const std::vector<float> queries = MakeQueries(&source, rows, n);
    std::vector<double> taus(n);
    for (size_t j = 0; j < n; ++j) taus[j] = std::vector<double>{0.7, -1, 0, 0.3, 0.6, 0.9, 1.0}[(j + n) % 7];
    CheckScan(&scan, rows.View(), queries, taus, 1);
  }
}

TEST(EqualsBruteForceInEveryDimension) {
  ForEachKernel([] {
    for (uint32_t dim : {1U, 2U, 3U, 8U, 33U, 64U, 65U, 130U}) CheckDimension(dim, 1111);
  });
  for (uint32_t dim : {256U, 384U, 1100U}) CheckDimension(dim, 1030);  // the last: more than sample rows
}

TEST(TiesAtTheThresholdAreKept) {
  ForEachKernel([] {
    for (Shape shape : {Shape::kUniform, Shape::kClustered, Shape::kLowRank, Shape::kSpiky}) {
      for (uint32_t dim : {3U, 64U, 80U}) {
        Source source(dim, shape, 7 * dim);
        Rows rows(dim);
        for (size_t i = 0; i < 1040; ++i) rows.Add(source.Next());
        ExactScan coded(dim);
        CheckScan(&coded, rows.View(), MakeQueries(&source, rows, 30), std::vector<double>(30, 0.8), 1);
        for (int repeat = 0; repeat < 4; ++repeat) {
          ExactScan direct(dim);
          std::vector<float> q = MakeQueries(&source, rows, 2);
          q.erase(q.begin(), q.begin() + (repeat % 2) * dim);
          q.resize(dim);
          const uint64_t row = source.random()() % rows.rows();
          const double tau = Tie(Truth(q.data(), rows.View().row(row), dim));
          for (ExactScan* scan : {&coded, &direct}) {
            CheckScan(scan, rows.View(), q, {tau}, 1);
            CheckScan(scan, rows.View(), q, {std::nextafter(tau, 2)}, 1);
          }
        }
      }
    }
  });
}

// The inequalities themselves, for all rows and not only those near a threshold.
TEST(BoundsHoldForEveryRow) {
  ForEachKernel([] {
    for (Shape shape : {Shape::kUniform, Shape::kClustered, Shape::kLowRank, Shape::kSpiky}) {
      for (uint32_t dim : {5U, 64U, 65U, 270U}) {  // 270: more than rows
        Source source(dim, shape, 3 * dim);
        Rows rows(dim);
        for (size_t i = 0; i < 250; ++i) rows.Add(source.Next());
        std::shared_ptr<const ScanCodes> codes;
        CHECK_OK(ExtendCodes(rows.View(), nullptr, nullptr, &codes));
        CHECK_EQ(codes->segments.size(), 1);
        const ScanSegment& s = *codes->segments[0];
        const std::vector<float> queries = MakeQueries(&source, rows, 6);
        for (size_t j = 0; j < 6; ++j) {
          const float* q = queries.data() + j * dim;
          const CodedQuery coded = CodeQuery(*codes->basis, q);
          for (uint32_t r = 0; r < rows.rows(); ++r) {
            const double score = Truth(q, rows.View().row(r), dim);
            int32_t dot;
            ActiveKernels().dot_codes(reinterpret_cast<const int8_t*>(s.stage2.get()), codes->PaddedDim(),
                                      codes->PaddedDim(), &r, 1, coded.codes2.data(), &dot);
            const double bound = coded.Bound2(s, r, dot);
            CHECK(bound >= score);
            CHECK(bound <= score + 0.12);
            const ScanQuery query = coded.ForSegment(s, score);
            const size_t g = r / kGroupRows;
            uint16_t mask;
            ActiveKernels().scan_groups(s.stage1.get() + g * GroupBytes(codes->basis->padded_k), 1,
                                        codes->basis->padded_k, &query, 1, &mask);
            CHECK((mask >> (r % kGroupRows) & 1) != 0);
          }
        }
      }
    }
  });
}

TEST(CodesPrune) {
  Source source(256, Shape::kClustered, 11);
  Rows rows(256);
  for (size_t i = 0; i < 9000; ++i) rows.Add(source.Next());
  ExactScan scan(256);
  ScanStats stats;
  const std::vector<float> queries = MakeQueries(&source, rows, 30);
  for (double tau : {0.7, 0.9}) {
    uint64_t results = 0;
    for (size_t j = 0; j < 30; ++j) {
      for (uint64_t i = 0; i < rows.rows(); ++i) {
        results += Truth(queries.data() + j * 256, rows.View().row(i), 256) >= tau;
      }
    }
    CheckScan(&scan, rows.View(), queries, std::vector<double>(30, tau), 1, &stats);
    CHECK(stats.rows_rescored < results + rows.rows() * 30 / 50);
  }
}

TEST(SparseRowsEqualBruteForce) {
  for (uint32_t dim : {16U, 40U, 256U, 700U}) {
    Source source(dim, Shape::kSparse, 100 + dim), dense(dim, Shape::kUniform, 1);
    Rows rows(dim);
    for (size_t i = 0; i < 1300; ++i) rows.Add(source.Next());
    CHECK(PostingsPay(rows.View()));
    Rows others(dim);
    for (size_t i = 0; i < 100; ++i) others.Add(dense.Next());
    CHECK(!PostingsPay(others.View()));
    ExactScan scan(dim);
    const double inf = std::numeric_limits<double>::infinity();
    const std::vector<double> some = {0.7, -1, 0, 0.3, 1e-6, 1e-7, 0.6, 0.9, 1.0, 0.001, inf, -inf, 1.5, 1e300};
    for (size_t n : {1U, 26U, 3U, 40U}) {  // from the second call on with postings
      std::vector<float> queries = MakeQueries(&source, rows, n);
      const std::vector<float> full = dense.Unit();
      std::copy(full.begin(), full.end(), queries.end() - dim);
      std::vector<double> taus(n);
      for (size_t j = 0; j < n; ++j) taus[j] = some[(j + n) % some.size()];
      CheckScan(&scan, rows.View(), queries, taus, 1 + static_cast<int>(n % 2));
    }
    for (int repeat = 0; repeat < 20; ++repeat) {
      const std::vector<float> q = repeat % 2 != 0 ? rows.Row(source.random()() % rows.rows()) : source.Unit();
      const double tau = Tie(Truth(q.data(), rows.View().row(source.random()() % rows.rows()), dim));
      CheckScan(&scan, rows.View(), q, {tau}, 1);
      CheckScan(&scan, rows.View(), q, {std::nextafter(tau, 2)}, 1);
    }
  }
}

TEST(PostingBoundsHoldForEveryRowAndPrune) {
  for (uint32_t dim : {16U, 256U}) {
    Source source(dim, Shape::kSparse, 3 * dim);
    Rows rows(dim);
    for (size_t i = 0; i < 800; ++i) rows.Add(source.Next());
    std::shared_ptr<const ScanPostings> postings;
    CHECK_OK(ExtendPostings(rows.View(), nullptr, nullptr, &postings));
    CHECK_EQ(postings->blocks.size(), 1);
    PostingScanner scanner;
    std::vector<uint32_t> found;
    const std::vector<float> queries = MakeQueries(&source, rows, 6);
    for (size_t j = 0; j < 6; ++j) {
      const float* q = queries.data() + j * dim;
      const PostingQuery query = MakePostingQuery(q, dim);
      CHECK(!scanner.Candidates(*postings->blocks[0], query, 0, &found));
      CHECK(!scanner.Candidates(*postings->blocks[0], query, -0.5, &found));
      size_t hits = 0;
      for (uint32_t r = 0; r < rows.rows(); ++r) {
        const double score = Truth(q, rows.View().row(r), dim);
        double positive = 0;
        for (size_t i = 0; i < dim; ++i) {
          positive += std::max(0.0, static_cast<double>(q[i]) * static_cast<double>(rows.View().row(r)[i]));
        }
        hits += positive >= 0.5;
        if (!scanner.Candidates(*postings->blocks[0], query, score, &found)) continue;
        CHECK(std::is_sorted(found.begin(), found.end()));
        CHECK(std::binary_search(found.begin(), found.end(), r));
      }
      CHECK(scanner.Candidates(*postings->blocks[0], query, 0.7, &found));
      CHECK(found.size() <= hits);  // levels are less than 0.7 / 0.5 wide, but for small values
    }
  }
}

TEST(SparseRowsGrowOverSeveralBlocks) {
  const uint32_t dim = 18;
  Source source(dim, Shape::kSparse, 21);
  Rows rows(dim);
  ExactScan scan(dim);
  for (uint64_t size : {1023U, 1100U, 1170U, 16383U, 16384U, 16385U, 16500U, 5000U, 40000U, 66000U, 32768U, 66100U}) {
    while (rows.rows() < size) rows.Add(source.Next());
    CHECK(PostingsPay(rows.View()));
    CheckScan(&scan, rows.View(size), MakeQueries(&source, rows, 2), {0.8, -0.1}, 1);
    std::vector<std::vector<ScoredRow>> out;  // enough queries for the new rows to be put in lists
    const std::vector<float> queries = MakeQueries(&source, rows, 40);
    CHECK_OK(scan.WithinThreshold(rows.View(size), queries.data(), 40, std::vector<double>(40, 0.99).data(), 2,
                                  nullptr, &out, nullptr));
    CheckScan(&scan, rows.View(size), MakeQueries(&source, rows, 3), {0.6, 0.95, 0.2}, 2);
  }
}

TEST(RowsTurnFromSparseToDenseAndBack) {
  const uint32_t dim = 60;
  Source sparse(dim, Shape::kSparse, 22), dense(dim, Shape::kUniform, 23);
  Rows rows(dim);
  ExactScan scan(dim);
  for (uint64_t size : {1100U, 4500U, 5000U, 36000U}) {
    Source* source = size == 4500 || size == 5000 ? &dense : &sparse;
    while (rows.rows() < size) rows.Add(source->Next());
    CHECK_EQ(PostingsPay(rows.View()), size == 1100 || size == 36000);
    for (int call = 0; call < 2; ++call) {
      std::vector<std::vector<ScoredRow>> out;
      const std::vector<float> queries = MakeQueries(source, rows, 50);
      CHECK_OK(scan.WithinThreshold(rows.View(), queries.data(), 50, std::vector<double>(50, 0.9).data(), 1, nullptr,
                                    &out, nullptr));
    }
    CheckScan(&scan, rows.View(), MakeQueries(source, rows, 4), {0.5, 0.7, 0.3, 1.0}, 1);
  }
}

TEST(TenThousandIdenticalVectors) {
  Source source(16, Shape::kUniform, 12);
  Rows rows(16, 0);
  const std::vector<float> repeated = source.Next();
  for (size_t i = 0; i < 10000; ++i) rows.Add(repeated);
  for (size_t i = 0; i < 100; ++i) rows.Add(source.Next());
  ExactScan scan(16);
  std::vector<float> q = rows.Row(0);
  for (int i = 0; i < 40; ++i) CheckScan(&scan, rows.View(), q, {i % 2 != 0 ? 0.999 : 1.0}, 1);
  Rows same(100);  // and no second direction at all: a sample of rank one
  Source wide(100, Shape::kUniform, 13);
  const std::vector<float> one = wide.Next();
  for (size_t i = 0; i < 5000; ++i) same.Add(one);
  ExactScan flat(100);
  for (double tau : {1.0, 0.5, -1.0}) {
    CheckScan(&flat, same.View(), MakeQueries(&wide, same, 30), std::vector<double>(30, tau), 1);
  }
}

TEST(NoRowsAndNoQueries) {
  ExactScan scan(8);
  RowView empty;
  empty.dim = 8;
  empty.stride = 32;
  const std::vector<float> q = {1, 0, 0, 0, 0, 0, 0, 0};
  const double tau = -1;
  std::vector<std::vector<ScoredRow>> out(5);
  CHECK_OK(scan.WithinThreshold(empty, q.data(), 1, &tau, 1, nullptr, &out, nullptr));
  CHECK_EQ(out.size(), 1);
  CHECK(out[0].empty());
  CHECK_OK(scan.WithinThreshold(empty, nullptr, 0, nullptr, 1, nullptr, &out, nullptr));
  CHECK(out.empty());
}

TEST(ThresholdsOutsideTheScale) {
  Source source(70, Shape::kUniform, 14);
  Rows rows(70);
  for (size_t i = 0; i < 1300; ++i) rows.Add(source.Next());
  ExactScan scan(70);
  const double inf = std::numeric_limits<double>::infinity();
  for (int repeat = 0; repeat < 2; ++repeat) {
    std::vector<double> taus(30, 0.5);
    taus[3] = inf, taus[4] = -inf, taus[5] = 1.5, taus[6] = -1.5, taus[7] = 1e300, taus[8] = -1e300;
    CheckScan(&scan, rows.View(), MakeQueries(&source, rows, 30), taus, 1);
  }
}

TEST(BadArgumentsAreNamed) {
  ExactScan scan(8);
  Rows rows(8);
  rows.Add({1, 2, 3, 4, 5, 6, 7, 8});
  const std::vector<float> q = rows.Row(0);
  std::vector<std::vector<ScoredRow>> out;
  double tau = 0;
  RowView view = rows.View();
  view.dim = 7;
  CHECK(scan.WithinThreshold(view, q.data(), 1, &tau, 1, nullptr, &out, nullptr).code() == Code::kInvalidArgument);
  for (size_t stride : {4U, 30U, 33U}) {
    view = rows.View();
    view.stride = stride;
    CHECK(scan.WithinThreshold(view, q.data(), 1, &tau, 1, nullptr, &out, nullptr).code() ==
          Code::kInvalidArgument);
  }
  tau = std::numeric_limits<double>::quiet_NaN();
  CHECK(scan.WithinThreshold(rows.View(), q.data(), 1, &tau, 1, nullptr, &out, nullptr).code() ==
        Code::kInvalidArgument);
}

TEST(TheViewGrowsBetweenCalls) {
  for (uint32_t dim : {24U, 80U}) {
    Source source(dim, Shape::kClustered, 15);
    Rows rows(dim);
    ExactScan scan(dim);
    uint64_t largest = 0;
    // Sizes around the first coding, a group's 16 rows, a segment's 4,096, the fourfold growth; and back.
    for (uint64_t size : {0U, 1U, 1000U, 1023U, 1024U, 1025U, 1100U, 1101U, 1180U, 3000U, 4095U, 4096U, 4097U,
                          4170U, 9001U, 5U, 4096U, 9066U, 9500U, 9500U}) {
      while (rows.rows() < size) rows.Add(source.Next());  // may move the rows
      largest = std::max(largest, size);
      for (size_t n : {1U, 26U}) {
        std::vector<double> taus(n, 0.6);
        if (n > 2) taus[2] = 0.95;
        CheckScan(&scan, rows.View(size), MakeQueries(&source, rows, n), taus, 1);
      }
    }
    CHECK_EQ(rows.rows(), largest);
  }
}

TEST(ThreadsGiveTheSameResults) {
  Source source(128, Shape::kClustered, 16);
  Rows rows(128);
  for (size_t i = 0; i < 9100; ++i) rows.Add(source.Next());
  const std::vector<float> queries = MakeQueries(&source, rows, 300);
  std::vector<double> taus(300, 0.7);
  taus[7] = -1;
  for (int threads : {1, 2, 5, 64, 0, -3}) {
    ExactScan scan(128);
    std::vector<std::vector<ScoredRow>> a, b;
    CHECK_OK(scan.WithinThreshold(rows.View(), queries.data(), 300, taus.data(), threads, nullptr, &a, nullptr));
    for (size_t j = 0; j < 300; j += 10) {
      CHECK_OK(scan.WithinThreshold(rows.View(), queries.data() + j * 128, 10, taus.data() + j, 1, nullptr, &b,
                                    nullptr));
      for (size_t i = 0; i < 10; ++i) {
        CHECK_EQ(a[j + i].size(), b[i].size());
        for (size_t r = 0; r < b[i].size(); ++r) {
          CHECK(a[j + i][r].row == b[i][r].row && a[j + i][r].score == b[i][r].score);
        }
      }
    }
    CheckScan(&scan, rows.View(), {queries.begin(), queries.begin() + 4 * 128}, {0.7, 0.1, 0.9, 1}, threads);
  }
}

void CheckSeveralCallers(Shape shape) {
  const uint32_t dim = 72;
  Source source(dim, shape, 17);
  Rows rows(dim);
  for (size_t i = 0; i < 6000; ++i) rows.Add(source.Next());
  const std::vector<float> queries = MakeQueries(&source, rows, 40);
  std::vector<std::vector<double>> scores(40);
  for (size_t j = 0; j < 40; ++j) {
    for (uint64_t i = 0; i < rows.rows(); ++i) {
      scores[j].push_back(Truth(queries.data() + j * dim, rows.View().row(i), dim));
    }
  }
  ExactScan scan(dim);
  std::atomic<uint64_t> visible{1000};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int call = 0; call < 60; ++call) {
        const uint64_t size = visible.fetch_add(random() % 40) % 6000;
        const size_t first = random() % 30, n = 1 + random() % 10;
        const std::vector<double> taus(n, 0.65);
        std::vector<std::vector<ScoredRow>> out;
        const Status s = scan.WithinThreshold(rows.View(size), queries.data() + first * dim, n, taus.data(), 2,
                                              nullptr, &out, nullptr);
        if (!s.ok()) ++wrong;
        for (size_t j = 0; j < n && s.ok(); ++j) {
          size_t at = 0;
          for (uint64_t i = 0; i < size; ++i) {
            if (scores[first + j][i] < 0.65 - kScoreSlack) continue;
            if (at >= out[j].size() || out[j][at].row != i || out[j][at].score != scores[first + j][i]) ++wrong;
            ++at;
          }
          if (at != out[j].size()) ++wrong;
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK_EQ(wrong.load(), 0);
}

TEST(SeveralCallersAtOnceWhileTheRowsGrow) {
  CheckSeveralCallers(Shape::kClustered);
  CheckSeveralCallers(Shape::kSparse);
}

TEST(AnInterruptionEndsTheCall) {
  const std::string before = KernelName();
  CHECK(UseKernels("scalar"));  // a call is asked every 20 ms: one of a faster kernel may be over by then
  const uint32_t dim = 64;
  Source source(dim, Shape::kUniform, 18);
  Rows rows(dim);
  for (size_t i = 0; i < 30000; ++i) rows.Add(source.Next());
  const size_t n = 512;
  const std::vector<float> queries = MakeQueries(&source, rows, n);
  const std::vector<double> taus(n, 0.8);
  ExactScan scan(dim);
  const std::thread::id self = std::this_thread::get_id();
  for (int threads : {1, 3}) {
    int calls = 0;
    for (int after : {1, 2, 1}) {  // while codes are built, then while rows are scanned
      calls = 0;
      std::vector<std::vector<ScoredRow>> out;
      const Status s = scan.WithinThreshold(rows.View(), queries.data(), n, taus.data(), threads,
                                            [&] {
                                              CHECK(std::this_thread::get_id() == self);
                                              return ++calls >= after;
                                            },
                                            &out, nullptr);
      if (threads == 1 || calls >= after) {
        CHECK(s.code() == Code::kInterrupted);
        CHECK_EQ(calls, after);
        CHECK(out.empty());
      } else {
        CHECK_OK(s);
      }
    }
    CheckScan(&scan, rows.View(), {queries.begin(), queries.begin() + 30 * dim}, std::vector<double>(30, 0.4),
              threads);
    std::vector<std::vector<ScoredRow>> out;
    const Status s = scan.WithinThreshold(rows.View(), queries.data(), n, taus.data(), 1, [] { return true; }, &out,
                                          nullptr);
    CHECK(s.code() == Code::kInterrupted);
  }
  CHECK(UseKernels(before.c_str()));
}
