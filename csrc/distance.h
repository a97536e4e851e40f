// Distance kernels with run-time dispatch. No std template is instantiated in the per-ISA files (one definition
// rule: the linker may keep a copy built for the wrong ISA).
#pragma once

#include <cstddef>
#include <cstdint>

namespace pymemstore {

// The canonical score: the dot product of two float32 vectors in double precision. Products of float32 are
// exact in double; they are added in 8 lanes (element i to lane i % 8), lanes joined as
// ((l0+l4)+(l2+l6))+((l1+l5)+(l3+l7)). So every kernel gives the same bits.
double CanonicalDot(const float* a, const float* b, size_t dim);

// Scales `v` to unit length in double precision and writes float32. False when `v` holds a value that is not
// finite, or its norm is 0 (or not a normal number).
bool Normalise(const float* v, size_t dim, float* out);

// Name of the kernel set in use: "amx", "avx512vnni", "avx2", "neon", "scalar". The environment variable
// PYMEMSTORE_KERNEL forces one that the CPU has; an unknown or unavailable one falls back to the best, and
// KernelNote() says so.
const char* KernelName();
const char* KernelNote();

}  // namespace pymemstore
