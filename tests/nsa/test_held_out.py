"""No document is trained on in one run and validated on in another, whatever else differs."""

import hashlib
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import nsa.data.source
from nsa.data import open_source
from nsa.data.held_out import NothingHeldOut, split_of
from nsa.data.local_text import LocalText
from nsa.data.make_parquet import write_parquet_folder
from nsa.data.source import Source

LANES = (1, 3, 16)
LENGTH = 64


def _documents(count: int, seed: int = 0) -> list[str]:
    """Documents that differ from their first byte on; none is longer than a sequence."""
    drawn = random.Random(seed)
    return [f"<{seed}.{number}>" + "é" * drawn.randrange(20) for number in range(count)]


def _known(documents: list[str]) -> dict[bytes, bytes]:
    """Content by digest."""
    return {hashlib.sha256(text.encode()).digest(): text.encode() for text in documents}


def _served(source: Source, split: str, lanes: int, rounds: int) -> set[bytes]:
    """Digests of the whole documents that a split serves."""
    streams = lanes if split == "train" else 1
    found: set[bytes] = set()
    for lane in range(streams):
        data = b"".join(
            source.sequence(split, lane + streams * n, LENGTH).tobytes()[:LENGTH]
            for n in range(rounds)
        )
        found |= {hashlib.sha256(own).digest() for own in data.split(b"\0")[:-1]}
    return found


def _write_text(folder: Path, documents: list[str]) -> LocalText:
    folder.mkdir()
    files = []
    for number, text in enumerate(documents):
        path = folder / f"{number}.py"
        path.write_text(text)
        files.append((path, 0))
    return LocalText(folder, files, 7)


def _opened(kind: str, folder: Path, lanes: int, seed: int = 7) -> Source:
    if kind == "local_text":
        return LocalText(folder, [(path, 0) for path in folder.iterdir()], seed)
    return open_source("fineweb_edu" if kind == "fineweb_edu" else f"parquet:{folder}", seed, lanes)


@pytest.fixture(params=["local_text", "parquet", "fineweb_edu"])
def kind(request: pytest.FixtureRequest) -> str:
    """A source of documents."""
    return str(request.param)


