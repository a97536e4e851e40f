// The graph: what it finds, how its build goes on after an interruption, and that no damage leads out of it.
#include "graph.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "distance.h"
#include "graph_format.h"
#include "rows.h"

using namespace pymemstore;
using namespace pymemstore::test;

namespace {

using Codes = std::shared_ptr<const SealedCodes>;
using Built = std::shared_ptr<const Graph>;

constexpr uint32_t kDim = 48;

DerivedStamp TheStamp() {
  DerivedStamp stamp;
  stamp.store_id[1] = 9;
  stamp.dim = kDim;
  stamp.vector_file = 3;
  return stamp;
}

std::string Read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void Replace(const std::string& path, const std::string& bytes) {
  std::ofstream(path + ".new", std::ios::binary) << bytes;
  std::filesystem::rename(path + ".new", path);
}

DerivedHeader HeaderIn(const std::string& bytes) {
  DerivedHeader header;
  CHECK_EQ(DecodeDerivedHeader(Bytes(bytes).substr(0, kDerivedHeaderBytes), &header), std::string());
  return header;
}

Codes Seal(const RowView& view, const std::string& path) {
  CHECK_OK(SealCodes(view, path, TheStamp(), 2, nullptr, nullptr));
  auto codes = SealedCodes::Open(path, TheStamp());
  CHECK_OK(codes);
  return *codes;
}

Built Load(const std::string& path, Codes codes) {
  auto graph = Graph::Open(path, TheStamp(), std::move(codes));
  CHECK_OK(graph);
  CHECK(!std::filesystem::exists(path + ".part"));
  CHECK(!std::filesystem::exists(path + ".found"));
  CHECK(!std::filesystem::exists(path + ".tmp"));
  return *graph;
}

// Builds, and tells at how many linked nodes it began: -1 when there was nothing left to link.
struct Build {
  Status status;
  int64_t began = -1;
  int polls = 0;
};
Build Make(const RowView& view, const Codes& codes, const std::string& path, int threads, int interrupt_after = 0) {
  Build out;
  out.status = BuildGraph(view, codes, path, TheStamp(), threads,
                          [&](const char* phase, uint64_t done, uint64_t total) {
                            CHECK(done <= total);
                            if (out.began < 0 && std::string(phase) == "linking") out.began = static_cast<int64_t>(done);
                          },
                          [&] { return ++out.polls == interrupt_after; });
  return out;
}

std::vector<ScoredRow> Find(const Graph& graph, const RowView& view, const float* q, double tau) {
  std::vector<std::vector<ScoredRow>> out(1);
  ScanStats stats;
  CHECK_OK(graph.Search(view, q, 1, &tau, 1, nullptr, &out, &stats));
  CHECK(stats.rows_rescored >= out[0].size());
  return out[0];
}

// What was found is right, and each row once. Returns how many of all rows above tau that is.
struct Recall {
  uint64_t found = 0, all = 0;
};
void CheckSubset(const std::vector<ScoredRow>& got, const RowView& view, uint64_t rows, const float* q, double tau,
                 Recall* recall) {
  size_t at = 0;
  for (uint64_t i = 0; i < std::min(rows, view.rows); ++i) {
    const double score = CanonicalDot(q, view.row(i), kDim);
    if (!(score >= tau - kScoreSlack)) continue;
    ++recall->all;
    if (at == got.size() || got[at].row != i) continue;
    CHECK_EQ(std::memcmp(&got[at].score, &score, sizeof score), 0);
    ++at;
  }
  CHECK_EQ(at, got.size());
  recall->found += at;
}

constexpr uint64_t kRows = 6000, kTwin = 11;  // every sixth row is that of kTwin

// 6,000 rows: clusters, 1,000 all alike, pairs that differ by a last digit or a little more.
Rows MakeRows(unsigned seed, uint64_t count = kRows, uint64_t alike_of_six = 1) {
  Source source(kDim, Shape::kClustered, seed);
  Rows rows(kDim);
  const std::vector<float> one = source.Next();
  for (uint64_t i = 0; i < count; ++i) {
    if ((i + 1) % 6 < alike_of_six) {
      rows.Add(one);
    } else if (i % 6 == 3) {
      std::vector<float> v = rows.Row(i - 1);
      v[i % kDim] += i % 12 == 3 ? 1e-7F : 0.01F;
      rows.Add(v);
    } else {
      rows.Add(source.Next());
    }
  }
  return rows;
}

struct Made {
  TempDir dir;
  Rows rows = MakeRows(1);
  std::string path = dir / "graph";
  Codes codes = Seal(rows.View(), dir / "codes");
  std::string bytes;
  Build build = Make(rows.View(), codes, path, 2);
  Made() {
    CHECK_OK(build.status);
    bytes = Read(path);
  }
};
Made& TheMade() {  // by all tests; whoever changes the file puts it back
  static Made made;
  return made;
}

void CheckWorks(const Built& graph, const RowView& view, uint64_t step = 1) {
  for (uint64_t i = 0; i < graph->rows(); i += step) {
    const std::vector<ScoredRow> got = Find(*graph, view, view.row(i), 0.9999);
    CHECK(std::any_of(got.begin(), got.end(), [&](const ScoredRow& r) { return r.row == i; }));
  }
}

std::vector<float> NearQueries(const Rows& rows, size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out;
  for (size_t j = 0; j < n; ++j) {
    std::vector<float> v = rows.Row(random() % rows.rows()), unit(kDim);
    for (float& x : v) x += 0.05F * normal(random);
    CHECK(Normalise(v.data(), kDim, unit.data()));
    out.insert(out.end(), unit.begin(), unit.end());
  }
  return out;
}

}  // namespace

