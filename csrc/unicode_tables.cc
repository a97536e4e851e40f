#include "unicode_tables.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>

namespace pymemstore {
namespace {

#include "unicode_tables.inc"

constexpr char32_t kReplacement = 0xFFFD;
constexpr char32_t kVoicing = 0x3099;  // with U+309A the only marks of combining class 8
constexpr char32_t kSemiVoicing = 0x309A;

// Hangul syllables decompose by arithmetic (The Unicode Standard, 3.12).
constexpr char32_t kHangulFirst = 0xAC00, kHangulLast = 0xD7A3;
constexpr char32_t kLeadFirst = 0x1100, kVowelFirst = 0x1161, kTrailBase = 0x11A7;
constexpr char32_t kVowels = 21, kTrails = 28;

uint8_t LookUpClass(char32_t c) {
  const uint32_t probe = static_cast<uint32_t>(c) << 8 | 0xFF;
  return static_cast<uint8_t>(*std::prev(std::upper_bound(std::begin(kClassRuns), std::end(kClassRuns), probe)));
}

std::array<uint8_t, 0x600> MakeLowClasses() {
  std::array<uint8_t, 0x600> table{};
  for (size_t c = 0; c < table.size(); ++c) table[c] = LookUpClass(static_cast<char32_t>(c));
  return table;
}

// The text that `c` maps to; false when it maps to itself.
template <size_t n, size_t m, size_t p>
bool Find(const char32_t (&from)[n], const uint16_t (&offset)[m], const char32_t (&pool)[p], char32_t c,
          std::u32string_view* text) {
  static_assert(m == n + 1, "one offset more than entries");
  const char32_t* it = std::lower_bound(std::begin(from), std::end(from), c);
  if (it == std::end(from) || *it != c) return false;
  const size_t i = static_cast<size_t>(it - from);
  *text = std::u32string_view(pool + offset[i], offset[i + 1] - offset[i]);
  return true;
}

void AppendHangul(char32_t c, std::u32string* out) {
  const char32_t s = c - kHangulFirst;
  out->push_back(kLeadFirst + s / (kVowels * kTrails));
  out->push_back(kVowelFirst + s % (kVowels * kTrails) / kTrails);
  if (s % kTrails != 0) out->push_back(kTrailBase + s % kTrails);
}

bool IsVoicing(char32_t c) { return c == kVoicing || c == kSemiVoicing; }

// Canonical order: in a run of marks the voicing marks (class 8) go before the viramas (class 9). No other class
// is kept.
void OrderMarks(std::u32string* text, size_t begin) {
  for (size_t i = begin; i < text->size(); ++i) {
    if (!IsVoicing((*text)[i]) || i == begin || !(ClassOf((*text)[i - 1]) & kVirama)) continue;
    size_t first = i, last = i;
    while (first > begin && (ClassOf((*text)[first - 1]) & kVirama)) --first;
    while (last < text->size() && (IsVoicing((*text)[last]) || (ClassOf((*text)[last]) & kVirama))) ++last;
    const auto at = [&](size_t k) { return text->begin() + static_cast<std::ptrdiff_t>(k); };
    std::stable_partition(at(first), at(last), IsVoicing);
    i = last - 1;
  }
}

}  // namespace

uint8_t ClassOf(char32_t c) {
  static const std::array<uint8_t, 0x600> low = MakeLowClasses();
  return c < low.size() ? low[c] : LookUpClass(c);
}

char32_t NextCodePoint(std::string_view utf8, size_t* pos) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(utf8[i]); };
  const unsigned char b = byte((*pos)++);
  if (b < 0x80) return b;
  const int more = b >= 0xF0 ? 3 : b >= 0xE0 ? 2 : 1;
  if (b < 0xC2 || b > 0xF4) return kReplacement;
  char32_t c = b & (0x3F >> more);
  const size_t start = *pos;
  for (int i = 0; i < more; ++i) {
    if (*pos >= utf8.size() || (byte(*pos) & 0xC0) != 0x80) {
      *pos = start;
      return kReplacement;
    }
    c = c << 6 | (byte((*pos)++) & 0x3F);
  }
  const bool overlong = c < (more == 3 ? 0x10000u : more == 2 ? 0x800u : 0x80u);
  if (overlong || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) {
    *pos = start;
    return kReplacement;
  }
  return c;
}

void AppendDecomposed(std::string_view utf8, std::u32string* out) {
  const size_t begin = out->size();
  out->reserve(begin + utf8.size());
  size_t pos = 0;
  bool voiced = false;
  while (pos < utf8.size()) {
    const char32_t c = NextCodePoint(utf8, &pos);
    std::u32string_view text;
    if (c < 0x80) {
      out->push_back(c);
    } else if (c >= kHangulFirst && c <= kHangulLast) {
      AppendHangul(c, out);
    } else if (Find(kDecomposedFrom, kDecomposedOffset, kDecomposedPool, c, &text)) {
      out->append(text);
      voiced = voiced || (!text.empty() && IsVoicing(text.back()));
    } else {
      out->push_back(c);
      voiced = voiced || IsVoicing(c);
    }
  }
  if (voiced) OrderMarks(out, begin);
}

size_t CountCodePoints(std::string_view utf8) {
  const auto starts = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  return static_cast<size_t>(std::count_if(utf8.begin(), utf8.end(), starts));
}

void AppendFolded(char32_t c, std::u32string* out) {
  std::u32string_view text;
  if (c < 0x80) {
    out->push_back(c >= 'A' && c <= 'Z' ? c + 32 : c);
  } else if (Find(kFoldedFrom, kFoldedOffset, kFoldedPool, c, &text)) {
    out->append(text);
  } else {
    out->push_back(c);
  }
}

void AppendUtf8(char32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
    return;
  }
  const int more = c >= 0x10000 ? 3 : c >= 0x800 ? 2 : 1;
  constexpr unsigned char kLead[] = {0, 0xC0, 0xE0, 0xF0};
  out->push_back(static_cast<char>(kLead[more] | (c >> (6 * more))));
  for (int i = more - 1; i >= 0; --i) out->push_back(static_cast<char>(0x80 | ((c >> (6 * i)) & 0x3F)));
}

}  // namespace pymemstore
