// The rules that relate two spellings of a name, and the keys that find them. Each rule compares one or two
// texts derived from the names; a key is the hash of such a text under the rule's role, so that
// a pair that a rule relates shares a key by construction.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "pymemstore/surface.h"
#include "surface_words.h"
#include "unicode_tables.h"

namespace pymemstore {
namespace {

using Words = std::vector<std::string_view>;

bool Has(uint32_t rules, Match m) { return (rules & RuleBit(m)) != 0; }
bool IsArticle(std::string_view w) { return w == "the" || w == "a" || w == "an"; }
bool IsStop(std::string_view w) { return LookUpWord(w).stop; }

std::string_view FirstLetter(std::string_view w) {
  size_t end = 0;
  if (!w.empty()) NextCodePoint(w, &end);
  return w.substr(0, end);
}
bool OneLetter(std::string_view w) { return !w.empty() && FirstLetter(w).size() == w.size(); }

// Words joined; the separator tells ("ab", "c") from ("a", "bc").
std::string Join(const Words& words, std::string_view separator) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) out += separator;
    out += words[i];
  }
  return out;
}

template <typename Drop>
Words Without(const ParsedName& name, Drop drop) {
  Words out;
  for (const Token& t : name.tokens) {
    if (!drop(std::string_view(t.folded))) out.push_back(t.folded);
  }
  return out;
}

std::string Joined(const ParsedName& name) {
  std::string out;
  for (const Token& t : name.tokens) out += t.folded;
  return out;
}

Words WithoutArticles(const ParsedName& name) { return Without(name, IsArticle); }
Words WithoutStops(const ParsedName& name) { return Without(name, IsStop); }

// "boxes" → "box", "states" → "state"; lengths in code points.
std::string_view Singular(std::string_view w) {
  if (w.empty() || w.back() != 's') return w;
  const size_t n = CountCodePoints(w);
  const size_t size = w.size();
  if (n > 5 && w[size - 2] == 'e' && std::string_view("sxzh").find(w[size - 3]) != std::string_view::npos) {
    return w.substr(0, size - 2);
  }
  return n > 3 && w[size - 2] != 's' ? w.substr(0, size - 1) : w;
}

Words Singulars(const ParsedName& name) {
  Words out = WithoutArticles(name);
  for (std::string_view& w : out) w = Singular(w);
  return out;
}

// Words in sorted order, stop words left out; empty when fewer than two are left.
Words AnyOrder(const ParsedName& name) {
  Words out = WithoutStops(name);
  if (out.size() < 2) return {};
  std::sort(out.begin(), out.end());
  return out;
}

// The name as an acronym: one token of two or more capitals. Empty when it can't be one.
std::string_view Acronym(const ParsedName& name) {
  if (name.tokens.size() != 1) return {};
  const Token& t = name.tokens[0];
  return t.upper && CountCodePoints(t.folded) >= 2 ? std::string_view(t.folded) : std::string_view();
}

// What an acronym of the name may be: initials of all words, without stop words, without company forms also.
// Empty texts stand for those too short.
std::array<std::string, 3> InitialsOf(const ParsedName& name) {
  static constexpr std::string_view kCompany[] = {"inc", "ltd", "corp", "company", "co"};
  std::array<std::string, 3> out;
  if (name.tokens.size() < 2) return out;
  for (const Token& t : name.tokens) {
    const std::string_view first = FirstLetter(t.folded);
    out[0] += first;
    if (IsStop(t.folded)) continue;
    out[1] += first;
    if (std::find(std::begin(kCompany), std::end(kCompany), t.folded) == std::end(kCompany)) out[2] += first;
  }
  if (CountCodePoints(out[1]) < 2) out[1].clear();
  if (CountCodePoints(out[2]) < 3) out[2].clear();
  return out;
}

bool MatchAcronym(const ParsedName& a, const ParsedName& b) {
  const std::string_view acronym = Acronym(a);
  if (acronym.empty()) return false;
  const auto initials = InitialsOf(b);
  return std::find(initials.begin(), initials.end(), acronym) != initials.end();
}

// The words before the last one, two or three joined capitals ("WEB" of "W. E. B.") taken apart.
struct Given {
  Words words;
  std::string_view last;     // empty: a single word, so no rule applies
  bool has_initial = false;  // a word is one letter
};

