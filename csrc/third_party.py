"""Puts the third-party sources where CMake builds them: pinned sdists, checked, unpacked, patched.

CMake runs this when it configures; ``setup.py`` loads it to put the same archives into our own sdist.
An archive is taken from the first place that has it with the right hash: ``third_party/`` (our sdist), the
user's cache, the package index that pip is set up for (whose answer goes into the cache).
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

# name: (version, sha256 of the sdist)
PINS = {
    "lmdb": ("3.0.0", "06dda0723545e14d56ac7dcd6f582d9922c2ed5e16f1c3f8d0e670a96ec2ee65"),
    "hnswlib": ("0.8.0", "cb6d037eedebb34a7134e7dc78966441dfd04c9cf5ee93911be911ced951c44c"),
    "pysimdjson": ("7.0.2", "44cf276e48912a3b9c7ca362c14da8420a7ac15a9f1a16ec95becff86db3904a"),
}
ROOT = Path(__file__).resolve().parent.parent


class FetchError(Exception):
    """A source archive could not be had, or is not the pinned one."""


def archive_name(name: str) -> str:
    return f"{name}-{PINS[name][0]}.tar.gz"


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pymemstore" / "sdists"


def is_pinned(name: str, data: bytes) -> bool:
    return hashlib.sha256(data).hexdigest() == PINS[name][1]


def archive(name: str) -> Path:
    """Path of the pinned archive, downloaded into the cache if neither our sdist nor the cache has it."""
    for folder in (ROOT / "third_party", cache_dir()):
        path = folder / archive_name(name)
        if path.is_file():
            if is_pinned(name, path.read_bytes()):
                return path
            print(f"pymemstore: {path} is not the pinned archive, passed over", file=sys.stderr)
    return download(name)


def download(name: str) -> Path:
    try:
        data = download_by_pip_internals(name)
    except Exception as why:  # pip promises nothing about its internals: whatever fails, its command may do
        print(f"pymemstore: {name}: {type(why).__name__}: {why}; trying pip download", file=sys.stderr)
        data = download_by_pip_command(name)
    if not is_pinned(name, data):
        raise FetchError(f"the index's {archive_name(name)} does not have the pinned sha256")
    path = cache_dir() / archive_name(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two builds at once: the last rename wins, and both wrote the same bytes.
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)
    return path


def download_by_pip_internals(name: str) -> bytes:
    """Downloads as pip would (configuration, certificates, proxies), yet never runs the sdist's own setup."""
    from pip._internal.commands import create_command

    command: Any = create_command("download")
    options, _ = command.parse_args(["--no-deps", name])
    with command.main_context():
        session = command.get_default_session(options)
        finder = command._build_package_finder(options=options, session=session)
        # A wheels-only policy is about installing, and must not hide the sdist here.
        finder.format_control.only_binary.clear()
        finder.format_control.no_binary.add(name)
        for candidate in finder.find_all_candidates(name):
            link = candidate.link
            if link.filename != archive_name(name):
                continue
            if link.is_file:
                data = Path(link.file_path).read_bytes()
            else:
                response = session.get(link.url_without_fragment, headers={"Accept-Encoding": "identity"})
                response.raise_for_status()
                data = response.content
            if is_pinned(name, data):
                return data
    raise FetchError(f"no index or folder that pip is set up for has the pinned {archive_name(name)}")


