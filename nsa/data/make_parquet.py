"""`python -m nsa.data.make_parquet --out DIR`: a small folder in FineWeb-Edu's layout, offline.

The documents are the running Python's own standard-library sources (`nsa.data.local_text`); the
columns are FineWeb-Edu's, of which the trainer reads `text` alone.
"""

import argparse
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from nsa.data.local_text import LocalText


def write_parquet_folder(
    out: Path, documents: list[str], *, files: int, rows_per_group: int
) -> list[Path]:
    """Write documents into `files` files `000_00000.parquet`, …; returns them."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for number in range(files):
        path = out / f"000_{number:05d}.parquet"
        pq.write_table(_table(documents[number::files]), path, row_group_size=rows_per_group)
        written.append(path)
    return written


def _table(documents: list[str]) -> pa.Table:
    count = len(documents)
    return pa.table(
        {
            "text": documents,
            "id": [f"<urn:local:{number}>" for number in range(count)],
            "dump": ["local"] * count,
            "url": [""] * count,
            "file_path": [""] * count,
            "language": ["en"] * count,
            "language_score": [1.0] * count,
            "token_count": [len(text) for text in documents],
            "score": [3.0] * count,
            "int_score": [3] * count,
        }
    )


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(prog="python -m nsa.data.make_parquet", allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--rows-per-group", type=int, default=50)
    parser.add_argument("--documents", type=int, default=1000)
    given = parser.parse_args()
    paths = LocalText.of_standard_library(seed=0).paths("train")[: given.documents]
    documents = [path.read_text(encoding="utf-8", errors="replace") for path in paths]
    for path in write_parquet_folder(
        given.out, documents, files=given.files, rows_per_group=given.rows_per_group
    ):
        print(path)


if __name__ == "__main__":
    main()
