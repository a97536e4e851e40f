// name_table and triple_table against plain sets and maps.
#include <map>
#include <random>
#include <set>

#include "check.h"
#include "name_table.h"
#include "triple_table.h"

using namespace pymemstore;
using pymemstore::test::TempDir;

namespace {

struct Fixture {
  Fixture() {
    EnvOptions options;
    options.create = true;
    auto made = Env::Open(dir.path(), options);
    CHECK_OK(made.status());
    env = std::move(*made);
    Begin();
  }
  ~Fixture() { txn.reset(); }
  void Begin() {
    txn.reset();
    auto begun = Txn::Begin(env.get(), true);
    CHECK_OK(begun.status());
    txn = std::move(*begun);
  }
  NameId Add(const std::string& name) {
    table.Create(txn.get(), next, name, 0);
    NameTable::RuleKeys keys;
    table.CollectNameKeys(next, name, &keys);
    table.AddRuleKeys(txn.get(), &keys);
    return next++;
  }
  TempDir dir;
  std::unique_ptr<Env> env;
  std::unique_ptr<Txn> txn;
  NameTable table{Kind::kEntity, StoreId{}};
  NameId next = 0;
};

}  // namespace

TEST(NamesOfAnyBytesFindTheirIds) {
  Fixture f;
  std::map<std::string, NameId> ids;
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    std::string name(1 + random() % (i % 50 == 0 ? 70000 : 40), '\0');
    for (char& c : name) c = static_cast<char>(random() % 128);
    if (!ids.count(name)) ids[name] = f.Add(name);
  }
  CHECK_OK(f.txn->status());
  for (const auto& [name, id] : ids) {
    NameId found = kNoName;
    NameRecord record;
    CHECK(f.table.Find(f.txn.get(), name, &found));
    CHECK_EQ(found, id);
    CHECK(f.table.Get(f.txn.get(), id, &record));
    CHECK(record.name == name);
    CHECK(!f.table.Find(f.txn.get(), name + "\0x", &found) || ids.count(name + "\0x"));
  }
}

TEST(NamesThatShareAHashAreTold) {
  // A hash index entry that leads to another name: what a collision looks like.
  Fixture f;
  const NameId a = f.Add("a");
  const NameId b = f.Add("b");
  f.txn->Put(Table::kEntHash, Key64(NameHash(StoreId{}, "a")), Key32(b));
  f.txn->Put(Table::kEntHash, Key64(NameHash(StoreId{}, "c")), Key32(a));
  NameId found = kNoName;
  CHECK(f.table.Find(f.txn.get(), "a", &found));
  CHECK_EQ(found, a);
  CHECK(!f.table.Find(f.txn.get(), "c", &found));
}

TEST(AliasesAreManyToMany) {
  Fixture f;
  const NameId paris = f.Add("Paris"), texas = f.Add("Paris (Texas, US)");
  CHECK(f.table.AddAlias(f.txn.get(), paris, "Lutetia"));
  CHECK(!f.table.AddAlias(f.txn.get(), paris, "Lutetia"));
  CHECK(f.table.AddAlias(f.txn.get(), paris, "Paname"));
  CHECK(f.table.AddAlias(f.txn.get(), texas, "Paname"));
  CHECK_EQ(f.table.Aliases(f.txn.get(), paris), (std::vector<std::string>{"Lutetia", "Paname"}));
  CHECK_EQ(f.table.NamedBy(f.txn.get(), "Paname"), (std::vector<NameId>{paris, texas}));
  CHECK(f.table.RemoveAlias(f.txn.get(), paris, "Paname"));
  CHECK(!f.table.RemoveAlias(f.txn.get(), paris, "Paname"));
  CHECK_EQ(f.table.NamedBy(f.txn.get(), "Paname"), (std::vector<NameId>{texas}));
  CHECK(f.table.AddAlias(f.txn.get(), paris, "Paname"));
  f.table.Forget(f.txn.get(), paris);
  CHECK_EQ(f.table.NamedBy(f.txn.get(), "Lutetia"), (std::vector<NameId>{}));
  CHECK_EQ(f.table.NamedBy(f.txn.get(), "Paname"), (std::vector<NameId>{texas}));
  CHECK_OK(f.txn->status());
}

TEST(ForgottenAndRenamedNamesLeaveNoKeys) {
  Fixture f;
  const NameId id = f.Add("United Nations");
  std::vector<uint64_t> keys;
  QueryKeys(ParseName("united nations"), kRulesCore, &keys);
  auto listed = [&] {
    size_t n = 0;
    for (uint64_t key : keys)
      for (NameId found : f.table.ByRuleKey(f.txn.get(), key)) n += found == id;
    return n;
  };
  CHECK(listed() > 0);
  f.table.Rename(f.txn.get(), id, "Kyoto Protocol");
  CHECK_EQ(listed(), 0u);
  f.table.Forget(f.txn.get(), id);
  CHECK_EQ(f.txn->Entries(Table::kEntRule), 0u);
  CHECK_EQ(f.txn->Entries(Table::kEntHash), 0u);
  CHECK_EQ(f.txn->Entries(Table::kEntPending), 0u);
  NameRecord record;
  CHECK(!f.table.Get(f.txn.get(), id, &record));
  CHECK(f.table.GetForgotten(f.txn.get(), id, &record));
  CHECK(record.name == "Kyoto Protocol");
}

