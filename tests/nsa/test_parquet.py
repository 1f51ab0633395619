"""Parquet text: shared by ranks, packed, resumed, cached, and bounded in time."""

import json
import os
import threading
import time

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nsa.data.batches
from nsa.config import AS_IF_ABSENT, LoaderConfig
from nsa.data import open_source
from nsa.data.batches import Prefetch, fineweb_edu_url
from nsa.data.parquet import Lane, ParquetText, Piece, RowGroupCache, deal
from nsa.errors import DataFailure
from tests.nsa.parquet_folder import write_parquet_folder
from tests.nsa.runs import build_trainer, losses, of, read_lines, told


def _documents(count):
    return [f"<{number}>" + "é" * (number % 23) for number in range(count)]


@pytest.fixture
def folder(tmp_path):
    """Three files of seven row groups with 200 short documents in all."""
    out = tmp_path / "corpus"
    write_parquet_folder(out, _documents(200), files=3, rows_per_group=10)
    return out


def _stream(source, split, lane, lanes, count):
    rows = (source.sequence(split, lane + lanes * n, 64).tobytes()[:64] for n in range(count))
    return b"".join(rows)


def test_documents_are_packed_whole_and_no_lane_shares_one_with_another(folder):
    source, lanes = ParquetText(str(folder), 7, 4), 4
    wanted = {text.encode() for text in _documents(200)}
    seen = []
    for split, streams in (("train", lanes), ("val", 1)):
        for lane in range(streams):
            # The last document may continue.
            documents = set(_stream(source, split, lane, streams, 12).split(b"\0")[:-1])
            assert documents
            assert documents <= wanted
            seen.append(documents)
    assert len(set.union(*seen)) == sum(map(len, seen))


@settings(max_examples=40, deadline=None)
@given(count=st.integers(1, 9), lanes=st.integers(1, 9))
def test_every_document_is_dealt_to_exactly_one_lane(count, lanes):
    dealt = []
    for own in deal([Piece(path=str(number)) for number in range(count)], lanes):
        assert own
        for piece in own:
            dealt += [(int(piece.path), row) for row in range(24)[piece.start :: piece.stride]]
    assert sorted(dealt) == [(number, row) for number in range(count) for row in range(24)]


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(0, 30), max_size=4), min_size=1, max_size=5),
    length=st.integers(1, 40),
    order=st.lists(st.integers(0, 20), min_size=1, max_size=6),
)
def test_a_lane_is_one_endless_stream_in_whatever_order_it_is_read(sizes, length, order):
    chunks = [
        [bytes([65 + p, 97 + c]) * size for c, size in enumerate(own)]
        for p, own in enumerate(sizes)
    ]

    def read(piece, chunk):
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


def test_a_resumed_run_reads_on_without_reading_what_it_has_read(folder, train_here, monkeypatch):
    train = {"data": f"parquet:{folder}", "steps": 6, "batch": {"global_seqs": 2}}
    evaluated = {**train, "eval": {"every_steps": 6, "batches": 2}}
    whole = train_here("whole", train=evaluated, checkpoint={"every_steps": 4})
    place = folder.parent / "whole" / "checkpoints" / "step_000004"
    marks = json.loads((place / "state.json").read_text())["marks"]
    assert [row[:2] for row in sorted(marks)] == [[0, 4], [1, 4]]
    walked, real = [], Lane._walk

    def walk(self, mark, count):
        walked.append(mark.n)
        return real(self, mark, count)

    monkeypatch.setattr(Lane, "_walk", walk)
    rest = train_here("rest", train=train, resume_from={"path": str(place), "step": 4})
    assert min(walked) == 4
    assert losses(rest) == losses(whole)[4:]
    assert of(whole, "eval")


def test_many_files_are_pieces_of_their_own_and_no_footer_is_read_for_the_index(tmp_path):
    write_parquet_folder(tmp_path, _documents(120), files=30, rows_per_group=2)
    source = ParquetText(str(tmp_path), 1, 2)
    pieces = [piece for own in source.pieces() for piece in own]
    assert {piece.row_group for piece in pieces} == {None}
    assert len({piece.path for piece in pieces}) == 30
    assert source._opened.cache_info().currsize == 0
    documents = _stream(source, "train", 0, 2, 14).split(b"\0")
    assert set(documents[:-1]) <= {text.encode() for text in _documents(120)}


