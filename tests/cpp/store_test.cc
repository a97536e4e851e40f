#include "pymemstore/store.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "check.h"

using namespace pymemstore;
using pymemstore::test::TempDir;

namespace {

constexpr uint32_t kDim = 16;

Options TestOptions() {
  Options options;
  for (size_t k = 0; k < kKinds; ++k) options.stamps[k] = EmbedderStamp{"test", kDim, "1"};
  options.sync = Sync::kRelaxed;  // what is tested here is not the disk
  options.threads = 1;
  return options;
}

std::unique_ptr<Store> Open(const std::string& path, Options options = TestOptions()) {
  auto store = Store::Open(path, options);
  CHECK_OK(store.status());
  return std::move(*store);
}

std::vector<float> VectorOf(uint64_t seed) {
  std::vector<float> v(kDim), unit(kDim);
  for (float& x : v) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    x = static_cast<float>(static_cast<int64_t>(seed >> 33) - (1ll << 30));
  }
  CHECK(NormaliseVector(v.data(), kDim, unit.data()));
  return unit;
}

void AddFact(Batch* batch, const std::string& s, const std::string& r, const std::string& o) {
  batch->dim[0] = batch->dim[1] = kDim;
  const std::hash<std::string> hash;
  for (const std::string& name : {s, o}) batch->Supply(Kind::kEntity, name, VectorOf(hash(name)).data(), kDim);
  batch->Supply(Kind::kRelation, r, VectorOf(hash(r)).data(), kDim);
  std::vector<Slice> names = {batch->Intern(s), batch->Intern(r), batch->Intern(o)};
  batch->Add(OpType::kAdd).names = names;
}

void AddOne(Store* store, const std::string& s, const std::string& r, const std::string& o) {
  Batch batch;
  AddFact(&batch, s, r, o);
  CHECK_OK(store->Apply(batch).status());
}

Query Ask(const std::string& s, const std::string& r) {
  Query q;
  q.entity_text = s;
  q.relation_text = r;
  q.entity_vector = VectorOf(std::hash<std::string>()(s));
  q.relation_vector = VectorOf(std::hash<std::string>()(r));
  q.tau_e = q.tau_t = q.tau_r = 0.99;
  return q;
}

// The files that were synced, by name, in order: this fsync stands before libc's in a test's executable.
std::mutex g_synced_mutex;
std::vector<std::string> g_synced;

size_t Hits(Store* store, const std::string& s, const std::string& r) {
  NameMap names;
  auto results = store->RunQueries({Ask(s, r)}, &names);
  CHECK_OK(results.status());
  return (*results)[0].hits.size();
}

// A child process opens the store and keeps it open while `parent` runs here; then `child` runs there, on the
// handle from before, and must be true.
template <typename Child, typename Parent>
void WithHandleInAnotherProcess(const std::string& path, Child child, Parent parent) {
  int to_child[2], to_parent[2];
  CHECK_EQ(::pipe(to_child), 0);
  CHECK_EQ(::pipe(to_parent), 0);
  const pid_t pid = ::fork();
  char c = 0;
  if (pid == 0) {
    ::alarm(60);
    auto store = Store::Open(path, TestOptions());
    (void)!::write(to_parent[1], "o", 1);
    (void)!::read(to_child[0], &c, 1);
    (void)!::write(to_parent[1], store.ok() && child(store->get()) ? "g" : "b", 1);
    ::_exit(0);
  }
  CHECK_EQ(::read(to_parent[0], &c, 1), 1);
  parent();
  CHECK_EQ(::write(to_child[1], "x", 1), 1);
  CHECK_EQ(::read(to_parent[0], &c, 1), 1);
  CHECK_EQ(c, 'g');
  ::waitpid(pid, nullptr, 0);
}

void NoteSync(int fd) {
  char path[4096];
  const ssize_t n = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path);
  if (n > 0) {
    std::lock_guard<std::mutex> lock(g_synced_mutex);
    g_synced.emplace_back(path, static_cast<size_t>(n));
  }
}

}  // namespace