TEST(EveryRowIsFoundByItsOwnVector) {
  Made& made = TheMade();
  CHECK_EQ(made.build.began, 0);
  const Built graph = Load(made.path, made.codes);
  CHECK_EQ(graph->rows(), kRows);
  CHECK(graph->missed() < kRows / 50);
  ForEachKernel([&] { CheckWorks(graph, made.rows.View(), std::string(KernelName()) == "scalar" ? 7 : 1); });
}

TEST(RecallOfWhatIsNear) {
  Made& made = TheMade();
  const Built graph = Load(made.path, made.codes);
  const std::vector<float> queries = NearQueries(made.rows, 150, 2);
  for (double tau : {0.8, 0.9, 0.7}) {
    Recall recall;
    for (size_t j = 0; j < 150; ++j) {
      const float* q = queries.data() + j * kDim;
      CheckSubset(Find(*graph, made.rows.View(), q, tau), made.rows.View(), kRows, q, tau, &recall);
    }
    CHECK(recall.all > 150);
    if (tau >= 0.8) CHECK(static_cast<double>(recall.found) >= 0.9 * static_cast<double>(recall.all));
  }
  for (double tau : {-2.0, -1.0, 0.0, 1.0, 1.1, 1e300, -1e300}) {  // at no threshold anything else than right
    Recall recall;
    CheckSubset(Find(*graph, made.rows.View(), queries.data(), tau), made.rows.View(), kRows, queries.data(), tau, &recall);
    if (tau < -1) CHECK(recall.found * 10 >= recall.all * 9);
  }
}

TEST(AllTwinsComeBack) {
  Made& made = TheMade();
  const Built graph = Load(made.path, made.codes);
  const float* one = made.rows.View().row(kTwin);
  const double self = CanonicalDot(one, one, kDim);
  for (double tau : {0.9999, 0.8, Tie(self)}) {
    const std::vector<ScoredRow> got = Find(*graph, made.rows.View(), one, tau);
    size_t twins = 0;
    for (const ScoredRow& row : got) twins += row.row % 6 == kTwin % 6;
    CHECK_EQ(twins, kRows / 6);
  }
  CHECK(Find(*graph, made.rows.View(), one, std::nextafter(Tie(self), 2)).empty());
}

TEST(OlderAndNewerSnapshots) {
  Made& made = TheMade();
  const Built graph = Load(made.path, made.codes);
  Rows more = MakeRows(1, kRows + 600);
  const std::vector<float> queries = NearQueries(more, 30, 3);
  for (uint64_t visible : {uint64_t{0}, uint64_t{1}, uint64_t{3000}, kRows - 1, kRows, kRows + 600}) {
    const RowView view = more.View(visible);
    for (size_t j = 0; j < 30; ++j) {
      const float* q = queries.data() + j * kDim;
      Recall unused;
      CheckSubset(Find(*graph, view, q, 0.6), view, kRows, q, 0.6, &unused);
    }
  }
  // Codes of more rows than the graph's.
  TempDir dir;
  const Codes all = Seal(more.View(), dir / "codes");
  const Built smaller = Load(made.path, all);
  CHECK_EQ(smaller->rows(), kRows);
  CheckWorks(smaller, more.View(), 5);
  // And of fewer: refused.
  const Codes few = Seal(more.View(kRows - 1), dir / "few");
  CHECK(Graph::Open(made.path, TheStamp(), few).status().code() == Code::kCorruption);
}

