// The index over sealed rows and the tail, against brute force.
#include "vector_index.h"

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "rows.h"
#include "sealed.h"

using namespace pymemstore;
using namespace pymemstore::test;

namespace {

class Store {
 public:
  explicit Store(uint32_t dim, Shape shape = Shape::kClustered) : dim_(dim), source_(dim, shape, dim), rows_(dim) {
    CHECK_OK(VectorFile::Create(dir_ / "e.vec", StampOf(dim).store_id, Kind::kEntity, dim));
    Reopen();
  }
  void Reopen() {
    auto file = VectorFile::Open(dir_ / "e.vec", StampOf(dim_).store_id, Kind::kEntity, dim_, false);
    CHECK_OK(file);
    index = std::make_unique<VectorIndex>(std::move(*file), dir_.path(), StampOf(dim_).store_id, Kind::kEntity, 1);
  }
  void Append(uint64_t n) {
    std::string encoded;
    for (uint64_t i = 0; i < n; ++i) {
      const std::vector<float> v = source_.Unit();
      rows_.AddRaw(v);
      VectorFile::Encode(v.data(), dim_, static_cast<NameId>(rows_.rows()), &encoded);
    }
    CHECK_OK(index->file().Write(rows_.rows() - n, encoded));
  }
  Status Reindex(ReindexOptions options = {}, int threads = 2) {
    auto pinned = index->file().Rows(rows_.rows());
    CHECK_OK(pinned);
    return index->Reindex(*pinned, options, threads, nullptr, nullptr);
  }
  // Compares a few queries over the first `visible` rows (0: all); `asked` kGraph: a part of them from `exact_from` on.
  SearchChoice Check(SearchMode asked = SearchMode::kExact, uint64_t visible = 0) {
    if (visible == 0) visible = rows_.rows();
    SearchChoice choice;
    auto pinned = index->file().Rows(rows_.rows());
    CHECK_OK(pinned);
    pinned->view.rows = visible;
    for (size_t n : {1U, 9U}) {
      const Scores scores(pinned->view, MakeQueries(&source_, rows_, n));
      std::vector<double> taus(n, 0.7);
      for (size_t j = 0; j < n; j += 2) taus[j] = TauFor(scores, j, source_.random()(), &source_.random());
      std::vector<std::vector<ScoredRow>> got;
      ScanStats stats;
      auto chosen = index->WithinThreshold(*pinned, scores.queries.data(), n, taus.data(), asked, 2, nullptr, &got, &stats);
      CHECK_OK(chosen);
      choice = *chosen;
      CHECK(!choice.reason.empty());
      CHECK_EQ(got.size(), n);
      for (size_t j = 0; j < n; ++j) {
        if (choice.mode == SearchMode::kExact) {
          CheckSame(got[j], scores.query(j), visible, taus[j]);
          continue;
        }
        std::vector<double> want(visible, -3);
        for (size_t i = 0; i < got[j].size(); ++i) {  // each row once, ascending, and of the tail all
          CHECK(i == 0 || got[j][i - 1].row < got[j][i].row);
          CHECK_EQ(got[j][i].score, scores.query(j)[got[j][i].row]);
          CHECK(got[j][i].score >= taus[j] - kScoreSlack);
          want[got[j][i].row] = got[j][i].score;
        }
        for (uint64_t i = index->SealedRows(); i < visible; ++i)
          CHECK_EQ(want[i] > -3, scores.query(j)[i] >= taus[j] - kScoreSlack);
      }
    }
    return choice;
  }
  std::string Path(const char* ending) const { return dir_ / (std::string("index/entities-000001.") + ending); }
  const Rows& rows() const { return rows_; }

  std::unique_ptr<VectorIndex> index;

 private:
  TempDir dir_;
  const uint32_t dim_;
  Source source_;
  Rows rows_;
};

}  // namespace

