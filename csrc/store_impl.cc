#include "store_impl.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <thread>

namespace pymemstore {
namespace {

constexpr char kCurrent[] = "/CURRENT";
constexpr char kLock[] = "/LOCK";
constexpr char kVectors[] = "/vectors";
constexpr char kUnfinished[] = ".tmp";  // of the first generation, until it is whole

bool Exists(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0;
}

// What a creation that was cut short may leave behind.
bool IsOurs(const std::string& name) {
  return name == "LOCK" || name == "CURRENT.tmp" || name == "vectors" || name == "index" ||
         name == GenerationName(1) || name == GenerationName(1) + kUnfinished;
}

// A lock of the process, not of the descriptor: a forked child does not inherit it, and it goes with its holder
// however that ends. A process opens LOCK once per store, so no other close() can drop it.
struct flock ByteOf(LockKind kind, int type) {
  struct flock lock {};
  lock.l_type = static_cast<short>(type);
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(kind);
  lock.l_len = 1;
  return lock;
}

Status CheckStamp(const EmbedderStamp& stamp, Kind kind) {
  if (stamp.dim < 1 || stamp.dim > kMaxDim)
    return Status::InvalidArgument(std::string("the ") + KindName(kind) + " embedder " + Quote(stamp.name) +
                                   " has dimension " + std::to_string(stamp.dim) + "; 1 to " +
                                   std::to_string(kMaxDim) + " are allowed");
  if (stamp.name.empty() || stamp.name.size() > 1000 || stamp.version.size() > 1000)
    return Status::InvalidArgument(std::string("the ") + KindName(kind) + " embedder's name or version is empty or too long");
  return Status::Ok();
}

Status CompareStamps(const EmbedderStamp& stored, const EmbedderStamp& given, Kind kind) {
  if (stored.name == given.name && stored.dim == given.dim && stored.version == given.version) return Status::Ok();
  auto text = [](const EmbedderStamp& s) {
    return Quote(s.name) + " (dim " + std::to_string(s.dim) + (s.version.empty() ? "" : ", version " + s.version) + ")";
  };
  return Status::EmbedderMismatch(std::string("the store's ") + KindName(kind) + " vectors come from " + text(stored) +
                                  ", not from " + text(given));
}

}  // namespace

Status CheckStamps(const Generation& gen, const Options& options) {
  for (Kind kind : {Kind::kEntity, Kind::kRelation})
    if (options.stamps[Index(kind)])
      PMS_RETURN_IF_ERROR(CompareStamps(gen.stamp[Index(kind)], *options.stamps[Index(kind)], kind));
  return Status::Ok();
}

std::string GenerationName(uint32_t number) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "gen-%06u", number);
  return buffer;
}

bool ParseGenerationName(const std::string& name, uint32_t* number) {
  if (name.size() < 10 || name.size() > 13 || name.compare(0, 4, "gen-") != 0) return false;
  uint64_t n = 0;
  for (size_t i = 4; i < name.size(); ++i) {
    if (name[i] < '0' || name[i] > '9') return false;
    n = n * 10 + static_cast<uint64_t>(name[i] - '0');
  }
  *number = static_cast<uint32_t>(n);
  return n > 0;
}

std::string VectorFileName(Kind kind, uint32_t number) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%s-%06u.vec", kind == Kind::kEntity ? "entities" : "relations", number);
  return buffer;
}

Status ReadMeta(Txn* txn, Counters* counters, std::string* superseded_by) {
  Bytes value;
  if (txn->Get(Table::kMeta, "superseded_by", &value)) *superseded_by = std::string(value);
  if (!txn->Get(Table::kMeta, "counters", &value) || !DecodeCounters(value, counters)) {
    PMS_RETURN_IF_ERROR(txn->status());
    return Status::Corruption("the store's counters are missing or damaged");
  }
  if (value.size() == kCounterBytesOfVersion1) {
    for (Kind kind : {Kind::kEntity, Kind::kRelation}) {
      counters->live[Index(kind)] = txn->Entries(KindTable(Table::kEntHash, kind));
      counters->embedded[Index(kind)] = counters->live[Index(kind)] - txn->Entries(KindTable(Table::kEntPending, kind));
    }
    counters->triples = txn->Entries(Table::kSpo);
  }
  return txn->status();
}

