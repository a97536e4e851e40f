#include "surface_words.h"

#include <string>
#include <unordered_map>

namespace pymemstore {
namespace {

struct Idf {
  std::string_view word;
  uint8_t idf64;
};
constexpr Idf kIdf[] = {
#include "idf_table.inc"
};

constexpr std::string_view kStop =
    "the of and a an in on at for to by de la le les du des di da del della el los las von van der den "
    "und et y e al s";
constexpr std::string_view kMonths =
    "january february march april may june july august september october november december";
constexpr std::string_view kCardinals =
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty";
constexpr std::string_view kOrdinals =
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth "
    "fifteenth sixteenth seventeenth eighteenth nineteenth twentieth";
constexpr struct {
  std::string_view word;
  int32_t value;
} kLargeNumbers[] = {{"thirty", 30},     {"forty", 40},      {"fifty", 50},        {"sixty", 60},
                     {"seventy", 70},    {"eighty", 80},     {"ninety", 90},       {"hundred", 100},
                     {"thousand", 1000}, {"million", 1000000}, {"dozen", 12}};
constexpr std::string_view kHonours =
    "mr mrs ms dr sir lady lord saint st prof president king queen prince princess general colonel "
    "captain major rev father pope emperor duke count baron senator governor";
constexpr std::string_view kTypes =
    "river lake mount mountain county city town village island islands street road avenue university "
    "college school company corporation corp inc ltd group band party army navy museum park church "
    "cathedral airport station district province state kingdom republic empire award awards championship "
    "championships tournament league cup association club film album song series novel book war battle";

// A row is a country, state or city and what else stands for it: demonyms, adjectives, short names.
constexpr std::string_view kCountries =
#include "demonyms.inc"
    ;

// Calls f(i, part) for each part of `text` between separators.
template <typename F>
void ForEachPart(std::string_view text, char separator, F f) {
  for (int32_t i = 0; !text.empty(); ++i) {
    const size_t end = text.find(separator);
    f(i, text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
}

std::unordered_map<std::string_view, WordInfo> MakeWords() {
  std::unordered_map<std::string_view, WordInfo> words;
  for (const Idf& entry : kIdf) words[entry.word].idf64 = entry.idf64;
  ForEachPart(kStop, ' ', [&](int32_t, std::string_view w) { words[w].stop = true; });
  ForEachPart(kMonths, ' ', [&](int32_t i, std::string_view w) { words[w].month = static_cast<uint8_t>(i + 1); });
  ForEachPart(kCardinals, ' ', [&](int32_t i, std::string_view w) { words[w].number = i; });
  ForEachPart(kOrdinals, ' ', [&](int32_t i, std::string_view w) { words[w].number = i + 1; });
  for (const auto& entry : kLargeNumbers) words[entry.word].number = entry.value;
  ForEachPart("st nd rd th", ' ', [&](int32_t, std::string_view w) { words[w].suffix = true; });
  for (std::string_view list : {kHonours, kTypes}) {
    ForEachPart(list, ' ', [&](int32_t, std::string_view w) { words[w].type_or_honour = true; });
  }
  return words;
}

std::unordered_map<std::string, std::string_view> MakeCountries() {
  std::unordered_map<std::string, std::string_view> countries;
  ForEachPart(kCountries, '\n', [&](int32_t, std::string_view row) {
    const std::string_view country = row.substr(0, row.find('|'));
    ForEachPart(row, '|', [&](int32_t, std::string_view name) {
      std::string joined;
      for (char c : name) {
        if (c != ' ') joined.push_back(c);
      }
      countries[joined] = country;
    });
  });
  return countries;
}

}  // namespace

const WordInfo& LookUpWord(std::string_view folded) {
  static const std::unordered_map<std::string_view, WordInfo> words = MakeWords();
  static const WordInfo unknown;
  constexpr size_t kLongest = 16;  // no listed word is longer; spares the hash of a huge one
  if (folded.size() > kLongest) return unknown;
  const auto it = words.find(folded);
  return it == words.end() ? unknown : it->second;
}

std::string_view CountryOf(std::string_view joined) {
  static const std::unordered_map<std::string, std::string_view> countries = MakeCountries();
  constexpr size_t kLongest = 40;
  if (joined.size() > kLongest) return {};
  const auto it = countries.find(std::string(joined));
  return it == countries.end() ? std::string_view() : it->second;
}

}  // namespace pymemstore
