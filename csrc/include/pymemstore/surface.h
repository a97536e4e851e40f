// surf256: names to vectors by surface form, and the rules that relate two spellings of a name.
// docs/embeddings.md gives the construction; tests/python/twin_surface.py is its Python twin.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pymemstore {

constexpr int kSurfaceDim = 256;

// Why a stored name is a candidate for a query text, strongest first. kVector: by cosine alone.
enum class Match : uint8_t {
  kExact = 0,
  kAlias = 1,
  kFolded = 2,
  kArticle = 3,    // equal without articles and possessives
  kPlural = 4,
  kWordOrder = 5,
  kAcronym = 6,
  kInitials = 7,
  kDemonym = 8,    // optional: country and demonym table
  kTrailing = 9,   // optional: one name ends in the other's words ("Obama")
  kVector = 10,
};

// Rules as bit masks, 1 << Match.
constexpr uint32_t RuleBit(Match m) { return 1u << static_cast<uint32_t>(m); }
constexpr uint32_t kRulesNone = 0;
constexpr uint32_t kRulesCore = RuleBit(Match::kExact) | RuleBit(Match::kAlias) | RuleBit(Match::kFolded) |
                                RuleBit(Match::kArticle) | RuleBit(Match::kPlural) |
                                RuleBit(Match::kWordOrder) | RuleBit(Match::kAcronym) |
                                RuleBit(Match::kInitials);
constexpr uint32_t kRulesWide = kRulesCore | RuleBit(Match::kDemonym) | RuleBit(Match::kTrailing);
constexpr uint32_t kRulesRelation = RuleBit(Match::kExact) | RuleBit(Match::kAlias) | RuleBit(Match::kFolded);

struct Token {
  std::string folded;        // UTF-8
  std::string original;      // UTF-8, after NFKD and cleaning, before case folding
  bool upper = false;        // original is all upper case (Python str.isupper)
  bool digit = false;        // all digits
  bool word = false;         // counts as a word of the vector: no number, date part or ordinal suffix
};

struct ParsedName {
  std::vector<Token> tokens;
  std::vector<std::string> numbers;  // canonical, sorted, distinct
};

// The one tokenizer, for vectors, rules and the number guard. Total: any bytes give a result, and bytes that are
// not UTF-8 read as U+FFFD. Linear in the length, but for the sort of `numbers`.
ParsedName ParseName(std::string_view utf8);

// Writes the unit vector of a name. `utf8` must be valid UTF-8; any name, "" included, gives a unit vector.
void EncodeSurface(std::string_view utf8, float* out);

// Keys under which a stored name (IndexKeys) is listed and that a query text (QueryKeys) looks up: for every
// pair with MatchNames(query, stored, rules) != kVector the two key lists meet. They also meet when the stored
// name was indexed under more rules than the query asks for. Keys are 64-bit hashes, part of the on-disk format;
// sorted and distinct; appended to `keys`. kExact and kAlias have none.
void IndexKeys(const ParsedName& name, uint32_t rules, std::vector<uint64_t>* keys);
void QueryKeys(const ParsedName& query, uint32_t rules, std::vector<uint64_t>* keys);

// The strongest of `rules` (kFolded and below) that relates the two; kVector when none does. Symmetric.
Match MatchNames(const ParsedName& query, const ParsedName& stored, uint32_t rules);

// The number guard: both hold the same set of numbers, dates and ordinals.
bool NumbersAgree(const ParsedName& a, const ParsedName& b);

// The feature hash, which also hashes keys: CRC-32 of the bytes and their count, finalised as in MurmurHash3.
uint64_t SurfaceHash(std::string_view bytes);

}  // namespace pymemstore
