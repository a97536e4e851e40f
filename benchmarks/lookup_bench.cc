// Latencies of the core's lookups in a store that exists, in C++ and by id: what scale.py reports.
//
//   lookup_bench STORE [LOOKUPS]
//
// Prints "name mean_us p99_us" lines, warm: each lookup is done once before it is timed.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#include "file_util.h"
#include "name_table.h"
#include "triple_table.h"

using namespace pymemstore;

namespace {

double Microseconds(const std::function<void()>& fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

void Report(const char* name, std::vector<double> times) {
  std::sort(times.begin(), times.end());
  double sum = 0;
  for (double t : times) sum += t;
  std::printf("%s %.3f %.3f\n", name, sum / static_cast<double>(times.size()), times[times.size() * 99 / 100]);
}

int Fail(const Status& status) {
  std::fprintf(stderr, "%s\n", status.message().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: lookup_bench STORE [LOOKUPS]\n");
    return 2;
  }
  const std::string path = argv[1];
  const size_t lookups = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 20000;
  auto current = ReadSmallFile(path + "/CURRENT");
  if (!current.ok()) return Fail(current.status());
  current->pop_back();
  EnvOptions options;
  options.read_only = true;
  auto env = Env::Open(path + "/" + *current, options);
  if (!env.ok()) return Fail(env.status());
  auto txn = Txn::Begin(env->get(), false);
  if (!txn.ok()) return Fail(txn.status());
  Txn* t = txn->get();
  Bytes value;
  Counters counters;
  StoreId id{};
  if (!t->Get(Table::kMeta, "counters", &value) || !DecodeCounters(value, &counters)) return Fail(t->status());
  if (!t->Get(Table::kMeta, "store_id", &value)) return Fail(t->status());
  std::copy(value.begin(), value.end(), id.begin());
  const NameTable names(Kind::kEntity, id);

  // Facts drawn at random: a hub is met as often as it is in facts.
  std::mt19937_64 rng(1);
  std::vector<TripleIds> facts;
  while (facts.size() < lookups) {
    TripleIds fact;
    if (TripleTable::Lookup(t, 1 + rng() % (counters.next_triple - 1), &fact)) facts.push_back(fact);
  }
  std::vector<std::string> texts;
  for (const TripleIds& fact : facts) {
    NameRecord record;
    if (!names.Get(t, fact.s, &record)) return Fail(t->status());
    texts.emplace_back(record.name);
  }
  volatile uint64_t sink = 0;
  auto run = [&](const char* name, const std::function<void(size_t)>& lookup) {
    std::vector<double> times(lookups);
    for (size_t i = 0; i < lookups; ++i) lookup(i);
    for (size_t i = 0; i < lookups; ++i) times[i] = Microseconds([&] { lookup(i); });
    Report(name, std::move(times));
  };
  run("s_r_any", [&](size_t i) {
    TripleTable::Scan(t, false, facts[i].s, {{facts[i].r, 1, Match::kExact}}, [&](const StoredTriple& f, const auto&) {
      sink = sink + f.ids.o;
      return true;
    });
  });
  run("any_r_o_cap_30", [&](size_t i) {
    int left = 30;
    TripleTable::Scan(t, true, facts[i].o, {{facts[i].r, 1, Match::kExact}}, [&](const StoredTriple& f, const auto&) {
      sink = sink + f.ids.s;
      return --left > 0;
    });
  });
  run("contains", [&](size_t i) { sink = sink + TripleTable::Find(t, facts[i]); });
  run("id_to_name", [&](size_t i) {
    NameRecord record;
    sink = sink + names.Get(t, facts[i].o, &record);
  });
  run("name_to_id", [&](size_t i) {
    NameId found = 0;
    sink = sink + names.Find(t, texts[i], &found) + found;
  });
  return t->ok() ? 0 : Fail(t->status());
}
