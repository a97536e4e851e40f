#include "pymemstore/bulk_load.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "bulk_seal.h"
#include "bulk_sink.h"
#include "merge.h"
#include "ntriples.h"
#include "tsv.h"
#include "wikidata.h"

namespace pymemstore {
namespace {

constexpr char kStateFile[] = "/state";

Result<std::unique_ptr<LineReader>> NewReader(const BulkOptions& options) {
  if (options.format == "wikidata") return NewWikidataReader(options.reader_options);
  if (options.format == "ntriples") return NewNTriplesReader(options.reader_options);
  if (!options.reader_options.empty())
    return Status::InvalidArgument("the format " + Quote(options.format) + " has no option " +
                                   Quote(options.reader_options.begin()->first));
  if (options.format == "tsv") return NewTsvReader();
  if (options.format == "facts") return std::unique_ptr<LineReader>();
  return Status::InvalidArgument("there is no bulk format " + Quote(options.format) +
                                 "; there are tsv, ntriples, wikidata and facts");
}

uint64_t MemoryFor(uint64_t wanted) {
  constexpr uint64_t kLeast = 64u << 20;
  if (wanted) return std::max(wanted, kLeast);
  const auto all = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return std::max(all / 4, kLeast);
}

}  // namespace

class BulkLoad::Impl {
 public:
  Impl(std::shared_ptr<StoreImpl> store, BulkOptions options, double timeout_s)
      : store_(std::move(store)), options_(std::move(options)), timeout_s_(timeout_s), dir_(store_->path() + "/load") {}

  Status Open(const InterruptCheck& interrupted) {
    options_.memory = MemoryFor(options_.memory);
    PMS_ASSIGN_OR_RETURN(reader_, NewReader(options_));
    if (options_.source.size() > kMaxNameBytes) return Status::InvalidArgument("the source is longer than a name may be");
    {
      PMS_ASSIGN_OR_RETURN(WriterLock lock, store_->Lock(timeout_s_, interrupted, LockKind::kImport));
      lock_ = std::make_unique<WriterLock>(std::move(lock));
    }
    PMS_RETURN_IF_ERROR(MakeDir(dir_));
    bool same = false;
    auto text = ReadSmallFile(dir_ + kStateFile);
    StagedState found;
    if (text.ok() && DecodeState(*text, &found)) {
      if (found.identity == options_.identity) {
        same = true;
      } else {
        discarded_ = found.triples;
      }
    }
    if (same) {
      state_ = found;
      // Sealed, and then stopped before the staging could go.
      PMS_ASSIGN_OR_RETURN(Snapshot snapshot, store_->Read());
      Bytes value;
      std::string last;
      std::map<std::string, uint64_t> result;
      if (snapshot->Get(Table::kMeta, "last_load", &value) && DecodeLastLoad(value, &last, &result) &&
          last == state_.load_id) {
        sealed_ = true;
        result_ = std::move(result);
      }
    } else {
      RemoveTree(dir_);
      PMS_RETURN_IF_ERROR(MakeDir(dir_));
      StoreId id;
      if (::getrandom(id.data(), id.size(), 0) != static_cast<ssize_t>(id.size()))
        return ErrnoStatus("cannot draw random bytes for", dir_, errno);
      state_.identity = options_.identity;
      state_.load_id = Hex(id);
    }
    resumed_ = same;
    PMS_RETURN_IF_ERROR(sink_.Open(dir_, state_, options_.memory));
    if (reader_) reader_->counts() = state_.counts;
    line_ = state_.lines;
    position_ = state_.consumed;
    lines_all_ = state_.counts["lines"];
    rejected_ = state_.counts["rejected"];
    if (!same) PMS_RETURN_IF_ERROR(Checkpoint(""));
    return Status::Ok();
  }

  Status Feed(std::string_view data, const InterruptCheck& interrupted) {
    PMS_RETURN_IF_ERROR(failed_);
    if (!reader_) return Status::InvalidArgument("this import takes facts, not text");
    const Status status = FeedLines(data, interrupted);
    if (status.code() != Code::kInterrupted) failed_ = status;
    return status;
  }

