"""Builds the extension with CMake, and puts the third-party sources into our sdist.

The rest is in pyproject.toml.

Environment: ``PYMEMSTORE_CMAKE_ARGS`` (more arguments for CMake, quoted as for a shell),
``PYMEMSTORE_BUILD_DIR`` (build folder; default ``build/cmake-<python>``).
"""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
# What the extension is built from; setuptools puts it into the sdist.
BUILD_INPUTS = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("CMakeLists.txt", "csrc/**/*", "bindings/**/*")
    for path in ROOT.glob(pattern)
    if path.is_file() and path.suffix != ".pyc"
)


def program(name, folder):
    """Path of a build program: from its package's folder, else from PATH (where an isolated build has it)."""
    path = (folder and shutil.which(name, path=str(folder))) or shutil.which(name)
    if path is None:
        raise SystemExit(f"pymemstore: no {name}: install the build requirements that pyproject.toml lists")
    return path


class CMakeBuild(build_ext):
    def build_extension(self, ext):
        import cmake
        import ninja
        import pybind11

        out = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        build = os.environ.get("PYMEMSTORE_BUILD_DIR")
        build = build or ROOT / "build" / f"cmake-{sys.implementation.cache_tag}"
        run_cmake = program("cmake", cmake.CMAKE_BIN_DIR)
        # All paths are given every time: an isolated build's are gone by the next one.
        configure = [
            *(run_cmake, "-S", ROOT, "-B", build, "-G", "Ninja"),
            f"-DCMAKE_MAKE_PROGRAM={program('ninja', ninja.BIN_DIR)}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            f"-DCMAKE_BUILD_TYPE={'Debug' if self.debug else 'Release'}",
            # A newer compiler's new warning must not stop an installation; the Makefile turns it on.
            "-DPYMEMSTORE_WERROR=OFF",
            *shlex.split(os.environ.get("PYMEMSTORE_CMAKE_ARGS", "")),
        ]
        subprocess.run(configure, check=True)
        subprocess.run([run_cmake, "--build", build, "--target", "_core"], check=True)
        subprocess.run(
            [run_cmake, "--install", build, "--component", "python", "--prefix", out, "--strip"], check=True
        )


class SdistWithSources(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        spec = importlib.util.spec_from_file_location("third_party", ROOT / "csrc" / "third_party.py")
        third_party = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(third_party)
        folder = Path(base_dir) / "third_party"
        folder.mkdir(exist_ok=True)
        for name in third_party.PINS:
            shutil.copy2(third_party.archive(name), folder)


setup(
    ext_modules=[Extension("pymemstore._core", sources=[], depends=BUILD_INPUTS)],
    cmdclass={"build_ext": CMakeBuild, "sdist": SdistWithSources},
)
