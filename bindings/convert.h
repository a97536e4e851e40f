// Python objects to core types and back: text, vectors, errors.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pymemstore/status.h"
#include "pymemstore/store.h"

namespace pymemstore {

namespace py = pybind11;
using F32Array = py::array_t<float, py::array::c_style>;

// Raises the Python exception of a status (errors.cc holds the table).
[[noreturn]] void Raise(const Status& status);
inline void Check(const Status& status) {
  if (!status.ok()) Raise(status);
}
template <typename T>
T Unwrap(Result<T> result) {
  if (!result.ok()) Raise(result.status());
  return std::move(*result);
}

// The UTF-8 of a str, valid while `object` lives. InvalidArgument for another type or a lone surrogate; `what`
// names the item.
std::string_view Utf8(py::handle object, const std::string& what);
std::vector<std::string> Utf8List(const py::sequence& names, const char* what);

// A str from UTF-8 bytes of the store. Damaged bytes are Corruption, not a UnicodeDecodeError.
py::str ToStr(std::string_view text);

// Unit vectors of a float32 (n, dim) array; with `rows` given, n must equal it. InvalidArgument names the row
// that is not finite or has no length.
struct Vectors {
  std::vector<float> data;
  size_t n = 0;
  uint32_t dim = 0;
};
Vectors ToUnitVectors(const F32Array& array, const std::string& what, ssize_t rows = -1);

// Lets other Python threads run while it lives. Unlike pybind11's own it does not end the process when a daemon
// thread comes back while the interpreter shuts down: the thread stays where it is, as Python 3.14 does it.
class ReleaseGil {
 public:
  ReleaseGil();
  ~ReleaseGil() noexcept(false);
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;

 private:
  PyThreadState* saved_;
};

// Holds an object whose end takes a while, or waits: other threads go on meanwhile.
template <typename T>
struct DeleteWithoutGil {
  void operator()(T* object) const {
    ReleaseGil release;
    delete object;
  }
};
template <typename T>
using WithoutGil = std::unique_ptr<T, DeleteWithoutGil<T>>;

// True when a signal handler raised (Ctrl-C): the error is set. To be called without the GIL.
bool Interrupted();

}  // namespace pymemstore
