// Whether bytes are UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace pymemstore {

// The offset of the first byte that is not part of well-formed UTF-8 (Unicode 14, table 3-7); size() when all is.
inline size_t ValidUtf8(std::string_view text) {
  const auto* p = reinterpret_cast<const uint8_t*>(text.data());
  const size_t n = text.size();
  for (size_t i = 0; i < n;) {
    uint64_t word;
    if (i + 8 <= n && (std::memcpy(&word, p + i, 8), !(word & 0x8080808080808080ull))) {
      i += 8;
      continue;
    }
    const uint8_t c = p[i];
    if (c < 0x80) {
      ++i;
      continue;
    }
    const size_t length = c >= 0xc2 && c < 0xe0 ? 2 : (c & 0xf0) == 0xe0 ? 3 : c >= 0xf0 && c < 0xf5 ? 4 : 0;
    if (!length || i + length > n) return i;
    const uint8_t low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80, high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    if (p[i + 1] < low || p[i + 1] > high) return i;
    for (size_t k = 2; k < length; ++k)
      if ((p[i + k] & 0xc0) != 0x80) return i;
    i += length;
  }
  return n;
}

}  // namespace pymemstore
