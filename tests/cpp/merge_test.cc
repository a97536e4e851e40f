// The sealed base beside the delta: a store that is merged at any time holds what plain containers hold.
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "check.h"
#include "pymemstore/store.h"

using namespace pymemstore;
using pymemstore::test::TempDir;

namespace {

constexpr uint32_t kDim = 8;

Options TestOptions() {
  Options options;
  for (size_t k = 0; k < kKinds; ++k) options.stamps[k] = EmbedderStamp{"test", kDim, "1"};
  options.sync = Sync::kRelaxed;
  options.threads = 1;
  return options;
}

std::unique_ptr<Store> Open(const std::string& path) {
  auto store = Store::Open(path, TestOptions());
  CHECK_OK(store.status());
  return std::move(*store);
}

std::vector<float> VectorOf(const std::string& name, int version) {
  std::mt19937_64 rng(std::hash<std::string>()(name) + static_cast<uint64_t>(version));
  std::vector<float> v(kDim), unit(kDim);
  for (float& x : v) x = static_cast<float>(static_cast<int64_t>(rng() >> 40)) - 8e6f;
  CHECK(NormaliseVector(v.data(), kDim, unit.data()));
  return unit;
}

using Fact = std::tuple<std::string, std::string, std::string>;

// What the store must hold, and random operations on both.
class Twin {
 public:
  Twin(Store* store, uint64_t seed) : store_(store), rng_(seed) {}

  void Step() {
    Batch batch;
    batch.dim[0] = batch.dim[1] = kDim;
    switch (Pick(12)) {
      case 0: case 1: case 2: case 3: case 4: {
        Op& op = batch.Add(OpType::kAdd);
        std::vector<Slice> names;
        std::vector<Fact> facts;
        for (size_t n = 1 + Pick(20); n; --n) {
          const Fact f{Entity(), "r" + std::to_string(Pick(5)), Entity()};
          for (const std::string& part : {std::get<0>(f), std::get<1>(f), std::get<2>(f)}) names.push_back(batch.Intern(part));
          // Some names get their vectors later.
          if (Pick(4)) batch.Supply(Kind::kEntity, std::get<0>(f), VectorOf(std::get<0>(f), 0).data(), kDim);
          facts.push_back(f);
        }
        op.names = std::move(names);
        const ApplyResult result = Apply(batch);
        for (size_t i = 0; i < facts.size(); ++i) {
          const auto [at, inserted] = facts_.emplace(facts[i], result.ops[0].ids[i]);
          CHECK_EQ(inserted, result.ops[0].inserted[i] != 0);
          CHECK_EQ(at->second, result.ops[0].ids[i]);
          if (inserted) CHECK(ever_.emplace(at->second, facts[i]).second);  // a new id each time
          entities_.insert(std::get<0>(facts[i]));
          entities_.insert(std::get<2>(facts[i]));
        }
        break;
      }
      case 5: case 6: {
        if (facts_.empty()) break;
        const auto at = Any(facts_);
        std::vector<Slice> names;
        for (const std::string& part : {std::get<0>(at->first), std::get<1>(at->first), std::get<2>(at->first)})
          names.push_back(batch.Intern(part));
        batch.Add(OpType::kRemove).names = names;
        CHECK(Apply(batch).ops[0].flag);
        facts_.erase(at);
        break;
      }
      case 7: {
        if (facts_.empty()) break;
        const Fact f = Any(facts_)->first;
        const Fact wanted{std::get<0>(f), std::get<1>(f), Entity()};
        std::vector<Slice> names;
        for (const std::string& part : {std::get<0>(wanted), std::get<1>(wanted), std::get<2>(wanted)})
          names.push_back(batch.Intern(part));
        batch.Add(OpType::kReplace).names = names;
        const ApplyResult result = Apply(batch);
        size_t gone = 0;
        for (auto it = facts_.begin(); it != facts_.end();) {
          const bool displaced = std::get<0>(it->first) == std::get<0>(f) && std::get<1>(it->first) == std::get<1>(f) &&
                                 std::get<2>(it->first) != std::get<2>(wanted);
          gone += displaced;
          it = displaced ? facts_.erase(it) : std::next(it);
        }
        CHECK_EQ(result.ops[0].removed.size(), gone);
        if (facts_.emplace(wanted, result.ops[0].ids[0]).second) ever_.emplace(result.ops[0].ids[0], wanted);
        entities_.insert(std::get<2>(wanted));
        break;
      }
      case 8: {
        if (entities_.empty() || Pick(3)) break;
        const std::string name = *Any(entities_);
        batch.Add(OpType::kForget).names = {batch.Intern(name)};
        Apply(batch);
        entities_.erase(name);
        aliases_.erase(name);
        vectors_.erase(name);  // who comes back under the name has none of its own
        for (auto it = facts_.begin(); it != facts_.end();)
          it = std::get<0>(it->first) == name || std::get<2>(it->first) == name ? facts_.erase(it) : std::next(it);
        break;
      }
      case 9: {
        if (entities_.empty()) break;
        const std::string name = *Any(entities_), to = "renamed " + std::to_string(Pick(100000));
        if (entities_.count(to)) break;
        batch.Add(OpType::kRename).names = {batch.Intern(name), batch.Intern(to)};
        Apply(batch);
        Rename(name, to);
        break;
      }
      case 10: {
        if (entities_.empty()) break;
        const std::string name = *Any(entities_), alias = "alias " + std::to_string(Pick(30));
        batch.Add(OpType::kAlias).names = {batch.Intern(alias), batch.Intern(name)};
        CHECK_EQ(Apply(batch).ops[0].flag, aliases_[name].insert(alias).second);
        break;
      }
      default: {
        if (entities_.empty()) break;
        const std::string name = *Any(entities_);
        Op& op = batch.Add(OpType::kSetVectors);
        op.names = {batch.Intern(name)};
        op.vectors = VectorOf(name, static_cast<int>(Pick(100)));
        vectors_[name] = op.vectors;
        Apply(batch);
      }
    }
  }

