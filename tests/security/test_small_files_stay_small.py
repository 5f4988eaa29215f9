"""Small files that unpack to large ones are refused before they are unpacked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from rescind.cli import app
from rescind.data import import_file, import_tables
from rescind.errors import ConfigError, DataError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def parquet(path: Path, **columns: object) -> Path:
    pq.write_table(pa.table(columns), path, compression="zstd")
    return path


def many_rows(path: Path, rows: int = 4_000_000) -> Path:
    same = np.zeros(rows, dtype=np.int64)
    return parquet(path, user=pa.array(same), item=pa.array(same))


def long_text(path: Path, size: int = 30_000_000) -> Path:
    return parquet(path, user=["a" * size] * 8 + ["b"] * 8, item=["x"] * 16)


PEAK = """
import resource, sys
from rescind.data import import_file, import_tables
from rescind.errors import DataError
import pyarrow.parquet, pyarrow.compute
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    import_file(sys.argv[1], "bomb")
except DataError as error:
    print(error, file=sys.stderr)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize("make", [many_rows, long_text])
def test_a_small_parquet_file_takes_little_memory(tmp_path, make):
    path = make(tmp_path / "bomb.parquet")
    assert path.stat().st_size < 100_000
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True
    )
    assert "at most" in done.stderr
    assert int(done.stdout) < 50, f"{done.stdout} MB"


def test_rows_are_counted_before_they_are_read_and_the_option_is_named(tmp_path, own_cache):
    path = many_rows(tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"at most 1,000,000 .*--max-rows 4000000"):
        import_file(path, "rows")
    assert not (own_cache / "imported").exists()


def test_whoever_means_it_raises_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(import_tables, "_FEW_ROWS", 10)
    monkeypatch.setattr(import_tables, "_ROWS_A_BYTE", 0)
    path = many_rows(tmp_path / "rows.parquet", 12)
    call = ["data", "import", str(path), "--name", "rows"]
    refused = CliRunner().invoke(app, call)
    assert "--max-rows 12" in str(refused.exception)
    assert CliRunner().invoke(app, [*call, "--max-rows", "12"]).exit_code == 0
    with pytest.raises(ConfigError, match="at least 1"):
        import_file(path, "other", max_rows=0)


def test_csv_rows_are_limited_too(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("user,item\n" + "".join(f"{n % 7},{n}\n" for n in range(20)))
    with pytest.raises(DataError, match=r"20 rows or more.*--max-rows 20"):
        import_file(path, "rows", max_rows=19)
    assert len(import_file(path, "rows", max_rows=20)) == 20


def test_long_text_is_refused_from_what_the_file_states(tmp_path):
    with pytest.raises(DataError, match=r"column 'user': [\d,]+ bytes unpack to 30,0"):
        import_file(long_text(tmp_path / "text.parquet"), "text")
    with pytest.raises(DataError, match="a cell has 1,000,000 bytes; at most 4,096"):
        import_file(long_text(tmp_path / "text.parquet", 1_000_000), "text")


def test_columns_that_nobody_reads_are_not_unpacked(tmp_path):
    notes = ["n" * 30_000_000, "m"]
    path = parquet(tmp_path / "notes.parquet", user=["a", "b"], item=["x", "y"], notes=notes)
    assert len(import_file(path, "notes")) == 2


def test_wide_files_and_long_names_are_refused(tmp_path):
    wide = {f"c{n}": [1, 2] for n in range(1_001)}
    with pytest.raises(DataError, match="1,003 columns; at most 1,000"):
        import_file(parquet(tmp_path / "wide.parquet", user=[1, 2], item=[1, 2], **wide), "wide")
    for name, content in {
        "wide.csv": "user,item" + "," * 1_001 + "\n",
        "row.csv": "user,item\n1,2\n" + "," * 500_000 + "\n",
    }.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(DataError, match="at most 1,000"):
            import_file(tmp_path / name, "wide")
    (tmp_path / "name.csv").write_text(f"user,item,{'n' * 300}\n1,2,3\n")
    with pytest.raises(DataError, match="longer than 256"):
        import_file(tmp_path / "name.csv", "name")


def test_text_and_numbers_of_parquet_give_the_same_data(tmp_path):
    text = parquet(tmp_path / "text.parquet", user=["7", "8", "7"], item=["1", "2", "2"])
    kinds = {"user": pa.array([7, 8, 7]), "item": pa.array(["1", "2", "2"], pa.large_string())}
    numbers = parquet(tmp_path / "numbers.parquet", **kinds)
    assert import_file(text, "text").digest == import_file(numbers, "numbers").digest
    packed = pa.array(["1", "2", "2"]).dictionary_encode()
    again = parquet(tmp_path / "packed.parquet", user=pa.array([7, 8, 7]), item=packed)
    assert import_file(again, "packed").digest == import_file(text, "again").digest