TEST(AnExternalIdHasOneOwner) {
  Fixture f;
  const NameId a = f.Add("a"), b = f.Add("b");
  auto set = f.table.SetExternalId(f.txn.get(), "Q1", a);
  CHECK(set.ok() && *set);
  set = f.table.SetExternalId(f.txn.get(), "Q1", a);
  CHECK(set.ok() && !*set);
  CHECK(f.table.SetExternalId(f.txn.get(), "Q1", b).status().code() == Code::kInvalidArgument);
  CHECK(f.table.SetExternalId(f.txn.get(), "", b).status().code() == Code::kInvalidArgument);
  CHECK(f.table.SetExternalId(f.txn.get(), std::string(481, 'q'), b).status().code() == Code::kInvalidArgument);
  CHECK_OK(f.table.SetExternalId(f.txn.get(), std::string(480, 'q'), b).status());
  NameId id = kNoName;
  CHECK(f.table.ByExternalId(f.txn.get(), "Q1", &id));
  CHECK_EQ(id, a);
}

TEST(TriplesEqualASetInBothOrders) {
  Fixture f;
  std::mt19937 random(2);
  std::map<std::tuple<NameId, NameId, NameId>, TripleId> model;
  TripleId next = 1;
  for (int i = 0; i < 4000; ++i) {
    const TripleIds t{static_cast<NameId>(random() % 40), static_cast<NameId>(random() % 30), static_cast<NameId>(random() % 40)};
    const auto key = std::make_tuple(t.s, t.r, t.o);
    const TripleId there = TripleTable::Find(f.txn.get(), t);
    CHECK_EQ(there, model.count(key) ? model[key] : kNoTriple);
    if (random() % 3 == 0 && there) {
      TripleTable::Remove(f.txn.get(), t, there);
      model.erase(key);
    } else if (!there) {
      TripleTable::Insert(f.txn.get(), t, next);
      model[key] = next++;
    }
  }
  CHECK_EQ(f.txn->Entries(Table::kSpo), model.size());
  CHECK_EQ(f.txn->Entries(Table::kOps), model.size());
  for (int i = 0; i < 300; ++i) {
    const bool object_known = i % 2;
    const NameId known = random() % 40;
    std::set<NameId> chosen;
    for (size_t n = 1 + random() % 10; n > 0; --n) chosen.insert(random() % 32);
    std::vector<TripleTable::Relation> relations;
    for (NameId r : chosen) relations.push_back({r, 0.5, Match::kVector});
    std::set<TripleId> want, got;
    for (const auto& [key, id] : model)
      if ((object_known ? std::get<2>(key) : std::get<0>(key)) == known && chosen.count(std::get<1>(key))) want.insert(id);
    TripleTable::Scan(f.txn.get(), object_known, known, relations,
                      [&](const StoredTriple& t, const TripleTable::Relation& r) {
                        CHECK_EQ(t.ids.r, r.id);
                        CHECK_EQ(model.at({t.ids.s, t.ids.r, t.ids.o}), t.id);
                        CHECK(got.insert(t.id).second);
                        return true;
                      });
    CHECK(got == want);
  }
}

TEST(PagesCoverEachCombinationOnce) {
  Fixture f;
  std::mt19937 random(3);
  std::set<std::tuple<NameId, NameId, NameId>> model;
  TripleId next = 1;
  for (int i = 0; i < 600; ++i) {
    const TripleIds t{static_cast<NameId>(random() % 6), static_cast<NameId>(random() % 5), static_cast<NameId>(random() % 30)};
    if (model.insert({t.s, t.r, t.o}).second) TripleTable::Insert(f.txn.get(), t, next++);
  }
  for (int mask = 0; mask < 8; ++mask)
    for (NameId s : {0u, 5u, 9u})
      for (NameId r : {0u, 4u})
        for (NameId o : {0u, 7u, 29u}) {
          std::set<std::tuple<NameId, NameId, NameId>> want, got;
          for (const auto& t : model)
            if ((!(mask & 1) || std::get<0>(t) == s) && (!(mask & 2) || std::get<1>(t) == r) && (!(mask & 4) || std::get<2>(t) == o))
              want.insert(t);
          std::string cursor;
          do {
            const auto page = TripleTable::Page(f.txn.get(), mask & 1 ? &s : nullptr, mask & 2 ? &r : nullptr,
                                                mask & 4 ? &o : nullptr, &cursor, 7);
            CHECK(page.size() <= 7);
            for (const StoredTriple& t : page) CHECK(got.insert({t.ids.s, t.ids.r, t.ids.o}).second);
          } while (!cursor.empty());
          CHECK(got == want);
        }
}
