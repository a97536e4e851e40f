// Sealed codes against brute force on the canonical score, and their files under damage.
#include "sealed_codes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "distance.h"
#include "rows.h"
#include "sealed.h"
#include "simd_kernels.h"

using namespace pymemstore;
using namespace pymemstore::test;

TEST(EqualsBruteForceInEveryDimension) {
  TempDir dir;
  size_t round = 0;
  constexpr Shape kShapes[] = {Shape::kClustered, Shape::kUniform, Shape::kLowRank, Shape::kSparse, Shape::kSpiky};
  for (uint32_t dim : {1U, 2U, 3U, 16U, 63U, 64U, 65U, 100U, 128U, 200U, 256U, 384U, 1024U}) {
    Source source(dim, kShapes[round++ % std::size(kShapes)], dim);
    Rows rows(dim);
    for (uint64_t i = 0; i < kMinSealedRows + dim % 17; ++i) rows.Add(source.Next());
    const Codes codes = Seal(rows.View(), dir / "codes", round % 2 != 0 ? 1 : 3);
    const Scores scores(rows.View(), MakeQueries(&source, rows, 24));
    ForEachKernel([&] { CheckBatches(*codes, rows.View(), scores, {1, 1, 1, 7, 8, 16, 17, 24}, 1, &source.random()); });
  }
}

TEST(EqualsBruteForceInEveryShape) {
  TempDir dir;
  for (Shape shape : {Shape::kUniform, Shape::kClustered, Shape::kLowRank, Shape::kSparse, Shape::kSpiky}) {
    for (uint32_t dim : {40U, 144U}) {
      Source source(dim, shape, 5 * dim);
      Rows rows(dim);
      for (int i = 0; i < 5000; ++i) rows.Add(source.Next());
      const Codes codes = Seal(rows.View(), dir / "codes");
      const Scores scores(rows.View(), MakeQueries(&source, rows, 40));
      ForEachKernel([&] { CheckBatches(*codes, rows.View(), scores, {1, 1, 1, 1, 1, 7, 8, 9, 33, 40}, 1, &source.random()); });
    }
  }
}

TEST(TenThousandIdenticalVectorsBesideOthers) {
  TempDir dir;
  Source source(96, Shape::kClustered, 31);
  Rows rows(96);
  const std::vector<float> one = source.Next();
  for (int i = 0; i < 13000; ++i) rows.Add(i % 13 < 3 ? source.Next() : one);
  const Codes codes = Seal(rows.View(), dir / "codes", 3);
  std::vector<float> queries = rows.Row(5);  // the one
  const std::vector<float> more = MakeQueries(&source, rows, 20);
  queries.insert(queries.end(), more.begin(), more.end());
  const Scores scores(rows.View(), queries);
  ForEachKernel([&] { CheckBatches(*codes, rows.View(), scores, {1, 1, 1, 8, 21}, 1, &source.random()); });
  for (double tau : {0.999999, 1.0, Tie(scores.query(0)[5]), std::nextafter(Tie(scores.query(0)[5]), 2)}) {
    CheckExact(*codes, rows.View(), scores, 0, {tau}, 1);
    CheckExact(*codes, rows.View(), scores, 0, std::vector<double>(8, tau), 1);
  }
}

TEST(OnlyIdenticalVectors) {
  TempDir dir;
  Source source(70, Shape::kUniform, 32);
  Rows rows(70);
  const std::vector<float> one = source.Next();
  for (uint64_t i = 0; i < kMinSealedRows; ++i) rows.Add(one);
  const Codes codes = Seal(rows.View(), dir / "codes");
  const Scores scores(rows.View(), MakeQueries(&source, rows, 16));
  ForEachKernel([&] { CheckBatches(*codes, rows.View(), scores, {1, 1, 1, 8, 16}, 1, &source.random()); });
}