TEST(SealedRowsAndTheTailEqualBruteForce) {
  for (Shape shape : {Shape::kClustered, Shape::kSparse}) {
    Store store(60, shape);
    CHECK_OK(store.Reindex());  // no rows: nothing to do
    store.Append(kMinSealedRows - 1);
    CHECK_OK(store.Reindex());
    CHECK_EQ(store.index->SealedRows(), 0);
    CHECK_EQ(store.index->Info().sealed_rows, 0);
    store.Check();
    store.Append(400);
    CHECK_OK(store.Reindex());
    CHECK_EQ(store.index->SealedRows(), kMinSealedRows + 399);
    store.Check();
    for (uint64_t n : {1U, 15U, 1100U, 900U}) {
      store.Append(n);
      store.Check();
      store.Check(SearchMode::kAuto);
    }
    CHECK_EQ(store.index->SealedRows(), kMinSealedRows + 399);
    for (uint64_t visible : {1U, 4000U, 4494U, 4495U, 4496U, 5000U}) store.Check(SearchMode::kExact, visible);
    CHECK(store.Check(SearchMode::kGraph).mode == SearchMode::kExact);  // there is none
    CHECK_OK(store.Reindex());
    CHECK_EQ(store.index->SealedRows(), store.rows().rows());
    store.Check();
    store.Append(30);
    store.Check();
    store.Reopen();
    store.Check();
    CHECK_EQ(store.index->Info().problem, std::string());
    CHECK_EQ(store.index->CheckFiles(), std::string());
    const IndexInfo info = store.index->Info();
    CHECK_EQ(info.sealed_rows, store.rows().rows() - 30);
    CHECK(info.clusters > 0 && (info.bits1 == 2 || info.bits1 == 4) && info.graph_rows == 0);
  }
}

TEST(AnIndexWithAGraph) {
  Store store(40);
  store.Append(5000);
  ReindexOptions options;
  options.graph = true;
  CHECK_OK(store.Reindex(options));
  CHECK_EQ(store.index->Info().graph_rows, 5000);
  CHECK_EQ(store.index->Info().problem, std::string());
  CHECK(store.Check(SearchMode::kGraph).mode == SearchMode::kGraph);
  CHECK(store.Check(SearchMode::kExact).mode == SearchMode::kExact);
  store.Check(SearchMode::kAuto);
  store.Append(200);
  CHECK(store.Check(SearchMode::kGraph).mode == SearchMode::kGraph);
  for (uint64_t visible : {100U, 4999U, 5001U}) store.Check(SearchMode::kGraph, visible);
  store.Check();
  // No queries at all.
  auto pinned = store.index->file().Rows(5000);
  for (SearchMode mode : {SearchMode::kExact, SearchMode::kAuto, SearchMode::kGraph}) {
    std::vector<std::vector<ScoredRow>> got(3);
    ScanStats stats;
    CHECK_OK(store.index->WithinThreshold(*pinned, nullptr, 0, nullptr, mode, 2, nullptr, &got, &stats));
    CHECK(got.empty());
  }
  // Codes of more rows than the graph has: it is left alone, and told.
  CHECK_OK(store.Reindex());
  CHECK_EQ(store.index->SealedRows(), 5200);
  CHECK(store.Check(SearchMode::kGraph).mode == SearchMode::kExact);
  CHECK(store.index->Info().problem.find("lacks 200") != std::string::npos);
  CHECK_OK(store.Reindex(options));
  CHECK_EQ(store.index->Info().graph_rows, 5200);
  CHECK_EQ(store.index->Info().problem, std::string());
  CHECK(store.Check(SearchMode::kGraph).mode == SearchMode::kGraph);
}

TEST(DamagedCodesAreToldAndMended) {
  Store store(50);
  store.Append(4600);
  CHECK_OK(store.Reindex());
  store.Append(20);
  const std::string path = store.Path("codes"), whole = Read(path);
  const DerivedHeader header = HeaderIn(whole);
  std::vector<std::string> damaged = {"", whole.substr(0, 5000), whole.substr(0, whole.size() / 2), Flip(whole, 8 * 20),
                                      Flip(whole, 8 * header.sections[kCodesCentroids].offset + 3)};
  for (const std::string& bytes : damaged) {
    Replace(path, bytes);
    CHECK(!store.index->Info().problem.empty());  // looks again at once
    CHECK_EQ(store.index->Info().sealed_rows, 0);
    CHECK(!store.index->CheckFiles().empty());
    store.Check();
    store.Reopen();
    store.Check();
    CHECK(store.index->Info().problem.find(path) != std::string::npos);
    CHECK_OK(store.Reindex());
    CHECK_EQ(store.index->Info().problem, std::string());
    CHECK_EQ(store.index->CheckFiles(), std::string());
    CHECK_EQ(store.index->SealedRows(), store.rows().rows());
    store.Check();
  }
  // In a section that only a check reads.
  const std::string again = Read(path);
  Replace(path, Flip(again, 8 * HeaderIn(again).sections[kCodesWhole].offset + 9));
  CHECK(store.index->CheckFiles().find("checksum") != std::string::npos);
  CHECK_OK(store.Reindex());
  CHECK_EQ(store.index->CheckFiles(), std::string());
  CHECK(Read(path) == again);
  store.Check();
}
