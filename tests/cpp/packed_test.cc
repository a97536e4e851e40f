// The blocks of the sealed tables: what goes in comes out, and damage is told.
#include "packed.h"

#include <algorithm>
#include <random>
#include <set>

#include "check.h"

namespace pymemstore {
namespace {

struct Block {
  std::string key, value;
};

EmitBlock Into(std::vector<Block>* blocks) {
  return [blocks](Bytes key, Bytes value) { blocks->push_back({std::string(key), std::string(value)}); };
}

// Keys of blocks ascend, and values fit the tiling that LMDB's pages want.
void CheckBlocks(const std::vector<Block>& blocks, size_t most) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    CHECK(blocks[i].value.size() <= most);
    if (i) CHECK(blocks[i - 1].key < blocks[i].key);
  }
}

TEST(RowsOfBothOrdersRoundTrip) {
  std::mt19937_64 rng(7);
  for (bool by_object : {false, true}) {
    std::set<std::tuple<uint32_t, uint32_t, uint64_t>> keys;
    // Narrow and wide values, runs and jumps, the largest ids.
    for (int i = 0; i < 20000; ++i) {
      const uint32_t a = rng() % 7 ? static_cast<uint32_t>(rng() % 500) : static_cast<uint32_t>(rng());
      const uint32_t b = rng() % 5 ? static_cast<uint32_t>(rng() % 3) : static_cast<uint32_t>(rng() % 20000);
      keys.insert({a, b, rng() % 3 ? rng() % 4000 : by_object ? rng() >> 4 : static_cast<uint32_t>(rng())});
    }
    keys.insert({kNoName - 1, kNoName - 1, kNoName - 1});
    std::vector<PackedRow> rows;
    for (const auto& [a, b, c] : keys)
      rows.push_back({a, b, c, rng() % 4 && !rows.empty() ? rows.back().x + 1 : by_object ? rng() % kNoName : rng() >> 3});
    std::vector<Block> blocks;
    RowBlockWriter writer(by_object, Into(&blocks));
    for (const PackedRow& row : rows) writer.Add(row);
    writer.Flush();
    CheckBlocks(blocks, 488);
    size_t at = 0;
    for (const Block& block : blocks) {
      RowBlockReader reader(by_object, block.key, block.value);
      do {
        CHECK(at < rows.size());
        CHECK(reader.row().SameKey(rows[at]));
        CHECK_EQ(reader.row().x, rows[at].x);
        ++at;
      } while (reader.Next());
      CHECK(reader.ok());
    }
    CHECK_EQ(at, rows.size());
  }
}

TEST(PairsRoundTripAndDropRepetitions) {
  std::mt19937_64 rng(8);
  std::vector<HashPair> pairs;
  for (int i = 0; i < 20000; ++i) pairs.emplace_back(PairHash(rng() % 3 ? rng() : rng() % 50 << 40), rng() % kNoName);
  pairs.insert(pairs.end(), pairs.begin(), pairs.begin() + 100);
  std::sort(pairs.begin(), pairs.end());
  std::vector<Block> blocks;
  PairBlockWriter writer(Into(&blocks));
  for (const HashPair& pair : pairs) writer.Add(pair);
  writer.Flush();
  CheckBlocks(blocks, 490);
  std::vector<HashPair> read;
  for (const Block& block : blocks) {
    PairBlockReader reader(block.key, block.value);
    do read.push_back(reader.pair());
    while (reader.Next());
    CHECK(reader.ok());
  }
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  CHECK(read == pairs);
}

TEST(NamesOfAnyLengthRoundTrip) {
  std::mt19937_64 rng(9);
  std::vector<std::pair<std::string, bool>> names;
  for (int i = 0; i < 3000; ++i) {
    std::string name(rng() % 50 ? 1 + rng() % 60 : 1 + rng() % 5000, 'a');
    for (char& c : name) c = static_cast<char>(rng());
    names.emplace_back(name, rng() % 20 == 0);
  }
  std::vector<Block> blocks;
  NameBlockWriter writer(5, Into(&blocks));
  for (const auto& [name, forgotten] : names) writer.Add(name, forgotten);
  writer.Flush();
  NameId id = 5;
  for (const Block& block : blocks) {
    NameBlockReader reader(block.key, block.value);
    CHECK(reader.ok());
    CHECK_EQ(reader.first(), id);
    for (; id < reader.end(); ++id) {
      CHECK(reader.name(id).name == names[id - 5].first);
      CHECK_EQ(reader.name(id).forgotten, names[id - 5].second);
      PackedName found;
      CHECK(NameBlockReader::Find(block.key, block.value, id, &found));
      CHECK(found.name == names[id - 5].first && found.forgotten == names[id - 5].second);
    }
    PackedName none;
    CHECK(!NameBlockReader::Find(block.key, block.value, id, &none));
  }
  CHECK_EQ(id, names.size() + 5);
}

TEST(TriplesByIdRoundTripWithGaps) {
  std::mt19937_64 rng(10);
  std::vector<std::pair<TripleId, TripleIds>> triples;
  TripleId id = 1;
  for (int i = 0; i < 20000; ++i, id += rng() % 100 ? 1 : 1 + rng() % 1000)
    triples.push_back({id, {static_cast<NameId>(rng() % (i % 3 ? 10 : kNoName)), static_cast<NameId>(rng() % 4),
                            static_cast<NameId>(rng() % (i % 5 ? 1000 : kNoName))}});
  std::vector<Block> blocks;
  TripleBlockWriter writer(Into(&blocks));
  for (const auto& [i, t] : triples) writer.Add(i, t);
  writer.Flush();
  CheckBlocks(blocks, 492);
  size_t at = 0;
  for (const Block& block : blocks) {
    TripleBlockReader reader(block.value);
    TripleIds t;
    for (TripleId i = GetBe64(block.key.data()); reader.Next(&t); ++i, ++at) {
      CHECK_EQ(i, triples[at].first);
      CHECK(t == triples[at].second);
    }
  }
  CHECK_EQ(at, triples.size());
}

TEST(DamagedBlocksEndAndSayThatTheyDo) {
  std::vector<Block> blocks;
  RowBlockWriter writer(false, Into(&blocks));
  for (uint32_t i = 0; i < 50; ++i) writer.Add({i * 1000, i, i * 70000ull, i * 7});
  writer.Flush();
  const Block block = blocks[0];
  std::mt19937_64 rng(11);
  bool told = false;
  for (int round = 0; round < 20000; ++round) {
    std::string value = block.value.substr(0, rng() % (block.value.size() + 1));
    if (!value.empty()) value[rng() % value.size()] = static_cast<char>(rng());
    RowBlockReader reader(false, block.key, value);
    size_t rows = 0;
    while (reader.Next()) ++rows;
    CHECK(rows <= value.size());
    told = told || !reader.ok();
    NameBlockReader names(Bytes(block.key).substr(0, 4), value);
    PackedName name;
    (void)NameBlockReader::Find(Bytes(block.key).substr(0, 4), value, static_cast<NameId>(rng()), &name);
    TripleBlockReader triples(value);
    TripleIds t;
    while (triples.Next(&t)) {
    }
  }
  CHECK(told);
  CHECK(!RowBlockReader(false, "short", block.value).ok());
  CHECK(!PairBlockReader("short", block.value).ok());
}

}  // namespace
}  // namespace pymemstore
