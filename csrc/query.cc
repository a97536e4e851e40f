#include "query.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "distance.h"
#include "triple_table.h"

namespace pymemstore {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Rules that need no rule keys.
constexpr uint32_t kRulesText = RuleBit(Match::kExact) | RuleBit(Match::kAlias);

double Clamp(double score) { return std::max(-1.0, std::min(1.0, score)); }
bool Passes(double score, double tau) { return score >= tau - kScoreSlack; }

// The similarity that a rule vouches for (docs/semantics.md).
double RuleSimilarity(Match match) {
  switch (match) {
    case Match::kExact:
    case Match::kAlias:
      return 1.0;
    case Match::kFolded:
      return 0.99;
    case Match::kDemonym:
    case Match::kTrailing:
      return 0.90;
    case Match::kVector:
      return -1.0;
    default:
      return 0.95;
  }
}

struct Candidate {
  NameId id = 0;
  double similarity = 0;
  double cosine = kNan;
  Match match = Match::kVector;
};

// Polls the caller's wish to stop once in a while.
class Poll {
 public:
  explicit Poll(const InterruptCheck& interrupted) : interrupted_(interrupted) {}
  bool Stop() { return stopped_ || (++steps_ % 4096 == 0 && interrupted_ && (stopped_ = interrupted_())); }

 private:
  const InterruptCheck& interrupted_;
  uint64_t steps_ = 0;
  bool stopped_ = false;
};

// Candidates of one kind for one transaction.
class CandidateFinder {
 public:
  CandidateFinder(Snapshot* snapshot, Kind kind, int threads, const InterruptCheck& interrupted)
      : txn_(snapshot->txn.get()),
        names_(snapshot->gen->names[Index(kind)]),
        index_(snapshot->gen->index[Index(kind)].get()),
        committed_(snapshot->counters.rows[Index(kind)]),
        threads_(threads),
        interrupted_(interrupted) {}

  Status Open() {
    PMS_ASSIGN_OR_RETURN(rows_, index_->file().Rows(committed_));
    return Status::Ok();
  }
  uint32_t dim() const { return index_->dim(); }

