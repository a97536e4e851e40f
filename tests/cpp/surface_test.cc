// surf256 against values of its Python reference, and the rules against their key guarantee. The comparison with
// the twin on real and random names is in tests/python/test_embedders.py and test_rules.py.
#include "pymemstore/surface.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "check.h"

using namespace pymemstore;

namespace {

using Vector = std::vector<float>;

Vector Encode(std::string_view name) {
  Vector out(kSurfaceDim, 7.f);
  EncodeSurface(name, out.data());
  return out;
}

double Dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

bool IsUnit(const Vector& v) { return std::abs(Dot(v, v) - 1) < 1e-6; }

uint64_t HashOf(const Vector& v) {
  return SurfaceHash(std::string_view(reinterpret_cast<const char*>(v.data()), v.size() * sizeof(float)));
}

std::vector<std::string> Folded(std::string_view name) {
  std::vector<std::string> out;
  for (const Token& t : ParseName(name).tokens) out.push_back(t.folded);
  return out;
}

using Strings = std::vector<std::string>;

Strings Numbers(std::string_view name) { return ParseName(name).numbers; }

Match Why(std::string_view a, std::string_view b, uint32_t rules = kRulesWide) {
  return MatchNames(ParseName(a), ParseName(b), rules);
}

bool Meet(std::string_view query, std::string_view stored, uint32_t query_rules, uint32_t index_rules) {
  std::vector<uint64_t> q, s, both;
  QueryKeys(ParseName(query), query_rules, &q);
  IndexKeys(ParseName(stored), index_rules, &s);
  std::set_intersection(q.begin(), q.end(), s.begin(), s.end(), std::back_inserter(both));
  return !both.empty();
}

std::string Random(std::mt19937* random, const Strings& pieces, size_t most) {
  std::string out;
  for (size_t n = (*random)() % (most + 1); n > 0; --n) out += pieces[(*random)() % pieces.size()];
  return out;
}

}  // namespace

TEST(HashIsTheReferences) {
  CHECK_EQ(SurfaceHash("^p"), 0xec38a634621c1c60ull);
  CHECK_EQ(SurfaceHash("#1912"), 0xb44e133a06154ff9ull);
}

TEST(VectorsAreTheReferences) {
  CHECK_EQ(HashOf(Encode("Paris")), 0x386d667cb2c1d59cull);
  CHECK_EQ(HashOf(Encode("13 March 1963")), 0x778ba15dcf16146full);
  CHECK_EQ(HashOf(Encode("NATO")), 0x9ba8d8d29ed1833dull);
  CHECK_EQ(HashOf(Encode("São Paulo")), 0xd129bcb35362735eull);
}

TEST(CosinesAreTheDocumentedOnes) {
  const struct {
    const char *a, *b;
    double cosine;
  } kPairs[] = {{"Paris", "PARIS", .641},         {"Barack Obama", "Obama", .759},
                {"13 March 1963", "14 March 1963", .667}, {"World War I", "World War II", .237},
                {"Apollo 11", "Apollo 13", .398}, {"John Smith", "John Smyth", .778},
                {"NATO", "North Atlantic Treaty Organization", .345}, {"1912", "1913", 0}};
  for (const auto& p : kPairs) CHECK(std::abs(Dot(Encode(p.a), Encode(p.b)) - p.cosine) < 6e-4);
}

TEST(AnyBytesGiveAUnitVector) {
  for (const char* name : {"", " ", "...", "\xF0\x9F\x98\x80", "\xFF\xFE", "\xE2\x82", "\xED\xA0\x80", "\xC0\x80",
                           "'s", "the", "_", "\xCC\x81", "0", "\xE0\xA5\x8D"}) {
    CHECK(IsUnit(Encode(name)));
  }
  CHECK(IsUnit(Encode(std::string_view("\0", 1))));
  CHECK(Encode("\xF0\x9F\x98\x80") != Encode("\xF0\x9F\x98\x81"));
  CHECK(Encode(std::string_view("Ana\0", 4)) == Encode("Ana"));  // NUL separates, as any other control
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random() % 12, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    CHECK(IsUnit(Encode(bytes)));
  }
}

TEST(LongNamesAreLinear) {
  // Each would take minutes if a step were quadratic; the sanitizers' runs have the harness's time limit.
  const std::string kPieces[] = {"x", "x ", " ", "1", "1,", "' ", "U. ", "\xE0\xA5\x8D\xE3\x82\x99", "A", "-01",
                                 "\xF0\x9F\x98\x80", "2020-01", "the ", "I"};
  for (const std::string& piece : kPieces) {
    std::string name;
    while (name.size() < (1 << 20)) name += piece;
    CHECK(IsUnit(Encode(name)));
    CHECK(Meet(name, name, kRulesWide, kRulesWide) || Why(name, name) == Match::kVector);
  }
}

