// BulkLoad: import of input of any size; and the other long work, which tells its progress.
#include <atomic>
#include <memory>

#include "bindings.h"
#include "convert.h"
#include "pymemstore/bulk_load.h"

namespace pymemstore {
namespace {

// Holds the GIL while Python is told; an exception there stops the work and is raised at the end.
class Progress {
 public:
  explicit Progress(py::object callback) : callback_(std::move(callback)) {}
  BuildProgress Tell() {
    if (callback_.is_none()) return {};
    return [this](const char* phase, uint64_t done, uint64_t total) {
      py::gil_scoped_acquire gil;
      if (PyErr_Occurred() || failed_) return;
      try {
        callback_(phase, done, total);
      } catch (py::error_already_set& error) {
        error.restore();
        failed_ = true;
      }
    };
  }
  InterruptCheck Stop() {
    return [this] { return failed_ || Interrupted(); };
  }

 private:
  py::object callback_;
  std::atomic<bool> failed_{false};
};

py::dict ToDict(const std::map<std::string, uint64_t>& counts) {
  py::dict d;
  for (const auto& [name, n] : counts) d[ToStr(name)] = n;
  return d;
}

template <typename Fn>
auto Without(Fn&& fn) {
  ReleaseGil release;
  return fn();
}

WithoutGil<BulkLoad> OpenLoad(Store& store, const std::string& format, const py::dict& options,
                              const py::str& identity, uint64_t memory, const py::str& source, bool update) {
  BulkOptions bulk;
  bulk.format = format;
  for (const auto& [name, value] : options)
    bulk.reader_options[std::string(Utf8(name, "an option"))] = std::string(Utf8(value, "an option's value"));
  bulk.identity = std::string(Utf8(identity, "identity"));
  bulk.memory = memory;
  bulk.source = std::string(Utf8(source, "source"));
  bulk.update = update;
  auto load = Without([&] { return BulkLoad::Open(&store, bulk, Interrupted); });
  return WithoutGil<BulkLoad>(Unwrap(std::move(load)).release());
}

}  // namespace

void BindBulk(py::module_& m) {
  py::class_<BulkLoad, WithoutGil<BulkLoad>>(m, "BulkLoad")
      .def(py::init(&OpenLoad), py::arg("store"), py::kw_only(), py::arg("format"), py::arg("options"),
           py::arg("identity"), py::arg("memory") = 0, py::arg("source") = "", py::arg("update") = false)
      .def_property_readonly("resumed", &BulkLoad::resumed)
      .def_property_readonly("sealed", &BulkLoad::sealed)
      .def_property_readonly("input", &BulkLoad::input)
      .def_property_readonly("consumed", &BulkLoad::consumed)
      .def_property_readonly("lines", &BulkLoad::lines)
      .def_property_readonly("note", [](const BulkLoad& load) { return ToStr(load.note()); })
      .def_property_readonly("discarded", &BulkLoad::discarded)
      .def(
          "feed",
          [](BulkLoad& load, const py::buffer& data) {
            const py::buffer_info info = data.request();
            const std::string_view bytes(static_cast<const char*>(info.ptr),
                                         static_cast<size_t>(info.size * info.itemsize));
            Check(Without([&] { return load.Feed(bytes, Interrupted); }));
          },
          py::arg(), py::pos_only())
      .def("end_input",
           [](BulkLoad& load) {
             std::string incomplete;
             Check(Without([&] { return load.EndInput(&incomplete); }));
             return ToStr(incomplete);
           })
      .def(
          "add",
          [](BulkLoad& load, const py::sequence& facts) {
            size_t i = 0;
            for (const py::handle fact : facts) {
              const std::string label = "fact " + std::to_string(i++);
              const py::tuple parts = py::reinterpret_borrow<py::object>(fact);
              if (parts.size() != 3)
                Raise(Status::InvalidArgument(label + " has " + std::to_string(parts.size()) + " parts, expected 3"));
              const Status status =
                  load.Add(Utf8(parts[0], label + ", subject"), Utf8(parts[1], label + ", relation"),
                           Utf8(parts[2], label + ", object"));
              if (!status.ok())
                Raise(status.code() == Code::kInvalidArgument ? Status::InvalidArgument(label + ": " + status.message())
                                                              : status);
            }
          },
          py::arg(), py::pos_only())
      .def("counts", [](const BulkLoad& load) { return ToDict(load.Counts()); })
      .def("take_rejects",
           [](BulkLoad& load) {
             py::list list;
             for (const BulkReject& r : load.TakeRejects()) list.append(py::make_tuple(r.input, r.line, ToStr(r.why)));
             return list;
           })
      .def(
          "checkpoint",
          [](BulkLoad& load, const py::str& note) {
            const std::string text(Utf8(note, "note"));
            Check(Without([&] { return load.Checkpoint(text); }));
          },
          py::arg("note") = "")
      .def(
          "seal",
          [](BulkLoad& load, py::object progress) {
            Progress told(std::move(progress));
            auto result = Without([&] { return load.Seal(told.Tell(), told.Stop()); });
            if (PyErr_Occurred()) throw py::error_already_set();
            return ToDict(Unwrap(std::move(result)));
          },
          py::arg("progress") = py::none())
      .def("discard", [](BulkLoad& load) { Check(Without([&] { return load.Discard(); })); })
      .def("close", [](BulkLoad& load) { Without([&] { load.Close(); return 0; }); });

  m.def(
      "compact",
      [](Store& store, py::object progress) {
        Progress told(std::move(progress));
        auto bytes = Without([&] { return store.Compact(told.Tell(), told.Stop()); });
        if (PyErr_Occurred()) throw py::error_already_set();
        const auto [before, after] = Unwrap(std::move(bytes));
        py::dict d;
        d["bytes_before"] = before;
        d["bytes_after"] = after;
        return d;
      },
      py::arg("store"), py::arg("progress") = py::none());
  m.def(
      "build_rules",
      [](Store& store, py::object progress) {
        Progress told(std::move(progress));
        const Status status = Without([&] { return store.BuildRules(told.Tell(), told.Stop()); });
        if (PyErr_Occurred()) throw py::error_already_set();
        Check(status);
      },
      py::arg("store"), py::arg("progress") = py::none());
  m.def(
      "reindex",
      [](Store& store, bool graph, bool force, py::object progress) {
        Progress told(std::move(progress));
        const Status status = Without([&] { return store.Reindex(graph, force, told.Tell(), told.Stop()); });
        if (PyErr_Occurred()) throw py::error_already_set();
        Check(status);
      },
      py::arg("store"), py::arg("graph"), py::arg("force"), py::arg("progress") = py::none());
  m.def(
      "embed_surface",
      [](Store& store, uint64_t most) { return Unwrap(Without([&] { return store.EmbedSurface(most, Interrupted); })); },
      py::arg("store"), py::arg("most"));
}

}  // namespace pymemstore
