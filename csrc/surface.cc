// Hashed features of a parsed name → unit vector.
#include "pymemstore/surface.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "crc32.h"
#include "surface_words.h"
#include "unicode_tables.h"

namespace pymemstore {
namespace {

constexpr double kFirstGram = 1.5;    // a gram at the start of the word
constexpr double kLastWord = 1.2;
constexpr double kStopWord = .2;
constexpr double kNumber = 1.5;
constexpr double kInitials = .8;
constexpr double kTwoInitials = .4;
constexpr int kScale = 4096;

using Sums = std::array<int64_t, kSurfaceDim>;

// floor(4096 w + .5), the integer that makes sums independent of order and machine.
int64_t Scaled(double weight) { return static_cast<int64_t>(std::floor(weight * kScale + .5)); }

// Each feature falls on two of the dimensions.
void AddFeature(std::string_view feature, int64_t value, Sums* sums) {
  const uint64_t h = SurfaceHash(feature);
  for (int i = 0; i < 2; ++i) {
    const size_t index = (h >> (20 * i) & 0xfffff) % kSurfaceDim;
    (*sums)[index] += h >> (63 - i) & 1 ? value : -value;
  }
}

void AddTagged(char tag, std::string_view text, double weight, Sums* sums) {
  std::string feature(1, tag);
  feature += text;
  AddFeature(feature, Scaled(weight), sums);
}

struct Gram {
  uint64_t id;          // its code points, packed
  std::string_view text;
  double weight;
};

// Equal grams become one, their weights added.
void MergeGrams(std::vector<Gram>* grams) {
  std::sort(grams->begin(), grams->end(), [](const Gram& a, const Gram& b) { return a.id < b.id; });
  size_t kept = 0;
  for (const Gram& g : *grams) {
    if (kept > 0 && (*grams)[kept - 1].id == g.id) (*grams)[kept - 1].weight += g.weight;
    else (*grams)[kept++] = g;
  }
  grams->resize(kept);
}

void AddWord(const std::string& folded, bool last, Sums* sums) {
  const WordInfo& info = LookUpWord(folded);
  const double weight = info.idf64 / 64. * (info.stop ? kStopWord : 1.) * (last ? kLastWord : 1.);
  const std::string marked = "^" + folded + "$";
  std::vector<Gram> grams;
  grams.reserve(2 * marked.size());
  // Grams are of code points; a window of the last starts and values gives those that end at each point.
  size_t start[3] = {0, 0, 0};
  uint64_t point[3] = {0, 0, 0};
  size_t pos = 0;
  for (size_t count = 1; pos < marked.size(); ++count) {
    start[0] = start[1], start[1] = start[2], start[2] = pos;
    point[0] = point[1], point[1] = point[2], point[2] = NextCodePoint(marked, &pos);
    const std::string_view all(marked);
    constexpr uint64_t kNone = 0x1fffff;
    if (count >= 2) {
      grams.push_back({kNone << 42 | point[1] << 21 | point[2], all.substr(start[1], pos - start[1]),
                       count == 2 ? kFirstGram : 1.});
    }
    if (count >= 3) {
      grams.push_back({point[0] << 42 | point[1] << 21 | point[2], all.substr(start[0], pos - start[0]),
                       count == 3 ? kFirstGram : 1.});
    }
  }
  MergeGrams(&grams);
  double squares = 0;  // of multiples of one half: exact
  for (const Gram& g : grams) squares += g.weight * g.weight;
  const double norm = std::sqrt(squares);
  for (const Gram& g : grams) AddFeature(g.text, Scaled(weight * g.weight / norm), sums);
}

void AddInitials(std::string_view initials, Sums* sums) {
  const size_t n = CountCodePoints(initials);
  if (n >= 2 && n <= 7) AddTagged('@', initials, n == 2 ? kTwoInitials : kInitials, sums);
}

// Initials with and without stop words, or the one word when it may be an acronym itself.
void AddAcronyms(const std::vector<const Token*>& words, Sums* sums) {
  if (words.size() == 1) {
    const Token& w = *words[0];
    const size_t n = CountCodePoints(w.original);
    if (w.upper && n >= 2 && n <= 7) AddTagged('@', w.folded, kInitials, sums);
    return;
  }
  std::string with, without;
  for (const Token* w : words) {
    size_t end = 0;
    NextCodePoint(w->folded, &end);
    with.append(w->folded, 0, end);
    if (!LookUpWord(w->folded).stop) without.append(w->folded, 0, end);
  }
  AddInitials(with, sums);
  if (without != with) AddInitials(without, sums);
}

void AddCharacters(std::string_view utf8, Sums* sums) {
  if (utf8.empty()) utf8 = std::string_view("\0", 1);
  for (size_t pos = 0; pos < utf8.size();) {
    std::string c;
    AppendUtf8(NextCodePoint(utf8, &pos), &c);
    AddTagged('!', c, 1., sums);
  }
}

void Normalize(const Sums& sums, float* out) {
  __extension__ unsigned __int128 squares = 0;  // exact even for the longest names
  for (int64_t x : sums) {
    const uint64_t magnitude = x < 0 ? 0 - static_cast<uint64_t>(x) : static_cast<uint64_t>(x);
    squares += static_cast<decltype(squares)>(magnitude) * magnitude;
  }
  if (squares == 0) {  // every feature cancelled
    std::fill(out, out + kSurfaceDim, 0.f);
    out[0] = 1.f;
    return;
  }
  const double norm = std::sqrt(static_cast<double>(squares));
  for (size_t i = 0; i < sums.size(); ++i) out[i] = static_cast<float>(static_cast<double>(sums[i]) / norm);
}

}  // namespace

uint64_t SurfaceHash(std::string_view bytes) {
  uint64_t h = Crc32(bytes) | static_cast<uint64_t>(bytes.size()) << 32;
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccdull;
  h ^= h >> 33;
  h *= 0xc4ceb9fe1a85ec53ull;
  return h ^ h >> 33;
}

void EncodeSurface(std::string_view utf8, float* out) {
  const ParsedName name = ParseName(utf8);
  Sums sums{};
  std::vector<const Token*> words;
  for (const Token& t : name.tokens) {
    if (t.word) words.push_back(&t);
  }
  for (size_t i = 0; i < words.size(); ++i) AddWord(words[i]->folded, i + 1 == words.size(), &sums);
  for (const std::string& n : name.numbers) AddTagged('#', n, kNumber, &sums);
  if (!words.empty()) AddAcronyms(words, &sums);
  if (words.empty() && name.numbers.empty()) AddCharacters(utf8, &sums);
  Normalize(sums, out);
}

}  // namespace pymemstore