TEST(OutliersAreFound) {
  TempDir dir;
  Source near(128, Shape::kClustered, 33), far(128, Shape::kUniform, 34), spiky(128, Shape::kSpiky, 35);
  Rows rows(128);
  for (int i = 0; i < 6000; ++i) rows.Add(i % 500 == 7 ? far.Next() : i % 500 == 9 ? spiky.Next() : near.Next());
  const Codes codes = Seal(rows.View(), dir / "codes");
  std::vector<float> queries = MakeQueries(&near, rows, 8);
  for (uint64_t i : {507U, 509U, 1007U, 1009U, 5507U, 5509U}) {
    const std::vector<float> row = rows.Row(i);
    queries.insert(queries.end(), row.begin(), row.end());
  }
  for (Source* source : {&far, &spiky}) {
    const std::vector<float> v = source->Unit();
    queries.insert(queries.end(), v.begin(), v.end());
  }
  const Scores scores(rows.View(), queries);
  ForEachKernel([&] { CheckBatches(*codes, rows.View(), scores, {1, 1, 1, 1, 8, 16, 16}, 1, &near.random()); });
}

TEST(BigBatchesAndThreads) {
  TempDir dir;
  Source source(80, Shape::kClustered, 36);
  Rows rows(80);
  for (int i = 0; i < 9000; ++i) rows.Add(source.Next());
  const Codes codes = Seal(rows.View(), dir / "codes", 3);
  const Scores scores(rows.View(), MakeQueries(&source, rows, 300));
  const ScanStats stats = CheckExact(*codes, rows.View(), scores, 0, std::vector<double>(300, 0.9), 1);
  CHECK(stats.rows_rescored < 300 * 9000 / 4);  // the codes do prune
  ForEachKernel([&] {
    for (int threads : {1, 3}) CheckBatches(*codes, rows.View(), scores, {300}, threads, &source.random());
  });
  for (int threads : {0, -2, 70}) CheckBatches(*codes, rows.View(), scores, {260}, threads, &source.random());
  std::vector<std::vector<ScoredRow>> none;
  ScanStats unused;
  CHECK_OK(codes->WithinThreshold(rows.View(), nullptr, 0, nullptr, 1, 3, nullptr, &none, &unused));
}

TEST(SealingTwiceGivesTheSameFile) {
  TempDir dir;
  Source source(33, Shape::kClustered, 37);
  Rows rows(33);
  for (int i = 0; i < 4500; ++i) rows.Add(source.Next());
  (void)Seal(rows.View(), dir / "a", 1);
  (void)Seal(rows.View(), dir / "b", 3);
  CHECK(Read(dir / "a") == Read(dir / "b"));
}

TEST(OlderSnapshotsSeeTheirRowsOnly) {
  TempDir dir;
  Source source(90, Shape::kClustered, 38);
  Rows rows(90);
  for (int i = 0; i < 5000; ++i) rows.Add(source.Next());
  const Codes codes = Seal(rows.View(), dir / "codes");
  for (int i = 0; i < 500; ++i) rows.Add(source.Next());  // newer than the codes
  for (uint64_t visible : {0U, 1U, 16U, 17U, 2500U, 4999U, 5000U, 5001U, 5500U}) {
    if (visible == 0) {
      const std::vector<float> queries = MakeQueries(&source, rows, 8);
      std::vector<std::vector<ScoredRow>> got(8);
      ScanStats stats;
      CHECK_OK(codes->WithinThreshold(rows.View(0), queries.data(), 8, std::vector<double>(8, -1).data(), 1, 1, nullptr,
                                      &got, &stats));
      for (const auto& each : got) CHECK(each.empty());
      continue;
    }
    const Scores scores(rows.View(visible), MakeQueries(&source, rows, 12));
    ForEachKernel([&] { CheckBatches(*codes, rows.View(visible), scores, {1, 1, 12}, 1, &source.random()); });
  }
}