Generation::~Generation() {
  if (env && pid != ::getpid()) {
    // A forked child must leave the parent's environment alone; its memory goes with the process.
    env->Abandon();
    (void)env.release();
  }
}

WriterLock::~WriterLock() {
  if (fd_ < 0) return;
  struct flock unlock = ByteOf(kind_, F_UNLCK);
  (void)::fcntl(fd_, F_SETLK, &unlock);
}

StoreImpl::StoreImpl(std::string path, Options options)
    : path_(std::move(path)),
      options_(std::move(options)),
      pid_(::getpid()) {}

StoreImpl::~StoreImpl() {
  if (pid_ != ::getpid()) {
    // A forked child: closing LOCK would drop the lock of a store that the child opened itself.
    lock_fd_.Leak();
    return;
  }
  if (!options_.read_only) RemoveStaleGenerations();
}

Result<std::unique_ptr<StoreImpl>> StoreImpl::Open(const std::string& path, const Options& options,
                                                   const InterruptCheck& interrupted) {
  for (Kind kind : {Kind::kEntity, Kind::kRelation})
    if (options.stamps[Index(kind)]) PMS_RETURN_IF_ERROR(CheckStamp(*options.stamps[Index(kind)], kind));
  std::unique_ptr<StoreImpl> impl(new StoreImpl(path, options));
  struct stat st {};
  const bool there = ::stat(path.c_str(), &st) == 0;
  if (there && !S_ISDIR(st.st_mode)) return Status::Corruption(path + " is a file; a pymemstore store is a folder");
  if (!there && errno != ENOENT && errno != ENOTDIR) return ErrnoStatus("cannot inspect", path, errno);
  bool made = false;
  bool whole = Exists(path + kCurrent);
  if (!whole && there) {
    PMS_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDir(path));
    whole = std::find(names.begin(), names.end(), kCurrent + 1) != names.end();  // made in between
    for (const std::string& name : names)
      if (!whole && !IsOurs(name))
        return Status::Corruption(path + " is not a pymemstore store: it has no CURRENT, but holds " + Quote(name));
  }
  if (!whole) {
    if (!options.create || options.read_only) return Status::NotFound("there is no store at " + path);
    PMS_RETURN_IF_ERROR(impl->Create(interrupted));
    made = true;
  }
  if (!options.read_only && !impl->lock_fd_.valid()) {
    PMS_ASSIGN_OR_RETURN(impl->lock_fd_, OpenFile(path + kLock, O_RDWR | O_CREAT));
  }
  std::shared_ptr<Generation> gen;
  for (int attempt = 0; !gen || !gen->superseded_by.empty(); ++attempt) {
    if (attempt == 100) return Status::Corruption(path + ": its generations point at each other");
    std::string name = gen ? gen->superseded_by : std::string();
    if (name.empty()) {
      PMS_ASSIGN_OR_RETURN(name, ReadSmallFile(path + kCurrent));
      if (!name.empty() && name.back() == '\n') name.pop_back();
    }
    gen.reset();
    auto opened = impl->OpenGeneration(name, nullptr);
    if (!opened.ok()) {
      // The generation may have been replaced and removed between the two reads.
      auto again = ReadSmallFile(path + kCurrent);
      if (attempt < 10 && again.ok() && *again != name + "\n") continue;
      return opened.status();
    }
    gen = *opened;
  }
  if (made || !options.stamps_if_new) PMS_RETURN_IF_ERROR(CheckStamps(*gen, options));
  if (::stat(path.c_str(), &st) != 0) return ErrnoStatus("cannot inspect", path, errno);
  impl->dev_ = st.st_dev;
  impl->dir_inode_ = st.st_ino;
  if (::stat((gen->dir + "/data.mdb").c_str(), &st) == 0) impl->data_inode_ = st.st_ino;
  impl->gen_ = std::move(gen);
  if (!options.read_only) {
    // A switch that was cut short between its commit and its rename.
    PMS_ASSIGN_OR_RETURN(std::string current, ReadSmallFile(path + kCurrent));
    if (current != GenerationName(impl->gen_->number) + "\n") {
      // Only with the builder's lock: who has it replaces CURRENT itself, and may be doing so.
      auto building = impl->Lock(0, interrupted, LockKind::kBuilder);
      if (!building.ok() && building.status().code() != Code::kLocked) return building.status();
      if (building.ok()) {
        PMS_ASSIGN_OR_RETURN(Snapshot latest, impl->Read());
        PMS_RETURN_IF_ERROR(impl->PointCurrentAt(latest.gen->number));
      }
    }
    PMS_RETURN_IF_ERROR(impl->Upgrade(interrupted));
    impl->RemoveStaleGenerations();
  }
  return impl;
}