TEST(TwoThreadsSearchAtOnce) {
  Made& made = TheMade();
  const Built graph = Load(made.path, made.codes);
  const std::vector<float> queries = NearQueries(made.rows, 60, 4);
  std::vector<std::vector<ScoredRow>> alone;
  for (size_t j = 0; j < 60; ++j) alone.push_back(Find(*graph, made.rows.View(), queries.data() + j * kDim, 0.75));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 300; ++i) {
        const size_t j = (i * (t + 1) + t) % 60;
        const std::vector<ScoredRow> got = Find(*graph, made.rows.View(), queries.data() + j * kDim, 0.75);
        bool same = got.size() == alone[j].size();
        for (size_t r = 0; same && r < got.size(); ++r) same = got[r].row == alone[j][r].row && got[r].score == alone[j][r].score;
        wrong += !same;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK_EQ(wrong.load(), 0);
}

TEST(AnInterruptedBuildGoesOn) {
  Made& made = TheMade();
  const uint64_t nodes = HeaderIn(made.bytes).rows - HeaderIn(made.bytes).sections[kGraphTwins].bytes / sizeof(Twin);
  CHECK(nodes > 4097);  // or there would be no piece between the first and the last
  const int64_t expected[] = {0, 1, 4097};
  for (int after : {1, 2}) {
    TempDir dir;
    const std::string path = dir / "graph";
    const Build first = Make(made.rows.View(), made.codes, path, after, after);
    CHECK(first.status.code() == Code::kInterrupted);
    CHECK_EQ(first.began, 0);
    CHECK(std::filesystem::exists(path + ".part"));
    CHECK(!std::filesystem::exists(path));
    const Build second = Make(made.rows.View(), made.codes, path, 2);
    CHECK_OK(second.status);
    CHECK_EQ(second.began, expected[after]);
    const Built graph = Load(path, made.codes);
    CheckWorks(graph, made.rows.View(), 3);
    CHECK_EQ(HeaderIn(Read(path)).sections[kGraphTwins].crc, HeaderIn(made.bytes).sections[kGraphTwins].crc);
  }
}

namespace {

// Few nodes, so that a build takes no time: 700 of 4,200 rows.
struct Small {
  TempDir dir;
  Rows rows;
  std::string path = dir / "graph";
  Codes codes;
  explicit Small(unsigned seed) : rows(MakeRows(seed, 4200, 5)), codes(Seal(rows.View(), dir / "codes")) {}
};

}  // namespace

TEST(SmallBuildsGoOnToo) {
  Small small(5);
  for (int threads : {1, 3}) {
    for (int after : {1, 2}) {  // the second moment is after the last node
      CHECK(Make(small.rows.View(), small.codes, small.path, threads, after).status.code() == Code::kInterrupted);
      CHECK(std::filesystem::exists(small.path + ".part"));
      CHECK(!std::filesystem::exists(small.path));
      const Build again = Make(small.rows.View(), small.codes, small.path, threads);
      CHECK_OK(again.status);
      CHECK_EQ(again.began, after == 1 ? 1 : -1);
      CheckWorks(Load(small.path, small.codes), small.rows.View(), 7);
      std::filesystem::remove(small.path);
    }
  }
}

TEST(AnInterruptionWhileFindingKeepsTheLinks) {
  Made& made = TheMade();
  TempDir dir;
  const std::string path = dir / "graph";
  bool finding = false;
  const Status status = BuildGraph(made.rows.View(), made.codes, path, TheStamp(), 1,
                                   [&](const char* phase, uint64_t, uint64_t) { finding |= std::string(phase) == "finding"; },
                                   [&] { return finding; });
  CHECK(status.code() == Code::kInterrupted);
  CHECK(!std::filesystem::exists(path));
  CHECK(std::filesystem::exists(path + ".part"));
  CHECK(!std::filesystem::exists(path + ".found"));
  const Build again = Make(made.rows.View(), made.codes, path, 2);
  CHECK_OK(again.status);
  CHECK_EQ(again.began, -1);
  CheckWorks(Load(path, made.codes), made.rows.View(), 3);
}

