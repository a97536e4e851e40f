#include "tsv.h"

#include <cstring>

#include "utf8.h"

namespace pymemstore {
namespace {

class TsvReader : public LineReader {
 public:
  Status Line(std::string_view line, FactSink* sink) override {
    const char* const end = line.data() + line.size();
    const char* first = line.empty() ? nullptr : static_cast<const char*>(std::memchr(line.data(), '\t', line.size()));
    if (!first) {
      if (line.find_first_not_of(' ') == std::string_view::npos) return Status::Ok();
      return Columns(line);
    }
    const char* second = static_cast<const char*>(std::memchr(first + 1, '\t', static_cast<size_t>(end - first - 1)));
    if (!second || std::memchr(second + 1, '\t', static_cast<size_t>(end - second - 1))) return Columns(line);
    const size_t valid = ValidUtf8(line);
    if (valid != line.size())
      return Status::InvalidArgument("not UTF-8: at byte " + std::to_string(valid + 1) + " of the line");
    const auto size = [](const char* from, const char* to) { return static_cast<size_t>(to - from); };
    return sink->Triple({line.data(), size(line.data(), first)}, {first + 1, size(first + 1, second)},
                        {second + 1, size(second + 1, end)});
  }
  Status End(FactSink*) override { return Status::Ok(); }

 private:
  static Status Columns(std::string_view line) {
    size_t columns = 1;
    for (char c : line) columns += c == '\t';
    std::string why = std::to_string(columns) + " columns, not 3";
    if (columns == 4) why += ": all facts of a bulk import have one source";
    return Status::InvalidArgument(why);
  }
};

}  // namespace

std::unique_ptr<LineReader> NewTsvReader() { return std::make_unique<TsvReader>(); }

}  // namespace pymemstore