  void Compare() {
    const CheckReport report = *store_->Check();
    for (const std::string& problem : report.problems) std::fprintf(stderr, "%s\n", problem.c_str());
    CHECK_EQ(report.problem_count, 0u);
    std::map<Fact, TripleId> found;
    std::string cursor;
    do {
      auto page = store_->Triples({}, {}, {}, &cursor, 100);
      CHECK_OK(page.status());
      for (const Triple& t : *page) CHECK(found.emplace(Fact{t.subject, t.relation, t.object}, t.id).second);
    } while (!cursor.empty());
    CHECK(found == facts_);
    const Stats stats = *store_->GetStats();
    CHECK_EQ(stats.triples, facts_.size());
    CHECK_EQ(stats.names[0], entities_.size());
    std::set<std::string> names;
    auto listed = store_->Names(Kind::kEntity, 0, 1000000);
    CHECK_OK(listed.status());
    for (const auto& [id, name] : *listed) CHECK(names.insert(name).second);
    CHECK(names == entities_);
    std::map<std::string, size_t> by_object;
    for (const auto& [fact, id] : facts_) ++by_object[std::get<2>(fact)];
    for (const std::string& name : entities_) {
      size_t rows = 0;
      cursor.clear();
      do {
        auto page = store_->Triples({}, {}, name, &cursor, 7);
        CHECK_OK(page.status());
        TripleId last = 0;
        std::string relation;
        for (const Triple& t : *page) {
          if (t.relation == relation) CHECK(t.id > last);  // the order that a limit relies on
          relation = t.relation;
          last = t.id;
          CHECK_EQ(facts_.at({t.subject, t.relation, t.object}), t.id);
          ++rows;
        }
      } while (!cursor.empty());
      CHECK_EQ(rows, by_object[name]);
      auto aliases = store_->Aliases(Kind::kEntity, name);
      CHECK_OK(aliases.status());
      CHECK(std::set<std::string>(aliases->begin(), aliases->end()) == aliases_[name]);
    }
    for (const auto& [name, vector] : vectors_) {
      if (!entities_.count(name)) continue;
      auto stored = store_->Vector(Kind::kEntity, name);
      CHECK_OK(stored.status());
      CHECK(*stored == vector);
    }
    for (const auto& [id, fact] : ever_) {
      auto t = store_->GetTriple(id);
      const auto live = facts_.find(Now(fact));
      if (live != facts_.end() && live->second == id) {
        CHECK_OK(t.status());
      } else {
        CHECK(t.status().code() == Code::kNotFound);
      }
    }
    // The edit log replays into what is there.
    std::set<TripleId> replayed;
    uint64_t since = 0;
    for (;;) {
      auto changes = store_->Changes(since, 500);
      CHECK_OK(changes.status());
      if (changes->empty()) break;
      for (const Change& change : *changes) {
        CHECK_EQ(change.seq, ++since);
        if (change.type == ChangeType::kAdd || change.type == ChangeType::kReplace) replayed.insert(change.triple->id);
        if (change.type == ChangeType::kRemove) replayed.erase(change.triple->id);
        for (const Triple& t : change.removed) replayed.erase(t.id);
      }
    }
    std::set<TripleId> live;
    for (const auto& [fact, id] : facts_) live.insert(id);
    CHECK(replayed == live);
  }

