"""Write a small folder of Parquet files with a column `text`."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def write_parquet_folder(
    out: Path, documents: list[str], *, files: int, rows_per_group: int
) -> list[Path]:
    """Write documents into `files` files; returns them."""
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"000_{number:05d}.parquet" for number in range(files)]
    for number, path in enumerate(paths):
        table = pa.table({"text": documents[number::files]})
        pq.write_table(table, path, row_group_size=rows_per_group)
    return paths
