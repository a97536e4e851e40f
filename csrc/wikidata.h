// Wikidata's JSON: dumps of one entity a line, and what its web API returns.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fact_sink.h"

namespace pymemstore {

// Options, all text; docs/import.md says what each does:
//   languages (default "en,en-*,mul"), ranks ("best", "nondeprecated", "all"), aliases, external_ids ("1", "0"),
//   qualifiers ("none", "time"), properties, items, skip_datatypes (ids or types parted by commas; "": all, none).
Result<std::unique_ptr<LineReader>> NewWikidataReader(const std::map<std::string, std::string>& options);

// The set of a comma-separated option.
std::vector<std::string> SplitList(const std::string& text);

}  // namespace pymemstore