TEST(WhatAnotherBuildSavedIsNotTaken) {
  Small small(6), other(7);
  CHECK(Make(other.rows.View(), other.codes, other.path, 1, 2).status.code() == Code::kInterrupted);
  const std::string foreign = Read(other.path + ".part");
  CHECK(Make(small.rows.View(), small.codes, small.path, 1, 2).status.code() == Code::kInterrupted);
  const std::string part = Read(small.path + ".part");
  const DerivedHeader header = HeaderIn(part);
  CHECK_EQ(header.sections.size(), 4);
  std::vector<std::string> bad = {foreign, "", "x", part.substr(0, 4096), part.substr(0, part.size() / 2),
                                  part.substr(0, part.size() - 65), std::string(part.size(), '\0')};
  for (const DerivedSection& section : header.sections) {
    CHECK(section.bytes > 0);
    for (uint64_t at : {section.offset, section.offset + section.bytes / 2, section.offset + section.bytes - 1}) {
      bad.push_back(part);
      bad.back()[at] = static_cast<char>(bad.back()[at] ^ 4);
    }
  }
  for (const std::string& bytes : bad) {
    Replace(small.path + ".part", bytes);
    const Build build = Make(small.rows.View(), small.codes, small.path, 1);
    CHECK_OK(build.status);
    CHECK_EQ(build.began, 0);
    CheckWorks(Load(small.path, small.codes), small.rows.View(), 35);
    std::filesystem::remove(small.path);
  }
  Replace(small.path + ".part", part);  // the whole one is
  CHECK_EQ(Make(small.rows.View(), small.codes, small.path, 1).began, -1);
}

TEST(AllRowsAlike) {
  TempDir dir;
  Rows rows(kDim);
  Source source(kDim, Shape::kUniform, 8);
  const std::vector<float> one = source.Next();
  for (uint64_t i = 0; i < kMinSealedRows; ++i) rows.Add(one);
  const Codes codes = Seal(rows.View(), dir / "codes");
  CHECK_OK(Make(rows.View(), codes, dir / "graph", 2).status);
  const Built graph = Load(dir / "graph", codes);
  CHECK_EQ(Find(*graph, rows.View(), rows.View().row(0), 0.9).size(), rows.rows());
}

TEST(RowsThatAreNotNumbersNeverComeBack) {
  Small small(9);
  Rows rows = MakeRows(9, 4200, 5);
  for (uint64_t i = 6; i < 4200; i += 60) rows.Set(i, 2, std::numeric_limits<float>::quiet_NaN());
  const Codes codes = Seal(rows.View(), small.path + ".codes");
  CHECK_OK(Make(rows.View(), codes, small.path, 2).status);
  const Built graph = Load(small.path, codes);
  for (uint64_t i = 0; i < 4200; i += 7) {
    if (i % 60 == 6) continue;
    const std::vector<ScoredRow> got = Find(*graph, rows.View(), rows.View().row(i), 0.9999);
    CHECK(std::any_of(got.begin(), got.end(), [&](const ScoredRow& r) { return r.row == i; }));
    CHECK(std::none_of(got.begin(), got.end(), [&](const ScoredRow& r) { return r.row % 60 == 6; }));
  }
}

TEST(GarbageLeadsNowhere) {
  Made& made = TheMade();
  const DerivedHeader header = HeaderIn(made.bytes);
  const std::string path = made.dir / "garbage";
  const std::vector<float> queries = NearQueries(made.rows, 20, 10);
  std::mt19937 random(11);
  const auto rows = static_cast<uint32_t>(kRows);
  for (int which = 0; which < 24; ++which) {  // each section alone, then all of them; several kinds of garbage
    std::string bytes = made.bytes;
    for (size_t section : {kGraphLinksLow, kGraphUpper, kGraphTwins, kGraphMissed}) {
      if (which % 6 < 4 && static_cast<size_t>(which % 6) + kGraphLinksLow != section) continue;
      const DerivedSection& at = header.sections[section];
      for (uint64_t i = 0; i + 4 <= at.bytes; i += 4) {
        if (which % 6 == 5 && random() % 50 != 0) continue;  // here and there
        const uint32_t word = which / 6 == 0   ? random()
                              : which / 6 == 1 ? random() % rows
                              : which / 6 == 2 ? rows - 2 + random() % 5
                                               : (random() % 2 != 0 ? kNoRow : random() % 40);
        std::memcpy(&bytes[at.offset + i], &word, 4);
      }
    }
    Replace(path, bytes);
    auto graph = Graph::Open(path, TheStamp(), made.codes);
    CHECK_OK(graph);
    for (size_t j = 0; j < 20; ++j) {
      const float* q = queries.data() + j * kDim;
      for (double tau : {0.9, 0.3, -1.0}) {
        for (const RowView& view : {made.rows.View(), made.rows.View(5000)}) {
          Recall unused;
          CheckSubset(Find(**graph, view, q, tau), view, kRows, q, tau, &unused);
        }
        if (j > 2) break;
      }
    }
  }
}