// An environment of version 1 gets the tables that it lacks; the rest is as it was.
Status StoreImpl::Upgrade(const InterruptCheck& interrupted) {
  if (Current()->version == kFormatVersion) return Status::Ok();
  PMS_ASSIGN_OR_RETURN(WriterLock lock, Lock(options_.timeout_s, interrupted));
  PMS_ASSIGN_OR_RETURN(Snapshot snapshot, Write(Sync::kFull));
  PMS_RETURN_IF_ERROR(snapshot->CreateMissingTables());
  std::string version;
  AppendLe32(&version, kFormatVersion);
  snapshot->Put(Table::kMeta, "version", version);
  snapshot->Put(Table::kMeta, "counters", EncodeCounters(snapshot.counters));
  PMS_RETURN_IF_ERROR(snapshot->Commit());
  snapshot.gen->version = kFormatVersion;
  return Status::Ok();
}

bool StoreImpl::SameFiles(dev_t dev, ino_t dir, ino_t data) const {
  return dev == dev_ && (dir == dir_inode_ || (data && data == data_inode_));
}

Status StoreImpl::Create(const InterruptCheck& interrupted) {
  for (Kind kind : {Kind::kEntity, Kind::kRelation})
    if (!options_.stamps[Index(kind)])
      return Status::InvalidArgument("a new store needs the name and dimension of its embedders");
  // Parents too, as `mkdir -p`.
  for (size_t i = 1; i <= path_.size(); ++i)
    if ((i == path_.size() || path_[i] == '/') && !Exists(path_.substr(0, i))) {
      PMS_RETURN_IF_ERROR(MakeDir(path_.substr(0, i)));
      PMS_RETURN_IF_ERROR(SyncDir(path_.substr(0, std::max<size_t>(1, path_.find_last_of('/', i - 1)))));
    }
  PMS_ASSIGN_OR_RETURN(lock_fd_, OpenFile(path_ + kLock, O_RDWR | O_CREAT));
  PMS_ASSIGN_OR_RETURN(WriterLock lock, Lock(options_.timeout_s, interrupted));
  if (Exists(path_ + kCurrent)) return Status::Ok();  // another process was faster
  const std::string whole = path_ + "/" + GenerationName(1), dir = whole + kUnfinished;
  if (Exists(whole)) {
    // A creation that was cut short just before its end left it empty; with facts in it, CURRENT was lost.
    bool empty = false;
    {
      auto gen = OpenGeneration(GenerationName(1), nullptr);
      if (gen.ok()) {
        PMS_ASSIGN_OR_RETURN(std::unique_ptr<Txn> txn, Txn::Begin((*gen)->env.get(), false));
        Counters counters;
        std::string superseded_by;
        PMS_RETURN_IF_ERROR(ReadMeta(txn.get(), &counters, &superseded_by));
        empty = EncodeCounters(counters) == EncodeCounters({});
      }
    }
    if (!empty)
      return Status::Corruption(path_ + ": CURRENT is missing beside " + GenerationName(1) +
                                ", which holds facts or is damaged; nothing was changed");
    RemoveTree(whole);
  }
  RemoveTree(dir);
  PMS_RETURN_IF_ERROR(MakeDir(dir));
  PMS_RETURN_IF_ERROR(MakeDir(path_ + kVectors));
  StoreId id;
  if (::getrandom(id.data(), id.size(), 0) != static_cast<ssize_t>(id.size()))
    return ErrnoStatus("cannot draw random bytes for", path_, errno);
  for (Kind kind : {Kind::kEntity, Kind::kRelation})
    PMS_RETURN_IF_ERROR(VectorFile::Create(path_ + kVectors + "/" + VectorFileName(kind, 1), id, kind,
                                           options_.stamps[Index(kind)]->dim));
  PMS_RETURN_IF_ERROR(SyncDir(path_ + kVectors));
  {
    EnvOptions env_options;
    env_options.create = true;
    env_options.map_size = options_.map_size;
    env_options.max_readers = options_.max_readers;
    PMS_ASSIGN_OR_RETURN(std::unique_ptr<Env> env, Env::Open(dir, env_options));
    PMS_ASSIGN_OR_RETURN(std::unique_ptr<Txn> txn, Txn::Begin(env.get(), true));
    std::string version;
    AppendLe32(&version, kFormatVersion);
    txn->Put(Table::kMeta, "magic", kMetaMagic);
    txn->Put(Table::kMeta, "version", version);
    txn->Put(Table::kMeta, "store_id", Bytes(reinterpret_cast<const char*>(id.data()), id.size()));
    txn->Put(Table::kMeta, "counters", EncodeCounters({}));
    for (Kind kind : {Kind::kEntity, Kind::kRelation}) {
      const std::string suffix = KindName(kind);
      txn->Put(Table::kMeta, "embedder." + suffix, EncodeStamp(*options_.stamps[Index(kind)]));
      txn->Put(Table::kMeta, "vectors." + suffix, VectorFileName(kind, 1));
    }
    PMS_RETURN_IF_ERROR(txn->Commit());
  }
  PMS_RETURN_IF_ERROR(SyncDir(dir));
  if (::rename(dir.c_str(), whole.c_str()) != 0) return ErrnoStatus("cannot rename to", whole, errno);
  return WriteFileAtomically(path_ + kCurrent, GenerationName(1) + "\n");
}