TEST(QueriesOffUnitLengthByWhatIsAllowed) {
  TempDir dir;
  for (uint32_t dim : {32U, 160U}) {
    Source source(dim, Shape::kClustered, 39);
    Rows rows(dim);
    for (int i = 0; i < 4500; ++i) rows.Add(source.Next());
    const Codes codes = Seal(rows.View(), dir / "codes");
    std::vector<float> queries = MakeQueries(&source, rows, 20);
    for (size_t i = 0; i < queries.size(); ++i) queries[i] *= i / dim % 3 == 0 ? 1.001F : i / dim % 3 == 1 ? 0.999F : 1.0F;
    const Scores scores(rows.View(), queries);
    ForEachKernel([&] { CheckBatches(*codes, rows.View(), scores, {1, 1, 1, 1, 1, 1, 20}, 1, &source.random()); });
  }
}

TEST(RowsThatAreNotNumbersNeverComeBack) {
  TempDir dir;
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  Source source(72, Shape::kClustered, 40);
  Rows rows(72);
  for (int i = 0; i < 5000; ++i) {
    if (i % 100 != 50) {
      rows.Add(source.Next());
      continue;
    }
    std::vector<float> v = source.Unit();
    v[source.random()() % 72] = i % 300 == 50 ? inf : nan;
    if (i % 300 == 250) std::fill(v.begin(), v.end(), nan);
    rows.AddRaw(v);
  }
  const auto without_infinity = [&](Scores* scores) {  // a row with an infinity has an infinite score, or none
    for (double& s : scores->of)
      if (std::isinf(s)) s = nan;
  };
  const Codes codes = Seal(rows.View(), dir / "codes", 3);
  std::vector<float> queries;
  for (int i = 0; i < 12; ++i) {
    const std::vector<float> q = source.Unit();
    queries.insert(queries.end(), q.begin(), q.end());
  }
  Scores scores(rows.View(), queries);
  without_infinity(&scores);
  ForEachKernel([&] { CheckBatches(*codes, rows.View(), scores, {1, 1, 1, 7, 12}, 1, &source.random()); });
  // Rows that are damaged after they were sealed.
  for (uint64_t i = 3; i < rows.rows(); i += 40) rows.Set(i, i % 72, nan);
  const Scores damaged(rows.View(), queries);
  for (const double tau : {-1.0, 0.5, 0.9}) {
    std::vector<std::vector<ScoredRow>> got(12);
    ScanStats stats;
    CHECK_OK(codes->WithinThreshold(rows.View(), queries.data(), 12, std::vector<double>(12, tau).data(), 1, 1, nullptr,
                                    &got, &stats));
    Scores want = damaged;
    without_infinity(&want);
    for (size_t j = 0; j < 12; ++j) CheckSame(got[j], want.query(j), rows.rows(), tau);
  }
}

// One flipped bit of an exponent: 2^128 times what it was. The other rows must not pay for it.
TEST(HugeValuesOfADamagedRowCostNoOtherRow) {
  TempDir dir;
  for (float huge : {1e3F, 1e10F, 1e20F, 1.7e37F, 3.4e38F}) {
    Source source(100, Shape::kClustered, 41);
    Rows rows(100);
    for (int i = 0; i < 4500; ++i) rows.Add(source.Next());
    rows.Set(77, 5, huge);
    rows.Set(1234, 50, -huge);
    const Codes codes = Seal(rows.View(), dir / "codes");
    const Scores scores(rows.View(), MakeQueries(&source, rows, 10));
    for (size_t n : {1U, 10U}) {
      std::vector<std::vector<ScoredRow>> got(n);
      ScanStats stats;
      CHECK_OK(codes->WithinThreshold(rows.View(), scores.queries.data(), n, std::vector<double>(n, 0.6).data(), 1, 1,
                                      nullptr, &got, &stats));
      for (size_t j = 0; j < n; ++j) {
        std::vector<double> want(scores.query(j), scores.query(j) + rows.rows());
        for (uint64_t row : {77U, 1234U}) want[row] = -2;
        auto& all = got[j];
        all.erase(std::remove_if(all.begin(), all.end(), [](const ScoredRow& r) { return r.row == 77 || r.row == 1234; }),
                  all.end());
        CheckSame(all, want.data(), rows.rows(), 0.6);
      }
    }
  }
}

