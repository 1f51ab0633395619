"""Parquet text: shared by ranks, packed, resumed, cached, and bounded in time."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nsa.data.source
from nsa.config import AS_IF_ABSENT, LoaderConfig
from nsa.data import Batches, BatchPlan, open_source
from nsa.data.cache import RowGroupCache
from nsa.data.lanes import Lane, Piece, deal
from nsa.data.make_parquet import write_parquet_folder
from nsa.data.parquet import ParquetText
from nsa.data.prefetch import Prefetch
from nsa.data.source import fineweb_edu_url
from nsa.errors import DataFailure

CPU = torch.device("cpu")


def _documents(count: int) -> list[str]:
    return [f"<{number}>" + "é" * (number % 23) for number in range(count)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of seven row groups with 200 short documents in all."""
    out = tmp_path / "corpus"
    write_parquet_folder(out, _documents(200), files=3, rows_per_group=10)
    return out


def _stream(source: ParquetText, split: str, lane: int, lanes: int, count: int) -> bytes:
    return b"".join(
        source.sequence(split, lane + lanes * n, 64).tobytes()[:64] for n in range(count)
    )


def test_documents_are_packed_whole_and_no_lane_shares_one_with_another(folder: Path) -> None:
    lanes = 4
    source = ParquetText(str(folder), 7, lanes)
    wanted = {text.encode() for text in _documents(200)}
    seen: list[set[bytes]] = []
    for split, streams in (("train", lanes), ("val", 1)):
        for lane in range(streams):
            data = _stream(source, split, lane, streams, 12)
            documents = set(data.split(b"\0")[:-1])  # the last may continue
            assert documents
            assert documents <= wanted
            seen.append(documents)
    for number, documents in enumerate(seen):
        for others in seen[number + 1 :]:
            assert not documents & others


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_global_batch_of_a_step_does_not_depend_on_the_ranks(folder: Path, ranks: int) -> None:
    def global_batch(world_size: int, step: int) -> list[bytes]:
        rows = {}
        for rank in range(world_size):
            plan = BatchPlan(
                global_seqs=4, accumulate=1, rank=rank, world_size=world_size, seq_len=32
            )
            batches = Batches(ParquetText(str(folder), 7, 4), plan, CPU)
            (inputs, targets) = batches.of_step(step)[0]
            for index, row in zip(plan.indices(step - 1, 0), inputs, strict=True):
                rows[index] = bytes(row.tolist())
            assert torch.equal(inputs[:, 1:], targets[:, :-1])
            batches.close()
        return [rows[index] for index in sorted(rows)]

    assert global_batch(ranks, 3) == global_batch(1, 3)
    assert global_batch(ranks, 3) != global_batch(1, 4)