Given GivenNames(const ParsedName& name) {
  Given out;
  if (name.tokens.size() < 2) return out;
  out.last = name.tokens.back().folded;
  for (size_t i = 0; i + 1 < name.tokens.size(); ++i) {
    const Token& t = name.tokens[i];
    std::string_view rest = t.folded;
    const size_t n = t.upper ? CountCodePoints(rest) : 0;
    if (n == 2 || n == 3) {
      while (!rest.empty()) {
        out.words.push_back(FirstLetter(rest));
        rest.remove_prefix(out.words.back().size());
      }
      out.has_initial = true;
    } else {
      out.words.push_back(rest);
      out.has_initial = out.has_initial || (OneLetter(rest) && !t.digit);
    }
  }
  return out;
}

bool AsciiDigit(std::string_view w) { return w.size() == 1 && w[0] >= '0' && w[0] <= '9'; }
bool IsInitialOf(std::string_view letter, std::string_view word) {
  return OneLetter(letter) && !AsciiDigit(letter) && FirstLetter(word) == letter;
}

// Same last word; the shorter list of given names is found in the longer one in order, words equal or one the
// initial of the other, at least once; the first ones begin alike.
bool MatchInitials(const ParsedName& a, const ParsedName& b) {
  Given x = GivenNames(a), y = GivenNames(b);
  if (x.last.empty() || x.last != y.last || (!x.has_initial && !y.has_initial)) return false;
  if (x.words.size() > y.words.size()) std::swap(x, y);
  if (FirstLetter(x.words[0]) != FirstLetter(y.words[0])) return false;
  size_t j = 0;
  bool initial = false;
  for (std::string_view w : x.words) {
    while (j < y.words.size() && w != y.words[j] && !IsInitialOf(w, y.words[j]) && !IsInitialOf(y.words[j], w)) ++j;
    if (j == y.words.size()) return false;
    initial = initial || w != y.words[j];
    ++j;
  }
  return initial;
}

std::string_view Country(const ParsedName& name) {
  std::string joined;
  for (const Token& t : name.tokens) {
    if (t.folded != "the") joined += t.folded;
  }
  return CountryOf(joined);
}

// The words of a name that may stand for a longer one; empty when it may not: numbers alone, and a single word
// that is a type or title, short, or not capitalised.
Words ShortForm(const ParsedName& name) {
  Words words = WithoutStops(name);
  const bool digits = std::all_of(words.begin(), words.end(), [](std::string_view w) {
    return std::all_of(w.begin(), w.end(), [](char c) { return c >= '0' && c <= '9'; });
  });
  if (digits) return {};
  if (words.size() > 1) return words;
  if (LookUpWord(words[0]).type_or_honour || CountCodePoints(words[0]) < 3) return {};
  size_t pos = 0;
  const std::string& first = name.tokens[0].original;
  return ClassOf(NextCodePoint(first, &pos)) & kLower ? Words{} : words;
}

bool MatchTrailing(const ParsedName& a, const ParsedName& b) {
  if (a.tokens.size() == b.tokens.size()) return false;
  const bool a_shorter = a.tokens.size() < b.tokens.size();
  const Words x = ShortForm(a_shorter ? a : b), y = WithoutStops(a_shorter ? b : a);
  return !x.empty() && x.size() < y.size() && std::equal(x.rbegin(), x.rend(), y.rbegin());
}

bool SameAndFull(const std::string& x, const std::string& y) { return !x.empty() && x == y; }
bool SameAndFull(const Words& x, const Words& y) { return !x.empty() && x == y; }

// The first byte of a key's text: what the text is, so that unlike texts never meet.
enum Role : char {
  kJoinedRole = 'F',        // words joined: as they are, without articles, in the singular
  kOrderRole = 'W',         // sorted words
  kAcronymRole = 'A',       // a name that is an acronym
  kExpansionRole = 'E',     // initials of a name of several words
  kAnyGivenRole = 'G',      // last word and first letter
  kInitialGivenRole = 'I',  // the same, of a name that has an initial
  kCountryRole = 'D',
  kShortRole = 'S',         // the words of a short form, at most kSuffixWords
  kLongRole = 'L',          // the last one or two words of a longer name
};
constexpr size_t kSuffixWords = 5;
constexpr std::string_view kSeparator = " ";

class Keys {
 public:
  explicit Keys(std::vector<uint64_t>* out) : out_(out), begin_(out->size()) {}
  void Add(Role role, std::string_view text) {
    if (text.empty()) return;
    buffer_.assign(1, role);
    buffer_ += text;
    out_->push_back(SurfaceHash(buffer_));
  }
  void SortAndUnique() {
    const auto first = out_->begin() + static_cast<std::ptrdiff_t>(begin_);
    std::sort(first, out_->end());
    out_->erase(std::unique(first, out_->end()), out_->end());
  }

 private:
  std::vector<uint64_t>* out_;
  size_t begin_;
  std::string buffer_;
};