TEST(WordsAddUpInAnyOrder) {
  // "Lima" is last in neither, so only the initials tell the two orders apart: two of 256 dimensions each.
  const Vector a = Encode("Ana Lima Duarte"), b = Encode("Lima Ana Duarte");
  int differing = 0;
  for (size_t i = 0; i < a.size(); ++i) differing += a[i] != b[i];
  CHECK(differing > 0);
  CHECK(differing <= 4);
}

TEST(Tokens) {
  CHECK_EQ(Folded("U. S. A."), Strings{"usa"});
  CHECK_EQ(Folded("W.E.B. Du Bois's"), (Strings{"web", "du", "bois"}));
  CHECK_EQ(Folded("1,000,000 and 12,34 and 1\u00a0234\u00a0567"),
           (Strings{"1000000", "and", "12", "34", "and", "1234567"}));
  CHECK_EQ(Folded("O'Brien O\u2019Brien O`Brien O\u00b4Brien"), (Strings{"obrien", "obrien", "obrien", "obrien"}));
  CHECK_EQ(Folded("Ærøskøbing Straße Łódź İzmir ŒUVRE"),
           (Strings{"aeroskobing", "strasse", "lodz", "izmir", "oeuvre"}));
  CHECK_EQ(Folded("Apollo11b"), (Strings{"apollo", "11", "b"}));
  CHECK_EQ(Folded("\u0661\u0662 \uff11"), (Strings{"12", "1"}));  // digits of every script, as ASCII
  CHECK_EQ(Folded("각"), Folded("\u1100\u1161\u11a8"));           // Hangul, composed or not
}

TEST(MarksBelongToWords) {
  // Vowel signs and kana voicing tell words apart; accents, also on Hebrew and Arabic, don't.
  CHECK_EQ(Folded("हिन्दी"), Strings{"हिन्दी"});
  CHECK(Why("राम", "रमा") == Match::kVector);
  CHECK(Why("かき", "かぎ") == Match::kVector);
  CHECK(Why("がくせい", "か\u3099くせい") == Match::kFolded);
  CHECK(Why("شَمْس", "شمس") == Match::kFolded);
  CHECK(Why("ỏ́ne", "one") == Match::kFolded);
}

TEST(NumbersOfNames) {
  CHECK_EQ(Numbers("13 March 1963"), (Strings{"13", "1963", "m3"}));
  CHECK_EQ(Numbers("1963-03-13"), (Strings{"13", "1963", "m3"}));
  CHECK_EQ(Numbers("1963-03"), (Strings{"1963", "m3"}));
  CHECK_EQ(Numbers("1963-13-01"), (Strings{"1", "13", "1963"}));  // no such month
  CHECK_EQ(Numbers("1963-03-45x"), (Strings{"1963", "45", "m3"}));
  CHECK_EQ(Numbers("World War II"), Strings{"2"});
  CHECK_EQ(Numbers("II"), Strings{});  // the first word is never a Roman number
  CHECK_EQ(Numbers("Louis XLIX"), Strings{"49"});
  CHECK_EQ(Numbers("Louis IIII"), Strings{});
  CHECK_EQ(Numbers("Louis ii"), Strings{});
  CHECK_EQ(Numbers("the 2nd and the third of 007"), (Strings{"2", "3", "7"}));
  CHECK_EQ(Numbers("May"), Strings{"m5"});
  CHECK_EQ(Numbers("Theresa May"), Strings{});
  CHECK_EQ(Numbers("99999999999999999999999 twenty"), (Strings{"20", "99999999999999999999999"}));
  CHECK(NumbersAgree(ParseName("13th of March, 1963"), ParseName("1963-03-13")));
  CHECK(!NumbersAgree(ParseName("World War II"), ParseName("World War III")));
}