uint32_t VectorFileNumber(const std::string& name) {
  unsigned number = 0;
  const char* digits = std::strrchr(name.c_str(), '-');
  return digits && std::sscanf(digits, "-%u.", &number) == 1 ? number : 0;
}

Result<std::shared_ptr<Generation>> StoreImpl::OpenGeneration(const std::string& name, const Generation* before) {
  auto gen = std::make_shared<Generation>();
  if (!ParseGenerationName(name, &gen->number))
    return Status::Corruption(path_ + ": CURRENT holds " + Quote(name) + ", not the name of a generation");
  gen->dir = path_ + "/" + name;
  gen->pid = pid_;
  if (!Exists(gen->dir)) return Status::Corruption(gen->dir + " is missing");
  auto use = OpenFile(gen->dir + "/USE", options_.read_only ? O_RDONLY : O_RDONLY | O_CREAT);
  if (use.ok()) {
    gen->use_lock = std::move(*use);
    if (::flock(gen->use_lock.get(), LOCK_SH | LOCK_NB) != 0)
      return ErrnoStatus("cannot lock", gen->dir + "/USE", errno);
  } else if (!options_.read_only) {
    return use.status();
  }
  EnvOptions env_options;
  env_options.read_only = options_.read_only;
  env_options.map_size = options_.map_size;
  env_options.max_readers = options_.max_readers;
  PMS_ASSIGN_OR_RETURN(gen->env, Env::Open(gen->dir, env_options));
  PMS_ASSIGN_OR_RETURN(std::unique_ptr<Txn> txn, Txn::Begin(gen->env.get(), false));
  Bytes value;
  if (!txn->Get(Table::kMeta, "magic", &value) || value != kMetaMagic)
    return Status::Corruption(gen->dir + " is not a pymemstore environment");
  if (!txn->Get(Table::kMeta, "version", &value) || value.size() != 4)
    return Status::Corruption(gen->dir + ": its format version is missing");
  if (GetLe32(value.data()) > kFormatVersion)
    return Status::VersionMismatch(path_ + " has format version " + std::to_string(GetLe32(value.data())) +
                                   ", newer than the " + std::to_string(kFormatVersion) +
                                   " that this library reads; upgrade pymemstore");
  gen->version = GetLe32(value.data());
  if (gen->version < 1) return Status::Corruption(path_ + " has an unknown format version 0");
  if (!txn->Get(Table::kMeta, "store_id", &value) || value.size() != gen->store_id.size())
    return Status::Corruption(gen->dir + ": its store id is missing");
  std::memcpy(gen->store_id.data(), value.data(), value.size());
  Counters counters;
  PMS_RETURN_IF_ERROR(ReadMeta(txn.get(), &counters, &gen->superseded_by));
  for (Kind kind : {Kind::kEntity, Kind::kRelation}) {
    const size_t k = Index(kind);
    gen->names[k] = NameTable(kind, gen->store_id);
    const std::string suffix = KindName(kind);
    if (!txn->Get(Table::kMeta, "embedder." + suffix, &value) || !DecodeStamp(value, &gen->stamp[k]))
      return Status::Corruption(gen->dir + ": the stamp of its " + suffix + " embedder is missing or damaged");
    if (!txn->Get(Table::kMeta, "vectors." + suffix, &value) || value.find('/') != Bytes::npos)
      return Status::Corruption(gen->dir + ": the name of its " + suffix + " vector file is missing or damaged");
    gen->vector_name[k] = std::string(value);
    if (!gen->superseded_by.empty()) continue;  // its vector files may be gone
    if (before && before->index[k] && before->vector_name[k] == gen->vector_name[k]) {
      gen->index[k] = before->index[k];
    } else {
      PMS_ASSIGN_OR_RETURN(std::unique_ptr<VectorFile> file,
                           VectorFile::Open(path_ + kVectors + "/" + gen->vector_name[k], gen->store_id, kind,
                                            gen->stamp[k].dim, options_.read_only));
      // Also says now, not at the first query, when the file is shorter than it must be.
      PMS_RETURN_IF_ERROR(file->Rows(counters.rows[k]).status());
      gen->index[k] = std::make_shared<VectorIndex>(std::move(file), path_, gen->store_id, kind,
                                                    VectorFileNumber(gen->vector_name[k]));
    }
  }
  return gen;
}

