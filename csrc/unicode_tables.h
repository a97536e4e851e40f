// Properties and mappings of code points, Unicode 14.0, for names. The tables are generated: see
// make_unicode_tables.py for what each class means.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pymemstore {

enum CodeClass : uint8_t {
  kLetter = 1,     // alphanumeric, but no decimal digit
  kDigit = 2,      // decimal digit of any script
  kMark = 4,       // vowel sign, virama or kana voicing mark: belongs to the word
  kSpace = 8,
  kUpper = 16,
  kLower = 32,     // lower or title case
  kDropped = 64,   // accents
  kVirama = 128,   // canonical combining class 9
};

// The class bits of a code point.
uint8_t ClassOf(char32_t c);

// Appends the code points of `utf8` in compatibility decomposition, accents dropped.
void AppendDecomposed(std::string_view utf8, std::u32string* out);

// Appends the case folding of `c`, stroked letters and ligatures made plain and digits made ASCII.
void AppendFolded(char32_t c, std::u32string* out);

size_t CountCodePoints(std::string_view utf8);

void AppendUtf8(char32_t c, std::string* out);

// Decodes the code point at *pos and moves *pos past it; U+FFFD for a byte that starts none.
char32_t NextCodePoint(std::string_view utf8, size_t* pos);

}  // namespace pymemstore
