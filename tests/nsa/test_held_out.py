"""No document is trained on in one run and validated on in another, whatever else differs."""

import random
from itertools import pairwise

import pytest

import nsa.data.batches
from nsa.data import open_source
from nsa.data.batches import LocalText, NothingHeldOut, split_of
from tests.nsa.parquet_folder import write_parquet_folder
from tests.nsa.runs import of

LANES = (1, 3, 16)
LENGTH = 64


def _documents(count, seed=0):
    """Documents that differ from their first byte on; none is longer than a sequence."""
    drawn = random.Random(seed)
    return [f"<{seed}.{number}>" + "é" * drawn.randrange(20) for number in range(count)]


def _of_split(documents, split):
    return [text for text in documents if split_of(text.encode()) == split]


def _served(source, split, lanes, rounds):
    """The whole documents that a split serves."""
    streams = lanes if split == "train" else 1
    found = set()
    for lane in range(streams):
        rows = (source.sequence(split, lane + streams * n, LENGTH) for n in range(rounds))
        found |= set(b"".join(row.tobytes()[:LENGTH] for row in rows).split(b"\0")[:-1])
    return found


def _opened(kind, folder, lanes, seed=7):
    if kind == "local_text":
        return LocalText(folder, [(path, 0) for path in folder.iterdir()], seed)
    return open_source("fineweb_edu" if kind == "fineweb_edu" else f"parquet:{folder}", seed, lanes)


@pytest.fixture(params=["local_text", "parquet", "fineweb_edu"])
def kind(request):
    """A source of documents."""
    return request.param


@pytest.fixture
def written(kind, tmp_path, monkeypatch):
    """Write documents as the source wants them; the folder on the hub is a local one."""

    def write(name, documents, files=3):
        folder = tmp_path / name
        if kind == "local_text":
            folder.mkdir()
            for number, text in enumerate(documents):
                (folder / f"{number}.py").write_text(text)
        else:
            write_parquet_folder(folder, documents, files=files, rows_per_group=10)
        monkeypatch.setattr(nsa.data.batches, "_FINEWEB_URL", str(folder))
        return folder

    return write


def test_no_document_is_on_both_sides_for_any_pair_of_batch_sizes(kind, written):
    documents = _documents(300)
    folder, known = written("corpus", documents, files=25), {text.encode() for text in documents}
    train, val, streams = {}, {}, set()
    for lanes in LANES:
        source = _opened(kind, folder, lanes, seed=lanes)
        train[lanes] = _served(source, "train", lanes, max(2, 100 // lanes)) & known
        val[lanes] = _served(source, "val", lanes, 20) & known
        assert len(val[lanes]) > 5
        streams.add(b"".join(source.sequence("val", n, 50) for n in range(5)))
        assert len(train[lanes]) > 70
    assert not set.union(*train.values()) & set.union(*val.values())
    assert len(streams) == 1, "the validation stream is the same for every batch size and seed"


def test_files_added_later_and_copies_under_other_names_move_nothing(kind, written):
    few, more = _documents(80), _documents(120, seed=1)
    grown = [*more[:60], *few[::-1], *few[:40], *more[60:]]
    sides = []
    for name, documents, files in (("few", few, 3), ("grown", grown, 23)):
        source = _opened(kind, written(name, documents, files), 4)
        sides.append({split: _served(source, split, 4, 120) for split in ("train", "val")})
    known = {text.encode() for text in few}
    one, two = ({split: own & known for split, own in side.items()} for side in sides)
    assert one["val"]
    assert one == two
    assert not any(side["train"] & side["val"] for side in sides)


def test_one_document_in_twenty_is_held_out_and_no_release_moves_one():
    """A run that an earlier release began would train on what that held out."""
    numbers = [n for n in range(200) if split_of(b"document %d" % n) == "val"]
    assert numbers == [3, 33, 48, 53, 74, 87, 92, 135, 158, 190]
    assert 0.045 < len(_of_split(_documents(20_000), "val")) / 20_000 < 0.055


@pytest.mark.parametrize(("count", "lanes"), [(1, 1), (1, 40), (5, 8), (30, 8), (12, 40)])
def test_a_small_corpus_trains_and_says_where_it_holds_nothing_out(kind, written, count, lanes):
    documents = _of_split(_documents(60, seed=2), "train")[:count]
    held_out = _of_split(_documents(200, seed=3), "val")[:1]
    source = _opened(kind, written("without", documents, 1), lanes)
    for index in range(2 * lanes):
        assert source.sequence("train", index, 16).size == 17
    with pytest.raises(NothingHeldOut):
        source.sequence("val", 0, 16)
    source = _opened(kind, written("with", documents + held_out, 1), lanes)
    # One document is enough for any number of sequences.
    assert source.sequence("val", 5, 16).size == 17
    assert held_out[0].encode()[:4] in source.sequence("val", 0, 40).tobytes()


def test_the_digest_of_a_corpus_is_of_its_content(kind, written):
    documents = _documents(40)
    changed = [*documents[:-1], documents[-1][:-1] + "x"]
    one, two, three, four = (
        _opened(kind, written(str(number), texts), 2).digest()
        for number, texts in enumerate((documents, documents, changed, documents[:-1]))
    )
    assert one == two
    assert len({one, three, four}) == 3


def test_the_passes_over_a_corpus_are_counted(kind, written):
    documents = _documents(40)
    source = _opened(kind, written("corpus", documents), 1)
    size = sum(len(text.encode()) + 1 for text in _of_split(documents, "train"))
    epochs = []
    for index in range(3 * size // 50):
        source.sequence("train", index, 50)
        epochs.append(source.epoch(index, 50))
    assert epochs[0] == 1
    assert all(later - earlier in (0, 1) for earlier, later in pairwise(epochs))
    assert abs(epochs.index(2) - size / 50) <= 1.01
    assert max(epochs) == 3


def test_a_run_reports_a_second_pass_and_a_corpus_that_holds_nothing_out_once(
    tmp_path, train_here, capfd
):
    documents = _of_split(_documents(60), "train")[:9]
    write_parquet_folder(tmp_path / "corpus", documents, files=1, rows_per_group=10)
    train = {"data": f"parquet:{tmp_path / 'corpus'}", "eval": {"every_steps": 1, "batches": 1}}
    lines = train_here(train=train)
    assert lines[-1]["msg"] == "done"
    assert not of(lines, "eval")
    epochs = [line["epoch"] for line in of(lines, "progress")]
    assert epochs[0] == 1
    assert epochs[-1] > 1
    told = capfd.readouterr().out
    assert told.count("no validation: ") == 1
    assert all(told.count(f"epoch {epoch} begins") == 1 for epoch in set(epochs) - {1})
    assert not any("epoch" in line for line in train_here("synthetic"))
