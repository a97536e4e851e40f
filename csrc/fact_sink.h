// What a reader of bulk input tells the loader: names, keys, facts. The reader knows the format, the sink where
// things go.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "pymemstore/status.h"
#include "pymemstore/types.h"

namespace pymemstore {

class FactSink {
 public:
  using Ref = uint32_t;
  virtual ~FactSink() = default;

  // An entity or relation by its name (UTF-8, not empty; CheckName() is the sink's: a bad one gives InvalidArgument).
  virtual Result<Ref> Name(Kind kind, std::string_view name) = 0;
  // One that is known by its external id ("Q42", "P31"). Its name is its label, or the id when no label comes.
  virtual Result<Ref> Key(Kind kind, std::string_view external_id) = 0;
  virtual void Fact(Ref subject, Ref relation, Ref object) = 0;
  // The same by names, for input that is nothing but triples: the texts live until the piece of input that they are
  // in has been read, so that the sink may look them up in groups.
  virtual Status Triple(std::string_view subject, std::string_view relation, std::string_view object) = 0;
  // A possible name of a key: the lowest rank wins, then the smallest text, in any order of input.
  virtual void Label(Kind kind, Ref ref, std::string_view label, uint32_t rank) = 0;
  virtual void Alias(Kind kind, Ref ref, std::string_view alias) = 0;
  // `from` is an old key of `to`.
  virtual void Redirect(Kind kind, Ref from, Ref to) = 0;
  // This input holds all there is about the entity: an update withdraws what it does not repeat.
  virtual void Whole(Ref subject) = 0;
};

// A format that is read line by line. Not thread-safe.
class LineReader {
 public:
  virtual ~LineReader() = default;
  // One line, without its line end ("\n" or "\r\n"); a byte order mark before the first line is removed by the
  // caller. InvalidArgument: the line is rejected, with the reason, and nothing of it has reached the sink; other
  // codes end the import.
  virtual Status Line(std::string_view line, FactSink* sink) = 0;
  // The input (one file) ends here. Not ok: it is incomplete, and why; what came before it counts.
  virtual Status End(FactSink* sink) = 0;
  // False inside a record of several lines: an import does not go on from here.
  virtual bool AtRecordStart() const { return true; }
  // How often what happened, by name ("items", "skipped: novalue", ...); kept over a resume. Lines and rejected
  // lines are counted by the caller.
  std::map<std::string, uint64_t>& counts() { return counts_; }

 protected:
  std::map<std::string, uint64_t> counts_;
};

}  // namespace pymemstore