TEST(SofterSearchesGiveSomeOfTheRows) {
  TempDir dir;
  Source source(128, Shape::kClustered, 42);
  Rows rows(128);
  for (int i = 0; i < 6000; ++i) rows.Add(source.Next());
  const Codes codes = Seal(rows.View(), dir / "codes");
  const Scores scores(rows.View(), MakeQueries(&source, rows, 30));
  const std::vector<double> taus(30, 0.8);
  uint64_t found = 0, all = 0;
  for (size_t at = 0; at < 60; at += at < 30 ? 1 : 30) {  // one by one, then all at once
    const size_t first = at % 30, n = at < 30 ? 1 : 30;
    std::vector<std::vector<ScoredRow>> got(n);
    ScanStats stats;
    CHECK_OK(codes->WithinThreshold(rows.View(), scores.queries.data() + first * 128, n, taus.data(), 0.7, 1, nullptr, &got,
                                    &stats));
    for (size_t j = 0; j < n; ++j) {
      for (size_t i = 0; i < got[j].size(); ++i) {
        CHECK(i == 0 || got[j][i - 1].row < got[j][i].row);
        CHECK_EQ(got[j][i].score, scores.query(first + j)[got[j][i].row]);
        CHECK(got[j][i].score >= 0.8 - kScoreSlack);
      }
      found += got[j].size();
      for (uint64_t i = 0; i < rows.rows(); ++i) all += scores.query(first + j)[i] >= 0.8 - kScoreSlack;
    }
  }
  CHECK(found <= all && found * 10 >= all * 9);
}

TEST(FewRowsAreRefused) {
  TempDir dir;
  Source source(8, Shape::kUniform, 43);
  Rows rows(8);
  for (uint64_t i = 0; i < kMinSealedRows; ++i) rows.Add(source.Next());
  for (uint64_t n : {uint64_t{0}, uint64_t{1}, kMinSealedRows - 1})
    CHECK(SealCodes(rows.View(n), dir / "codes", StampOf(8), 1, nullptr, nullptr).code() == Code::kInvalidArgument);
  CHECK(std::filesystem::is_empty(dir.path()));
  for (uint64_t i = 0; i < kMinSealedRows; i += i % 4 == 2 ? 2 : 1)
    rows.Set(i, 1, std::numeric_limits<float>::quiet_NaN());
  CHECK(SealCodes(rows.View(), dir / "codes", StampOf(8), 1, nullptr, nullptr).code() == Code::kCorruption);
  CHECK(std::filesystem::is_empty(dir.path()));
}