extern "C" int fsync(int fd) {
  NoteSync(fd);
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

extern "C" int fdatasync(int fd) {
  NoteSync(fd);
  return static_cast<int>(::syscall(SYS_fdatasync, fd));
}

TEST(AFailedBatchLeavesNothing) {
  TempDir dir;
  auto store = Open(dir / "s");
  AddOne(store.get(), "a", "r", "b");
  Batch batch;
  AddFact(&batch, "c", "r", "d");
  Op& bad = batch.Add(OpType::kForget);
  bad.names = {batch.Intern("nobody")};
  CHECK(store->Apply(batch).status().code() == Code::kNotFound);
  auto stats = store->GetStats();
  CHECK_EQ(stats->names[0], 2u);
  CHECK_EQ(stats->triples, 1u);
  CHECK_EQ(stats->vector_rows[0], 2u);
  AddOne(store.get(), "c", "r", "d");
  CHECK_EQ(Hits(store.get(), "c", "r"), 1u);
  auto report = store->Check();
  CHECK_EQ(report->problems, std::vector<std::string>());
}

TEST(AnInterruptedBatchLeavesNothing) {
  TempDir dir;
  auto store = Open(dir / "s");
  Batch batch;
  for (int i = 0; i < 5000; ++i) AddFact(&batch, "a" + std::to_string(i), "r", "b");
  int polls = 0;
  CHECK(store->Apply(batch, [&] { return false; }).ok());
  CHECK(store->Apply(batch, [&] { ++polls; return false; }).ok());
  Batch more;
  for (int i = 0; i < 5000; ++i) AddFact(&more, "x" + std::to_string(i), "r", "b");
  // Every op is a batch entry of one triple here, so the work counter sees 5,000.
  CHECK(store->Apply(more, [] { return true; }).status().code() == Code::kInterrupted);
  CHECK_EQ(store->GetStats()->triples, 5000u);
  CHECK_EQ(Hits(store.get(), "x1", "r"), 0u);
  CHECK(polls > 0);
}

TEST(ABatchOutlivesAFullMap) {
  TempDir dir;
  Options options = TestOptions();
  options.map_size = 1 << 20;
  auto store = Open(dir / "s", options);
  CHECK_EQ(store->GetStats()->map_size, 1u << 20);
  Batch batch;
  for (int i = 0; i < 20000; ++i) AddFact(&batch, "s" + std::to_string(i), "r", "o" + std::to_string(i % 7));
  auto result = store->Apply(batch);
  CHECK_OK(result.status());
  CHECK_EQ(result->new_names[0], 20007u);
  auto stats = store->GetStats();
  CHECK_EQ(stats->triples, 20000u);
  CHECK_EQ(stats->vector_rows[0], 20007u);
  CHECK(stats->map_size > 1u << 20);
}

TEST(TwoHandlesShareOneStore) {
  TempDir dir;
  auto a = Open(dir / "s");
  std::filesystem::create_symlink(dir / "s", dir / "link");
  auto b = Open(dir / "link/");
  auto c = Open(dir.path() + "/../" + std::filesystem::path(dir.path()).filename().string() + "/s");
  AddOne(a.get(), "a", "r", "b");
  CHECK_EQ(Hits(b.get(), "a", "r"), 1u);
  b->Close();
  b->Close();
  CHECK(b->Find("a", "r", "b").status().code() == Code::kClosed);
  AddOne(c.get(), "c", "r", "d");
  a->Close();
  CHECK_EQ(Hits(c.get(), "c", "r"), 1u);
  c->Close();
  // The last close lets go of everything: read-only now, where a shared store would refuse the mix.
  Options read_only = TestOptions();
  read_only.read_only = true;
  auto d = Open(dir / "s", read_only);
  CHECK_EQ(Hits(d.get(), "a", "r"), 1u);
  Batch batch;
  AddFact(&batch, "x", "r", "y");
  CHECK(d->Apply(batch).status().code() == Code::kReadOnly);
  CHECK(Store::Open(dir / "s", TestOptions()).status().code() == Code::kInvalidArgument);
}

// Readers, a writer and compactions at once; also the race detector's test.
TEST(ReadersWriterAndCompactionTogether) {
  TempDir dir;
  Options options = TestOptions();
  options.map_size = 1 << 20;  // so that the map grows under the readers
  auto store = Open(dir / "s", options);
  AddOne(store.get(), "s0", "r", "o");
  std::atomic<int> acknowledged{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; !stop; ++i) {
        const int known = acknowledged;
        const std::string name = "s" + std::to_string((i * 7 + t) % (known + 1));
        CHECK_EQ(Hits(store.get(), name, "r"), 1u);  // acknowledged before the query: it must be there
        if (i % 50 == 0) {
          std::string cursor;
          CHECK_OK(store->Triples(std::nullopt, std::nullopt, std::string("o"), &cursor, 100).status());
        }
      }
    });
  threads.emplace_back([&] {
    while (!stop) CHECK_OK(store->Compact().status());
  });
  for (int i = 1; i <= 400; ++i) {
    AddOne(store.get(), "s" + std::to_string(i), "r", "o");
    acknowledged = i;
    if (i % 20 == 0) {
      Batch batch;
      batch.dim[0] = kDim;
      std::vector<float> v = VectorOf(std::hash<std::string>()("s" + std::to_string(i)));
      std::vector<Slice> names = {batch.Intern("s" + std::to_string(i))};
      Op& op = batch.Add(OpType::kSetVectors);
      op.names = names;
      op.vectors = v;
      CHECK_OK(store->Apply(batch).status());
    }
  }
  stop = true;
  for (auto& t : threads) t.join();
  CHECK_OK(store->Compact().status());
  auto stats = store->GetStats();
  CHECK_EQ(stats->triples, 401u);
  CHECK_EQ(stats->vector_rows[0], 402u);  // compaction drops the replaced ones
  CHECK(stats->generation > 1);
  CHECK_EQ(store->Check()->problems, std::vector<std::string>());
  // Old generations are gone.
  size_t generations = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "s"))
    generations += entry.path().filename().string().rfind("gen-", 0) == 0;
  CHECK_EQ(generations, 1u);
}