 private:
  size_t Pick(size_t n) { return rng_() % n; }
  std::string Entity() {
    if (entities_.size() > 20 && Pick(3)) return *Any(entities_);
    return "e" + std::to_string(Pick(400));
  }
  template <typename C>
  typename C::iterator Any(C& container) {
    auto it = container.begin();
    std::advance(it, static_cast<long>(Pick(container.size())));
    return it;
  }
  Fact Now(Fact fact) const { return fact; }
  ApplyResult Apply(const Batch& batch) {
    auto result = store_->Apply(batch);
    CHECK_OK(result.status());
    return std::move(*result);
  }
  void Rename(const std::string& from, const std::string& to) {
    entities_.erase(from);
    entities_.insert(to);
    aliases_[to] = aliases_[from];
    aliases_.erase(from);
    if (vectors_.count(from)) {
      vectors_[to] = vectors_[from];
      vectors_.erase(from);
    }
    auto renamed = [&](const Fact& fact) {
      auto [s, r, o] = fact;
      if (s == from) s = to;
      if (o == from) o = to;
      return Fact{s, r, o};
    };
    std::map<Fact, TripleId> facts;
    for (const auto& [fact, id] : facts_) facts.emplace(renamed(fact), id);
    facts_ = std::move(facts);
    for (auto& [id, fact] : ever_) fact = renamed(fact);
  }

  Store* store_;
  std::mt19937_64 rng_;
  std::map<Fact, TripleId> facts_;
  std::map<TripleId, Fact> ever_;
  std::set<std::string> entities_;
  std::map<std::string, std::set<std::string>> aliases_;
  std::map<std::string, std::vector<float>> vectors_;
};

}  // namespace

TEST(MergedAtAnyTimeAStoreEqualsPlainContainers) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    TempDir dir;
    auto store = Open(dir / "s");
    Twin twin(store.get(), seed);
    for (int round = 0; round < 5; ++round) {
      for (int i = 0; i < 60; ++i) twin.Step();
      if (round == 2) twin.Compare();  // base and delta together
      CHECK_OK(store->Compact().status());
      twin.Compare();
    }
    for (int i = 0; i < 40; ++i) twin.Step();
    twin.Compare();
    store.reset();
    store = Open(dir / "s");
    CHECK_EQ((*store->Check()).problem_count, 0u);
  }
}

TEST(WritesDuringAMergeAreTakenOver) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    TempDir dir;
    auto store = Open(dir / "s");
    Twin twin(store.get(), 100 + seed);
    for (int i = 0; i < 200; ++i) twin.Step();
    std::atomic<int> merges{0};
    std::atomic<bool> failed{false};
    std::thread merger([&] {
      while (merges < 4 && !failed) {
        if (!store->Compact().status().ok()) failed = true;
        ++merges;
      }
    });
    size_t steps = 0;
    for (; merges < 4 && !failed; ++steps) twin.Step();
    merger.join();
    CHECK(!failed);
    CHECK(steps > 0);
    twin.Compare();
    CHECK_EQ((*store->GetStats()).generation, 5u);
  }
}

TEST(AMergeThatIsStoppedLeavesTheStoreAsItWas) {
  TempDir dir;
  auto store = Open(dir / "s");
  Twin twin(store.get(), 7);
  for (int i = 0; i < 150; ++i) twin.Step();
  CHECK_OK(store->Compact().status());
  for (int i = 0; i < 50; ++i) twin.Step();
  // At each point at which it asks.
  for (int stop = 0;; ++stop) {
    int asked = 0;
    const Status status = store->Compact({}, [&] { return asked++ == stop; }).status();
    if (status.ok()) break;
    CHECK(status.code() == Code::kInterrupted);
    CHECK(!std::filesystem::exists(dir / "s/gen-000003"));
    twin.Step();
    CHECK(stop < 100);
  }
  twin.Compare();
}

TEST(TheDeltaIsMergedInTheBackgroundWhenItHasGrown) {
  TempDir dir;
  Options options = TestOptions();
  options.merge_rows = 300;
  {
    auto opened = Store::Open(dir / "s", options);
    CHECK_OK(opened.status());
    auto& store = *opened;
    Twin twin(store.get(), 11);
    uint32_t generation = 1;
    for (int i = 0; generation < 4 && i < 20000; ++i) {
      twin.Step();
      generation = (*store->GetStats()).generation;
    }
    CHECK_EQ(generation, 4u);
    for (int i = 0; i < 500; ++i) twin.Step();
    CHECK_EQ((*store->GetStats()).merge_error, std::string());
    twin.Compare();
    for (int i = 0; i < 500; ++i) twin.Step();  // closed while it merges, perhaps
  }
  CHECK_EQ((*Open(dir / "s")->Check()).problem_count, 0u);
}

TEST(OldGenerationsGoWhenNobodyReadsThem) {
  TempDir dir;
  auto store = Open(dir / "s");
  Twin twin(store.get(), 9);
  for (int i = 0; i < 50; ++i) twin.Step();
  for (int i = 0; i < 3; ++i) CHECK_OK(store->Compact().status());
  CHECK(!std::filesystem::exists(dir / "s/gen-000001"));
  CHECK(!std::filesystem::exists(dir / "s/gen-000003"));
  CHECK(std::filesystem::exists(dir / "s/gen-000004"));
  twin.Compare();
}
