// Wikidata-like triples as text, endlessly repeatable: about 21 names to 111 triples and 5.4 triples a subject,
// relations and objects by Zipf's law, with hubs; names of 29 bytes on average.
//
//   generate_triples COUNT [tsv|ntriples] [SEED]
//
// Writes to standard output, grouped by subject. A few triples come more than once.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr uint32_t kRelations = 1000;
constexpr uint32_t kSyllableWords = 20000;

uint64_t Mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return x ^ x >> 33;
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(Mix(seed) | 1) {}
  double Unit() {
    state_ ^= state_ << 7;
    state_ ^= state_ >> 9;
    return static_cast<double>(state_ >> 11) * 0x1p-53;
  }

 private:
  uint64_t state_;
};

std::vector<std::string> MakeWords() {
  static const char kConsonants[] = "bcdfglmnprstvz", kVowels[] = "aeiou";
  std::vector<std::string> words;
  for (uint64_t i = 0; i < kSyllableWords; ++i) {
    uint64_t h = Mix(i + 99);
    const uint64_t syllables = 2 + h % 3;
    h /= 3;
    std::string word;
    for (uint64_t j = 0; j < syllables; ++j) {
      word += kConsonants[h % 14];
      h /= 14;
      word += kVowels[h % 5];
      h /= 5;
    }
    word[0] = static_cast<char>(word[0] - 32);
    words.push_back(word);
  }
  return words;
}

// Two to four words, frequent ones more often, and a number that makes the name unique.
void AppendName(const std::vector<std::string>& words, uint64_t id, char space, std::string* out) {
  uint64_t h = Mix(2 * id + 1);
  const int count = h % 100 < 25 ? 2 : h % 100 < 70 ? 3 : 4;
  h = Mix(h);
  for (uint64_t j = 0; j < static_cast<uint64_t>(count); ++j) {
    const uint64_t word = (Mix(h + j) % kSyllableWords) * (Mix(3 * h + j) % kSyllableWords) / kSyllableWords;
    if (j) out->push_back(space);
    out->append(words[word]);
  }
  out->push_back(space);
  uint64_t number = id * 0x9e3779b1ull % 0x7fffffffull;
  char digits[16];
  int n = 0;
  do digits[n++] = "0123456789abcdef"[number & 15];
  while (number >>= 4);
  while (n) out->push_back(digits[--n]);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: generate_triples COUNT [tsv|ntriples] [SEED]\n");
    return 2;
  }
  const uint64_t count = std::strtoull(argv[1], nullptr, 10);
  const bool ntriples = argc > 2 && std::strcmp(argv[2], "ntriples") == 0;
  Random random(argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1);
  const uint64_t entities = std::max<uint64_t>(8, count * 21 / 111);
  const std::vector<std::string> words = MakeWords();
  // How many objects a relation has: every other one is like a class, with few and so with hubs.
  std::vector<double> log_domain;
  for (uint64_t r = 0; r < kRelations; ++r) {
    const double u = static_cast<double>(Mix(r + 7) >> 11) * 0x1p-53;
    const double domain = r % 2 == 0 ? std::pow(2.0, 3 + u * 13)
                                     : 16384.0 * std::pow(static_cast<double>(entities) / 16384.0, 0.5 + 0.5 * u);
    log_domain.push_back(std::log(std::max(1.0, domain)));
  }
  const char space = ntriples ? '_' : ' ';
  std::string out, subject;
  uint64_t written = 0;
  for (uint64_t s = 0; written < count; s = (s + 1) % entities) {
    subject.clear();
    AppendName(words, s, space, &subject);
    int degree = 1;
    while (random.Unit() < 0.815 && degree < 200) ++degree;
    for (; degree && written < count; --degree, ++written) {
      const auto r = static_cast<uint64_t>(std::exp(std::log(kRelations) * random.Unit())) - 1;
      const auto k = static_cast<uint64_t>(std::exp(log_domain[r] * random.Unit()));
      const uint64_t object = Mix(r * 0x9e3779b97f4a7c15ull + k) % entities;
      if (ntriples) {
        out.append("<http://e/").append(subject).append("> <http://r/").append(std::to_string(r)).append("> <http://e/");
        AppendName(words, object, space, &out);
        out.append("> .\n");
      } else {
        out.append(subject).append("\trelation ").append(std::to_string(r)).append("\t");
        AppendName(words, object, space, &out);
        out.push_back('\n');
      }
    }
    if (out.size() > (1u << 20)) {
      if (std::fwrite(out.data(), 1, out.size(), stdout) != out.size()) return 1;
      out.clear();
    }
  }
  return std::fwrite(out.data(), 1, out.size(), stdout) == out.size() ? 0 : 1;
}
