// Thresholded search in C++, ours and hnswlib's, on the same vectors in one run: what bench_search.py reports.
//
//   search_bench BASE.f32 QUERIES.f32 DIM FOLDER TAUS [THREADS] [graph] [reference]
//
// BASE and QUERIES hold unit float32 vectors, TAUS thresholds with commas between. What is built stays in FOLDER, and
// is used again for the same BASE. Prints lines of JSON. Times are CPU seconds of one thread unless said otherwise,
// the least of several rounds.
#include <fcntl.h>
#include <hnswlib/hnswlib.h>
#include <hnswlib/stop_condition.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <set>
#include <string>

#include "chunk_runner.h"
#include "distance.h"
#include "graph.h"
#include "sealed_codes.h"

using namespace pymemstore;

namespace {

using Rows = std::vector<std::vector<ScoredRow>>;
constexpr int kRounds = 3;

double Cpu() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
double Wall() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

struct Vectors {
  const float* data = nullptr;
  size_t n = 0;
};

Vectors Map(const char* path, uint32_t dim) {
  const int fd = ::open(path, O_RDONLY);
  struct stat st {};
  if (fd < 0 || ::fstat(fd, &st) != 0) Must(Status::IOError(std::string("cannot read ") + path));
  const size_t size = static_cast<size_t>(st.st_size);
  void* p = ::mmap(nullptr, size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
  ::close(fd);
  if (p == MAP_FAILED) Must(Status::IOError(std::string("cannot map ") + path));
  return {static_cast<const float*>(p), size / sizeof(float) / dim};
}

struct Bench {
  uint32_t dim = 0;
  int threads = 1;
  Vectors base, queries;
  RowView view;
  std::vector<double> taus;
  std::string folder;
  std::shared_ptr<const SealedCodes> codes;
  std::shared_ptr<const Graph> graph;
  std::vector<Rows> truth;  // of each tau

  const float* query(size_t i) const { return queries.data + i * dim; }
};

// The share of all true pairs, and the mean share of queries that have one.
void Recall(const Rows& truth, const Rows& found, double* micro, double* macro) {
  double hits = 0, all = 0, shares = 0;
  size_t asked = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    std::set<uint64_t> wanted;
    for (const ScoredRow& r : truth[i]) wanted.insert(r.row);
    size_t got = 0;
    for (const ScoredRow& r : found[i]) got += wanted.count(r.row);
    hits += static_cast<double>(got);
    all += static_cast<double>(wanted.size());
    if (wanted.empty()) continue;
    shares += static_cast<double>(got) / static_cast<double>(wanted.size());
    ++asked;
  }
  *micro = all > 0 ? hits / all : 1;
  *macro = asked > 0 ? shares / static_cast<double>(asked) : 1;
}

// Times `run`, which fills one list for each query, and prints a line.
void Report(const Bench& b, const char* what, size_t t, const std::function<void(Rows*)>& run) {
  double best = HUGE_VAL, micro, macro;
  Rows found;
  for (int round = 0; round < kRounds; ++round) {
    found.assign(b.queries.n, {});
    const double start = Cpu();
    run(&found);
    best = std::min(best, Cpu() - start);
  }
  Recall(b.truth[t], found, &micro, &macro);
  std::printf("{\"what\": \"%s\", \"tau\": %g, \"ms\": %.5f, \"micro\": %.5f, \"macro\": %.5f}\n", what, b.taus[t],
              best / static_cast<double>(b.queries.n) * 1e3, micro, macro);
  std::fflush(stdout);
}

void Number(const char* what, double value) {
  std::printf("{\"what\": \"%s\", \"value\": %.6g}\n", what, value);
  std::fflush(stdout);
}

// One pass over 18 bytes a vector, in between other reads, as a query finds it.
double Pass(const Bench& b) {
  const size_t words = b.base.n * 18 / 8 / 8 * 8;
  std::vector<uint64_t> array(words, 1);
  double best = HUGE_VAL;
  for (int round = 0; round < 5; ++round) {
    const double start = Cpu();
    uint64_t sums[8] = {};
    for (size_t i = 0; i < words; i += 8)
      for (size_t k = 0; k < 8; ++k) sums[k] += array[i + k];
    for (uint64_t& sum : sums) asm volatile("" : "+r"(sum));
    best = std::min(best, Cpu() - start);
  }
  return best;
}

void Exact(Bench* b) {
  Rows all;
  ScanStats stats;
  for (double tau : b->taus) {
    all.assign(b->queries.n, {});
    const std::vector<double> taus(b->queries.n, tau);
    Must(b->codes->WithinThreshold(b->view, b->queries.data, b->queries.n, taus.data(), 1, b->threads, {}, &all, &stats));
    b->truth.push_back(all);
  }
  // The truth itself, of some queries, against every row.
  size_t wrong = 0;
  const size_t checked = std::min<size_t>(b->queries.n, 32);
  for (size_t i = 0; i < checked; ++i) {
    std::vector<double> scores(b->base.n);
    for (size_t r = 0; r < b->base.n; ++r) scores[r] = CanonicalDot(b->query(i), b->view.row(r), b->dim);
    for (size_t t = 0; t < b->taus.size(); ++t) {
      std::vector<uint64_t> rows;
      for (size_t r = 0; r < scores.size(); ++r)
        if (scores[r] >= b->taus[t] - kScoreSlack) rows.push_back(r);
      bool same = rows.size() == b->truth[t][i].size();
      for (size_t k = 0; same && k < rows.size(); ++k) same = rows[k] == b->truth[t][i][k].row;
      wrong += !same;
    }
  }
  Number("answers that differ from brute force", static_cast<double>(wrong));
  Number("answers compared with brute force", static_cast<double>(checked * b->taus.size()));
  for (size_t t = 0; t < b->taus.size(); ++t) {
    const double tau = b->taus[t];
    const std::vector<double> taus(b->queries.n, tau);
    double pairs = 0;
    for (const auto& rows : b->truth[t]) pairs += static_cast<double>(rows.size());
    std::printf("{\"what\": \"true pairs a query\", \"tau\": %g, \"value\": %.3f}\n", tau,
                pairs / static_cast<double>(b->queries.n));
    Report(*b, "exact, one query", t, [&](Rows* found) {
      Rows one;
      for (size_t i = 0; i < b->queries.n; ++i) {
        one.assign(1, {});
        Must(b->codes->WithinThreshold(b->view, b->query(i), 1, &tau, 1, 1, {}, &one, &stats));
        (*found)[i].swap(one[0]);
      }
    });
    Report(*b, "exact, batch", t, [&](Rows* found) {
      Must(b->codes->WithinThreshold(b->view, b->queries.data, b->queries.n, taus.data(), 1, 1, {}, found, &stats));
    });
    double wall[2];
    for (int threads : {1, 2}) {
      wall[threads - 1] = HUGE_VAL;
      for (int round = 0; round < kRounds; ++round) {
        Rows found(b->queries.n);
        const double start = Wall();
        Must(b->codes->WithinThreshold(b->view, b->queries.data, b->queries.n, taus.data(), 1, threads, {}, &found, &stats));
        wall[threads - 1] = std::min(wall[threads - 1], Wall() - start);
      }
    }
    std::printf("{\"what\": \"two threads, batch\", \"tau\": %g, \"value\": %.3f}\n", tau, wall[0] / wall[1]);
  }
}

void Approximate(Bench* b) {
  ScanStats stats;
  for (size_t t = 0; t < b->taus.size(); ++t) {
    const double tau = b->taus[t];
    Report(*b, "graph and soft scan, one query", t, [&](Rows* found) {
      Rows one;
      for (size_t i = 0; i < b->queries.n; ++i) {
        one.assign(1, {});
        Must(b->graph->Search(b->view, b->query(i), 1, &tau, 1, {}, &one, &stats));
        (*found)[i].swap(one[0]);
      }
    });
    Report(*b, "graph alone, one query", t, [&](Rows* found) {
      std::vector<uint32_t> rows;
      for (size_t i = 0; i < b->queries.n; ++i) {
        rows.clear();
        b->graph->Walk(CodeWholeQuery(b->query(i), b->dim), tau - kScoreSlack, &rows, &stats);
        for (uint32_t row : rows) {
          const double score = CanonicalDot(b->query(i), b->view.row(row), b->dim);
          if (score >= tau - kScoreSlack) (*found)[i].push_back({row, score});
        }
      }
    });
  }
  size_t lost = 0, asked = 0;
  const double one = 1;
  for (size_t row = 0; row < b->base.n; row += std::max<size_t>(1, b->base.n / 20000)) {
    Rows found(1);
    Must(b->graph->Search(b->view, b->view.row(row), 1, &one, 1, {}, &found, &stats));
    lost += std::none_of(found[0].begin(), found[0].end(), [&](const ScoredRow& r) { return r.row == row; });
    ++asked;
  }
  Number("names asked for by their own vector", static_cast<double>(asked));
  Number("names not found by their own vector", static_cast<double>(lost));
  Number("rows that graph searches scan besides", static_cast<double>(b->graph->missed()));
}

void Reference(Bench* b) {
  hnswlib::InnerProductSpace space(b->dim);
  const std::string path = b->folder + "/reference.hnsw";
  if (!MarkOf(path).exists()) {
    hnswlib::HierarchicalNSW<float> index(&space, b->base.n, 16, 200);
    const double start = Wall();
    index.addPoint(b->base.data, 0);
    Must(RunChunks(b->base.n - 1, static_cast<size_t>(b->threads - 1), {}, [&](size_t, uint64_t i) {
      index.addPoint(b->base.data + (i + 1) * b->dim, i + 1);
      return Status::Ok();
    }));
    Number("reference, building, seconds", Wall() - start);
    index.saveIndex(path);
  }
  double start = Wall();
  hnswlib::HierarchicalNSW<float> index(&space, path);
  Number("hnswlib's loadIndex, seconds", Wall() - start);
  index.setEf(300);
  for (size_t t = 0; t < b->taus.size(); ++t) {
    const double tau = b->taus[t];
    Report(*b, "reference kNN-300, one query", t, [&](Rows* found) {
      for (size_t i = 0; i < b->queries.n; ++i) {
        auto best = index.searchKnn(b->query(i), std::min<size_t>(300, b->base.n));
        for (; !best.empty(); best.pop()) {
          const double score = 1 - static_cast<double>(best.top().first);
          if (score >= tau - kScoreSlack) (*found)[i].push_back({best.top().second, score});
        }
      }
    });
    for (size_t least : {300, 2000}) {
      char what[64];
      std::snprintf(what, sizeof what, "hnswlib EpsilonSearch min %zu, one query", least);
      Report(*b, what, t, [&](Rows* found) {
        for (size_t i = 0; i < b->queries.n; ++i) {
          hnswlib::EpsilonSearchStopCondition<float> stop(static_cast<float>(1 - tau + kScoreSlack), least, b->base.n);
          for (const auto& [distance, row] : index.searchStopConditionClosest(b->query(i), stop))
            if (1 - static_cast<double>(distance) >= tau - kScoreSlack)
              (*found)[i].push_back({row, 1 - static_cast<double>(distance)});
        }
      });
    }
  }
}

// Kilobytes of this process's share of the mappings whose file is below `folder`.
double SharedKb(const std::string& folder) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool ours = false;
  double kb = 0;
  while (std::getline(maps, line)) {
    if (line.find('/') != std::string::npos && line.find('-') < line.find(' ')) ours = line.find(folder) != std::string::npos;
    if (ours && line.compare(0, 4, "Pss:") == 0) kb += std::strtod(line.c_str() + 4, nullptr);
  }
  return kb;
}