_NOT_UTF8 = pa.Array.from_buffers(
    pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")]
)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read|no .parquet files"),
        ({}, "no .parquet files below"),
        (b"PAR0" * 10, "cannot read .*a.parquet"),
        ({"body": ["x"]}, "has no column 'text'"),
        ({"text": pa.array([None, ""], pa.string())}, "no text in"),
        ({"text": pa.array([1, 2])}, "column 'text' holds int64, no text"),
        ({"text": pa.array([b"a", b"b"])}, "column 'text' holds binary, no text"),
        ({"text": _NOT_UTF8}, r"cannot read the texts in row group 0 of .*: UnicodeDecodeError"),
    ],
    ids=["nowhere", "empty", "not parquet", "no column", "no text", "numbers", "bytes", "no UTF-8"],
)
def test_a_folder_that_cannot_serve_is_a_data_failure(tmp_path, content, said):
    file = tmp_path / "a.parquet"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content:
        pq.write_table(pa.table(content), file)
    source = open_source(f"parquet:{tmp_path / 'gone' if content is None else tmp_path}", 0, 1)
    with pytest.raises(DataFailure, match=said):
        source.sequence("train", 0, 8)


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_texts_of_any_layout_are_read(tmp_path, kind):
    rows = pa.array(_documents(50)).cast(kind)
    pq.write_table(pa.table({"text": rows}), tmp_path / "corpus.parquet")
    assert ParquetText(str(tmp_path), 1, 1).sequence("train", 0, 64).size == 65


@pytest.mark.parametrize("url", ["", "nosuch://corpus"])
def test_a_url_that_means_nothing_is_a_data_failure_without_a_traceback(url):
    with pytest.raises(DataFailure, match=url or "needs a folder") as failure:
        open_source(f"parquet:{url}", 0, 1)
    assert failure.value.__cause__ is None


def test_a_separator_inside_a_document_is_left_out(tmp_path):
    write_parquet_folder(tmp_path, ["a\0b"] * 40, files=1, rows_per_group=40)
    assert ParquetText(str(tmp_path), 0, 1).sequence("train", 0, 8).tobytes() == b"ab\0ab\0ab\0"


@pytest.fixture
def remote():
    """A folder on a file system that is not the local one."""
    files = fsspec.filesystem("memory")
    for number in range(2):
        with files.open(f"/corpus/{number}.parquet", "wb") as file:
            pq.write_table(pa.table({"text": _documents(60)[number::2]}), file, row_group_size=5)
    yield "memory://corpus"
    files.rm("/corpus", recursive=True)


