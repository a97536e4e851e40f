#include "staging.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "crc32.h"
#include "packed.h"

namespace pymemstore {
namespace {

uint64_t Mix(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Two words of a text at a time; seeded, so that no input can be made to crowd one slot.
uint64_t TextHash(Bytes text, uint64_t seed) {
  constexpr uint64_t kA = 0x9e3779b97f4a7c15ull, kB = 0xd1b54a32d192ed03ull, kC = 0x8cb92ba72f3d8dd7ull;
  const char* p = text.data();
  size_t n = text.size();
  uint64_t h = seed ^ Mix(n ^ kA, kB);
  for (; n > 16; n -= 16, p += 16) h = Mix(h ^ GetLe64(p) ^ kA, GetLe64(p + 8) ^ kB);
  uint64_t a = 0, b = 0;
  if (n >= 8) {
    a = GetLe64(p);
    b = GetLe64(p + n - 8);
  } else if (n >= 4) {
    a = GetLe32(p);
    b = GetLe32(p + n - 4);
  } else if (n > 0) {
    a = static_cast<uint64_t>(static_cast<uint8_t>(p[0])) << 16 |
        static_cast<uint64_t>(static_cast<uint8_t>(p[n / 2])) << 8 | static_cast<uint8_t>(p[n - 1]);
  }
  return Mix(Mix(h ^ a ^ kC, b ^ kB), kA);
}

constexpr uint64_t kFirstSlots = 1u << 12;
constexpr size_t kNoteHeader = 14;

}  // namespace

GrowingFile::~GrowingFile() {
  if (base_) ::munmap(base_, capacity_);
}

Status GrowingFile::Open(const std::string& path, uint64_t size) {
  path_ = path;
  PMS_ASSIGN_OR_RETURN(fd_, OpenFile(path, O_RDWR | O_CREAT));
  if (::ftruncate(fd_.get(), static_cast<off_t>(size)) != 0) return ErrnoStatus("cannot cut", path, errno);
  size_ = size;
  return Grow(1);
}

Status GrowingFile::Grow(size_t n) {
  constexpr uint64_t kStep = 1u << 16, kMiB = 1u << 20;
  const uint64_t have = std::max(capacity_, size_), need = size_ + n;
  const uint64_t more = std::max<uint64_t>(capacity_ < kMiB ? kStep : capacity_ / 4, need > have ? need - have : 0);
  const uint64_t capacity = (have + more + kStep - 1) / kStep * kStep;
  const int error = ::posix_fallocate(fd_.get(), static_cast<off_t>(size_), static_cast<off_t>(capacity - size_));
  if (error) return ErrnoStatus("cannot extend", path_, error);
  void* p = base_ ? ::mremap(base_, capacity_, capacity, MREMAP_MAYMOVE)
                  : ::mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (p == MAP_FAILED) return ErrnoStatus("cannot map", path_, errno);
  base_ = static_cast<char*>(p);
  capacity_ = capacity;
  return Status::Ok();
}

// ---- names: ref, length and whether it is a key, text ----------------------------------------------

StagedNames::~StagedNames() { DropTable(); }

void StagedNames::DropTable() {
  if (slots_) ::munmap(slots_, (mask_ + 1) * 8);
  slots_ = nullptr;
}

Status StagedNames::Open(const std::string& dir, const std::string& name, uint64_t bytes, uint64_t count,
                         uint64_t memory) {
  PMS_RETURN_IF_ERROR(file_.Open(dir + "/" + name, bytes));
  slots_path_ = dir + "/" + name + ".table";
  memory_ = memory;
  if (::getrandom(&seed_, sizeof seed_, 0) != sizeof seed_) return ErrnoStatus("cannot draw random bytes for", dir, errno);
  count_ = count;
  uint64_t slots = kFirstSlots;
  while (slots * 3 < count * 4) slots *= 2;
  return Resize(slots);
}

uint64_t StagedNames::Hash(Bytes text, bool key) const { return TextHash(text, key ? ~seed_ : seed_); }

StagedNames::Record StagedNames::Read(uint64_t offset) const {
  const char* p = file_.data() + offset;
  uint64_t head = 0;
  int shift = 0;
  const char* q = p + 4;
  for (; *q & 0x80; ++q, shift += 7) head |= static_cast<uint64_t>(*q & 0x7f) << shift;
  head |= static_cast<uint64_t>(*q++) << shift;
  return {GetLe32(p), (head & 1) != 0, Bytes(q, head >> 1), offset + static_cast<uint64_t>(q - p) + (head >> 1)};
}

Status StagedNames::Resize(uint64_t slots) {
  DropTable();
  const size_t bytes = slots * 8;
  void* p = MAP_FAILED;
  if (bytes <= memory_ / 2) {
    p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p != MAP_FAILED) (void)::madvise(p, bytes, MADV_HUGEPAGE);
  }
  if (p == MAP_FAILED) {
    (void)::unlink(slots_path_.c_str());
    PMS_ASSIGN_OR_RETURN(Fd fd, OpenFile(slots_path_, O_RDWR | O_CREAT | O_TRUNC));
    (void)::unlink(slots_path_.c_str());  // goes with the map
    const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
    if (error) return ErrnoStatus("cannot extend", slots_path_, error);
    p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (p == MAP_FAILED) return ErrnoStatus("cannot map", slots_path_, errno);
  }
  slots_ = static_cast<uint64_t*>(p);
  mask_ = slots - 1;
  for (uint64_t offset = 0; offset < file_.size();) {
    const Record record = Read(offset);
    const uint64_t hash = Hash(record.text, record.key);
    uint64_t i = hash & mask_;
    while (slots_[i]) i = (i + 1) & mask_;
    slots_[i] = hash >> kOffsetBits << kOffsetBits | (offset + 1);
    offset = record.next;
  }
  return Status::Ok();
}

Status StagedNames::Intern(Bytes text, bool key, uint64_t hash, Ref* ref) {
  uint64_t i = hash & mask_;
  for (; slots_[i]; i = (i + 1) & mask_) {
    if (slots_[i] >> kOffsetBits != hash >> kOffsetBits) continue;
    const Record record = Read((slots_[i] & kOffset) - 1);
    if (record.text == text && record.key == key) {
      *ref = record.ref;
      return Status::Ok();
    }
  }
  if (count_ >= kNoName - 1) return Status::InvalidArgument("the import has more names than a store can hold");
  PMS_RETURN_IF_ERROR(file_.Reserve(16 + text.size()));
  char* p = file_.end();
  *ref = static_cast<Ref>(count_++);
  std::memcpy(p, ref, 4);
  size_t n = 4;
  uint64_t head = static_cast<uint64_t>(text.size()) << 1 | key;
  for (; head >= 0x80; head >>= 7) p[n++] = static_cast<char>(head | 0x80);
  p[n++] = static_cast<char>(head);
  std::memcpy(p + n, text.data(), text.size());
  slots_[i] = hash >> kOffsetBits << kOffsetBits | (file_.size() + 1);
  file_.Advance(n + text.size());
  return count_ * 4 > (mask_ + 1) * 3 ? Resize(2 * (mask_ + 1)) : Status::Ok();
}

bool StagedNames::Find(Bytes text, bool key, Ref* ref) const {
  const uint64_t hash = Hash(text, key);
  for (uint64_t i = hash & mask_; slots_[i]; i = (i + 1) & mask_) {
    if (slots_[i] >> kOffsetBits != hash >> kOffsetBits) continue;
    const Record record = Read((slots_[i] & kOffset) - 1);
    if (record.text == text && record.key == key) {
      *ref = record.ref;
      return true;
    }
  }
  return false;
}

Status StagedNames::ForEach(const std::function<Status(Ref, Bytes, bool)>& fn) const {
  for (uint64_t offset = 0; offset < file_.size();) {
    const Record record = Read(offset);
    PMS_RETURN_IF_ERROR(fn(record.ref, record.text, record.key));
    offset = record.next;
  }
  return Status::Ok();
}

std::vector<uint64_t> StagedNames::Offsets() const {
  std::vector<uint64_t> offsets;
  offsets.reserve(count_);
  for (uint64_t offset = 0; offset < file_.size(); offset = Read(offset).next) offsets.push_back(offset);
  return offsets;
}

Bytes StagedNames::Text(uint64_t offset, bool* key) const {
  const Record record = Read(offset);
  *key = record.key;
  return record.text;
}

// ---- notes -----------------------------------------------------------------------------------------

Status StagedNotes::Add(NoteType type, Kind kind, FactSink::Ref ref, uint32_t number, Bytes text) {
  PMS_RETURN_IF_ERROR(file_.Reserve(kNoteHeader + text.size()));
  const auto size = static_cast<uint32_t>(text.size());
  char* p = file_.end();
  p[0] = static_cast<char>(type);
  p[1] = static_cast<char>(kind);
  std::memcpy(p + 2, &ref, 4);
  std::memcpy(p + 6, &number, 4);
  std::memcpy(p + 10, &size, 4);
  std::memcpy(p + kNoteHeader, text.data(), text.size());
  file_.Advance(kNoteHeader + text.size());
  return Status::Ok();
}

Note StagedNotes::At(uint64_t offset) const {
  const char* p = file_.data() + offset;
  return {static_cast<NoteType>(p[0]),           static_cast<Kind>(p[1]), GetLe32(p + 2), GetLe32(p + 6),
          Bytes(p + kNoteHeader, GetLe32(p + 10)), offset};
}

Status StagedNotes::ForEach(const std::function<Status(const Note&)>& fn) const {
  for (uint64_t offset = 0; offset < file_.size();) {
    const Note note = At(offset);
    PMS_RETURN_IF_ERROR(fn(note));
    offset += kNoteHeader + note.text.size();
  }
  return Status::Ok();
}

// ---- triples ---------------------------------------------------------------------------------------

static_assert(sizeof(StagedTriple) == 12, "written as it is");

Status StagedTriples::Open(const std::string& path, uint64_t count) {
  path_ = path;
  PMS_ASSIGN_OR_RETURN(fd_, OpenFile(path, O_RDWR | O_CREAT));
  if (::ftruncate(fd_.get(), static_cast<off_t>(count * sizeof(StagedTriple))) != 0)
    return ErrnoStatus("cannot cut", path, errno);
  written_ = count;
  buffer_.reserve(kBuffer);
  return Status::Ok();
}

Status StagedTriples::Flush() {
  PMS_RETURN_IF_ERROR(WriteAll(fd_.get(), buffer_.data(), buffer_.size() * sizeof(StagedTriple),
                               written_ * sizeof(StagedTriple), path_));
  written_ += buffer_.size();
  buffer_.clear();
  return Status::Ok();
}

Status StagedTriples::Sync() {
  PMS_RETURN_IF_ERROR(Flush());
  return SyncFd(fd_.get(), path_);
}

Status StagedTriples::ForEach(const std::function<Status(const StagedTriple&)>& fn) {
  PMS_RETURN_IF_ERROR(Flush());
  std::vector<StagedTriple> piece(kBuffer);
  for (uint64_t at = 0; at < written_;) {
    const size_t want = static_cast<size_t>(std::min<uint64_t>(kBuffer, written_ - at)) * sizeof(StagedTriple);
    for (size_t got = 0; got < want;) {
      const ssize_t n = ::pread(fd_.get(), reinterpret_cast<char*>(piece.data()) + got, want - got,
                                static_cast<off_t>(at * sizeof(StagedTriple) + got));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return n < 0 ? ErrnoStatus("cannot read", path_, errno) : Status::Corruption(path_ + " is cut");
      got += static_cast<size_t>(n);
    }
    for (size_t i = 0; i < want / sizeof(StagedTriple); ++i) PMS_RETURN_IF_ERROR(fn(piece[i]));
    at += want / sizeof(StagedTriple);
  }
  return Status::Ok();
}

// ---- state -----------------------------------------------------------------------------------------

namespace {

constexpr char kStateMagic[] = "PMSLOAD1";

void AppendString(std::string* out, Bytes text) {
  AppendVarint(out, text.size());
  out->append(text);
}

void AppendCounts(std::string* out, const std::map<std::string, uint64_t>& counts) {
  AppendVarint(out, counts.size());
  for (const auto& [name, count] : counts) {
    AppendString(out, name);
    AppendVarint(out, count);
  }
}

std::string TakeString(VarintReader* reader) { return std::string(reader->Take(reader->Next())); }

void TakeCounts(VarintReader* reader, std::map<std::string, uint64_t>* counts) {
  for (uint64_t n = reader->Next(); n && reader->ok(); --n) {
    const std::string name = TakeString(reader);
    (*counts)[name] = reader->Next();
  }
}

}  // namespace

std::string EncodeState(const StagedState& state) {
  std::string out(kStateMagic, 8);
  for (const std::string* text : {&state.identity, &state.load_id, &state.note}) AppendString(&out, *text);
  for (uint64_t number : {static_cast<uint64_t>(state.input), state.consumed, state.lines, state.name_bytes[0],
                          state.name_bytes[1], state.name_count[0], state.name_count[1], state.triples,
                          state.note_bytes})
    AppendVarint(&out, number);
  AppendCounts(&out, state.counts);
  AppendLe32(&out, Crc32(out));
  return out;
}

bool DecodeState(Bytes text, StagedState* state) {
  if (text.size() < 12 || text.substr(0, 8) != Bytes(kStateMagic, 8)) return false;
  const Bytes covered = text.substr(0, text.size() - 4);
  if (GetLe32(text.data() + covered.size()) != Crc32(covered)) return false;
  VarintReader reader(covered.substr(8));
  for (std::string* part : {&state->identity, &state->load_id, &state->note}) *part = TakeString(&reader);
  state->input = static_cast<uint32_t>(reader.Next());
  for (uint64_t* number : {&state->consumed, &state->lines, &state->name_bytes[0], &state->name_bytes[1],
                           &state->name_count[0], &state->name_count[1], &state->triples, &state->note_bytes})
    *number = reader.Next();
  TakeCounts(&reader, &state->counts);
  return reader.ok() && reader.done();
}

std::string EncodeLastLoad(const std::string& load_id, const std::map<std::string, uint64_t>& result) {
  std::string out;
  AppendString(&out, load_id);
  AppendCounts(&out, result);
  return out;
}

bool DecodeLastLoad(Bytes value, std::string* load_id, std::map<std::string, uint64_t>* result) {
  VarintReader reader(value);
  *load_id = TakeString(&reader);
  TakeCounts(&reader, result);
  return reader.ok() && reader.done();
}

}  // namespace pymemstore