  Status EndInput(std::string* incomplete) {
    PMS_RETURN_IF_ERROR(failed_);
    incomplete->clear();
    if (reader_) {
      if (!rest_.empty()) {
        const std::string last = std::move(rest_);
        rest_.clear();
        failed_ = TakeLine(last, last.size());
        if (failed_.ok()) failed_ = sink_.Flush();
        PMS_RETURN_IF_ERROR(failed_);
      }
      const Status end = reader_->End(&sink_);
      failed_ = sink_.Flush();
      PMS_RETURN_IF_ERROR(failed_);
      if (!end.ok()) {
        if (end.code() != Code::kInvalidArgument) return failed_ = end;
        *incomplete = end.message();
      }
    }
    ++state_.input;
    state_.consumed = state_.lines = line_ = position_ = 0;
    return Status::Ok();
  }

  Status Add(std::string_view s, std::string_view r, std::string_view o) {
    PMS_RETURN_IF_ERROR(failed_);
    if (reader_) return Status::InvalidArgument("this import takes text, not facts");
    PMS_RETURN_IF_ERROR(sink_.Triple(s, r, o));
    failed_ = sink_.Flush();  // the texts are the caller's
    if (failed_.ok()) {
      ++state_.lines;
      ++lines_all_;
    }
    return failed_;
  }

  std::map<std::string, uint64_t> Counts() {
    std::map<std::string, uint64_t> counts = reader_ ? reader_->counts() : std::map<std::string, uint64_t>();
    for (const auto& [name, n] : sink_.counts()) counts[name] += n;
    counts["lines"] = lines_all_;
    counts["rejected"] = rejected_;
    counts["staged"] = sink_.triples().count();
    return counts;
  }

  Status Checkpoint(const std::string& note) {
    PMS_RETURN_IF_ERROR(failed_);
    PMS_RETURN_IF_ERROR(sink_.Sync());
    state_.note = note;
    sink_.Fill(&state_);
    // The sink's own counts are kept with the reader's.
    state_.counts = Counts();
    state_.counts.erase("staged");
    return WriteFileAtomically(dir_ + kStateFile, EncodeState(state_));
  }

  Result<std::map<std::string, uint64_t>> Seal(const BuildProgress& progress, const InterruptCheck& interrupted) {
    PMS_RETURN_IF_ERROR(failed_);
    if (!sealed_) {
      // So that an interrupted sealing has all of the input.
      PMS_RETURN_IF_ERROR(Checkpoint(state_.note));
      SealOptions options;
      options.dir = dir_;
      options.load_id = state_.load_id;
      options.source = options_.source;
      options.memory = options_.memory;
      options.update = options_.update;
      // A merge may be under way, and a long import is not thrown away for it.
      options.timeout_s = std::max(timeout_s_, 3600.0);
      PMS_ASSIGN_OR_RETURN(result_, SealLoad(store_.get(), options, &sink_, progress, interrupted));
      sealed_ = true;
    }
    PMS_RETURN_IF_ERROR(Discard());
    store_->RemoveStaleGenerations();
    return result_;
  }

  Status Discard() {
    RemoveTree(dir_);
    Close();
    return Status::Ok();
  }

  // The staging stays; the lock goes.
  void Close() {
    lock_.reset();
    if (failed_.ok()) failed_ = Status::Closed("the import is over, or was closed");
  }

  std::shared_ptr<StoreImpl> store_;
  BulkOptions options_;
  const double timeout_s_;
  const std::string dir_;
  std::unique_ptr<WriterLock> lock_;
  std::unique_ptr<LineReader> reader_;
  BulkSink sink_;
  StagedState state_;
  std::map<std::string, uint64_t> result_;
  std::vector<BulkReject> rejects_;
  bool resumed_ = false, sealed_ = false;
  uint64_t discarded_ = 0, lines_all_ = 0, rejected_ = 0;

