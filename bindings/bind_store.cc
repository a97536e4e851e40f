// Store: every call that works releases the GIL.
#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_map>

#include "bindings.h"
#include "convert.h"

namespace pymemstore {
namespace {

constexpr const char* kMatchNames[] = {"exact",   "alias",    "folded",  "article",  "plural", "word_order",
                                       "acronym", "initials", "demonym", "trailing", "vector"};
constexpr const char* kChangeNames[] = {"",      "add",     "remove", "replace", "forget",
                                        "alias", "unalias", "rename", "vector",  "external_id"};
constexpr const char* kModeNames[] = {"auto", "exact", "graph"};

Kind KindOf(bool relation) { return relation ? Kind::kRelation : Kind::kEntity; }

// Runs fn without the GIL and raises what it returns.
template <typename Fn>
auto Call(Fn&& fn) {
  auto result = [&] {
    ReleaseGil release;
    return fn();
  }();
  return Unwrap(std::move(result));
}

template <typename Fn>
void CallStatus(Fn&& fn) {
  Status status;
  {
    ReleaseGil release;
    status = fn();
  }
  Check(status);
}

SearchMode ToMode(const std::string& name) {
  for (size_t i = 0; i < 3; ++i)
    if (name == kModeNames[i]) return static_cast<SearchMode>(i);
  Raise(Status::InvalidArgument("search is '" + name + "', expected 'auto', 'exact' or 'graph'"));
}

std::vector<float> ToUnitVector(const py::object& object, const char* what) {
  if (object.is_none()) return {};
  if (!py::isinstance<F32Array>(object)) Raise(Status::InvalidArgument(std::string(what) + " is not a float32 array"));
  const F32Array array = py::reinterpret_borrow<F32Array>(object);
  if (array.ndim() != 1 || array.size() < 1)
    Raise(Status::InvalidArgument(std::string(what) + " has shape of " + std::to_string(array.ndim()) +
                                  " axes and " + std::to_string(array.size()) + " elements, expected float32 (dim,)"));
  std::vector<float> v(static_cast<size_t>(array.size()));
  if (!NormaliseVector(array.data(), v.size(), v.data()))
    Raise(Status::InvalidArgument(std::string(what) + " is zero, or holds a value that is not finite or is too large to normalise"));
  return v;
}

// The tuple that memory.py builds; its order is written down there and in _core.pyi.
Query ToQuery(const py::tuple& t) {
  if (t.size() != 13) Raise(Status::InvalidArgument("a query has " + std::to_string(t.size()) + " fields, expected 13"));
  Query q;
  q.object_known = t[0].cast<bool>();
  if (!t[1].is_none()) q.entity_text = std::string(Utf8(t[1], q.object_known ? "object" : "subject"));
  if (!t[2].is_none()) q.relation_text = std::string(Utf8(t[2], "relation"));
  q.entity_vector = ToUnitVector(t[3], q.object_known ? "object_vector" : "subject_vector");
  q.relation_vector = ToUnitVector(t[4], "relation_vector");
  q.tau_e = t[5].cast<double>();
  q.tau_t = t[6].cast<double>();
  q.tau_r = t[7].cast<double>();
  q.limit = t[8].cast<int64_t>();
  q.search = ToMode(t[9].cast<std::string>());
  q.rules = t[10].cast<uint32_t>();
  q.numbers_exact = t[11].cast<bool>();
  if (!t[12].is_none()) {
    const auto ids = t[12].cast<py::array_t<uint64_t, py::array::c_style | py::array::forcecast>>();
    q.exclude.assign(ids.data(), ids.data() + ids.size());
    std::sort(q.exclude.begin(), q.exclude.end());
  }
  return q;
}

py::object TripleTuple(const Triple& t) {
  return py::make_tuple(ToStr(t.subject), ToStr(t.relation), ToStr(t.object), t.id);
}

py::list StrList(const std::vector<std::string>& texts) {
  py::list list(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) list[i] = ToStr(texts[i]);
  return list;
}

// Each name becomes one str, however many hits it has.
class NameCache {
 public:
  explicit NameCache(const NameMap& names) : names_(names) {}
  py::handle Get(Kind kind, NameId id) {
    py::object& s = made_[Index(kind)][id];
    if (!s) s = ToStr(names_.names[Index(kind)].at(id));
    return s;
  }