TEST(AnInterruptionLeavesWhatWasThere) {
  TempDir dir;
  Source source(64, Shape::kClustered, 44);
  Rows rows(64);
  for (int i = 0; i < 9000; ++i) rows.Add(source.Next());
  int polls = 0;
  CHECK_OK(SealCodes(rows.View(8000), dir / "codes", StampOf(64), 1, nullptr, [&] { return ++polls < 0; }));
  const std::string before = Read(dir / "codes");
  CHECK(polls > 3);
  for (int threads : {1, 3}) {
    for (int after = 1; after <= polls + 4; after += std::max(1, polls / 8)) {
      int calls = 0;
      bool told = false;
      const Status s = SealCodes(rows.View(), dir / "codes", StampOf(64), threads,
                                 [&](const char* phase, uint64_t done, uint64_t total) {
                                   CHECK(done <= total);
                                   told |= std::string(phase) == "clustering";
                                 },
                                 [&] { return ++calls >= after; });
      CHECK(told);
      CHECK(!std::filesystem::exists(dir / "codes.tmp"));
      CHECK(!std::filesystem::exists(dir / "codes.rows.tmp"));
      if (calls >= after) {
        CHECK(s.code() == Code::kInterrupted);
        CHECK(Read(dir / "codes") == before);
      } else {
        CHECK_OK(s);
        Replace(dir / "codes", before);
      }
    }
  }
  // And a search.
  const Codes codes = Seal(rows.View(), dir / "codes");
  const std::vector<float> queries = MakeQueries(&source, rows, 1500);
  std::vector<std::vector<ScoredRow>> got(1500);
  ScanStats stats;
  const std::string kernels = KernelName();
  CHECK(UseKernels("scalar"));
  CHECK(codes->WithinThreshold(rows.View(), queries.data(), 1500, std::vector<double>(1500, -1).data(), 1, 1,
                               [] { return true; }, &got, &stats).code() == Code::kInterrupted);
  CHECK(UseKernels(kernels.c_str()));
}

namespace {

struct Sealed {
  TempDir dir;
  Rows rows{70};
  std::string path = dir / "codes", bytes;
  std::unique_ptr<Scores> scores;
  Sealed() {
    Source source(70, Shape::kClustered, 45);
    for (uint64_t i = 0; i < kMinSealedRows + 5; ++i) rows.Add(source.Next());
    (void)Seal(rows.View(), path);
    bytes = Read(path);
    scores = std::make_unique<Scores>(rows.View(), MakeQueries(&source, rows, 9));
  }
};

}  // namespace

TEST(TruncatedFilesAreRefusedOrSearched) {
  Sealed s;
  std::mt19937 random(46);
  std::vector<size_t> lengths = {0, 1, 7, 8, 59, 60, 300, 4095, 4096, 4097, s.bytes.size() - 1, s.bytes.size() - 65};
  for (const DerivedSection& section : HeaderIn(s.bytes).sections)
    for (uint64_t at : {section.offset, section.offset + section.bytes})
      for (int by : {-1, 0, 1}) lengths.push_back(std::min<size_t>(at + static_cast<uint64_t>(by), s.bytes.size()));
  for (int i = 0; i < 60; ++i) lengths.push_back(random() % s.bytes.size());
  const DerivedSection last = HeaderIn(s.bytes).sections.back();
  for (size_t length : lengths) {
    Replace(s.path, s.bytes.substr(0, length));
    auto opened = SealedCodes::Open(s.path, StampOf(70));
    if (length < last.offset + last.bytes) {
      CHECK(opened.status().code() == Code::kCorruption);
    } else {
      CHECK_OK(opened);
      CheckRight(**opened, s.rows.View(), *s.scores);
    }
  }
}

TEST(FlippedBitsAreSeenOrHarmless) {
  Sealed s;
  std::mt19937 random(47);
  const DerivedHeader header = HeaderIn(s.bytes);
  const size_t checked = 56 + 20 * header.sections.size() + 4;  // bytes of the header that its checksum covers, and it
  for (int i = 0; i < 200; ++i) {
    const size_t bit = random() % (8 * (i % 4 != 0 ? checked : kDerivedHeaderBytes));
    Replace(s.path, Flip(s.bytes, bit));
    auto opened = SealedCodes::Open(s.path, StampOf(70));
    CHECK_EQ(opened.ok(), bit / 8 >= checked);
    CHECK(opened.ok() || opened.status().code() == Code::kCorruption);
  }
  size_t found = 0;
  for (size_t section = 0; section < header.sections.size(); ++section) {
    const DerivedSection& at = header.sections[section];
    if (at.bytes == 0) continue;
    for (int i = 0; i < 200; ++i) {
      Replace(s.path, Flip(s.bytes, 8 * at.offset + random() % (8 * at.bytes)));
      auto file = DerivedFile::Open(s.path, StampOf(70), DerivedType::kCodes);
      CHECK_OK(file);
      for (size_t other = 0; other < header.sections.size(); ++other)
        CHECK_EQ((*file)->SectionIsWhole(other), other != section);
      auto opened = SealedCodes::Open(s.path, StampOf(70));
      CHECK_EQ(opened.ok(), section >= kCodesRadii);
      if (opened.ok() && i % 5 == 0) CheckRight(**opened, s.rows.View(), *s.scores);
      found += !opened.ok();
    }
  }
  CHECK(found >= 6 * 200 - 200);
}

