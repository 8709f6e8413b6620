"""Files as Python's packages write them, read by the data room: English in each format, row by row.

Runs tokenize_tool of the build folder TESSERA_BUILD (default build/release).
"""

import csv
import json
import os
import pathlib
import subprocess

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = pathlib.Path(__file__).parents[2]
TOOL = ROOT / os.environ.get("TESSERA_BUILD", "build/release") / "tests/tokenize_tool"
LINES = (ROOT / "tests" / "text" / "train.txt").read_text().split("\n")[:-1]
# Some rows of several lines, of quotes, commas and marks alone.
ROWS = [*LINES, "\n".join(LINES[:5]), '"', '""', ",", " ", "a\r\nb", "\t", "'", '{"text": 1}', "\ufeff", "\u2028", "野口里佳 😀"]


def texts_of(path):
    done = subprocess.run([TOOL, "texts", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.split("\n")[:-1]]


@pytest.mark.parametrize("options", [
    {"compression": "none"}, {"compression": "snappy"}, {"compression": "gzip"}, {"compression": "zstd"},
    {"use_dictionary": False}, {"row_group_size": 100}, {"data_page_version": "2.0", "data_page_size": 1000},
], ids=lambda options: ", ".join(f"{key} {value}" for key, value in options.items()))
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_parquet(tmp_path, options, kind):
    table = pa.table({"id": range(len(ROWS)), "text": pa.array(ROWS, kind)})
    pq.write_table(table, tmp_path / "rows.parquet", **options)
    assert texts_of(tmp_path / "rows.parquet") == ROWS


@pytest.mark.parametrize("options", [{}, {"quoting": csv.QUOTE_ALL}, {"lineterminator": "\n"}], ids=str)
def test_csv(tmp_path, options):
    with open(tmp_path / "rows.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, **options)
        writer.writerow(["id", "text", "label"])
        writer.writerows([number, row, "x"] for number, row in enumerate(ROWS))
    assert texts_of(tmp_path / "rows.csv") == ROWS


@pytest.mark.parametrize("ascii_only", [True, False])
def test_jsonl(tmp_path, ascii_only):
    lines = (json.dumps({"id": 1, "text": row}, ensure_ascii=ascii_only) for row in ROWS)
    (tmp_path / "rows.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    assert texts_of(tmp_path / "rows.jsonl") == ROWS


def test_text(tmp_path):
    (tmp_path / "rows.txt").write_text("".join(line + "\n" for line in LINES), encoding="utf-8")
    assert texts_of(tmp_path / "rows.txt") == LINES