// Keys that a name has as a stored one and as a query alike.
void AddSharedKeys(const ParsedName& name, uint32_t rules, Keys* keys) {
  // One role for three forms: mostly they are the same text, and so one key.
  if (Has(rules, Match::kFolded)) keys->Add(kJoinedRole, Joined(name));
  if (Has(rules, Match::kArticle)) keys->Add(kJoinedRole, Join(WithoutArticles(name), ""));
  if (Has(rules, Match::kPlural)) keys->Add(kJoinedRole, Join(Singulars(name), ""));
  if (Has(rules, Match::kWordOrder)) keys->Add(kOrderRole, Join(AnyOrder(name), kSeparator));
  if (Has(rules, Match::kDemonym)) keys->Add(kCountryRole, Country(name));
}

std::string Suffix(const Words& words, size_t count) {
  return Join(Words(words.end() - static_cast<std::ptrdiff_t>(count), words.end()), kSeparator);
}

}  // namespace

Match MatchNames(const ParsedName& query, const ParsedName& stored, uint32_t rules) {
  const ParsedName &a = query, &b = stored;
  if (Has(rules, Match::kFolded) && SameAndFull(Joined(a), Joined(b))) return Match::kFolded;
  if (Has(rules, Match::kArticle) && SameAndFull(Join(WithoutArticles(a), ""), Join(WithoutArticles(b), ""))) {
    return Match::kArticle;
  }
  if (Has(rules, Match::kPlural) && SameAndFull(Singulars(a), Singulars(b))) return Match::kPlural;
  if (Has(rules, Match::kWordOrder) && SameAndFull(AnyOrder(a), AnyOrder(b))) return Match::kWordOrder;
  if (Has(rules, Match::kAcronym) && (MatchAcronym(a, b) || MatchAcronym(b, a))) return Match::kAcronym;
  if (Has(rules, Match::kInitials) && MatchInitials(a, b)) return Match::kInitials;
  if (Has(rules, Match::kDemonym) && !Country(a).empty() && Country(a) == Country(b)) return Match::kDemonym;
  if (Has(rules, Match::kTrailing) && MatchTrailing(a, b)) return Match::kTrailing;
  return Match::kVector;
}

void IndexKeys(const ParsedName& name, uint32_t rules, std::vector<uint64_t>* out) {
  Keys keys(out);
  AddSharedKeys(name, rules, &keys);
  if (Has(rules, Match::kAcronym)) {
    keys.Add(kAcronymRole, Acronym(name));
    for (const std::string& initials : InitialsOf(name)) keys.Add(kExpansionRole, initials);
  }
  if (Has(rules, Match::kInitials)) {
    const Given given = GivenNames(name);
    if (!given.last.empty()) {
      const std::string text = std::string(FirstLetter(given.words[0])).append(given.last);
      keys.Add(kAnyGivenRole, text);
      if (given.has_initial) keys.Add(kInitialGivenRole, text);
    }
  }
  if (Has(rules, Match::kTrailing)) {
    const Words brief = ShortForm(name), words = WithoutStops(name);
    if (!brief.empty()) keys.Add(kShortRole, Suffix(brief, std::min(brief.size(), kSuffixWords)));
    for (size_t n = 1; n <= 2 && n < words.size(); ++n) keys.Add(kLongRole, Suffix(words, n));
  }
  keys.SortAndUnique();
}

void QueryKeys(const ParsedName& query, uint32_t rules, std::vector<uint64_t>* out) {
  Keys keys(out);
  AddSharedKeys(query, rules, &keys);
  if (Has(rules, Match::kAcronym)) {
    keys.Add(kExpansionRole, Acronym(query));
    for (const std::string& initials : InitialsOf(query)) keys.Add(kAcronymRole, initials);
  }
  if (Has(rules, Match::kInitials)) {
    // One of the two has an initial: a query without looks only among the names with one.
    const Given given = GivenNames(query);
    if (!given.last.empty()) {
      const std::string text = std::string(FirstLetter(given.words[0])).append(given.last);
      keys.Add(given.has_initial ? kAnyGivenRole : kInitialGivenRole, text);
    }
  }
  if (Has(rules, Match::kTrailing)) {
    const Words brief = ShortForm(query), words = WithoutStops(query);
    if (!brief.empty()) keys.Add(kLongRole, Suffix(brief, std::min<size_t>(brief.size(), 2)));
    for (size_t n = 1; n <= kSuffixWords && n < words.size(); ++n) keys.Add(kShortRole, Suffix(words, n));
  }
  keys.SortAndUnique();
}

}  // namespace pymemstore