  // Scans for `n` vectors at once.
  Status Scan(const float* vectors, size_t n, const double* taus, SearchMode asked, SearchChoice* choice,
              std::vector<std::vector<Candidate>>* out, uint64_t* rows_scanned) {
    std::vector<std::vector<ScoredRow>> scored;
    ScanStats stats;
    PMS_ASSIGN_OR_RETURN(*choice, index_->WithinThreshold(rows_, vectors, n, taus, asked, threads_, interrupted_,
                                                        &scored, &stats));
    *rows_scanned = stats.rows_scanned;
    out->assign(n, {});
    Poll poll(interrupted_);
    for (size_t i = 0; i < n; ++i) {
      for (const ScoredRow& row : scored[i]) {
        if (poll.Stop()) return Status::Interrupted();
        // A row counts while its owner still points to it: not after a new vector, or when forgotten.
        NameRecord record;
        const NameId owner = rows_.owner(row.row);
        if (!names_.Get(txn_, owner, &record) || record.row_plus_1 != row.row + 1) continue;
        const double cosine = Clamp(row.score);
        (*out)[i].push_back({owner, cosine, cosine, Match::kVector});
      }
      std::sort((*out)[i].begin(), (*out)[i].end(),
                [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
    }
    return txn_->status();
  }

  // Adds what `rules` find for `text` to the candidates (sorted by id), keeps those that pass tau, and applies
  // the number guard.
  void Join(const std::string& text, const float* vector, uint32_t rules, double tau, bool numbers_exact,
            std::vector<Candidate>* candidates) {
    const ParsedName parsed = ParseName(text);
    std::vector<std::pair<NameId, Match>> found;
    NameId id = kNoName;
    if ((rules & RuleBit(Match::kExact)) && names_.Find(txn_, text, &id)) found.emplace_back(id, Match::kExact);
    if (rules & RuleBit(Match::kAlias))
      for (NameId named : names_.NamedBy(txn_, text)) found.emplace_back(named, Match::kAlias);
    const std::vector<NameId> folded = Listed(parsed, rules & RuleBit(Match::kFolded));
    for (NameId candidate : Listed(parsed, rules)) {
      const bool by_alias = std::binary_search(folded.begin(), folded.end(), candidate);
      const Match match = Verify(parsed, rules, candidate, by_alias);
      if (match != Match::kVector) found.emplace_back(candidate, match);
    }
    std::sort(found.begin(), found.end());  // by id, strongest match first
    std::vector<Candidate> merged;
    auto scanned = candidates->begin();
    for (size_t i = 0; i < found.size(); ++i) {
      if (i && found[i].first == found[i - 1].first) continue;
      const auto [found_id, match] = found[i];
      while (scanned != candidates->end() && scanned->id < found_id) merged.push_back(*scanned++);
      Candidate c{found_id, RuleSimilarity(match), kNan, match};
      if (scanned != candidates->end() && scanned->id == found_id) {
        c.cosine = scanned->cosine;
        ++scanned;
      } else if (vector) {
        c.cosine = Cosine(vector, found_id);
      }
      if (c.cosine > c.similarity) c.similarity = c.cosine;
      if (Passes(c.similarity, tau)) merged.push_back(c);
    }
    merged.insert(merged.end(), scanned, candidates->end());
    if (numbers_exact)
      merged.erase(std::remove_if(merged.begin(), merged.end(),
                                  [&](const Candidate& c) { return !NumbersFit(parsed, c); }),
                   merged.end());
    *candidates = std::move(merged);
  }

 private:
  // Names listed under the query's keys for `rules`, ascending.
  std::vector<NameId> Listed(const ParsedName& query, uint32_t rules) {
    std::vector<uint64_t> keys;
    QueryKeys(query, rules, &keys);
    std::vector<NameId> listed;
    for (uint64_t key : keys) {
      const std::vector<NameId> ids = names_.ByRuleKey(txn_, key);
      listed.insert(listed.end(), ids.begin(), ids.end());
    }
    std::sort(listed.begin(), listed.end());
    listed.erase(std::unique(listed.begin(), listed.end()), listed.end());
    return listed;
  }

  // `by_alias`: an alias may match too (in folded form; aliases have no other keys).
  Match Verify(const ParsedName& query, uint32_t rules, NameId id, bool by_alias) {
    NameRecord record;
    if (!names_.Get(txn_, id, &record)) return Match::kVector;
    Match best = MatchNames(query, ParseName(record.name), rules);
    if (best == Match::kFolded || !by_alias) return best;
    for (const std::string& alias : names_.Aliases(txn_, id))
      if (MatchNames(query, ParseName(alias), RuleBit(Match::kFolded)) == Match::kFolded) return Match::kFolded;
    return best;
  }

  double Cosine(const float* vector, NameId id) {
    NameRecord record;
    if (!names_.Get(txn_, id, &record) || !record.row_plus_1) return kNan;
    if (record.row_plus_1 > rows_.view.rows) {
      txn_->Fail(Status::Corruption("a name points behind the end of the vector file"));
      return kNan;
    }
    return Clamp(CanonicalDot(vector, rows_.view.row(record.row_plus_1 - 1), dim()));
  }

  // A text that is the name, or an alias, agrees whatever its numbers are.
  bool NumbersFit(const ParsedName& query, const Candidate& c) {
    if (c.match <= Match::kFolded) return true;
    NameRecord record;
    return names_.Get(txn_, c.id, &record) && NumbersAgree(query, ParseName(record.name));
  }

  Txn* txn_;
  const NameTable& names_;
  VectorIndex* index_;
  uint64_t committed_;
  int threads_;
  const InterruptCheck& interrupted_;
  PinnedRows rows_;
};

// One slot of all queries: scans those that have vectors in one pass, then joins the rules.
Status FindCandidates(CandidateFinder* finder, const Query* queries, size_t count, bool entity,
                      const std::vector<double>& taus, std::vector<std::vector<Candidate>>* out,
                      QueryResult* results) {
  out->assign(count, {});
  for (SearchMode asked : {SearchMode::kAuto, SearchMode::kExact, SearchMode::kGraph}) {
    std::vector<float> vectors;
    std::vector<double> scan_taus;
    std::vector<size_t> who;
    for (size_t i = 0; i < count; ++i) {
      const std::vector<float>& v = entity ? queries[i].entity_vector : queries[i].relation_vector;
      // Relations are few, and their best score decides what entities are looked for.
      const SearchMode wish = entity ? queries[i].search : SearchMode::kExact;
      if (wish != asked || v.empty() || taus[i] > 1 + kScoreSlack) continue;
      who.push_back(i);
      vectors.insert(vectors.end(), v.begin(), v.end());
      scan_taus.push_back(taus[i]);
    }
    if (who.empty()) continue;
    std::vector<std::vector<Candidate>> found;
    SearchChoice choice;
    uint64_t rows_scanned = 0;
    PMS_RETURN_IF_ERROR(finder->Scan(vectors.data(), who.size(), scan_taus.data(), asked, &choice, &found, &rows_scanned));
    for (size_t j = 0; j < who.size(); ++j) {
      (*out)[who[j]] = std::move(found[j]);
      results[who[j]].rows_scanned += rows_scanned / who.size();
      if (!entity) continue;
      results[who[j]].mode = choice.mode;
      results[who[j]].reason = choice.reason;
    }
  }
  for (size_t i = 0; i < count; ++i) {
    const Query& q = queries[i];
    const auto& text = entity ? q.entity_text : q.relation_text;
    const uint32_t rules = entity ? q.rules : q.rules & kRulesRelation;
    const bool guard = entity && q.numbers_exact;
    if (!text || (!rules && !guard) || taus[i] > 1 + kScoreSlack) continue;
    const std::vector<float>& v = entity ? q.entity_vector : q.relation_vector;
    finder->Join(*text, v.empty() ? nullptr : v.data(), rules, taus[i], guard, &(*out)[i]);
  }
  return Status::Ok();
}

// Best score first. The name itself goes before others that score the same (those that have it as an alias).
bool Better(const Hit& a, const Hit& b) {
  if (a.score != b.score) return a.score > b.score;
  const bool a_named = a.match == Match::kExact, b_named = b.match == Match::kExact;
  return a_named != b_named ? a_named : a.triple < b.triple;
}

Hit MakeHit(const StoredTriple& t, const Candidate& e, const TripleTable::Relation& r) {
  return {t.ids, t.id, (e.similarity + r.similarity) / 2, e.similarity, r.similarity, e.cosine, e.match};
}

// Everything: one walk for each entity.
Status JoinAll(Txn* txn, const Query& q, const std::vector<Candidate>& entities,
               const std::vector<TripleTable::Relation>& relations, Poll* poll, std::vector<Hit>* hits) {
  for (const Candidate& e : entities) {
    TripleTable::Scan(txn, q.object_known, e.id, relations,
                      [&](const StoredTriple& t, const TripleTable::Relation& r) {
                        if (Passes((e.similarity + r.similarity) / 2, q.tau_r) &&
                            !std::binary_search(q.exclude.begin(), q.exclude.end(), t.id))
                          hits->push_back(MakeHit(t, e, r));
                        return !poll->Stop();
                      });
    if (poll->Stop()) return Status::Interrupted();
  }
  std::sort(hits->begin(), hits->end(), Better);
  return Status::Ok();
}

struct Pair {
  double score;
  const Candidate* e;
  const TripleTable::Relation* r;
};

// The pairs that pass, best first; false when there are more than `most`.
bool PassingPairs(const Query& q, const std::vector<Candidate>& entities,
                  const std::vector<TripleTable::Relation>& relations, size_t most, std::vector<Pair>* pairs) {
  for (const Candidate& e : entities)
    for (const TripleTable::Relation& r : relations) {
      const double score = (e.similarity + r.similarity) / 2;
      if (!Passes(score, q.tau_r)) continue;
      if (pairs->size() == most) return false;
      pairs->push_back({score, &e, &r});
    }
  std::sort(pairs->begin(), pairs->end(), [](const Pair& a, const Pair& b) { return a.score > b.score; });
  return true;
}

// The best `limit`: pairs in order of score, so that a hub is not read to its end. <*, r, o> comes in order of
// triple id, and ends early; <s, r, *> is read whole, and is short.
Status JoinPairs(Txn* txn, const Query& q, const std::vector<Pair>& pairs, Poll* poll, std::vector<Hit>* hits) {
  const size_t limit = static_cast<size_t>(q.limit);
  for (size_t i = 0; i < pairs.size() && hits->size() <= limit && txn->ok();) {
    std::vector<Hit> group;
    const double score = pairs[i].score;
    for (; i < pairs.size() && pairs[i].score == score; ++i) {
      size_t taken = 0;
      TripleTable::Scan(txn, q.object_known, pairs[i].e->id, {*pairs[i].r},
                        [&](const StoredTriple& t, const TripleTable::Relation& r) {
                          if (poll->Stop()) return false;
                          if (std::binary_search(q.exclude.begin(), q.exclude.end(), t.id)) return true;
                          group.push_back(MakeHit(t, *pairs[i].e, r));
                          return !(q.object_known && ++taken > limit);
                        });
      if (poll->Stop()) return Status::Interrupted();
    }
    std::sort(group.begin(), group.end(), Better);
    hits->insert(hits->end(), group.begin(), group.end());
  }
  return Status::Ok();
}

Status Join(Txn* txn, const Query& q, const std::vector<Candidate>& entities,
            const std::vector<TripleTable::Relation>& relations, const InterruptCheck& interrupted,
            QueryResult* result) {
  // A seek for each pair pays while pairs are few; past that one walk for each entity is cheaper.
  constexpr size_t kMostPairs = 4096;
  Poll poll(interrupted);
  std::vector<Pair> pairs;
  if (q.limit >= 0 && PassingPairs(q, entities, relations, kMostPairs, &pairs)) {
    PMS_RETURN_IF_ERROR(JoinPairs(txn, q, pairs, &poll, &result->hits));
  } else {
    PMS_RETURN_IF_ERROR(JoinAll(txn, q, entities, relations, &poll, &result->hits));
  }
  if (q.limit >= 0 && result->hits.size() > static_cast<size_t>(q.limit)) {
    result->truncated = true;
    result->hits.resize(static_cast<size_t>(q.limit));
  }
  return Status::Ok();
}

void Remember(Txn* txn, const NameTable& table, NameId id, NameMap* names) {
  auto& map = names->names[Index(table.kind())];
  if (map.count(id)) return;
  NameRecord record;
  if (table.Get(txn, id, &record)) {
    map.emplace(id, std::string(record.name));
  } else {
    txn->Fail(Status::Corruption(std::string("a triple names ") + KindName(table.kind()) + " " + std::to_string(id) +
                                 ", which the store does not have"));
  }
}

Status CheckDim(const std::vector<float>& v, Kind kind, uint32_t dim) {
  if (v.empty() || v.size() == dim) return Status::Ok();
  return Status::InvalidArgument(std::string("the query's ") + KindName(kind) + " vector has dimension " +
                                 std::to_string(v.size()) + "; the store's have " + std::to_string(dim));
}

Status CheckQuery(const Query& q, uint32_t entity_dim, uint32_t relation_dim) {
  PMS_RETURN_IF_ERROR(CheckDim(q.entity_vector, Kind::kEntity, entity_dim));
  PMS_RETURN_IF_ERROR(CheckDim(q.relation_vector, Kind::kRelation, relation_dim));
  if (!q.entity_text && q.entity_vector.empty())
    return Status::InvalidArgument("the query names no entity: give a subject or an object");
  if (!q.relation_text && q.relation_vector.empty())
    return Status::InvalidArgument("the query names no relation");
  if (q.numbers_exact && !q.entity_text)
    return Status::InvalidArgument("numbers='exact' compares texts: give the entity's text beside its vector");
  const std::pair<const char*, double> taus[] = {{"tau_e", q.tau_e}, {"tau_t", q.tau_t}, {"tau_r", q.tau_r}};
  for (const auto& [name, tau] : taus)
    if (!(tau >= -1 && tau <= 1))
      return Status::InvalidArgument(std::string(name) + " is " + std::to_string(tau) +
                                     "; a threshold lies in [-1, 1]");
  return Status::Ok();
}

// Some queries at once: their scans share the passes over the vectors.
Status RunSome(Snapshot* snapshot, CandidateFinder* entity_finder, CandidateFinder* relation_finder,
               const Query* queries, size_t count, uint64_t unembedded, bool ruled, const InterruptCheck& interrupted,
               QueryResult* results, NameMap* names) {
  Txn* txn = snapshot->txn.get();
  // Relations first: they are few, and their best score tightens the entities' threshold, since a hit needs
  // cos(e) >= 2 tau_r - cos(t).
  std::vector<double> taus(count);
  for (size_t i = 0; i < count; ++i) taus[i] = queries[i].tau_t;
  std::vector<std::vector<Candidate>> found;
  PMS_RETURN_IF_ERROR(FindCandidates(relation_finder, queries, count, false, taus, &found, results));
  std::vector<std::vector<TripleTable::Relation>> relations(count);
  for (size_t i = 0; i < count; ++i) {
    double best = -2;
    for (const Candidate& c : found[i]) {
      relations[i].push_back({c.id, c.similarity, c.match});
      best = std::max(best, c.similarity);
    }
    results[i].relation_candidates = found[i].size();
    // 2 is above every similarity: without a relation there is nothing to join.
    taus[i] = found[i].empty() ? 2 : std::max(queries[i].tau_e, 2 * (queries[i].tau_r - kScoreSlack) - best);
  }
  PMS_RETURN_IF_ERROR(FindCandidates(entity_finder, queries, count, true, taus, &found, results));

  for (size_t i = 0; i < count; ++i) {
    QueryResult& result = results[i];
    result.entity_candidates = found[i].size();
    PMS_RETURN_IF_ERROR(Join(txn, queries[i], found[i], relations[i], interrupted, &result));
    result.unembedded = unembedded;
    result.complete = unembedded == 0 && result.mode == SearchMode::kExact && (!(queries[i].rules & ~kRulesText) || ruled) && !queries[i].entity_vector.empty() && !queries[i].relation_vector.empty();
    for (const Hit& hit : result.hits) {
      Remember(txn, snapshot->gen->names[0], hit.ids.s, names);
      Remember(txn, snapshot->gen->names[1], hit.ids.r, names);
      Remember(txn, snapshot->gen->names[0], hit.ids.o, names);
    }
  }
  return txn->status();
}

}  // namespace

Result<std::vector<QueryResult>> RunQueries(Snapshot* snapshot, const std::vector<Query>& queries, int threads,
                                            const InterruptCheck& interrupted, NameMap* names) {
  CandidateFinder relation_finder(snapshot, Kind::kRelation, threads, interrupted);
  CandidateFinder entity_finder(snapshot, Kind::kEntity, threads, interrupted);
  PMS_RETURN_IF_ERROR(relation_finder.Open());
  PMS_RETURN_IF_ERROR(entity_finder.Open());
  for (const Query& q : queries) PMS_RETURN_IF_ERROR(CheckQuery(q, entity_finder.dim(), relation_finder.dim()));
  const uint64_t unembedded = snapshot->counters.unembedded();
  const bool ruled = snapshot->counters.ruled >= snapshot->counters.sealed;
  // Enough at once to share the passes, few enough that their candidates fit when everything passes.
  constexpr size_t kAtOnce = 128;
  std::vector<QueryResult> results(queries.size());
  for (size_t i = 0; i < queries.size(); i += kAtOnce) {
    PMS_RETURN_IF_ERROR(RunSome(snapshot, &entity_finder, &relation_finder, &queries[i],
                                std::min(kAtOnce, queries.size() - i), unembedded, ruled, interrupted, &results[i], names));
    if (interrupted && interrupted()) return Status::Interrupted();
  }
  return results;
}

Result<std::vector<std::vector<ScoredName>>> RunSimilar(Snapshot* snapshot, Kind kind, const float* vectors,
                                                        size_t n, double tau, int64_t limit, SearchMode search,
                                                        int threads,
                                                        const InterruptCheck& interrupted, NameMap* names) {
  Txn* txn = snapshot->txn.get();
  CandidateFinder finder(snapshot, kind, threads, interrupted);
  PMS_RETURN_IF_ERROR(finder.Open());
  std::vector<std::vector<Candidate>> found;
  SearchChoice choice;
  uint64_t rows_scanned = 0;
  PMS_RETURN_IF_ERROR(finder.Scan(vectors, n, std::vector<double>(n, tau).data(), search, &choice, &found,
                                  &rows_scanned));
  std::vector<std::vector<ScoredName>> results(n);
  for (size_t i = 0; i < n; ++i) {
    std::sort(found[i].begin(), found[i].end(), [](const Candidate& a, const Candidate& b) {
      return a.cosine != b.cosine ? a.cosine > b.cosine : a.id < b.id;
    });
    if (limit >= 0 && found[i].size() > static_cast<size_t>(limit)) found[i].resize(static_cast<size_t>(limit));
    for (const Candidate& c : found[i]) {
      results[i].push_back({c.id, c.cosine});
      Remember(txn, snapshot->gen->names[Index(kind)], c.id, names);
    }
  }
  PMS_RETURN_IF_ERROR(txn->status());
  return results;
}

}  // namespace pymemstore