 private:
  const NameMap& names_;
  std::unordered_map<NameId, py::object> made_[kKinds];
};

py::tuple HitTuple(const Hit& hit, bool object_known, NameCache* names) {
  const py::handle s = names->Get(Kind::kEntity, hit.ids.s), r = names->Get(Kind::kRelation, hit.ids.r),
                   o = names->Get(Kind::kEntity, hit.ids.o);
  return py::make_tuple(object_known ? s : o, hit.score, hit.entity_similarity, hit.relation_similarity, hit.cosine,
                        py::make_tuple(s, r, o, hit.triple), kMatchNames[static_cast<size_t>(hit.match)]);
}

py::list RunQueries(Store& store, const py::sequence& specs) {
  std::vector<Query> queries;
  for (const auto& spec : specs) queries.push_back(ToQuery(py::cast<py::tuple>(spec)));
  NameMap map;
  const std::vector<QueryResult> results = Call([&] { return store.RunQueries(queries, &map, Interrupted); });
  NameCache names(map);
  py::list list;
  for (size_t i = 0; i < results.size(); ++i) {
    const QueryResult& r = results[i];
    py::list hits(r.hits.size());
    for (size_t j = 0; j < r.hits.size(); ++j) hits[j] = HitTuple(r.hits[j], queries[i].object_known, &names);
    list.append(py::make_tuple(std::move(hits), r.truncated, r.complete, r.unembedded,
                               kModeNames[static_cast<size_t>(r.mode)], r.entity_candidates, r.relation_candidates,
                               r.rows_scanned, ToStr(r.reason)));
  }
  return list;
}

py::list RunSimilar(Store& store, const F32Array& vectors, double tau, int64_t limit, bool relation,
                    const std::string& search) {
  const SearchMode mode = ToMode(search);
  const Kind kind = KindOf(relation);
  const Vectors v = ToUnitVectors(vectors, "vectors");
  NameMap map;
  const auto results =
      Call([&] { return store.Similar(kind, v.data.data(), v.n, v.dim, tau, limit, mode, &map, Interrupted); });
  NameCache names(map);
  py::list list;
  for (const auto& found : results) {
    py::list one(found.size());
    for (size_t i = 0; i < found.size(); ++i) one[i] = py::make_tuple(names.Get(kind, found[i].id), found[i].score);
    list.append(std::move(one));
  }
  return list;
}

py::tuple Apply(Store& store, const Batch& batch) {
  const ApplyResult result = Call([&] { return store.Apply(batch, Interrupted); });
  py::list list;
  for (size_t i = 0; i < result.ops.size(); ++i) {
    const OpResult& r = result.ops[i];
    switch (batch.ops()[i].type) {
      case OpType::kAdd: {
        py::array_t<uint64_t> ids(static_cast<ssize_t>(r.ids.size()), r.ids.data());
        py::array_t<bool> inserted(static_cast<ssize_t>(r.inserted.size()));
        for (size_t j = 0; j < r.inserted.size(); ++j) inserted.mutable_data()[j] = r.inserted[j] != 0;
        list.append(py::make_tuple(ids, inserted));
        break;
      }
      case OpType::kReplace: {
        py::list removed;
        for (const Triple& t : r.removed) removed.append(TripleTuple(t));
        list.append(py::make_tuple(r.ids[0], r.flag, removed));
        break;
      }
      case OpType::kForget:
      case OpType::kAddNames:
        list.append(r.count);
        break;
      case OpType::kRename:
      case OpType::kSetVectors:
        list.append(py::none());
        break;
      default:
        list.append(r.flag);
    }
  }
  py::dict summary;
  summary["new_entities"] = result.new_names[0];
  summary["new_relations"] = result.new_names[1];
  summary["unembedded"] = result.unembedded;
  summary["seq"] = result.seq;
  return py::make_tuple(list, summary);
}

py::list NamePage(const std::vector<std::pair<NameId, std::string>>& page) {
  py::list list(page.size());
  for (size_t i = 0; i < page.size(); ++i) list[i] = py::make_tuple(page[i].first, ToStr(page[i].second));
  return list;
}

std::optional<std::string> OptionalText(const py::object& object, const char* what) {
  if (object.is_none()) return std::nullopt;
  return std::string(Utf8(object, what));
}

py::dict StatsDict(const Stats& s) {
  py::dict d;
  d["entities"] = s.names[0];
  d["relations"] = s.names[1];
  d["triples"] = s.triples;
  d["aliases"] = s.aliases;
  d["external_ids"] = s.external_ids;
  d["unembedded_entities"] = s.unembedded[0];
  d["unembedded_relations"] = s.unembedded[1];
  d["entity_vector_rows"] = s.vector_rows[0];
  d["relation_vector_rows"] = s.vector_rows[1];
  d["delta_rows"] = s.delta_rows;
  d["sealed_entities"] = s.sealed_names;
  d["unruled_entities"] = s.unruled;
  for (Kind kind : {Kind::kEntity, Kind::kRelation}) {
    const IndexInfo& index = s.index[Index(kind)];
    const std::string name = KindName(kind);
    d[py::str(name + "_sealed_rows")] = index.sealed_rows;
    d[py::str(name + "_index_problem")] = ToStr(index.problem);
  }
  const IndexInfo& entities = s.index[0];
  d["graph_rows"] = entities.graph_rows;
  d["graph_missed"] = entities.missed;
  d["clusters"] = entities.clusters;
  d["code_bits"] = std::to_string(entities.bits1) + "+" + std::to_string(entities.bits2);
  d["seq"] = s.seq;
  d["map_size"] = s.map_size;
  d["map_used"] = s.map_used;
  d["disk_bytes"] = s.disk_bytes;
  d["readers"] = s.readers;
  d["max_readers"] = s.max_readers;
  d["generation"] = s.generation;
  d["format_version"] = s.format_version;
  d["store_id"] = s.store_id;
  d["merge_error"] = s.merge_error;
  return d;
}

std::optional<EmbedderStamp> ToStamp(const py::object& object) {
  if (object.is_none()) return std::nullopt;
  const py::tuple t = object;
  EmbedderStamp stamp;
  stamp.name = std::string(Utf8(t[0], "the embedder's name"));
  const auto dim = t[1].cast<int64_t>();
  if (dim < 1 || dim > static_cast<int64_t>(kMaxDim))
    Raise(Status::InvalidArgument("the embedder " + QuoteName(stamp.name) + " has dimension " + std::to_string(dim) +
                                  "; 1 to " + std::to_string(kMaxDim) + " are allowed"));
  stamp.dim = static_cast<uint32_t>(dim);
  stamp.version = std::string(Utf8(t[2], "the embedder's version"));
  return stamp;
}

WithoutGil<Store> OpenStore(const py::bytes& path, bool create, bool read_only, double timeout,
                                 const std::string& sync, uint64_t map_size, int threads, uint32_t max_readers, bool auto_merge, uint64_t merge_rows,
                                 const py::object& entity_stamp, const py::object& relation_stamp, bool stamps_if_new) {
  Options options;
  options.create = create;
  options.read_only = read_only;
  if (!(timeout >= 0)) Raise(Status::InvalidArgument("timeout is negative or not a number"));
  options.timeout_s = timeout;
  if (sync != "full" && sync != "relaxed")
    Raise(Status::InvalidArgument("sync is '" + sync + "', expected 'full' or 'relaxed'"));
  options.sync = sync == "full" ? Sync::kFull : Sync::kRelaxed;
  options.map_size = map_size;
  options.threads = threads;
  options.max_readers = max_readers;
  options.auto_merge = auto_merge;
  options.merge_rows = merge_rows;
  options.stamps[0] = ToStamp(entity_stamp);
  options.stamps[1] = ToStamp(relation_stamp);
  options.stamps_if_new = stamps_if_new;
  const std::string raw = path;
  return WithoutGil<Store>(Call([&] { return Store::Open(raw, options, Interrupted); }).release());
}

py::tuple StampTuple(const EmbedderStamp& s) { return py::make_tuple(ToStr(s.name), s.dim, ToStr(s.version)); }

}  // namespace

void BindStore(py::module_& m) {
  py::class_<Store, WithoutGil<Store>>(m, "Store", py::is_final())
      .def_static("open", &OpenStore, py::arg("path"), py::kw_only(), py::arg("create"), py::arg("read_only"),
                  py::arg("timeout"), py::arg("sync"), py::arg("map_size"), py::arg("threads"),
                  py::arg("max_readers") = 510, py::arg("auto_merge") = true, py::arg("merge_rows") = 250000,
                  py::arg("entity_stamp"), py::arg("relation_stamp"),
                  py::arg("stamps_if_new"))
      .def("close", [](Store& s) { ReleaseGil release; s.Close(); })
      .def_property_readonly("closed", &Store::closed)
      .def_property_readonly("path", [](const Store& s) { return py::bytes(s.path()); })
      .def_property_readonly("read_only", &Store::read_only)
      .def("stamps",
           [](Store& s) {
             const auto stamps = Call([&] { return s.Stamps(); });
             return py::make_tuple(StampTuple(stamps.first), StampTuple(stamps.second));
           })
      .def("apply", &Apply, py::arg(), py::pos_only())
      .def(
          "lacking",
          [](Store& s, const py::sequence& names, bool relation) {
            const std::vector<std::string> texts = Utf8List(names, "name");
            const std::vector<std::string_view> views(texts.begin(), texts.end());
            const std::vector<size_t> lacking = Call([&] { return s.Lacking(KindOf(relation), views); });
            py::list list(lacking.size());
            for (size_t i = 0; i < lacking.size(); ++i) list[i] = lacking[i];
            return list;
          },
          py::arg(), py::arg(), py::pos_only())
      .def("query", &RunQueries, py::arg(), py::pos_only())
      .def("similar", &RunSimilar, py::arg().noconvert(), py::arg(), py::arg(), py::arg(), py::arg(), py::pos_only())
      .def(
          "find",
          [](Store& s, const py::object& subject, const py::object& relation, const py::object& object) {
            const std::string a(Utf8(subject, "subject")), b(Utf8(relation, "relation")), c(Utf8(object, "object"));
            return Call([&] { return s.Find(a, b, c); });
          },
          py::arg(), py::arg(), py::arg(), py::pos_only())
      .def(
          "triple", [](Store& s, uint64_t id) { return TripleTuple(Call([&] { return s.GetTriple(id); })); }, py::arg(),
          py::pos_only())
      .def(
          "names",
          [](Store& s, bool relation, NameId first, size_t count) {
            return NamePage(Call([&] { return s.Names(KindOf(relation), first, count); }));
          },
          py::arg(), py::arg(), py::arg(), py::pos_only())
      .def(
          "unembedded",
          [](Store& s, bool relation, NameId first, size_t count) {
            return NamePage(Call([&] { return s.Unembedded(KindOf(relation), first, count); }));
          },
          py::arg(), py::arg(), py::arg(), py::pos_only())
      .def(
          "triples",
          [](Store& s, const py::object& subject, const py::object& relation, const py::object& object,
             const py::object& cursor, size_t count) {
            const auto a = OptionalText(subject, "subject"), b = OptionalText(relation, "relation"),
                       c = OptionalText(object, "object");
            std::string at = cursor.is_none() ? std::string() : cursor.cast<std::string>();
            const std::vector<Triple> page = Call([&] { return s.Triples(a, b, c, &at, count); });
            py::list list(page.size());
            for (size_t i = 0; i < page.size(); ++i) list[i] = TripleTuple(page[i]);
            return py::make_tuple(std::move(list), at.empty() ? py::object(py::none()) : py::object(py::bytes(at)));
          },
          py::arg(), py::arg(), py::arg(), py::arg(), py::arg(), py::pos_only())
      .def(
          "changes",
          [](Store& s, uint64_t since, size_t count) {
            const std::vector<Change> changes = Call([&] { return s.Changes(since, count); });
            py::list list(changes.size());
            for (size_t i = 0; i < changes.size(); ++i) {
              const Change& c = changes[i];
              py::list removed;
              for (const Triple& t : c.removed) removed.append(TripleTuple(t));
              list[i] = py::make_tuple(c.seq, kChangeNames[static_cast<size_t>(c.type)], c.time,
                                       c.triple ? TripleTuple(*c.triple) : py::object(py::none()), removed,
                                       ToStr(c.name), ToStr(c.other));
            }
            return list;
          },
          py::arg(), py::arg(), py::pos_only())
      .def(
          "vector",
          [](Store& s, const py::object& name, bool relation) -> py::object {
            const std::string text(Utf8(name, "name"));
            const std::vector<float> v = Call([&] { return s.Vector(KindOf(relation), text); });
            if (v.empty()) return py::none();
            return py::array_t<float>(static_cast<ssize_t>(v.size()), v.data());
          },
          py::arg(), py::arg(), py::pos_only())
      .def(
          "aliases",
          [](Store& s, const py::object& name, bool relation) {
            const std::string text(Utf8(name, "name"));
            return StrList(Call([&] { return s.Aliases(KindOf(relation), text); }));
          },
          py::arg(), py::arg(), py::pos_only())
      .def(
          "named_by",
          [](Store& s, const py::object& alias, bool relation) {
            const std::string text(Utf8(alias, "alias"));
            return StrList(Call([&] { return s.NamedBy(KindOf(relation), text); }));
          },
          py::arg(), py::arg(), py::pos_only())
      .def(
          "external_ids",
          [](Store& s, const py::object& name, bool relation) {
            const std::string text(Utf8(name, "name"));
            return StrList(Call([&] { return s.ExternalIds(KindOf(relation), text); }));
          },
          py::arg(), py::arg(), py::pos_only())
      .def(
          "by_external_id",
          [](Store& s, const py::object& external_id, bool relation) -> py::object {
            const std::string text(Utf8(external_id, "external id"));
            const std::optional<std::string> name = Call([&] { return s.ByExternalId(KindOf(relation), text); });
            if (!name) return py::none();
            return ToStr(*name);
          },
          py::arg(), py::arg(), py::pos_only())
      .def(
          "sources",
          [](Store& s, uint64_t id) {
            const std::vector<SourceRecord> sources = Call([&] { return s.Sources(id); });
            py::list list(sources.size());
            for (size_t i = 0; i < sources.size(); ++i) list[i] = py::make_tuple(ToStr(sources[i].source), sources[i].time);
            return list;
          },
          py::arg(), py::pos_only())
      .def("stats", [](Store& s) { return StatsDict(Call([&] { return s.GetStats(); })); })
      .def("check",
           [](Store& s) {
             const CheckReport report = Call([&] { return s.Check(Interrupted); });
             const Stats& stats = report.stats;
             py::dict counts;
             counts["entities"] = stats.names[0];
             counts["relations"] = stats.names[1];
             counts["triples"] = stats.triples;
             counts["aliases"] = stats.aliases;
             counts["external_ids"] = stats.external_ids;
             counts["vectors"] = stats.names[0] + stats.names[1] - stats.unembedded[0] - stats.unembedded[1];
             counts["unembedded"] = stats.unembedded[0] + stats.unembedded[1];
             counts["problems"] = report.problem_count;
             return py::make_tuple(StrList(report.problems), counts);
           })
      .def(
          "backup", [](Store& s, const py::bytes& path) {
            const std::string raw = path;
            CallStatus([&] { return s.Backup(raw); });
          }, py::arg(),
          py::pos_only());
}

}  // namespace pymemstore
