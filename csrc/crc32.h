// CRC-32 as zlib's: of vector rows on the disk, and in surf256's feature hash.
#pragma once

#include <cstdint>
#include <string_view>

namespace pymemstore {

// `crc`: of what stands before `data`; 0 at the start.
uint32_t Crc32(std::string_view data, uint32_t crc = 0);

}  // namespace pymemstore
