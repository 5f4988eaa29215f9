"""Measure a rebuild: do other machines get the digest of a release, and whom does a sum show out?

    python bench/rebuild.py [--write] [--mkl FOLDER]    --write: into docs/proof.md and releases.md

Every variant solves in a process of its own: other kernels of OpenBLAS (OPENBLAS_CORETYPE), other
threads, and with --mkl the libraries of a folder into which `pip install --prefix` put mkl.
Needs ML-100K and ML-1M (`rescind data get`). Takes some five minutes.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import rescind as rs
from rescind.ledger.open_sum import near
from rescind.methods.additive import _live_sum as live_sum
from rescind.methods.additive import _solving as solving
from rescind.methods.additive._live_release import Form, Weights, file_digest, read, release_of
from rescind.methods.additive._live_sum import added_up, weight_of
from rescind.proof.sum_hash import pairs_of
from rescind_papers.pages import write_block

PAGE, RELEASES = Path("docs/proof.md"), Path("docs/releases.md")
DATA = ("ml-100k", "ml-1m")
VARIANTS: dict[str, dict[str, str]] = {
    "as it is, 1 thread": {},
    "2 threads": {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"},
    "OpenBLAS for Haswell (AVX2)": {"OPENBLAS_CORETYPE": "Haswell"},
    "OpenBLAS for Nehalem (SSE4.2)": {"OPENBLAS_CORETYPE": "Nehalem"},
    "OpenBLAS for Prescott (SSE3)": {"OPENBLAS_CORETYPE": "Prescott"},
    "NumPy without AVX-512 and AVX2": {"NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL"},
}
FORMS = {"rounded": Form(rounding=2.0), "not rounded": Form()}


def loans_of(name: str) -> tuple[list[np.ndarray], int]:
    """Return what each person has, all of it, and the number of items."""
    data = rs.load(name)
    user, item = np.asarray(data.user), np.asarray(data.item)
    order = np.lexsort((item, user))
    ends = np.searchsorted(user[order], np.arange(1, len(data.users)))
    return [np.unique(one).astype(np.int32) for one in np.split(item[order], ends)], len(data.items)


def with_mkl(folder: str) -> None:
    """Solve with the LAPACK of MKL from now on."""
    library = ctypes.CDLL(next(map(str, Path(folder).rglob("libmkl_rt.so*"))))

    def inverted(gram: np.ndarray, items: int) -> np.ndarray:
        n, info, up = ctypes.byref(ctypes.c_int(items)), ctypes.c_int(0), ctypes.c_char_p(b"U")
        half, place = gram.copy(), lambda each: each.ctypes.data_as(ctypes.c_void_p)
        for routine in (library.dpptrf_, library.dpptri_):
            routine(up, n, place(half), ctypes.byref(info))
            assert info.value == 0
        return half

    solving.inverted = live_sum.inverted = inverted


def solve_here(out: str, mkl: str) -> None:
    """Write the release files of each dataset and form into a folder."""
    if mkl:
        with_mkl(mkl)
    for name in DATA:
        loans, items = loans_of(name)
        sums = added_up(loans, items)
        np.save(Path(out, f"{name} solve.npy"), sums.inverse(FORMS["rounded"].solving.ridges))
        for form, how in FORMS.items():
            file = release_of(sums, how).to_bytes([str(n) for n in range(items)])
            Path(out, f"{name} {form}").write_bytes(file)


def solved(folder: Path, number: int, variables: dict[str, str], mkl: str) -> dict[str, Any]:
    """Solve in another process; return the files."""
    out = folder / str(number)
    out.mkdir()
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_THREADING_LAYER": "SEQUENTIAL", **variables}
    subprocess.run([sys.executable, __file__, "--there", out, "--mkl", mkl], env=env, check=True)
    files = {path.name: path.read_bytes() for path in out.iterdir() if path.suffix != ".npy"}
    return files | {path.name: np.load(path) for path in out.glob("*.npy")}


def apart(first: bytes, other: bytes) -> str:
    """Return how many weights differ, and by how much of themselves at most."""
    one, two = (_table(read(data)[0]) for data in (first, other))
    both = one.keys() & two.keys()
    moved = [abs(one[k] - two[k]) / max(abs(one[k]), abs(two[k])) for k in both if one[k] != two[k]]
    only = len(one.keys() ^ two.keys())
    most = f", by 2^{np.log2(max(moved)):.1f} at most" if moved else ""
    return f"{len(moved) + only:,} of {len(one):,}{most}" + (f"; {only} in one only" * bool(only))


def _table(weights: Weights) -> dict[int, float]:
    source = np.repeat(np.arange(weights.items), np.diff(weights.first))
    places = source * weights.items + weights.target
    return dict(zip(places.tolist(), weights.weight.tolist(), strict=True))


def machines(folder: Path, mkl: str) -> str:
    """Compare what other kernels, threads and libraries solve with what this process does."""
    variants = [(name, more, "") for name, more in VARIANTS.items()]
    variants += [("MKL", {}, mkl)] if mkl else []
    rows, base = [], dict[str, Any]()
    for number, (variant, more, library) in enumerate(variants):
        files = solved(folder, number, more, library)
        base = base or files
        cells = [[_digits(base[key], files[key]) for key in (f"{name} solve.npy" for name in DATA)]]
        cells += [[_cell(base, files, f"{name} {form}") for name in DATA] for form in FORMS]
        rows.append(f"| {variant} | " + " | ".join(map(_joined, cells)) + " |")
        print(rows[-1], flush=True)
    head = "| solved with | the solve agrees to | digest of the release | of one not rounded |"
    return "\n".join([head, "|---|---|---|---|", *rows])


def _joined(cells: list[str]) -> str:
    return cells[0] if len(set(cells)) == 1 else "; ".join(cells)


def _digits(one: Any, two: Any) -> str:
    error = np.abs(one - two).max() / np.abs(one).max()
    return "all bits" if not error else f"{-np.log10(error):.1f} digits"


def _cell(base: Any, files: Any, key: str) -> str:
    same = file_digest(base[key]) == file_digest(files[key])
    told = "equal" if same else apart(base[key], files[key])
    if same:
        return told
    return f"{told}; accepted" if near(*(read(each[key])[0] for each in (files, base))) else told


def leavers() -> str:
    """Count for how many people a sum without them shows that they are not in it."""
    rows = ["| data | people | OUT, if they are | OUT, if their part is still in it |"]
    rows.append("|---|---|---|---|")
    for name in DATA:
        loans, items = loans_of(name)
        total = added_up(loans, items).total.astype(np.int64)
        out = kept = 0
        for mine in loans:
            here, weight = total[pairs_of(mine.astype(np.int64))], weight_of(len(mine))
            out += bool((here - weight < weight).any())
            kept += bool((here < weight).any())
        rows.append(f"| {name} | {len(loans):,} | {out:,} | {kept:,} |")
    return "\n".join(rows)


def main() -> None:
    """Measure and print the tables."""
    import tempfile

    words = argparse.ArgumentParser()
    words.add_argument("--write", action="store_true")
    words.add_argument("--mkl", default="")
    words.add_argument("--there", default="")
    given = words.parse_args()
    if given.there:
        solve_here(given.there, given.mkl)
        return
    gone = leavers()
    print(gone, flush=True)
    with tempfile.TemporaryDirectory() as name:
        table = machines(Path(name), given.mkl)
    if given.write:
        write_block(RELEASES, "bench/rebuild.py, machines", table)
        write_block(PAGE, "bench/rebuild.py, leavers", gone)


if __name__ == "__main__":
    main()