// How much of the index one process takes, and each of two at once.
void Share(const Bench& b, const DerivedStamp& stamp) {
  int ready[2], go[2], told[2];
  if (::pipe(ready) != 0 || ::pipe(go) != 0 || ::pipe(told) != 0) return;
  const auto child = [&] {
    auto codes = SealedCodes::Open(b.folder + "/index/bench.codes", stamp);
    Rows found(b.queries.n);
    ScanStats stats;
    const std::vector<double> taus(b.queries.n, 0.7);
    Must((*codes)->WithinThreshold(b.view, b.queries.data, b.queries.n, taus.data(), 1, 1, {}, &found, &stats));
    char c = 0;
    (void)!::write(ready[1], &c, 1);
    (void)!::read(go[0], &c, 1);
    const double kb = SharedKb("bench.codes");
    (void)!::write(told[1], &kb, sizeof kb);
    for (;;) ::pause();  // the others look at their share meanwhile
  };
  for (int processes : {1, 2}) {
    std::vector<pid_t> pids;
    char c = 0;
    double kb = 0;
    for (int i = 0; i < processes; ++i) {
      const pid_t pid = ::fork();
      if (pid == 0) child();
      pids.push_back(pid);
      (void)!::read(ready[0], &c, 1);
    }
    for (int i = 0; i < processes; ++i) (void)!::write(go[1], &c, 1);
    for (int i = 0; i < processes; ++i) (void)!::read(told[0], &kb, sizeof kb);
    for (pid_t pid : pids) ::kill(pid, SIGKILL);
    for (pid_t pid : pids) ::waitpid(pid, nullptr, 0);
    Number(processes == 1 ? "resident index of one process, MiB" : "resident index of each of two, MiB", kb / 1024);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr, "usage: search_bench BASE QUERIES DIM FOLDER TAUS [THREADS] [graph] [reference]\n");
    return 2;
  }
  Bench b;
  b.dim = static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10));
  b.base = Map(argv[1], b.dim);
  b.queries = Map(argv[2], b.dim);
  b.folder = argv[4];
  for (const char* p = argv[5]; *p != '\0';) {
    char* end;
    b.taus.push_back(std::strtod(p, &end));
    p = *end == ',' ? end + 1 : end;
  }
  b.threads = argc > 6 ? std::atoi(argv[6]) : 1;
  const std::set<std::string> wanted(argv + std::min(argc, 7), argv + argc);
  b.view.base = reinterpret_cast<const uint8_t*>(b.base.data);
  b.view.stride = b.dim * sizeof(float);
  b.view.dim = b.dim;
  b.view.rows = b.base.n;
  DerivedStamp stamp;
  stamp.dim = b.dim;
  stamp.vector_file = 1;
  Must(MakeDir(b.folder));
  const std::string path = b.folder + "/index/bench";
  double start = Wall();
  if (!MarkOf(path + ".codes").exists()) {
    Must(SealCodes(b.view, path + ".codes", stamp, b.threads, {}, {}));
    Number("sealing, seconds", Wall() - start);
  }
  Share(b, stamp);  // before this process has a share
  start = Wall();
  auto codes = SealedCodes::Open(path + ".codes", stamp);
  Must(codes.status());
  b.codes = *codes;
  Number("opening the codes, seconds", Wall() - start);
  Number("clusters", b.codes->meta().clusters);
  Number("bits of the first stage", b.codes->meta().bits1);
  Number("bits of the second stage", b.codes->meta().bits2);
  std::printf("{\"what\": \"kernel\", \"name\": \"%s\"}\n", KernelName());
  const double stages = static_cast<double>(StageBytes(b.codes->meta().bits1) + StageBytes(b.codes->meta().bits2)) / 16;
  Number("bytes a vector of the stages", stages);
  Number("bytes a vector that every query may touch", b.codes->meta().groups / static_cast<double>(b.base.n) * (16 * stages + 4));
  Number("one pass over 18 bytes a vector, ms", Pass(b) * 1e3);
  Exact(&b);
  if (wanted.count("graph")) {
    start = Wall();
    if (!MarkOf(path + ".graph").exists()) {
      Must(BuildGraph(b.view, b.codes, path + ".graph", stamp, b.threads, {}, {}));
      Number("building the graph, seconds", Wall() - start);
    }
    start = Wall();
    auto graph = Graph::Open(path + ".graph", stamp, b.codes);
    Must(graph.status());
    b.graph = *graph;
    Number("opening the graph, seconds", Wall() - start);
    Approximate(&b);
  }
  if (wanted.count("reference")) Reference(&b);
  return 0;
}
