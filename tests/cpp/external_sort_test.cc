#include "external_sort.h"

#include <filesystem>
#include <random>

#include "check.h"

using namespace pymemstore;
using pymemstore::test::TempDir;

namespace {

template <typename Key>
std::vector<Key> Sorted(ExternalSorter<Key>* sorter, const std::vector<Key>& keys) {
  for (Key key : keys) CHECK_OK(sorter->Add(key));
  CHECK_OK(sorter->Finish());
  std::vector<Key> result;
  for (Key key; sorter->Next(&key);) result.push_back(key);
  CHECK_OK(sorter->status());
  return result;
}

}  // namespace

TEST(SortsInMemoryAndWithRuns) {
  TempDir dir;
  std::mt19937_64 rng(1);
  for (size_t count : {0, 1, 2, 1000, 50000})
    for (size_t most : {1024, 7000, 100000}) {
      std::vector<uint64_t> keys(count);
      for (uint64_t& key : keys) key = rng() >> (rng() % 40);
      ExternalSorter<uint64_t> sorter(dir / "run", most, {{0, 64}});
      const auto result = Sorted(&sorter, keys);
      std::sort(keys.begin(), keys.end());
      CHECK(result == keys);
      CHECK_EQ(sorter.runs() > 1, count > most);
    }
  CHECK(std::filesystem::is_empty(dir / ""));  // runs go with their sorter
}

TEST(KeysThatAgreeInTheFieldsStayInOrder) {
  TempDir dir;
  std::mt19937_64 rng(2);
  for (size_t most : {1024, 1000000}) {
    std::vector<Wide> keys;
    for (uint64_t i = 0; i < 30000; ++i)  // the low part ascends, as the caller promises
      keys.push_back(static_cast<Wide>(rng() % 50) << 96 | static_cast<Wide>(rng() % 9) << 64 | i << 32 | rng() % 1000);
    ExternalSorter<Wide> sorter(dir / "run", most, {{64, 4}, {96, 6}});
    const auto result = Sorted(&sorter, keys);
    std::sort(keys.begin(), keys.end());
    CHECK(result == keys);
  }
}

TEST(AFolderThatIsNotThereIsAnError) {
  TempDir dir;
  ExternalSorter<uint64_t> sorter(dir / "none/run", 1024, {{0, 64}});
  Status status;
  for (uint64_t i = 0; i < 3000 && status.ok(); ++i) status = sorter.Add(i);
  CHECK(status.code() == Code::kIOError);
}
