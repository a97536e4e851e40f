#include "convert.h"

#include <unistd.h>

namespace pymemstore {

std::string_view Utf8(py::handle object, const std::string& what) {
  if (!PyUnicode_Check(object.ptr()))
    Raise(Status::InvalidArgument(what + " is " + Py_TYPE(object.ptr())->tp_name + ", expected str"));
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (!data) {
    if (!PyErr_ExceptionMatches(PyExc_UnicodeError)) throw py::error_already_set();
    PyErr_Clear();
    Raise(Status::InvalidArgument(what + " holds a lone surrogate, which is no Unicode text: " +
                                  std::string(py::str(py::repr(object).attr("__getitem__")(py::slice(0, 80, 1))))));
  }
  return {data, static_cast<size_t>(size)};
}

std::vector<std::string> Utf8List(const py::sequence& names, const char* what) {
  if (PyUnicode_Check(names.ptr()))
    Raise(Status::InvalidArgument(std::string("expected a sequence of str for ") + what + "s, got one str"));
  std::vector<std::string> result;
  result.reserve(names.size());
  const py::object fast = py::reinterpret_steal<py::object>(PySequence_Fast(names.ptr(), "expected a sequence of str"));
  if (!fast) throw py::error_already_set();
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(fast.ptr());
  for (Py_ssize_t i = 0; i < n; ++i)
    result.emplace_back(Utf8(PySequence_Fast_GET_ITEM(fast.ptr(), i), std::string(what) + " " + std::to_string(i)));
  return result;
}

py::str ToStr(std::string_view text) {
  PyObject* s = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr);
  if (!s) {
    PyErr_Clear();
    Raise(Status::Corruption("a text of the store is not valid UTF-8"));
  }
  return py::reinterpret_steal<py::str>(s);
}

Vectors ToUnitVectors(const F32Array& array, const std::string& what, ssize_t rows) {
  if (array.ndim() != 2)
    Raise(Status::InvalidArgument(what + " have " + std::to_string(array.ndim()) + " axes, expected float32 (n, dim)"));
  if (rows >= 0 && array.shape(0) != rows)
    Raise(Status::InvalidArgument(what + " are " + std::to_string(array.shape(0)) + " for " + std::to_string(rows) + " names"));
  if (array.shape(1) < 1 || array.shape(1) > static_cast<ssize_t>(kMaxDim))
    Raise(Status::InvalidArgument(what + " have dimension " + std::to_string(array.shape(1))));
  Vectors v;
  v.n = static_cast<size_t>(array.shape(0));
  v.dim = static_cast<uint32_t>(array.shape(1));
  v.data.resize(v.n * v.dim);
  for (size_t i = 0; i < v.n; ++i)
    if (!NormaliseVector(array.data() + i * v.dim, v.dim, v.data.data() + i * v.dim))
      Raise(Status::InvalidArgument(what + ": row " + std::to_string(i) +
                                    " is zero, or holds a value that is not finite or is too large to normalise"));
  return v;
}

namespace {

bool Finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing();
#else
  return _Py_IsFinalizing();
#endif
}

// Who comes in while the interpreter shuts down is the thread that shuts it down: it must get on.
thread_local bool t_shuts_down = false;

void StayIfFinalizing() {
  while (!t_shuts_down && Finalizing()) ::pause();
}

}  // namespace

ReleaseGil::ReleaseGil() {
  t_shuts_down = Finalizing();
  saved_ = PyEval_SaveThread();
}

ReleaseGil::~ReleaseGil() noexcept(false) {
  StayIfFinalizing();
  PyEval_RestoreThread(saved_);  // may still end this thread, if the shutdown begins just now
}

bool Interrupted() {
  StayIfFinalizing();
  py::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

}  // namespace pymemstore
