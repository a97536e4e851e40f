// The tokenizer: name → cleaned code points → tokens and numbers.
#include <algorithm>
#include <cstddef>
#include <string>

#include "pymemstore/surface.h"
#include "surface_words.h"
#include "unicode_tables.h"

namespace pymemstore {
namespace {

using Text = std::u32string;
using View = std::u32string_view;

constexpr char32_t kNoBreak = 0xA0;

bool Is(char32_t c, uint8_t classes) { return (ClassOf(c) & classes) != 0; }
bool IsDigit(char32_t c) { return Is(c, kDigit); }
bool IsWordPart(char32_t c) { return c == '_' || Is(c, kLetter | kDigit | kMark); }
bool IsAsciiLetter(char32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsApostrophe(char32_t c) { return c == '\'' || c == 0x2019; }
bool IsApostropheLike(char32_t c) {
  return IsApostrophe(c) || c == '`' || c == 0x2018 || c == 0x2BF || c == 0x2BE || c == 0x2BC;
}

// Whether text[at:] starts with an end of word.
bool WordEnds(View text, size_t at) { return at >= text.size() || !IsWordPart(text[at]); }

bool DigitsAt(View text, size_t at, size_t count) {
  if (at + count > text.size()) return false;
  for (size_t i = at; i < at + count; ++i) {
    if (!IsDigit(text[i])) return false;
  }
  return true;
}

// 1,000 → 1000: a separator between a digit and exactly three digits goes.
void DropDigitGrouping(Text* text) {
  Text out;
  out.reserve(text->size());
  for (size_t i = 0; i < text->size(); ++i) {
    const char32_t c = (*text)[i];
    const bool grouping = (c == ',' || c == kNoBreak) && i > 0 && IsDigit((*text)[i - 1]) &&
                          DigitsAt(*text, i + 1, 3) && !DigitsAt(*text, i + 4, 1);
    if (!grouping) out.push_back(c);
  }
  *text = std::move(out);
}

// Drops possessive 's, with white space around the apostrophe only where some precedes it.
void DropPossessives(Text* text) {
  const Text& t = *text;
  Text out;
  out.reserve(t.size());
  for (size_t i = 0; i < t.size();) {
    size_t j = i;
    while (j < t.size() && Is(t[j], kSpace)) ++j;
    if (j < t.size() && IsApostrophe(t[j])) {
      size_t k = j + 1;
      while (j > i && k < t.size() && Is(t[k], kSpace)) ++k;
      if (k < t.size() && t[k] == 's' && WordEnds(t, k + 1)) {
        i = k + 1;
        continue;
      }
    }
    out.append(t, i, std::max(j, i + 1) - i);
    i = std::max(j, i + 1);
  }
  *text = std::move(out);
}

// U. S. A. → USA.: joins initials; the dot of the last one stays and separates.
void JoinInitials(Text* text) {
  const Text& t = *text;
  const auto initial_at = [&](size_t i) { return i + 1 < t.size() && IsAsciiLetter(t[i]) && t[i + 1] == '.'; };
  Text out;
  out.reserve(t.size());
  for (size_t i = 0; i < t.size();) {
    out.push_back(t[i]);
    if (!initial_at(i) || (i > 0 && IsWordPart(t[i - 1]))) {
      ++i;
    } else if (initial_at(i + 2)) {
      i += 2;
    } else if (i + 2 < t.size() && Is(t[i + 2], kSpace) && initial_at(i + 3)) {
      i += 3;
    } else {
      ++i;
    }
  }
  *text = std::move(out);
}

void Clean(Text* text) {
  bool grouping = false, apostrophe = false, dot = false;
  for (char32_t c : *text) {
    grouping = grouping || c == ',' || c == kNoBreak;
    apostrophe = apostrophe || IsApostropheLike(c);
    dot = dot || c == '.';
  }
  if (grouping) DropDigitGrouping(text);
  if (apostrophe) {
    DropPossessives(text);
    text->erase(std::remove_if(text->begin(), text->end(), IsApostropheLike), text->end());
  }
  if (dot) JoinInitials(text);
}

void AppendToken(View original, bool digit, std::vector<Token>* tokens) {
  Token token;
  token.digit = digit;
  bool upper = false, other = false;
  Text folded;
  for (char32_t c : original) {
    AppendUtf8(c, &token.original);
    folded.clear();
    AppendFolded(c, &folded);
    for (char32_t f : folded) AppendUtf8(f, &token.folded);
    const uint8_t cls = ClassOf(c);
    upper = upper || (cls & kUpper);
    other = other || (cls & kLower);
  }
  token.upper = upper && !other;
  tokens->push_back(std::move(token));
}

void Tokenize(View part, std::vector<Token>* tokens) {
  Text text(part);
  Clean(&text);
  for (size_t i = 0; i < text.size();) {
    const uint8_t kind = ClassOf(text[i]) & kDigit ? kDigit : kLetter | kMark;
    size_t j = i;
    while (j < text.size() && Is(text[j], kind)) ++j;
    if (j > i) AppendToken(View(text).substr(i, j - i), kind == kDigit, tokens);
    i = std::max(j, i + 1);
  }
}

int DigitValue(char32_t c) {
  Text folded;
  AppendFolded(c, &folded);
  return static_cast<int>(folded[0] - '0');
}

struct IsoDate {
  size_t begin = 0, end = 0;  // empty: none
};

// The first YYYY-MM or YYYY-MM-DD; none when that one has no such month or day.
IsoDate FindIsoDate(View text) {
  const auto two = [&](size_t i) { return 10 * DigitValue(text[i]) + DigitValue(text[i + 1]); };
  size_t dash = text.find('-');
  for (; dash != View::npos; dash = text.find('-', dash + 1)) {
    if (dash < 4 || !DigitsAt(text, dash - 4, 4) || !DigitsAt(text, dash + 1, 2)) continue;
    if (dash > 4 && IsWordPart(text[dash - 5])) continue;
    const bool day = dash + 3 < text.size() && text[dash + 3] == '-' && DigitsAt(text, dash + 4, 2) &&
                     WordEnds(text, dash + 6);
    if (!day && !WordEnds(text, dash + 3)) continue;
    const bool valid = two(dash + 1) >= 1 && two(dash + 1) <= 12 &&
                       (!day || (two(dash + 4) >= 1 && two(dash + 4) <= 31));
    if (!valid) return {};
    return {dash - 4, dash + (day ? 6 : 3)};
  }
  return {};
}

std::string WithoutLeadingZeros(const std::string& digits) {
  const size_t start = digits.find_first_not_of('0');
  return start == std::string::npos ? "0" : digits.substr(start);
}

// Upper-case Roman numeral I to LXXXIX in canonical form; 0 for anything else.
int RomanValue(std::string_view s) {
  static constexpr std::string_view kTens[] = {"", "X", "XX", "XXX", "XL", "L", "LX", "LXX", "LXXX"};
  static constexpr std::string_view kOnes[] = {"", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"};
  if (s.empty() || s.size() > 8) return 0;
  const size_t ones_at = std::min(s.find_first_of("IV"), s.size());
  for (int tens = 0; tens < 9; ++tens) {
    for (int ones = 0; ones < 10; ++ones) {
      // The X of IX belongs to the ones, so the split is at the first I or V.
      if (s.substr(0, ones_at) == kTens[tens] && s.substr(ones_at) == kOnes[ones]) return 10 * tens + ones;
    }
  }
  return 0;
}

std::string MonthName(int month) { return "m" + std::to_string(month); }

// Sets Token::word and collects the numbers; tokens [iso_begin, iso_end) are those of the date found before.
void Classify(size_t iso_begin, size_t iso_end, ParsedName* name) {
  std::vector<Token>& tokens = name->tokens;
  std::vector<std::string>& numbers = name->numbers;
  const bool iso = iso_end > iso_begin;
  bool any_digit = false;
  for (const Token& t : tokens) any_digit = any_digit || t.digit;
  if (iso) {
    numbers.push_back(WithoutLeadingZeros(tokens[iso_begin].folded));
    numbers.push_back(MonthName(std::stoi(tokens[iso_begin + 1].folded)));
    if (iso_end - iso_begin > 2) numbers.push_back(WithoutLeadingZeros(tokens[iso_begin + 2].folded));
  }
  const size_t count = tokens.size() - (iso_end - iso_begin);
  const Token* previous = nullptr;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i >= iso_begin && i < iso_end) continue;
    Token& t = tokens[i];
    const WordInfo& info = LookUpWord(t.folded);
    int roman = 0;
    if (t.digit) {
      numbers.push_back(WithoutLeadingZeros(t.folded));
    } else if (info.suffix && previous != nullptr && previous->digit) {
      // The ordinal's suffix: its number is taken already.
    } else if (info.number >= 0) {
      numbers.push_back(std::to_string(info.number));
    } else if (info.month > 0 && (any_digit || count == 1)) {
      numbers.push_back(MonthName(info.month));
    } else if (previous != nullptr && t.upper && (roman = RomanValue(t.original)) > 0) {
      numbers.push_back(std::to_string(roman));
    } else {
      t.word = true;
    }
    previous = &t;
  }
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
}

}  // namespace

ParsedName ParseName(std::string_view utf8) {
  ParsedName name;
  Text text;
  AppendDecomposed(utf8, &text);
  const View all(text);
  const IsoDate date = FindIsoDate(all);
  Tokenize(all.substr(0, date.begin), &name.tokens);
  const size_t iso_begin = name.tokens.size();
  Tokenize(all.substr(date.begin, date.end - date.begin), &name.tokens);
  const size_t iso_end = name.tokens.size();
  Tokenize(all.substr(date.end), &name.tokens);
  Classify(iso_begin, iso_end, &name);
  return name;
}

bool NumbersAgree(const ParsedName& a, const ParsedName& b) { return a.numbers == b.numbers; }

}  // namespace pymemstore