Result<Snapshot> StoreImpl::Begin(bool write, Sync sync) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    Snapshot snapshot;
    snapshot.gen = Current();
    PMS_ASSIGN_OR_RETURN(snapshot.txn, Txn::Begin(snapshot.gen->env.get(), write, sync));
    std::string superseded_by;
    PMS_RETURN_IF_ERROR(ReadMeta(snapshot.txn.get(), &snapshot.counters, &superseded_by));
    Bytes unused;
    if (write && snapshot.txn->Get(Table::kMeta, "merging", &unused)) snapshot.txn->StartJournal();
    if (superseded_by.empty()) return snapshot;
    snapshot.txn.reset();
    PMS_RETURN_IF_ERROR(SwitchTo(superseded_by));
  }
  return Status::Corruption(path_ + ": its generations point at each other");
}

Result<Snapshot> StoreImpl::Read() { return Begin(false, Sync::kFull); }
Result<Snapshot> StoreImpl::Write(Sync sync) { return Begin(true, sync); }

Status StoreImpl::PointCurrentAt(uint32_t number) {
  return WriteFileAtomically(path_ + kCurrent, GenerationName(number) + "\n");
}

Status StoreImpl::SwitchTo(const std::string& generation) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (GenerationName(gen_->number) == generation) return Status::Ok();  // another thread was faster
  uint32_t number = 0;
  if (ParseGenerationName(generation, &number) && number < gen_->number) return Status::Ok();
  std::string name = generation;
  std::shared_ptr<Generation> next;
  for (int attempt = 0; !next || !next->superseded_by.empty(); ++attempt) {
    if (attempt == 100) return Status::Corruption(path_ + ": its generations point at each other");
    if (next) name = next->superseded_by;
    auto opened = OpenGeneration(name, gen_.get());
    if (!opened.ok()) {
      // Far behind: that generation is gone too. CURRENT knows a newer one.
      PMS_ASSIGN_OR_RETURN(std::string current, ReadSmallFile(path_ + kCurrent));
      if (!current.empty() && current.back() == '\n') current.pop_back();
      if (current == name || attempt >= 50) return opened.status();
      name = current;
      next.reset();
      continue;
    }
    next = *opened;
  }
  gen_ = std::move(next);
  struct stat st {};
  if (::stat((gen_->dir + "/data.mdb").c_str(), &st) == 0) data_inode_ = st.st_ino;
  return Status::Ok();
}