TEST(GarbageInTheCodesLeadsNowhere) {
  Made& made = TheMade();
  std::string bytes = Read(made.dir / "codes");
  const DerivedSection whole = HeaderIn(bytes).sections[kCodesWhole];
  std::mt19937 random(12);
  for (uint32_t mask : {0xffffffffU, 0x7fc00000U}) {  // the second: scales and errors that are not numbers
    for (uint64_t i = 0; i + 4 <= whole.bytes; i += 4) {
      const uint32_t word = mask == 0xffffffffU ? random() : mask;
      std::memcpy(&bytes[whole.offset + i], &word, 4);
    }
    Replace(made.dir / "bad codes", bytes);
    auto codes = SealedCodes::Open(made.dir / "bad codes", TheStamp());
    CHECK_OK(codes);
    const Built graph = Load(made.path, *codes);
    const std::vector<float> queries = NearQueries(made.rows, 5, 13);
    for (size_t j = 0; j < 5; ++j) {
      Recall unused;
      const float* q = queries.data() + j * kDim;
      CheckSubset(Find(*graph, made.rows.View(), q, 0.5), made.rows.View(), kRows, q, 0.5, &unused);
    }
  }
}

TEST(DamagedOrForeignFilesAreRefused) {
  Made& made = TheMade();
  const DerivedHeader header = HeaderIn(made.bytes);
  const std::string path = made.dir / "damaged";
  const auto code = [&](const std::string& bytes) {
    Replace(path, bytes);
    return Graph::Open(path, TheStamp(), made.codes).status().code();
  };
  CHECK(Graph::Open(path, TheStamp(), made.codes).status().code() == Code::kNotFound);
  CHECK(code(made.bytes) == Code::kOk);
  std::mt19937 random(14);
  const uint64_t end = header.sections.back().offset + header.sections.back().bytes;
  std::vector<uint64_t> lengths = {0, 1, 60, 4095, 4096, 4097, end - 1};
  for (const DerivedSection& section : header.sections) lengths.push_back(section.offset + section.bytes - 1);
  for (int i = 0; i < 40; ++i) lengths.push_back(random() % end);
  for (uint64_t length : lengths)
    if (length < end) CHECK(code(made.bytes.substr(0, length)) == Code::kCorruption);
  const size_t checked = 56 + 20 * header.sections.size() + 4;
  for (int i = 0; i < 200; ++i) {
    std::string bytes = made.bytes;
    const size_t at = i % 2 != 0 ? random() % checked : header.sections[kGraphMeta].offset + random() % sizeof(GraphMeta);
    bytes[at] = static_cast<char>(bytes[at] ^ 1 << random() % 8);
    CHECK(code(bytes) == Code::kCorruption);
  }
  for (size_t section = 0; section < header.sections.size(); ++section) {
    const DerivedSection& at = header.sections[section];
    for (int i = 0; i < 50 && at.bytes > 0; ++i) {
      std::string bytes = made.bytes;
      bytes[at.offset + random() % at.bytes] ^= 16;
      Replace(path, bytes);
      auto file = DerivedFile::Open(path, TheStamp(), DerivedType::kGraph);
      CHECK_OK(file);
      CHECK(!(*file)->SectionIsWhole(section));
    }
  }
  for (int which = 0; which < 4; ++which) {
    DerivedStamp stamp = TheStamp();
    if (which == 0) stamp.store_id[0] = 1;
    if (which == 1) stamp.kind = Kind::kRelation;
    if (which == 2) ++stamp.dim;
    if (which == 3) ++stamp.vector_file;
    CHECK(Graph::Open(made.path, stamp, made.codes).status().code() == Code::kCorruption);
  }
  CHECK(Graph::Open(made.dir / "codes", TheStamp(), made.codes).status().code() == Code::kCorruption);
  std::filesystem::create_directory(made.dir / "folder");
  CHECK(!Graph::Open(made.dir / "folder", TheStamp(), made.codes).ok());
}