TEST(GarbageInTheBulkSectionsIsHarmless) {
  Sealed s;
  std::mt19937 random(48);
  const DerivedHeader header = HeaderIn(s.bytes);
  for (size_t section : {kCodesRadii, kCodesRows, kCodesStage1, kCodesStage2, kCodesWhole}) {
    for (uint32_t mask : {0xffffffffU, 0x1fffU, 0U}) {
      std::string bytes = s.bytes;
      const DerivedSection& at = header.sections[section];
      for (uint64_t i = 0; i + 4 <= at.bytes; i += 4) {
        const uint32_t word = random() & mask;
        std::memcpy(&bytes[at.offset + i], &word, 4);
      }
      Replace(s.path, bytes);
      auto opened = SealedCodes::Open(s.path, StampOf(70));
      CHECK_OK(opened);
      ForEachKernel([&] { CheckRight(**opened, s.rows.View(), *s.scores); });
      CheckRight(**opened, s.rows.View(100), *s.scores);
    }
  }
}

TEST(ForeignFilesAreRefused) {
  Sealed s;
  const auto code = [&](auto change) {
    DerivedStamp stamp = StampOf(70);
    change(&stamp);
    return SealedCodes::Open(s.path, stamp).status().code();
  };
  CHECK(code([](DerivedStamp*) {}) == Code::kOk);
  CHECK(code([](DerivedStamp* stamp) { stamp->store_id[0] = 1; }) == Code::kCorruption);
  CHECK(code([](DerivedStamp* stamp) { stamp->kind = Kind::kRelation; }) == Code::kCorruption);
  CHECK(code([](DerivedStamp* stamp) { stamp->dim = 71; }) == Code::kCorruption);
  CHECK(code([](DerivedStamp* stamp) { stamp->vector_file = 2; }) == Code::kCorruption);
  {
    auto writer = DerivedWriter::Create(s.path, StampOf(70), DerivedType::kGraph);
    CHECK_OK(writer);
    CHECK_OK((*writer)->Section("abcd", 4));
    CHECK_OK((*writer)->Finish(s.rows.rows()));
  }
  CHECK(SealedCodes::Open(s.path, StampOf(70)).status().code() == Code::kCorruption);
  {
    auto writer = DerivedWriter::Create(s.path, StampOf(70), DerivedType::kCodes);
    CHECK_OK(writer);
    for (size_t i = 0; i < kCodesSections; ++i) CHECK_OK((*writer)->Section("abcd", 4));
    CHECK_OK((*writer)->Finish(s.rows.rows()));
  }
  CHECK(SealedCodes::Open(s.path, StampOf(70)).status().code() == Code::kCorruption);
  Replace(s.path, "");
  CHECK(SealedCodes::Open(s.path, StampOf(70)).status().code() == Code::kCorruption);
  std::filesystem::remove(s.path);
  CHECK(SealedCodes::Open(s.path, StampOf(70)).status().code() == Code::kNotFound);
  std::filesystem::create_directory(s.path);
  CHECK(Refused(SealedCodes::Open(s.path, StampOf(70)).status()));
  CHECK(!SealCodes(s.rows.View(), s.path, StampOf(70), 1, nullptr, nullptr).ok());
  CHECK(!std::filesystem::exists(s.path + ".tmp"));
}