Result<WriterLock> StoreImpl::Lock(double timeout_s, const InterruptCheck& interrupted, LockKind kind) {
  using Clock = std::chrono::steady_clock;
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                         std::min(timeout_s, 1e8)));
  std::unique_lock<std::mutex> local(locks_[static_cast<size_t>(kind)], std::defer_lock);
  static const char* kDoing[] = {"written", "compacted or imported into", "imported into", "reindexed"};
  static_assert(std::size(kDoing) == kLockKinds, "a text for each kind");
  auto pause = std::chrono::microseconds(50);
  for (;;) {
    // Polled: neither lock can be waited for with a timeout that an interrupt ends.
    if (local.owns_lock() || local.try_lock()) {
      struct flock wanted = ByteOf(kind, F_WRLCK);
      if (::fcntl(lock_fd_.get(), F_SETLK, &wanted) == 0) return WriterLock(std::move(local), lock_fd_.get(), kind);
      if (errno != EACCES && errno != EAGAIN && errno != EINTR) return ErrnoStatus("cannot lock", path_ + kLock, errno);
    }
    if (interrupted && interrupted()) return Status::Interrupted();
    if (Clock::now() >= deadline) {
      struct flock holder = ByteOf(kind, F_WRLCK);
      std::string who = "another process";
      if (!local.owns_lock()) {
        who = "another thread of this process (" + std::to_string(pid_) + ")";
      } else if (::fcntl(lock_fd_.get(), F_GETLK, &holder) == 0 && holder.l_type != F_UNLCK && holder.l_pid > 0) {
        who = "process " + std::to_string(holder.l_pid);
      }
      char seconds[32];
      std::snprintf(seconds, sizeof seconds, "%g", timeout_s);
      return Status::Locked(path_ + " is being " + kDoing[static_cast<size_t>(kind)] + " by " + who + "; waited " + seconds + " s");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::microseconds(10000));
  }
}

void StoreImpl::RemoveStaleGenerations() {
  // Only beside a live generation that is open and sound, and that CURRENT names: with a damaged CURRENT, or a
  // newest generation that does not open, the older ones may be all there is.
  const std::shared_ptr<Generation> live = Current();
  auto current = ReadSmallFile(path_ + kCurrent);
  if (!live || !current.ok() || *current != GenerationName(live->number) + "\n") return;
  auto names = ListDir(path_);
  auto files = ListDir(path_ + kVectors);
  if (!names.ok() || !files.ok()) return;
  for (const std::string& name : *names) {
    uint32_t number = 0;
    if (!ParseGenerationName(name, &number) || number >= live->number) continue;
    auto use = OpenFile(path_ + "/" + name + "/USE", O_RDONLY);
    if (use.ok() && ::flock(use->get(), LOCK_EX | LOCK_NB) != 0) return;  // in use; its vector files too
    RemoveTree(path_ + "/" + name);
  }
  for (const std::string& file : *files) {
    const uint32_t number = VectorFileNumber(file);
    if (number == 0 || number >= live->number) continue;
    if (file != live->vector_name[0] && file != live->vector_name[1]) RemoveTree(path_ + kVectors + "/" + file);
  }
  RemoveStaleIndexFiles(*live);
}

void StoreImpl::RemoveStaleIndexFiles(const Generation& live) {
  auto files = ListDir(path_ + "/index");
  if (!files.ok()) return;
  for (const std::string& file : *files) {
    const size_t kind = file.compare(0, 9, "relations") == 0;
    const uint32_t number = VectorFileNumber(file);
    if (number != 0 && number < VectorFileNumber(live.vector_name[kind])) RemoveTree(path_ + "/index/" + file);
  }
}

}  // namespace pymemstore