TEST(RulesOnKnownPairs) {
  const struct {
    const char *a, *b;
    Match match;
  } kPairs[] = {
      {"U.S.", "us", Match::kFolded},
      {"São Paulo", "sao-paulo", Match::kFolded},
      {"The Beatles", "Beatles", Match::kArticle},
      {"Parker's house", "a Parker house", Match::kArticle},
      {"United State", "the United States", Match::kPlural},
      {"church", "the Churches", Match::kPlural},
      {"University of Oslo", "Oslo University", Match::kWordOrder},
      {"NATO", "North Atlantic Treaty Organization", Match::kAcronym},
      {"BBC", "British Broadcasting Corporation", Match::kAcronym},
      {"IBM", "International Business Machines Corp", Match::kAcronym},
      {"J. R. R. Tolkien", "John Ronald Reuel Tolkien", Match::kInitials},
      {"J. Tolkien", "John Ronald Tolkien", Match::kInitials},
      {"British", "the United Kingdom", Match::kDemonym},
      {"Obama", "Barack Obama", Match::kTrailing},
      {"Nato", "North Atlantic Treaty Organization", Match::kVector},
      {"River", "Hudson River", Match::kVector},
      {"obama", "Barack Obama", Match::kVector},
      {"Chapter 1 Foo", "Chapter 12 Foo", Match::kVector},
      {"B. Obama", "Michelle Obama", Match::kVector},
      {"Battle 1963-03-13", "Battle 1964-03-13", Match::kVector},
      {"the", "a", Match::kVector},
      {"", "", Match::kVector},
      {"!", "?", Match::kVector},
      {"\xF0\x9F\x98\x80", "\xF0\x9F\x98\x81", Match::kVector},
  };
  for (const auto& p : kPairs) {
    CHECK_EQ(Why(p.a, p.b), p.match);
    CHECK_EQ(Why(p.b, p.a), p.match);
    if (p.match == Match::kVector) continue;
    CHECK_EQ(Why(p.a, p.b, kRulesWide & ~RuleBit(p.match)) > p.match, true);  // each rule can be left out
    CHECK_EQ(Why(p.a, p.b, kRulesNone), Match::kVector);
  }
}

TEST(RelatedNamesShareAKey) {
  const Strings kPieces = {" ",    " ",   "-",   "the ",  "Obama ", "obama", "Barack ", "B. ",   "BH ",    "ab ", "abs",
                           "is",   "xes", "of ", "The ",  "Inc ",   "1",     "States ", "State", "U. S. ", "’s",  "II",
                           "J. R. ", "River", "British ", "UK", "John ", "Ronald ", "Sea ", "seas", "JR", "BO", "US"};
  const Strings kNames = {"US",  "America",   "the United States", "UK",        "British", "Church", "the churches",
                          "sea", "SEAS",      "JR",                "John Rowe", "J. Rowe", "BO",     "Bank of Oslo",
                          "BoO", "Oslo Bank", "United State",      "seas"};
  std::mt19937 random(11);
  int related[11] = {};
  for (int round = 0; round < 60000; ++round) {
    const bool short_ones = round % 4 == 3;
    const std::string a = short_ones ? Random(&random, kNames, 1) : Random(&random, kPieces, 6);
    std::string b = short_ones ? Random(&random, kNames, 1) : Random(&random, kPieces, 6);
    if (round % 4 == 0) b = a + Random(&random, kPieces, 1);
    if (round % 4 == 1) b = Random(&random, kPieces, 2) + a;
    const Match match = Why(a, b);
    CHECK_EQ(match, Why(b, a));
    ++related[static_cast<int>(match)];
    for (uint32_t rule = static_cast<uint32_t>(Match::kFolded); rule <= static_cast<uint32_t>(Match::kTrailing); ++rule) {
      // Every rule by itself, the store indexed for that rule only or for all.
      if (Why(a, b, 1u << rule) == Match::kVector) continue;
      CHECK(Meet(a, b, 1u << rule, 1u << rule));
      CHECK(Meet(a, b, 1u << rule, kRulesWide));
    }
  }
  for (int rule = static_cast<int>(Match::kFolded); rule <= static_cast<int>(Match::kTrailing); ++rule) {
    CHECK(related[rule] >= 20);  // the pairs try every rule
  }
}

TEST(KeysAreSortedDistinctAndAppended) {
  std::vector<uint64_t> keys = {9, 3};
  IndexKeys(ParseName("The United States of America"), kRulesWide, &keys);
  CHECK_EQ(keys[0], 9u);
  CHECK_EQ(keys[1], 3u);
  CHECK(keys.size() > 5);
  CHECK(std::is_sorted(keys.begin() + 2, keys.end()));
  CHECK(std::adjacent_find(keys.begin() + 2, keys.end()) == keys.end());
  keys.clear();
  IndexKeys(ParseName("Obama"), kRulesRelation, &keys);
  CHECK_EQ(keys, std::vector<uint64_t>{SurfaceHash("Fobama")});  // the role's letter and the joined words
  keys.clear();
  IndexKeys(ParseName("Obama"), kRulesNone, &keys);
  QueryKeys(ParseName("?!"), kRulesWide, &keys);
  CHECK(keys.empty());
}
