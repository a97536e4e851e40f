// The parts of the module; each adds its functions and classes.
#pragma once

#include <pybind11/pybind11.h>

namespace pymemstore {

void BindSurface(pybind11::module_& m);
void BindBatch(pybind11::module_& m);
void BindStore(pybind11::module_& m);
void BindMasks(pybind11::module_& m);
void BindBulk(pybind11::module_& m);  // after Store

}  // namespace pymemstore