TEST(OtherProcessesFollowACompaction) {
  TempDir dir;
  const std::string path = dir / "s";
  { AddOne(Open(path).get(), "a", "r", "b"); }
  std::unique_ptr<Store> store;
  WithHandleInAnotherProcess(
      path,
      [](Store* theirs) {
        Batch batch;
        AddFact(&batch, "e", "r", "f");
        return Hits(theirs, "c", "r") == 1 && theirs->Apply(batch).ok();
      },
      [&] {
        store = Open(path);
        CHECK_OK(store->Compact().status());
        AddOne(store.get(), "c", "r", "d");
        CHECK_OK(store->Compact().status());
      });
  CHECK_EQ(Hits(store.get(), "e", "r"), 1u);
}

TEST(ACompactionCutShortIsFinishedOrForgotten) {
  TempDir dir;
  const std::string path = dir / "s";
  { AddOne(Open(path).get(), "a", "r", "b"); }
  for (int round = 0; round < 40; ++round) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      auto store = Store::Open(path, TestOptions());
      for (int i = 0; store.ok() && i < 1000; ++i) {
        Batch batch;
        AddFact(&batch, "s" + std::to_string(round) + "-" + std::to_string(i), "r", "o");
        if (!(*store)->Apply(batch).ok() || !(*store)->Compact().ok()) ::_exit(1);
      }
      ::_exit(2);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5 + 3 * round));
    ::kill(pid, SIGKILL);
    int status = 0;
    ::waitpid(pid, &status, 0);
    CHECK(WIFSIGNALED(status));
    auto store = Open(path);
    CHECK_EQ(store->Check()->problems, std::vector<std::string>());
    CHECK_EQ(Hits(store.get(), "a", "r"), 1u);
    AddOne(store.get(), "after", "r", "b" + std::to_string(round));
  }
  CHECK_EQ(Hits(Open(path).get(), "after", "r"), 40u);
}

TEST(AWaitingWriterNamesTheHolder) {
  TempDir dir;
  const std::string path = dir / "s";
  { AddOne(Open(path).get(), "a", "r", "b"); }
  int ready[2];
  CHECK_EQ(::pipe(ready), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    auto store = Store::Open(path, TestOptions());
    Batch batch;
    for (int i = 0; i < 5000; ++i) AddFact(&batch, "s" + std::to_string(i), "r", "o");
    bool told = false;
    (void)(*store)->Apply(batch, [&] {
      if (!told) (void)!::write(ready[1], "r", 1);
      told = true;
      ::alarm(30);
      ::pause();  // holds the lock until it is killed
      return false;
    });
    ::_exit(0);
  }
  char c = 0;
  CHECK_EQ(::read(ready[0], &c, 1), 1);
  Options options = TestOptions();
  options.timeout_s = 0.1;
  auto store = Open(path, options);
  Batch batch;
  AddFact(&batch, "x", "r", "y");
  const Status status = store->Apply(batch).status();
  CHECK(status.code() == Code::kLocked);
  CHECK(status.message().find("process " + std::to_string(pid)) != std::string::npos);
  CHECK_EQ(Hits(store.get(), "a", "r"), 1u);  // readers don't wait
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  CHECK_OK(store->Apply(batch).status());  // the lock went with its holder
  CHECK_EQ(Hits(store.get(), "s1", "r"), 0u);
}

