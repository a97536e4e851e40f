// N-Triples: Wikidata's "truthy" dumps, and any other data.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "fact_sink.h"

namespace pymemstore {

// RDF 1.1 N-Triples, strictly: a line that is not is rejected. Options: vocabulary ("wikidata", the default, or "any"),
// and of the Wikidata reader's languages, aliases, properties and items.
Result<std::unique_ptr<LineReader>> NewNTriplesReader(const std::map<std::string, std::string>& options);

}  // namespace pymemstore