@settings(max_examples=40, deadline=None)
@given(count=st.integers(1, 9), lanes=st.integers(1, 9))
def test_every_document_is_dealt_to_exactly_one_lane(count: int, lanes: int) -> None:
    pieces = [Piece(path=str(number)) for number in range(count)]
    rows = [(number, row) for number in range(count) for row in range(24)]
    dealt: list[tuple[int, int]] = []
    for own in deal(pieces, lanes):
        assert own
        for piece in own:
            dealt += [(int(piece.path), row) for row in range(24)[piece.start :: piece.stride]]
    assert sorted(dealt) == rows


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(0, 30), max_size=4), min_size=1, max_size=5),
    length=st.integers(1, 40),
    order=st.lists(st.integers(0, 20), min_size=1, max_size=6),
)
def test_a_lane_is_one_endless_stream_in_whatever_order_it_is_read(
    sizes: list[list[int]], length: int, order: list[int]
) -> None:
    chunks = [
        [bytes([65 + p, 97 + c]) * size for c, size in enumerate(own)]
        for p, own in enumerate(sizes)
    ]

    def read(piece: Piece, chunk: int) -> bytes | None:
        own = chunks[int(piece.path)]
        return own[chunk] if chunk < len(own) else None

    pieces = [Piece(path=str(number)) for number in range(len(chunks))]
    whole = b"".join(data for own in chunks for data in own)
    if not whole:
        with pytest.raises(DataFailure, match="no text"):
            Lane(pieces, read).sequence(0, length)
        return
    endless = whole * ((21 * length + length) // len(whole) + 2)
    lane = Lane(pieces, read)
    for n in order:
        assert lane.sequence(n, length) == endless[n * length :][: length + 1]
        resumed = Lane(pieces, read)
        resumed.seek(lane.mark(n, length))
        assert resumed.sequence(n, length) == endless[n * length :][: length + 1]


def test_a_resumed_run_reads_on_without_reading_what_it_has_read(
    folder: Path, train_here: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = {"data": f"parquet:{folder}", "steps": 9, "batch": {"global_seqs": 2, "accumulate": 1}}
    train |= {"eval": {"every_steps": 9, "batches": 2}}
    whole = train_here("whole", train=train, checkpoint={"every_steps": 7})
    place = folder.parent / "whole" / "checkpoints" / "step_000007"
    marks = json.loads((place / "state.json").read_text())["marks"]
    assert [row[:2] for row in sorted(marks)] == [[0, 7], [1, 7]]
    walked: list[int] = []
    real = Lane._walk
    monkeypatch.setattr(
        Lane, "_walk", lambda self, mark, count: (walked.append(mark.n), real(self, mark, count))[1]
    )
    resume = {"path": str(place), "step": 7}
    rest = train_here(
        "rest", train={**train, "eval": {"every_steps": 0, "batches": 1}}, resume_from=resume
    )
    assert min(walked) == 7
    losses = [[x["loss"] for x in lines if x["msg"] == "progress"] for lines in (whole, rest)]
    assert losses[1] == losses[0][7:]
    assert [line for line in whole if line["msg"] == "eval"]


def test_a_marked_stream_and_a_replayed_one_are_the_same(folder: Path) -> None:
    source = ParquetText(str(folder), 7, 2)
    rows = [source.sequence("train", index, 50) for index in range(12)]
    marks = source.marks([12, 13])
    resumed, replayed = ParquetText(str(folder), 7, 2), ParquetText(str(folder), 7, 2)
    resumed.seek(marks)
    for index in (12, 13, 14):
        expected = replayed.sequence("train", index, 50)
        np.testing.assert_array_equal(resumed.sequence("train", index, 50), expected)
    np.testing.assert_array_equal(resumed.sequence("train", 3, 50), rows[3])


def test_many_files_are_pieces_of_their_own_and_no_footer_is_read_for_the_index(
    tmp_path: Path,
) -> None:
    write_parquet_folder(tmp_path, _documents(120), files=30, rows_per_group=2)
    source = ParquetText(str(tmp_path), 1, 2)
    assert {piece.row_group for own in source.pieces() for piece in own} == {None}
    assert source._opened.cache_info().currsize == 0
    train = {piece.path for own in source.pieces() for piece in own}
    assert len(train) == 30
    documents = _stream(source, "train", 0, 2, 14).split(b"\0")
    assert set(documents[:-1]) <= {text.encode() for text in _documents(120)}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (pa.array([1, 2]), r"broken\.parquet: column 'text' holds int64, no text"),
        (pa.array([b"a", b"b"]), r"broken\.parquet: column 'text' holds binary, no text"),
        (
            pa.Array.from_buffers(
                pa.string(),
                1,
                [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")],
            ),
            r"cannot read the texts in row group 0 of .*broken\.parquet: UnicodeDecodeError",
        ),
    ],
    ids=["numbers", "bytes", "not UTF-8"],
)
def test_a_column_that_holds_no_text_is_named(tmp_path: Path, rows: pa.Array, said: str) -> None:
    pq.write_table(pa.table({"text": rows}), tmp_path / "broken.parquet")
    with pytest.raises(DataFailure, match=said):
        ParquetText(str(tmp_path), 1, 1).sequence("train", 0, 64)


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_texts_of_any_layout_are_read(tmp_path: Path, kind: pa.DataType) -> None:
    rows = pa.array(_documents(50)).cast(kind)
    pq.write_table(pa.table({"text": rows}), tmp_path / "corpus.parquet")
    assert ParquetText(str(tmp_path), 1, 1).sequence("train", 0, 64).size == 65


@pytest.mark.parametrize("case", ["nowhere", "empty", "no column", "not parquet", "no text"])
def test_a_folder_that_cannot_serve_is_a_data_failure(tmp_path: Path, case: str) -> None:
    file = tmp_path / "a.parquet"
    if case == "no column":
        pq.write_table(pa.table({"body": ["x"]}), file)
    elif case == "not parquet":
        file.write_bytes(b"PAR0" * 10)
    elif case == "no text":
        pq.write_table(pa.table({"text": pa.array([None, ""], pa.string())}), file)
    source = open_source(f"parquet:{tmp_path / 'gone' if case == 'nowhere' else tmp_path}", 0, 1)
    with pytest.raises(DataFailure):
        source.sequence("train", 0, 8)


@pytest.mark.parametrize("url", ["", "nosuch://corpus"])
def test_a_url_that_means_nothing_is_a_data_failure_without_a_traceback(url: str) -> None:
    with pytest.raises(DataFailure, match=url or "needs a folder") as failure:
        open_source(f"parquet:{url}", 0, 1)
    assert failure.value.__cause__ is None


def test_a_separator_inside_a_document_is_left_out(tmp_path: Path) -> None:
    write_parquet_folder(tmp_path, ["a\0b"] * 40, files=1, rows_per_group=40)
    data = ParquetText(str(tmp_path), 0, 1).sequence("train", 0, 8).tobytes()
    assert data == b"ab\0ab\0ab\0"


@pytest.fixture
def remote() -> Iterator[str]:
    """A folder on a file system that is not the local one."""
    files = fsspec.filesystem("memory")
    for number in range(2):
        with files.open(f"/corpus/{number}.parquet", "wb") as file:
            pq.write_table(pa.table({"text": _documents(60)[number::2]}), file, row_group_size=5)
    yield "memory://corpus"
    files.rm("/corpus", recursive=True)


def test_fineweb_edu_is_the_same_reader_over_its_url_and_keeps_what_it_fetched(
    remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsa.data.source, "_FINEWEB_URL", remote + "#{revision}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    whole = {**AS_IF_ABSENT["loader"], "revision": "0" * 40}
    monkeypatch.setattr(fsspec.core, "url_to_fs", _without_revision(fsspec.core.url_to_fs))
    for name, kept in (("fineweb_edu", 1), (f"parquet:{remote}", 2)):
        first = open_source(name, 3, 2, LoaderConfig(**whole)).sequence("train", 0, 8)
        assert len(list((tmp_path / "gonogo" / "row-groups").glob("*.parquet"))) == kept
        with monkeypatch.context() as patched:
            patched.setattr(pq.ParquetFile, "read_row_group", None)  # not called again
            again = open_source(name, 3, 2, LoaderConfig(**whole)).sequence("train", 0, 8)
        np.testing.assert_array_equal(again, first)
    # Another revision is another text; and nothing is kept where nothing may be.
    other = LoaderConfig(**{**whole, "revision": "1" * 40, "cache_gb": 0.0})
    with monkeypatch.context() as patched:
        patched.setattr(pq.ParquetFile, "read_row_group", None)
        with pytest.raises(DataFailure):
            open_source("fineweb_edu", 3, 2, other).sequence("train", 0, 8)
    open_source("fineweb_edu", 3, 2, other).sequence("train", 0, 8)
    assert len(list((tmp_path / "gonogo" / "row-groups").glob("*.parquet"))) == 2


def _without_revision(opened: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda url: opened(url.partition("#")[0])


def test_fineweb_edu_is_the_revision_that_is_configured_and_files_of_ours_are_not_kept_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(nsa.data.source, "find_spec", lambda name: object())
    hub = "hf://datasets/HuggingFaceFW/fineweb-edu"
    assert fineweb_edu_url("a" * 40) == f"{hub}@{'a' * 40}/sample/10BT"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    open_source(f"parquet:{folder}", 3, 2).sequence("train", 0, 8)
    assert not (tmp_path / "cache").exists()


def test_without_the_hub_package_fineweb_edu_is_a_data_failure_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nsa.data.source, "find_spec", lambda name: None)
    with pytest.raises(DataFailure, match="needs huggingface_hub"):
        open_source("fineweb_edu", 0, 2)


def test_the_cache_stays_within_its_limit_and_drops_the_oldest(tmp_path: Path) -> None:
    table = pa.table({"text": [f"{number:064d}" for number in range(200)]})
    cache = RowGroupCache(tmp_path, 10**9)
    cache.save("probe", table)
    (probe,) = tmp_path.iterdir()
    cache = RowGroupCache(tmp_path, int(2.5 * probe.stat().st_size))
    probe.unlink()
    for name in ("a", "b", "c"):
        cache.save(name, table)
        time.sleep(0.02)
    assert cache.load("a") is None
    assert cache.load("c") == table
    assert len(list(tmp_path.iterdir())) == 2


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    cache = RowGroupCache(tmp_path / "cache", 1)
    cache.save("a", pa.table({"text": ["x"]}))
    assert cache.load("a") is None


def test_a_batch_that_does_not_come_in_time_is_a_data_failure() -> None:
    hold = threading.Event()
    prefetch = Prefetch(lambda split, number: hold.wait(30), first_limit_s=0.05, limit_s=30)
    try:
        with pytest.raises(DataFailure, match=r"train batch 0 did not come in 0\.05 s"):
            prefetch.batch("train", 0)
    finally:
        hold.set()
        prefetch.close()


def test_a_run_waits_for_its_first_batch_as_long_as_it_is_configured_to(
    tmp_path: Path, make_order: Callable[..., Path], helpers: Any
) -> None:
    pipe = tmp_path / "corpus" / "a.parquet"
    pipe.parent.mkdir()
    os.mkfifo(pipe)
    loader = {**AS_IF_ABSENT["loader"], "first_batch_limit_s": 0.3}
    order = make_order(train={"data": f"parquet:{pipe.parent}", "loader": loader})
    with pytest.raises(DataFailure, match=r"did not come in 0\.3 s"):
        helpers.build_trainer(order).run()
    writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)  # let the thread end
    pipe.unlink()
    os.close(writer)
    lines = helpers.read_lines(order.parent)
    assert [line["msg"] for line in helpers.told(lines)[-2:]] == ["loader_error", "error"]


def test_every_later_batch_has_its_own_limit() -> None:
    hold = threading.Event()

    def read(split: str, number: int) -> int:
        if number == 3:
            hold.wait(30)
        return number

    prefetch = Prefetch(read, first_limit_s=30, limit_s=0.05)
    try:
        assert [prefetch.batch("train", number) for number in range(3)] == [0, 1, 2]
        with pytest.raises(DataFailure, match="train batch 3"):
            prefetch.batch("train", 3)
    finally:
        hold.set()
        prefetch.close()


def test_what_fails_in_the_thread_is_raised_where_the_batch_is_asked_for() -> None:
    def read(split: str, number: int) -> int:
        if number == 2:
            raise DataFailure("row group 7 is gone")
        return number

    prefetch = Prefetch(read, first_limit_s=30, limit_s=30)
    assert prefetch.batch("train", 0) == 0
    assert prefetch.batch("train", 1) == 1
    with pytest.raises(DataFailure, match="row group 7"):
        prefetch.batch("train", 2)
    assert prefetch.batch("val", 0) == 0
    prefetch.close()


def test_batches_are_read_ahead_once_each() -> None:
    asked: list[tuple[str, int]] = []
    ahead = threading.Event()

    def read(split: str, number: int) -> int:
        asked.append((split, number))
        if number == 2:
            ahead.set()
        return number

    prefetch = Prefetch(read, first_limit_s=30, limit_s=30)
    prefetch.batch("train", 0)
    assert ahead.wait(30)
    assert [prefetch.batch("train", number) for number in (1, 2)] == [1, 2]
    prefetch.close()
    assert asked[:3] == [("train", 0), ("train", 1), ("train", 2)]
    assert len(set(asked)) == len(asked)