def download_by_pip_command(name: str) -> bytes:
    """Slower: pip runs the sdist's setup to read its metadata, with all that this needs."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", name]
        done = subprocess.run([*command, "--dest", folder, f"{name}=={PINS[name][0]}"], check=False)
        path = Path(folder) / archive_name(name)
        if done.returncode != 0 or not path.is_file():
            option = f"-DPYMEMSTORE_{name.upper()}_DIR="
            raise FetchError(
                f"{archive_name(name)} could not be downloaded; go online for the first build, put it into"
                f" {cache_dir()}, or point {option} (in PYMEMSTORE_CMAKE_ARGS) at a folder with the sources"
            )
        return path.read_bytes()


def unpack(name: str, parent: Path) -> Path:
    """Unpacks into ``parent/name``."""
    with tarfile.open(archive(name)) as tar:
        # Pythons before 3.10.12 and 3.11.4 have no filters; the bytes are pinned either way.
        if hasattr(tarfile, "data_filter"):
            tar.extractall(parent, filter="data")
        else:
            tar.extractall(parent)
    return (parent / f"{name}-{PINS[name][0]}").rename(parent / name)


def lmdb_patch_order(setup_py: Path) -> list[str]:
    """The hardening patches for LMDB 0.9 in the order in which the sdist's own build applies them."""
    for node in ast.parse(setup_py.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "ENGINES":
            for call in node.value.elts:  # type: ignore[attr-defined]
                keywords = {k.arg: k.value for k in call.keywords}
                if ast.literal_eval(keywords["name"]) == "v09":
                    names: list[str] = ast.literal_eval(keywords["patch_names"])
                    return names
    raise FetchError("the lmdb sdist's setup.py names no patches for LMDB 0.9")


def patch_lmdb(source: Path) -> None:
    import patch_ng

    lib = source / "lib"
    order = lmdb_patch_order(source / "setup.py")
    present = {path.stem for path in (lib / "py-lmdb").glob("*.patch")}
    if set(order) != present:
        raise FetchError(f"lmdb's patches and their order disagree about {sorted(set(order) ^ present)}")
    for patch_name in order:
        patches = patch_ng.fromfile(str(lib / "py-lmdb" / f"{patch_name}.patch"))
        if not patches or patches.errors or not patches.apply(2, root=str(lib)):
            raise FetchError(f"lmdb's patch {patch_name} does not apply")


# Faults of the patched sources that our tests met: (what stands there, what stands there instead, how often).
LMDB_EDITS = [
    # A copy walks pages with a cursor that has no table; the hardening's check of key sizes dereferenced it.
    (
        "BAD_LEAF2_PAD(p, mc->mc_db->md_pad, psize - PAGEHDRSZ))) {",
        "(mc->mc_db && BAD_LEAF2_PAD(p, mc->mc_db->md_pad, psize - PAGEHDRSZ)))) {",
        1,
    ),
    # A short write to a file means a full disk, a quota or a size limit, not a broken device.
    ("rc = EIO;", "rc = ENOSPC;", 4),
    ("ErrCode() : EIO;", "ErrCode() : ENOSPC;", 1),
    # A page behind the end of a file that was cut is damage to report; touching it ends the process (SIGBUS).
    # Pages are looked up by number, so one comparison here covers every way to them. The file only grows.
    (
        "\tunsigned int\tme_psize;\t/**< DB page size, inited from me_os_psize */\n",
        "\tunsigned int\tme_psize;\t/**< DB page size, inited from me_os_psize */\n"
        "\tsize_t\tme_filepgs;\t/**< pages that the file was seen to have */\n",
        1,
    ),
    (
        "/** Find the address of the page corresponding to a given page number.\n",
        """/** True when the data file holds pages up to pgno + num - 1. */
static int
mdb_pages_in_file(MDB_env *env, pgno_t pgno, pgno_t num)
{
	struct stat st;
	size_t seen = __atomic_load_n(&env->me_filepgs, __ATOMIC_RELAXED);
	if (pgno < seen && num <= seen - pgno)
		return 1;
	if (fstat(env->me_fd, &st))
		return 0;
	seen = st.st_size / env->me_psize;
	__atomic_store_n(&env->me_filepgs, seen, __ATOMIC_RELAXED);
	return pgno < seen && num <= seen - pgno;
}

/** Find the address of the page corresponding to a given page number.
""",
        1,
    ),
    (
        "\t\tp = (MDB_page *)(env->me_map + env->me_psize * pgno);\n"
        "\t\t/* Pages on disk must never have P_DIRTY set",
        """\t\tp = (MDB_page *)(env->me_map + env->me_psize * pgno);
		if (!(env->me_flags & MDB_WRITEMAP) && (!mdb_pages_in_file(env, pgno, 1) ||
			((MP_FLAGS(p) & P_OVERFLOW) && !mdb_pages_in_file(env, pgno, p->mp_pages)))) {
			txn->mt_flags |= MDB_TXN_ERROR;
			return MDB_CORRUPTED;
		}
		/* Pages on disk must never have P_DIRTY set""",
        1,
    ),
]


def edit_lmdb(source: Path) -> None:
    path = source / "lib" / "mdb.c"
    text = path.read_text(encoding="utf-8")
    for old, new, times in LMDB_EDITS:
        if text.count(old) != times:
            raise FetchError(f"lmdb's mdb.c has {text.count(old)} times, not {times}: {old.strip()!r}")
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


def prepare(name: str, dest: Path) -> None:
    """Makes ``dest/name`` hold the sources, patched; does nothing when it does already."""
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    stamp = dest / name / ".recipe"
    if stamp.is_file() and stamp.read_text() == recipe:
        return
    dest.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=dest) as work:
        source = unpack(name, Path(work))
        if name == "lmdb":
            patch_lmdb(source)
            edit_lmdb(source)
        (source / ".recipe").write_text(recipe)
        shutil.rmtree(dest / name, ignore_errors=True)
        source.rename(dest / name)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fetches, checks, unpacks and patches third-party sources.")
    parser.add_argument("--dest", required=True, type=Path, help="folder that gets a subfolder for each name")
    parser.add_argument("names", nargs="+", choices=sorted(PINS))
    args = parser.parse_args()
    try:
        for name in args.names:
            prepare(name, args.dest)
    except FetchError as why:
        sys.exit(f"pymemstore: {why}")


if __name__ == "__main__":
    main()
