#include "vector_file.h"

#include <fcntl.h>
#include <unistd.h>

#include "check.h"

using namespace pymemstore;
using pymemstore::test::TempDir;

namespace {

std::string Rows(uint64_t first, uint64_t n, uint32_t dim) {
  std::string out;
  std::vector<float> v(dim);
  for (uint64_t i = first; i < first + n; ++i) {
    v[0] = static_cast<float>(i);
    VectorFile::Encode(v.data(), dim, static_cast<NameId>(i + 100), &out);
  }
  return out;
}

}  // namespace

TEST(AppendedRowsAreSeenThroughOldAndNewViews) {
  TempDir dir;
  const StoreId id{};
  const std::string path = dir / "e.vec";
  CHECK_OK(VectorFile::Create(path, id, Kind::kEntity, 8));
  auto file = VectorFile::Open(path, id, Kind::kEntity, 8, false);
  CHECK_OK(file.status());
  CHECK_OK((*file)->Rows(0).status());
  CHECK_OK((*file)->Write(0, Rows(0, 10, 8)));
  auto small = (*file)->Rows(10);
  CHECK_OK(small.status());
  // Past the first map of 64 MiB.
  const uint64_t many = (80u << 20) / RowStride(8);
  CHECK_OK((*file)->Write(10, Rows(10, many, 8)));
  auto big = (*file)->Rows(10 + many);
  CHECK_OK(big.status());
  CHECK_EQ(small->view.row(9)[0], 9.0f);
  CHECK_EQ(big->view.row(9 + many)[0], static_cast<float>(9 + many));
  CHECK_EQ(big->owner(9 + many), static_cast<NameId>(109 + many));
  CHECK(VectorFile::RowIsWhole(*big, 5));
}

TEST(WhatLiesBeyondTheCommittedRowsIsOverwritten) {
  TempDir dir;
  const std::string path = dir / "e.vec";
  CHECK_OK(VectorFile::Create(path, {}, Kind::kEntity, 4));
  auto file = VectorFile::Open(path, {}, Kind::kEntity, 4, false);
  CHECK_OK((*file)->Write(0, Rows(50, 5, 4)));  // never committed
  CHECK_OK((*file)->Write(0, Rows(0, 2, 4)));
  auto rows = (*file)->Rows(2);
  CHECK_EQ(rows->view.row(1)[0], 1.0f);
}

TEST(ShortDamagedOrForeignFilesAreRefused) {
  TempDir dir;
  const std::string path = dir / "e.vec";
  CHECK(VectorFile::Open(path, {}, Kind::kEntity, 4, false).status().code() == Code::kCorruption);
  CHECK_OK(VectorFile::Create(path, {}, Kind::kEntity, 4));
  CHECK(VectorFile::Open(path, {}, Kind::kEntity, 5, false).status().code() == Code::kCorruption);
  StoreId other{};
  other[0] = 1;
  CHECK(VectorFile::Open(path, other, Kind::kEntity, 4, false).status().code() == Code::kCorruption);
  auto file = VectorFile::Open(path, {}, Kind::kEntity, 4, true);
  CHECK_OK(file.status());
  CHECK((*file)->Rows(1).status().code() == Code::kCorruption);  // fewer rows than committed
  CHECK((*file)->Write(0, Rows(0, 1, 4)).code() == Code::kIOError);  // read-only
}

TEST(AFlippedBitIsSeen) {
  TempDir dir;
  const std::string path = dir / "e.vec";
  CHECK_OK(VectorFile::Create(path, {}, Kind::kEntity, 4));
  auto file = VectorFile::Open(path, {}, Kind::kEntity, 4, false);
  CHECK_OK((*file)->Write(0, Rows(0, 3, 4)));
  auto rows = (*file)->Rows(3);
  for (uint64_t i = 0; i < 3; ++i) CHECK(VectorFile::RowIsWhole(*rows, i));
  auto fd = OpenFile(path, O_RDWR);
  for (size_t bit = 0; bit < 8 * RowStride(4); bit += 7) {
    char c = 0;
    const off_t at = static_cast<off_t>(kVectorHeaderBytes + RowStride(4) + bit / 8);
    CHECK_EQ(::pread(fd->get(), &c, 1, at), 1);
    c = static_cast<char>(c ^ (1 << bit % 8));
    CHECK_OK(WriteAll(fd->get(), &c, 1, static_cast<uint64_t>(at), path));
    CHECK(!VectorFile::RowIsWhole(*rows, 1));
    c = static_cast<char>(c ^ (1 << bit % 8));
    CHECK_OK(WriteAll(fd->get(), &c, 1, static_cast<uint64_t>(at), path));
  }
  CHECK(VectorFile::RowIsWhole(*rows, 1));
}
