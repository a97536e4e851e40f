#include "lmdb_env.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "check.h"
#include "file_util.h"

using namespace pymemstore;
using pymemstore::test::TempDir;

namespace {

Result<std::unique_ptr<Env>> Make(const TempDir& dir, uint64_t map_size = 0, uint32_t max_readers = 126) {
  EnvOptions options;
  options.create = true;
  options.map_size = map_size;
  options.max_readers = max_readers;
  return Env::Open(dir.path(), options);
}

}  // namespace

TEST(FirstFailureSticks) {
  TempDir dir;
  auto env = Make(dir);
  CHECK_OK(env.status());
  auto txn = Txn::Begin(env->get(), true);
  CHECK_OK(txn.status());
  (*txn)->Put(Table::kMeta, "good", "1");
  (*txn)->Put(Table::kMeta, std::string(600, 'k'), "LMDB takes keys of up to 511 bytes");
  CHECK(!(*txn)->ok());
  (*txn)->Put(Table::kMeta, "later", "2");
  CHECK(!(*txn)->Commit().ok());
  txn->reset();  // a thread has one transaction at a time
  auto read = Txn::Begin(env->get(), false);
  Bytes value;
  CHECK(!(*read)->Get(Table::kMeta, "good", &value));
  CHECK_OK((*read)->status());  // not found is no failure
}

TEST(FullMapFailsWholeAndGrows) {
  TempDir dir;
  auto env = Make(dir, 1 << 20);
  CHECK_OK(env.status());
  const std::string big(4000, 'x');
  int rounds = 0;
  for (bool done = false; !done && rounds < 10; ++rounds) {
    auto txn = Txn::Begin(env->get(), true);
    CHECK_OK(txn.status());
    for (uint32_t i = 0; i < 1000; ++i) (*txn)->Put(Table::kMeta, Key32(i), big);
    const Status status = (*txn)->Commit();
    done = status.ok();
    const bool full = (*txn)->map_full();
    txn->reset();
    if (done) break;
    CHECK(full);
    CHECK(status.code() == Code::kMapFull);
    CHECK_OK((*env)->Grow());
  }
  CHECK(rounds > 0 && rounds < 10);
  auto read = Txn::Begin(env->get(), false);
  CHECK_EQ((*read)->Entries(Table::kMeta), 1000u);
}

TEST(GrowWaitsForReaders) {
  TempDir dir;
  auto env = Make(dir, 1 << 20);
  CHECK_OK(env.status());
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i)
    readers.emplace_back([&] {
      while (!stop) {
        auto txn = Txn::Begin(env->get(), false);
        CHECK_OK(txn.status());
        Bytes value;
        (*txn)->Get(Table::kMeta, "x", &value);
        CHECK_OK((*txn)->status());
      }
    });
  for (int i = 0; i < 8; ++i) CHECK_OK((*env)->Grow());
  stop = true;
  for (auto& t : readers) t.join();
  CHECK_EQ((*env)->Info().map_size, static_cast<uint64_t>(256) << 20);
}

TEST(DeadReadersAreClearedFromAFullTable) {
  TempDir dir;
  { CHECK_OK(Make(dir, 0, 4).status()); }
  int ready[2];
  CHECK_EQ(::pipe(ready), 0);
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      EnvOptions options;
      options.max_readers = 4;
      auto env = Env::Open(dir.path(), options);
      auto txn = env.ok() ? Txn::Begin(env->get(), false) : Result<std::unique_ptr<Txn>>(env.status());
      const char c = txn.ok() ? 'r' : 'x';
      (void)!::write(ready[1], &c, 1);
      ::alarm(30);  // a failed check above must not leave it behind
      ::pause();
      ::_exit(0);
    }
    children.push_back(pid);
    char c = 0;
    CHECK_EQ(::read(ready[0], &c, 1), 1);
    CHECK_EQ(c, 'r');
  }
  EnvOptions options;
  options.max_readers = 4;
  auto env = Env::Open(dir.path(), options);
  // All four slots are alive: a named refusal.
  CHECK(!env.ok() || !Txn::Begin(env->get(), false).ok());
  for (pid_t pid : children) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  if (!env.ok()) env = Env::Open(dir.path(), options);
  CHECK_OK(env.status());
  CHECK_OK(Txn::Begin(env->get(), false).status());
}

TEST(MissingEmptyOrForeignFilesAreNamed) {
  TempDir dir;
  CHECK(Env::Open(dir.path(), {}).status().code() == Code::kCorruption);
  const std::string file = dir / "data.mdb";
  CHECK_OK(WriteFileAtomically(file, ""));
  CHECK(Env::Open(dir.path(), {}).status().code() == Code::kCorruption);
  CHECK_OK(WriteFileAtomically(file, std::string(16384, 'x')));
  CHECK(Env::Open(dir.path(), {}).status().code() == Code::kCorruption);
  auto text = ReadSmallFile(file);
  CHECK(text.ok() && *text == std::string(4096, 'x'));  // and left as they were
}

// The hardening patches of the pinned sources are in: a page with impossible bounds is refused, not followed.
TEST(ForgedPageIsRefused) {
  TempDir dir;
  {
    auto env = Make(dir);
    CHECK_OK(env.status());
    auto txn = Txn::Begin(env->get(), true);
    for (uint32_t i = 0; i < 50; ++i) (*txn)->Put(Table::kMeta, Key32(i), std::string(40, 'v'));
    CHECK_OK((*txn)->Commit());
  }
  const std::string file = dir / "data.mdb";
  int refused = 0, leaves = 0;
  auto fd = OpenFile(file, O_RDWR);
  CHECK_OK(fd.status());
  const off_t size = ::lseek(fd->get(), 0, SEEK_END);
  for (off_t page = 2; page < size / 4096; ++page) {
    char head[32];
    CHECK_EQ(::pread(fd->get(), head, sizeof head, page * 4096), static_cast<ssize_t>(sizeof head));
    uint16_t flags;
    std::memcpy(&flags, head + 10, 2);
    if (!(flags & 0x02)) continue;  // a leaf
    ++leaves;
    char forged[32];
    std::memcpy(forged, head, sizeof head);
    const uint16_t lower = 4;  // below the page's header: the count of its keys would wrap
    std::memcpy(forged + 12, &lower, 2);
    CHECK_OK(WriteAll(fd->get(), forged, sizeof forged, static_cast<uint64_t>(page) * 4096, file));
    auto env = Env::Open(dir.path(), {});
    bool failed = !env.ok();
    if (env.ok()) {
      auto txn = Txn::Begin(env->get(), false);
      CHECK_OK(txn.status());
      Cursor c(txn->get(), Table::kMeta);
      for (bool more = c.Seek(Key32(0)); more; more = c.Next()) {
      }
      failed = !(*txn)->ok();
    }
    refused += failed;
    CHECK_OK(WriteAll(fd->get(), head, sizeof head, static_cast<uint64_t>(page) * 4096, file));
  }
  CHECK(leaves > 0);
  CHECK(refused > 0);
}