@pytest.fixture
def written(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write documents as the source wants them; the folder on the hub is a local one."""

    def write(name: str, documents: list[str], files: int = 3) -> Path:
        folder = tmp_path / name
        if kind == "local_text":
            _write_text(folder, documents)
        else:
            write_parquet_folder(folder, documents, files=files, rows_per_group=10)
        monkeypatch.setattr(nsa.data.source, "_FINEWEB_URL", str(folder))
        return folder

    return write


def test_no_document_is_on_both_sides_for_any_pair_of_batch_sizes(
    kind: str, written: Callable[..., Path]
) -> None:
    documents = _documents(300)
    folder = written("corpus", documents, files=25)
    known = _known(documents)
    train: dict[int, set[bytes]] = {}
    val: dict[int, set[bytes]] = {}
    for lanes in LANES:
        source = _opened(kind, folder, lanes)
        train[lanes] = _served(source, "train", lanes, max(2, 150 // lanes)) & known.keys()
        val[lanes] = _served(source, "val", lanes, 20) & known.keys()
    for one in LANES:
        assert len(val[one]) > 5
        assert len(train[one]) > 100
        for other in LANES:
            assert not train[one] & val[other], (one, other)
    assert len({frozenset(found) for found in val.values()}) == 1


def test_the_validation_stream_is_the_same_for_every_batch_size_and_seed(
    kind: str, written: Callable[..., Path]
) -> None:
    folder = written("corpus", _documents(200), files=22)
    streams = {
        b"".join(_opened(kind, folder, lanes, seed).sequence("val", n, 50) for n in range(9))
        for lanes in (1, 4, 16)
        for seed in (1, 2)
    }
    assert len(streams) == 1


def test_files_added_later_and_copies_under_other_names_move_nothing(
    kind: str, written: Callable[..., Path]
) -> None:
    few, more = _documents(80), _documents(120, seed=1)
    grown = [*more[:60], *few[::-1], *few[:40], *more[60:]]
    sides = []
    for name, documents, files in (("few", few, 3), ("grown", grown, 23)):
        source = _opened(kind, written(name, documents, files), 4)
        sides.append({split: _served(source, split, 4, 120) for split in ("train", "val")})
    known = _known(few).keys()
    one, two = ({split: own & known for split, own in side.items()} for side in sides)
    assert one["val"]
    assert one == two
    for side in sides:
        assert not side["train"] & side["val"]


def test_no_release_moves_a_document_from_one_side_to_the_other() -> None:
    """A run that an earlier one began would train on what that held out."""
    documents = [b"document %d" % number for number in range(200)]
    held_out = [number for number, text in enumerate(documents) if split_of(text) == "val"]
    assert held_out == [3, 33, 48, 53, 74, 87, 92, 135, 158, 190]


@pytest.mark.parametrize("count", [1, 2, 5, 12, 30])
@pytest.mark.parametrize("lanes", [1, 8, 40])
def test_a_small_corpus_trains_and_says_where_it_holds_nothing_out(
    kind: str, written: Callable[..., Path], count: int, lanes: int
) -> None:
    documents = [text for text in _documents(60, seed=2) if split_of(text.encode()) == "train"][
        :count
    ]
    held_out = [text for text in _documents(200, seed=3) if split_of(text.encode()) == "val"][:1]
    source = _opened(kind, written("without", documents, 1), lanes)
    for index in range(2 * lanes):
        assert source.sequence("train", index, 16).size == 17
    with pytest.raises(NothingHeldOut):
        source.sequence("val", 0, 16)
    source = _opened(kind, written("with", documents + held_out, 1), lanes)
    # One document is enough for any number of sequences.
    assert source.sequence("val", 5, 16).size == 17
    assert held_out[0].encode()[:4] in source.sequence("val", 0, 40).tobytes()


def test_the_digest_of_a_corpus_is_of_its_content(kind: str, written: Callable[..., Path]) -> None:
    documents = _documents(40)
    told = _opened(kind, written("one", documents), 2).digest()
    assert _opened(kind, written("two", documents), 2).digest() == told
    changed = [*documents[:-1], documents[-1][:-1] + "x"]
    assert _opened(kind, written("three", changed), 2).digest() != told
    assert _opened(kind, written("four", documents[:-1]), 2).digest() != told


def test_the_passes_over_a_corpus_are_counted(kind: str, written: Callable[..., Path]) -> None:
    documents = _documents(40)
    source = _opened(kind, written("corpus", documents), 1)
    own = [text.encode() for text in documents if split_of(text.encode()) == "train"]
    size = sum(len(text) + 1 for text in own)
    epochs = []
    for index in range(3 * size // 50):
        source.sequence("train", index, 50)
        epochs.append(source.epoch(index, 50))
    assert epochs[0] == 1
    assert all(later - earlier in (0, 1) for earlier, later in pairwise(epochs))
    begins = next(index for index, epoch in enumerate(epochs) if epoch == 2)
    assert abs(begins - size / 50) <= 1.01
    assert max(epochs) == 3


def test_one_in_twenty_documents_is_held_out() -> None:
    held_out = sum(split_of(text.encode()) == "val" for text in _documents(20_000))
    assert 0.045 < held_out / 20_000 < 0.055


def test_a_run_whose_corpus_holds_nothing_out_trains_on_and_says_so_once(
    tmp_path: Path, train_here: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    documents = [text for text in _documents(60) if split_of(text.encode()) == "train"][:9]
    write_parquet_folder(tmp_path / "corpus", documents, files=1, rows_per_group=10)
    train = {"data": f"parquet:{tmp_path / 'corpus'}", "eval": {"every_steps": 1, "batches": 1}}
    lines = train_here(train=train)
    assert [line["msg"] for line in lines][-1] == "done"
    assert not [line for line in lines if line["msg"] == "eval"]
    assert capfd.readouterr().out.count("no validation: ") == 1
    epochs = [line["epoch"] for line in lines if line["msg"] == "progress"]
    assert epochs[0] == 1
    assert epochs[-1] > 1


def test_a_second_pass_over_the_corpus_is_said_in_every_line_and_once_in_the_log(
    tmp_path: Path, train_here: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    write_parquet_folder(tmp_path / "corpus", _documents(200), files=1, rows_per_group=50)
    lines = train_here(train={"data": f"parquet:{tmp_path / 'corpus'}", "steps": 30})
    epochs = [line["epoch"] for line in lines if line["msg"] == "progress"]
    assert epochs[0] == 1
    assert 2 <= max(epochs) <= 4
    told = capfd.readouterr().out
    for epoch in range(2, max(epochs) + 1):
        assert told.count(f"epoch {epoch} begins") == 1
    unending = train_here("synthetic")
    assert not [line for line in unending if "epoch" in line]
