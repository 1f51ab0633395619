import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsa.data import BatchPlan, open_source
from nsa.data.batches import LocalText
from nsa.errors import DataFailure


@pytest.mark.parametrize("name", ["synthetic", "local_text"])
def test_a_sequence_depends_on_seed_split_and_number_only(name):
    one, two, other = open_source(name, 7), open_source(name, 7), open_source(name, 8)
    wanted = one.sequence("train", 5, 64)
    two.sequence("train", 900, 64)
    np.testing.assert_array_equal(two.sequence("train", 5, 64), wanted)
    assert (wanted.dtype, wanted.shape) == (np.uint8, (65,))
    for source, split, number in ((one, "val", 5), (one, "train", 6), (other, "train", 5)):
        assert not np.array_equal(source.sequence(split, number, 64), wanted)


def test_a_source_that_is_not_known_is_a_data_failure():
    with pytest.raises(DataFailure, match="unknown data"):
        open_source("text", 0)


def test_local_text_holds_out_whole_files():
    text, other_seed = (LocalText.of_standard_library(seed) for seed in (3, 4))
    train, val = set(text.paths("train")), set(text.paths("val"))
    assert not train & val
    assert len(train) > 10 * len(val) / 2 > 50
    assert set(other_seed.paths("val")) == val
    assert other_seed.paths("train") != text.paths("train")


def _written(tmp_path, count):
    files = [(tmp_path / f"{number}.py", number + 1) for number in range(count)]
    for number, (path, size) in enumerate(files):
        path.write_bytes(bytes([65 + number % 26]) * size)
    return LocalText(tmp_path, files, 0)


def test_documents_are_packed_with_a_separator_and_not_cut(tmp_path):
    text = _written(tmp_path, 60)
    whole = b"".join(path.read_bytes() + b"\0" for path in text.paths("train"))
    rows = len(whole) // 16
    read = b"".join(text.sequence("train", index, 16).tobytes()[:16] for index in range(rows))
    assert read == whole[: 16 * rows]
    # The stream begins again after the last file.
    assert text.sequence("train", rows, 16).tobytes() == (whole + whole)[len(read) :][:17]


def test_a_file_that_changes_while_training_is_a_data_failure(tmp_path):
    text = _written(tmp_path, 40)
    text.paths("train")[0].write_text("x = 22\n")
    with pytest.raises(DataFailure, match="changed"):
        text.sequence("train", 0, 4)


def test_the_markov_chain_can_be_learned():
    tokens = open_source("synthetic", 1337).sequence("train", 0, 100_000)
    pairs = np.zeros((256, 256))
    np.add.at(pairs, (tokens[:-1], tokens[1:]), 1)
    rows = pairs / np.maximum(pairs.sum(axis=1, keepdims=True), 1)
    logs = np.log(rows, where=rows > 0, out=np.zeros_like(rows))
    assert 0.5 < -(pairs / pairs.sum() * logs).sum() < 0.9


@settings(max_examples=50, deadline=None)
@given(sizes=st.tuples(st.integers(1, 4), *[st.integers(1, 3)] * 2), batch=st.integers(0, 5))
def test_the_ranks_share_each_global_batch_without_gap_or_overlap(sizes, batch):
    world_size, accumulate, part_seqs = sizes
    total = world_size * accumulate * part_seqs
    seen = []
    for rank in range(world_size):
        plan = BatchPlan(
            global_seqs=total, accumulate=accumulate, rank=rank, world_size=world_size, seq_len=8
        )
        assert plan.tokens_per_step == total * 8
        seen += [index for part in range(accumulate) for index in plan.indices(batch, part)]
    assert sorted(seen) == list(range(batch * total, (batch + 1) * total))