 private:
  Status FeedLines(std::string_view data, const InterruptCheck& interrupted) {
    if (!rest_.empty()) {
      const size_t end = data.find('\n');
      if (end == std::string_view::npos) {
        rest_.append(data);
        return Status::Ok();
      }
      rest_.append(data.substr(0, end + 1));
      PMS_RETURN_IF_ERROR(TakeLine(rest_, rest_.size()));
      PMS_RETURN_IF_ERROR(sink_.Flush());
      rest_.clear();
      data.remove_prefix(end + 1);
    }
    const char* p = data.data();
    const char* const end = p + data.size();
    for (uint64_t n = 0; p != end; ++n) {
      const char* newline = static_cast<const char*>(std::memchr(p, '\n', static_cast<size_t>(end - p)));
      if (!newline) break;
      const auto size = static_cast<size_t>(newline + 1 - p);
      PMS_RETURN_IF_ERROR(TakeLine({p, size}, size));
      p = newline + 1;
      if (n % 1024 == 1023 && interrupted && interrupted()) {
        // The rest of the piece is dropped: consumed() says where to go on.
        PMS_RETURN_IF_ERROR(sink_.Flush());
        return Status::Interrupted();
      }
    }
    PMS_RETURN_IF_ERROR(sink_.Flush());
    rest_.assign(p, static_cast<size_t>(end - p));
    return Status::Ok();
  }

  // `line` with its end, if it has one.
  Status TakeLine(std::string_view line, size_t size) {
    if (line_ == 0 && line.substr(0, 3) == "\xef\xbb\xbf") line.remove_prefix(3);
    if (!line.empty() && line.back() == '\n') line.remove_suffix(1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    const Status status = reader_->Line(line, &sink_);
    if (__builtin_expect(!status.ok(), 0)) {
      if (status.code() != Code::kInvalidArgument) return status;
      ++rejected_;
      rejects_.push_back({state_.input, line_ + 1, status.message()});
    }
    ++line_;
    ++lines_all_;
    position_ += size;
    if (reader_->AtRecordStart()) {
      state_.lines = line_;
      state_.consumed = position_;
    }
    return sink_.status();
  }

  uint64_t line_ = 0, position_ = 0;  // in the current input; of the state's: at the start of a record
  std::string rest_;  // of a line whose end has not come yet
  Status failed_;
};

BulkLoad::BulkLoad(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
BulkLoad::~BulkLoad() = default;

Result<std::unique_ptr<BulkLoad>> BulkLoad::Open(Store* store, const BulkOptions& options,
                                                 const InterruptCheck& interrupted) {
  if (store->read_only()) return Status::ReadOnly(store->path() + " is open read-only");
  PMS_ASSIGN_OR_RETURN(std::shared_ptr<StoreImpl> impl, store->Get());
  auto load = std::make_unique<Impl>(std::move(impl), options, store->timeout_s_);
  PMS_RETURN_IF_ERROR(load->Open(interrupted));
  return std::unique_ptr<BulkLoad>(new BulkLoad(std::move(load)));
}

bool BulkLoad::resumed() const { return impl_->resumed_; }
bool BulkLoad::sealed() const { return impl_->sealed_; }
uint32_t BulkLoad::input() const { return impl_->state_.input; }
uint64_t BulkLoad::consumed() const { return impl_->state_.consumed; }
uint64_t BulkLoad::lines() const { return impl_->state_.lines; }
const std::string& BulkLoad::note() const { return impl_->state_.note; }
uint64_t BulkLoad::discarded() const { return impl_->discarded_; }
Status BulkLoad::Feed(std::string_view data, const InterruptCheck& interrupted) { return impl_->Feed(data, interrupted); }
Status BulkLoad::EndInput(std::string* incomplete) { return impl_->EndInput(incomplete); }
Status BulkLoad::Add(std::string_view s, std::string_view r, std::string_view o) { return impl_->Add(s, r, o); }
std::map<std::string, uint64_t> BulkLoad::Counts() const { return impl_->Counts(); }
std::vector<BulkReject> BulkLoad::TakeRejects() { return std::exchange(impl_->rejects_, {}); }
Status BulkLoad::Checkpoint(const std::string& note) { return impl_->Checkpoint(note); }
Result<std::map<std::string, uint64_t>> BulkLoad::Seal(const BuildProgress& progress,
                                                       const InterruptCheck& interrupted) {
  return impl_->Seal(progress, interrupted);
}
Status BulkLoad::Discard() { return impl_->Discard(); }
void BulkLoad::Close() { impl_->Close(); }

}  // namespace pymemstore