def test_fineweb_edu_is_the_same_reader_over_its_url_and_keeps_what_it_fetched(
    remote, tmp_path, monkeypatch
):
    opened = fsspec.core.url_to_fs
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda url: opened(url.partition("#")[0]))
    monkeypatch.setattr(nsa.data.batches, "_FINEWEB_URL", remote + "#{revision}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    whole = {**AS_IF_ABSENT["loader"], "revision": "0" * 40}

    def first(name, loader):
        return open_source(name, 3, 2, LoaderConfig(**loader)).sequence("train", 0, 8)

    def kept():
        return len(list((tmp_path / "gonogo" / "row-groups").glob("*.parquet")))

    for count, name in enumerate(("fineweb_edu", f"parquet:{remote}"), start=1):
        fetched = first(name, whole)
        assert kept() == count
        with monkeypatch.context() as patched:
            patched.setattr(pq.ParquetFile, "read_row_group", None)  # not called again
            np.testing.assert_array_equal(first(name, whole), fetched)
    # Another revision is another text; and nothing is kept where nothing may be.
    other = {**whole, "revision": "1" * 40, "cache_gb": 0.0}
    with monkeypatch.context() as patched:
        patched.setattr(pq.ParquetFile, "read_row_group", None)
        with pytest.raises(DataFailure):
            first("fineweb_edu", other)
    first("fineweb_edu", other)
    assert kept() == 2


def test_fineweb_edu_is_the_revision_that_is_configured_and_needs_the_hub_package(monkeypatch):
    monkeypatch.setattr(nsa.data.batches, "find_spec", lambda name: object())
    hub = "hf://datasets/HuggingFaceFW/fineweb-edu"
    assert fineweb_edu_url("a" * 40) == f"{hub}@{'a' * 40}/sample/10BT"
    monkeypatch.setattr(nsa.data.batches, "find_spec", lambda name: None)
    with pytest.raises(DataFailure, match="needs huggingface_hub"):
        open_source("fineweb_edu", 0, 2)


def test_files_of_ours_are_not_kept_twice(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    open_source(f"parquet:{folder}", 3, 2).sequence("train", 0, 8)
    assert not (tmp_path / "cache").exists()


def test_the_cache_stays_within_its_limit_and_drops_the_oldest(tmp_path):
    table = pa.table({"text": [f"{number:064d}" for number in range(200)]})
    RowGroupCache(tmp_path, 10**9).save("probe", table)
    (probe,) = tmp_path.iterdir()
    cache = RowGroupCache(tmp_path, int(2.5 * probe.stat().st_size))
    probe.unlink()
    for name in ("a", "b", "c"):
        cache.save(name, table)
        time.sleep(0.02)
    assert cache.load("a") is None
    assert cache.load("c") == table
    assert len(list(tmp_path.iterdir())) == 2
    (tmp_path / "file").write_text("where the folder should be")
    broken = RowGroupCache(tmp_path / "file", 10**9)
    broken.save("a", table)
    assert broken.load("a") is None


@pytest.fixture
def prefetch():
    """Makes a `Prefetch`; what it holds is let go and closed at the end."""
    hold, made = threading.Event(), []

    def make(read, *, first_limit_s=30.0, limit_s=30.0):
        limits = {"first_limit_s": first_limit_s, "limit_s": limit_s}
        made.append(Prefetch(lambda split, number: read(number, hold), **limits))
        return made[-1].batch

    yield make
    hold.set()
    for each in made:
        each.close()


def test_a_batch_that_does_not_come_in_time_is_a_data_failure(prefetch):
    batch = prefetch(lambda number, hold: hold.wait(30), first_limit_s=0.05)
    with pytest.raises(DataFailure, match=r"train batch 0 did not come in 0\.05 s"):
        batch("train", 0)
    later = prefetch(lambda number, hold: number == 3 and hold.wait(30), limit_s=0.05)
    assert [later("train", number) for number in range(3)] == [False] * 3
    with pytest.raises(DataFailure, match="train batch 3"):
        later("train", 3)


def test_what_fails_in_the_thread_is_raised_where_the_batch_is_asked_for(prefetch):
    def read(number, _):
        if number == 2:
            raise DataFailure("row group 7 is gone")
        return number

    batch = prefetch(read)
    assert [batch("train", number) for number in (0, 1)] == [0, 1]
    with pytest.raises(DataFailure, match="row group 7"):
        batch("train", 2)
    assert batch("val", 0) == 0


def test_batches_are_read_ahead_once_each(prefetch):
    asked, ahead = [], threading.Event()

    def read(number, _):
        asked.append(number)
        if number == 2:
            ahead.set()
        return number

    batch = prefetch(read)
    batch("train", 0)
    assert ahead.wait(30)
    assert [batch("train", number) for number in (1, 2)] == [1, 2]
    assert asked[:3] == [0, 1, 2]
    assert len(set(asked)) == len(asked)


def test_a_run_waits_for_its_first_batch_as_long_as_it_is_configured_to(tmp_path, make_order):
    pipe = tmp_path / "corpus" / "a.parquet"
    pipe.parent.mkdir()
    os.mkfifo(pipe)
    loader = {**AS_IF_ABSENT["loader"], "first_batch_limit_s": 0.3}
    order = make_order(train={"data": f"parquet:{pipe.parent}", "loader": loader})
    with pytest.raises(DataFailure, match=r"did not come in 0\.3 s"):
        build_trainer(order).run()
    writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)  # let the thread end
    pipe.unlink()
    os.close(writer)
    lines = told(read_lines(order.parent))
    assert [line["msg"] for line in lines[-2:]] == ["loader_error", "error"]
