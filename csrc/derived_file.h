// Files below index/ that are made from a vector file and can be made again: a header page with a table of
// sections, then the sections. Written once, under another name until they are whole; mapped read-only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "file_util.h"
#include "format.h"

namespace pymemstore {

// What a derived file was made from. One that differs in any part is refused.
struct DerivedStamp {
  StoreId store_id{};
  Kind kind = Kind::kEntity;
  uint32_t dim = 0;
  uint32_t vector_file = 0;  // the number in its name
  bool operator==(const DerivedStamp& o) const {
    return store_id == o.store_id && kind == o.kind && dim == o.dim && vector_file == o.vector_file;
  }
};

enum class DerivedType : uint32_t { kCodes = 1, kGraph = 2, kPartOfGraph = 3 };

// Path of a derived file of a store, such as "<store>/index/entities-000001.codes".
std::string DerivedPath(const std::string& store, const DerivedStamp& stamp, DerivedType type);

// Writes the sections of a file one after the other.
class DerivedWriter {
 public:
  // The folder is made when it is not there. What an earlier attempt left under the temporary name goes.
  static Result<std::unique_ptr<DerivedWriter>> Create(const std::string& path, const DerivedStamp& stamp,
                                                       DerivedType type);
  ~DerivedWriter();  // removes the temporary file unless Finish succeeded

  Status Append(const void* data, size_t size);  // to the current section
  Status EndSection();
  Status Section(const void* data, size_t size) {
    PMS_RETURN_IF_ERROR(Append(data, size));
    return EndSection();
  }
  // Header, fsync, rename, fsync of the folder. `rows` of the vector file are covered.
  Status Finish(uint64_t rows);

 private:
  DerivedWriter(Fd fd, std::string path, const DerivedStamp& stamp, DerivedType type)
      : fd_(std::move(fd)), path_(std::move(path)), stamp_(stamp), type_(type) {}
  Status Flush();

  Fd fd_;
  const std::string path_;
  const DerivedStamp stamp_;
  const DerivedType type_;
  std::string buffer_;
  uint64_t at_ = kDerivedHeaderBytes;  // of the buffer's beginning
  DerivedSection current_{kDerivedHeaderBytes, 0, 0};
  std::vector<DerivedSection> sections_;
  bool finished_ = false;
};

// A mapped file.
class DerivedFile {
 public:
  // NotFound when there is none; Corruption, with the reason, when it is damaged, cut short, or of another store,
  // vector file or version. Checks the header and the sections' places, not what is in them.
  static Result<std::shared_ptr<const DerivedFile>> Open(const std::string& path, const DerivedStamp& stamp,
                                                         DerivedType type);
  ~DerivedFile();

  uint64_t rows() const { return rows_; }
  size_t sections() const { return sections_.size(); }
  // The section as an array; null unless it has exactly `count` elements.
  template <typename T>
  const T* Array(size_t section, uint64_t count) const {
    if (section >= sections_.size() || sections_[section].bytes != count * sizeof(T)) return nullptr;
    return reinterpret_cast<const T*>(base_ + sections_[section].offset);
  }
  Bytes Section(size_t section) const {
    return Bytes(reinterpret_cast<const char*>(base_ + sections_[section].offset), sections_[section].bytes);
  }
  bool SectionIsWhole(size_t section) const { return Crc32(Section(section)) == sections_[section].crc; }
  const std::string& path() const { return path_; }

 private:
  DerivedFile() = default;
  const uint8_t* base_ = nullptr;
  size_t bytes_ = 0;
  uint64_t rows_ = 0;
  std::vector<DerivedSection> sections_;
  std::string path_;
};

// Tells one file from another that takes its place: inode, size and time of change. Zeros: there is none.
struct FileMark {
  uint64_t inode = 0, size = 0;
  int64_t changed_ns = 0;
  bool operator==(const FileMark& o) const { return inode == o.inode && size == o.size && changed_ns == o.changed_ns; }
  bool exists() const { return inode != 0; }
};
FileMark MarkOf(const std::string& path);

}  // namespace pymemstore
