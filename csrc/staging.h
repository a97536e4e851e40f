// What a bulk import keeps in files until it is sealed: names, triples, notes (labels, aliases, ...), and the state
// of the last checkpoint. Cut back to that state they are whole, so that they are the checkpoint and the spill at once.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "fact_sink.h"
#include "file_util.h"
#include "format.h"

namespace pymemstore {

// A file that is written through a map: the pages belong to the file, not to the process.
class GrowingFile {
 public:
  GrowingFile() = default;
  ~GrowingFile();
  GrowingFile(const GrowingFile&) = delete;
  GrowingFile& operator=(const GrowingFile&) = delete;
  // Keeps the first `size` bytes.
  Status Open(const std::string& path, uint64_t size);
  // Room for n bytes behind the end; their blocks are allocated, so that a full disk is an error here and no signal
  // later.
  Status Reserve(size_t n) { return size_ + n <= capacity_ ? Status::Ok() : Grow(n); }
  char* end() { return base_ + size_; }
  void Advance(size_t n) { size_ += n; }
  const char* data() const { return base_; }
  uint64_t size() const { return size_; }
  Status Sync() { return SyncFd(fd_.get(), path_); }

 private:
  Status Grow(size_t n);
  Fd fd_;
  std::string path_;
  char* base_ = nullptr;
  uint64_t size_ = 0, capacity_ = 0;
};

// Distinct texts with dense numbers in order of first use. A text may be there as a name and as a key.
class StagedNames {
 public:
  using Ref = FactSink::Ref;
  ~StagedNames();
  // `bytes`, `count`: of the last checkpoint. `memory`: past it the hash table is a file, too.
  Status Open(const std::string& dir, const std::string& name, uint64_t bytes, uint64_t count, uint64_t memory);

  uint64_t Hash(Bytes text, bool key) const;
  void Prefetch(uint64_t hash) const { __builtin_prefetch(&slots_[hash & mask_]); }
  // The slot should be in the cache by now: the text that it probably leads to.
  void PrefetchText(uint64_t hash) const {
    uint64_t slot = slots_[hash & mask_];
    if (slot && slot >> kOffsetBits != hash >> kOffsetBits) slot = slots_[(hash + 1) & mask_];
    if (!slot) return;
    const char* record = file_.data() + (slot & kOffset) - 1;
    __builtin_prefetch(record);
    __builtin_prefetch(record + 40);  // most names end there
  }
  Status Intern(Bytes text, bool key, uint64_t hash, Ref* ref);
  bool Find(Bytes text, bool key, Ref* ref) const;

  uint64_t count() const { return count_; }
  uint64_t bytes() const { return file_.size(); }
  Status Sync() { return file_.Sync(); }
  // The hash table goes; no Intern or Find afterwards.
  void DropTable();
  // In order of ref.
  Status ForEach(const std::function<Status(Ref ref, Bytes text, bool key)>& fn) const;
  // Where each text stands, for Text(); 8 bytes a name.
  std::vector<uint64_t> Offsets() const;
  Bytes Text(uint64_t offset, bool* key) const;

 private:
  static constexpr int kOffsetBits = 40;
  static constexpr uint64_t kOffset = (uint64_t{1} << kOffsetBits) - 1;
  struct Record {
    Ref ref;
    bool key;
    Bytes text;
    uint64_t next;
  };
  Record Read(uint64_t offset) const;
  Status Resize(uint64_t slots);

  GrowingFile file_;
  std::string slots_path_;
  uint64_t memory_ = 0, seed_ = 0;
  uint64_t* slots_ = nullptr;  // upper bits of the hash, and offset + 1
  uint64_t mask_ = 0, count_ = 0;
};

enum class NoteType : uint8_t { kLabel = 1, kAlias = 2, kRedirect = 3, kWhole = 4 };
struct Note {
  NoteType type;
  Kind kind;
  FactSink::Ref ref;
  uint32_t number;  // kLabel: rank; kRedirect: the other ref
  Bytes text;
  uint64_t offset;  // of this note
};

class StagedNotes {
 public:
  Status Open(const std::string& path, uint64_t bytes) { return file_.Open(path, bytes); }
  Status Add(NoteType type, Kind kind, FactSink::Ref ref, uint32_t number, Bytes text);
  Status ForEach(const std::function<Status(const Note&)>& fn) const;
  Note At(uint64_t offset) const;
  uint64_t bytes() const { return file_.size(); }
  Status Sync() { return file_.Sync(); }

 private:
  GrowingFile file_;
};

struct StagedTriple {
  FactSink::Ref s, r, o;
};

class StagedTriples {
 public:
  Status Open(const std::string& path, uint64_t count);
  Status Add(const StagedTriple& t) {
    buffer_.push_back(t);
    return buffer_.size() < kBuffer ? Status::Ok() : Flush();
  }
  uint64_t count() const { return written_ + buffer_.size(); }
  Status Sync();
  Status ForEach(const std::function<Status(const StagedTriple&)>& fn);

 private:
  static constexpr size_t kBuffer = 1u << 18;
  Status Flush();
  Fd fd_;
  std::string path_;
  std::vector<StagedTriple> buffer_;
  uint64_t written_ = 0;
};

// The state file: what a checkpoint makes durable.
struct StagedState {
  std::string identity, load_id, note;
  uint32_t input = 0;
  uint64_t consumed = 0, lines = 0;
  uint64_t name_bytes[kKinds] = {0, 0}, name_count[kKinds] = {0, 0};
  uint64_t triples = 0, note_bytes = 0;
  std::map<std::string, uint64_t> counts;
};
std::string EncodeState(const StagedState& state);
bool DecodeState(Bytes text, StagedState* state);

// Results of a sealed load, kept in meta under "last_load": its id and what it did.
std::string EncodeLastLoad(const std::string& load_id, const std::map<std::string, uint64_t>& result);
bool DecodeLastLoad(Bytes value, std::string* load_id, std::map<std::string, uint64_t>* result);

}  // namespace pymemstore