TEST(AForkedChildIsToldToOpenAgain) {
  TempDir dir;
  auto store = Open(dir / "s");
  AddOne(store.get(), "a", "r", "b");
  const pid_t pid = ::fork();
  if (pid == 0) {
    bool good = store->Find("a", "r", "b").status().code() == Code::kClosed;
    auto again = Store::Open(dir / "s", TestOptions());
    good = good && again.ok() && Hits(again->get(), "a", "r") == 1;
    if (good) {
      Batch batch;
      AddFact(&batch, "c", "r", "d");
      good = (*again)->Apply(batch).ok();
    }
    store.reset();  // the parent's handle, closed in the child
    ::_exit(good ? 7 : 1);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK_EQ(WEXITSTATUS(status), 7);
  CHECK_EQ(Hits(store.get(), "c", "r"), 1u);
  AddOne(store.get(), "e", "r", "f");
  CHECK_EQ(Hits(store.get(), "e", "r"), 1u);
}

TEST(FoldersThatAreNotStoresAreLeftAlone) {
  TempDir dir;
  std::filesystem::create_directory(dir / "other");
  { std::filesystem::create_directory(dir / "other/photos"); }
  CHECK(Store::Open(dir / "other", TestOptions()).status().code() == Code::kCorruption);
  CHECK_EQ(std::distance(std::filesystem::directory_iterator(dir / "other"), {}), 1);
  Options no_create = TestOptions();
  no_create.create = false;
  CHECK(Store::Open(dir / "absent", no_create).status().code() == Code::kNotFound);
  CHECK(!std::filesystem::exists(dir / "absent"));
}

TEST(ALimitTakesTheBestAndSaysThatItCut) {
  TempDir dir;
  auto store = Open(dir / "s");
  for (int i = 0; i < 50; ++i) AddOne(store.get(), "s" + std::to_string(i), "r", "hub");
  Query q = Ask("hub", "r");
  q.object_known = true;
  NameMap names;
  auto all = store->RunQueries({q}, &names);
  CHECK_EQ((*all)[0].hits.size(), 50u);
  CHECK(!(*all)[0].truncated);
  for (int64_t limit : {0, 1, 30, 49, 50, 51}) {
    q.limit = limit;
    auto some = store->RunQueries({q}, &names);
    const auto& hits = (*some)[0].hits;
    CHECK_EQ(hits.size(), std::min<size_t>(static_cast<size_t>(limit), 50));
    CHECK_EQ((*some)[0].truncated, limit < 50);
    for (size_t i = 0; i < hits.size(); ++i) CHECK_EQ(hits[i].triple, (*all)[0].hits[i].triple);
  }
}

TEST(ARelativePathStaysItselfWhenTheDirectoryChanges) {
  TempDir dir;
  const std::string home = std::filesystem::current_path();
  std::filesystem::create_directory(dir / "x");
  std::filesystem::create_directory(dir / "y");
  std::filesystem::current_path(dir / "y");
  { AddOne(Open("s").get(), "in y", "r", "b"); }
  std::filesystem::current_path(dir / "x");
  auto store = Open("s");
  AddOne(store.get(), "in x", "r", "b");
  std::filesystem::current_path(dir / "y");
  CHECK_OK(store->Compact().status());
  AddOne(store.get(), "later in x", "r", "b");
  CHECK_OK(store->Backup("copy"));  // beside y's, where the process is now
  auto other = Open("s");
  std::filesystem::current_path(home);
  CHECK_EQ(Hits(store.get(), "later in x", "r"), 1u);
  CHECK_EQ(Hits(other.get(), "in y", "r"), 1u);
  CHECK_EQ(Hits(other.get(), "in x", "r"), 0u);
  CHECK_EQ(Hits(Open(dir / "y/copy").get(), "in x", "r"), 1u);
  CHECK_EQ(other->Check()->problems, std::vector<std::string>());
}

TEST(AHandleFollowsSeveralCompactionsThatMoveVectors) {
  TempDir dir;
  const std::string path = dir / "s";
  { AddOne(Open(path).get(), "a", "r", "b"); }
  WithHandleInAnotherProcess(
      path, [](Store* theirs) { return Hits(theirs, "a", "r") == 1; },
      [&] {
        auto store = Open(path);
        for (int i = 0; i < 3; ++i) {
          Batch batch;
          batch.dim[0] = kDim;
          std::vector<Slice> names = {batch.Intern("a")};
          Op& op = batch.Add(OpType::kSetVectors);
          op.names = names;
          op.vectors = VectorOf(std::hash<std::string>()("a"));
          CHECK_OK(store->Apply(batch).status());
          CHECK_OK(store->Compact().status());
        }
      });
}

TEST(BackupsToOnePathAreOneOrRefused) {
  TempDir dir;
  auto store = Open(dir / "s");
  for (int i = 0; i < 50; ++i) AddOne(store.get(), "s" + std::to_string(i), "r", "o");
  std::atomic<int> made{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { made += store->Backup(dir / "copy").ok(); });
  for (auto& t : threads) t.join();
  CHECK_EQ(made.load(), 1);
  CHECK_EQ(Open(dir / "copy")->Check()->problems, std::vector<std::string>());
  for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
    CHECK(entry.path().filename() == "s" || entry.path().filename() == "copy");
}

TEST(HandlesKeepTheirOwnTimeout) {
  TempDir dir;
  auto a = Open(dir / "s");
  Options hasty = TestOptions();
  hasty.timeout_s = 0.05;
  auto b = Open(dir / "s", hasty);
  std::atomic<bool> inside{false}, done{false};
  std::thread writer([&] {
    Batch batch;
    for (int i = 0; i < 5000; ++i) AddFact(&batch, "s" + std::to_string(i), "r", "o");
    CHECK_OK(a->Apply(batch, [&] {
                inside = true;
                while (!done) std::this_thread::yield();
                return false;
              }).status());
  });
  while (!inside) std::this_thread::yield();
  Batch batch;
  AddFact(&batch, "x", "r", "y");
  const Status status = b->Apply(batch).status();
  done = true;
  writer.join();
  CHECK(status.code() == Code::kLocked);
  CHECK(status.message().find("another thread") != std::string::npos);
}

TEST(AFailedCompactionLeavesNothing) {
  TempDir dir;
  auto store = Open(dir / "s");
  for (int i = 0; i < 20; ++i) AddOne(store.get(), "s" + std::to_string(i), "r", "o");
  CHECK(store->Compact({}, [] { return true; }).status().code() == Code::kInterrupted);
  CHECK(!std::filesystem::exists(dir / "s/gen-000002"));
  CHECK(!std::filesystem::exists(dir / "s/vectors/entities-000002.vec"));
  CHECK_OK(store->Compact().status());
  CHECK_EQ(Hits(store.get(), "s7", "r"), 1u);
}

TEST(WhatACommitOrACopyNeedsIsOnTheDiskFirst) {
  TempDir dir;
  {
    std::lock_guard<std::mutex> lock(g_synced_mutex);
    g_synced.clear();
  }
  auto store = Open(dir / "s");  // Sync::kRelaxed: vectors are synced all the same
  AddOne(store.get(), "a", "r", "b");
  auto synced = [&](const std::string& what) {
    std::lock_guard<std::mutex> lock(g_synced_mutex);
    size_t times = 0;
    for (const std::string& path : g_synced)
      times += path.size() >= what.size() && path.compare(path.size() - what.size(), what.size(), what) == 0;
    return times;
  };
  const size_t before = synced("s/vectors/entities-000001.vec");
  AddOne(store.get(), "c", "r", "b");
  CHECK_EQ(synced("s/vectors/entities-000001.vec"), before + 1);
  AddOne(store.get(), "c", "r", "a");  // no new name, no new vector
  CHECK_EQ(synced("s/vectors/entities-000001.vec"), before + 1);
  CHECK_OK(store->Compact().status());
  CHECK(synced("s/gen-000002/data.mdb") >= 1u);
  CHECK_OK(store->Backup(dir / "copy"));
  CHECK_EQ(synced("-0/gen-000002/data.mdb"), 1u);
}
