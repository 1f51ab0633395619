from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsa.data import BatchPlan, open_source
from nsa.data.local_text import LocalText
from nsa.errors import DataFailure

NAMES = ["synthetic", "local_text"]


@pytest.mark.parametrize("name", NAMES)
def test_a_sequence_depends_on_seed_split_and_number_only(name: str) -> None:
    one, two = open_source(name, 7), open_source(name, 7)
    wanted = one.sequence("train", 5, 64)
    two.sequence("train", 900, 64)
    np.testing.assert_array_equal(two.sequence("train", 5, 64), wanted)
    assert wanted.dtype == np.uint8
    assert wanted.shape == (65,)
    for other in (
        one.sequence("val", 5, 64),
        one.sequence("train", 6, 64),
        open_source(name, 8).sequence("train", 5, 64),
    ):
        assert not np.array_equal(other, wanted)


def test_a_source_that_is_not_known_is_a_data_failure() -> None:
    with pytest.raises(DataFailure, match="unknown data"):
        open_source("text", 0)


def test_local_text_holds_out_whole_files() -> None:
    text = LocalText.of_standard_library(3)
    train, val = set(text.paths("train")), set(text.paths("val"))
    assert not train & val
    assert len(train) > 10 * len(val) / 2 > 50
    other_seed = LocalText.of_standard_library(4)
    assert set(other_seed.paths("val")) == val
    assert other_seed.paths("train") != text.paths("train")


def test_documents_are_packed_with_a_separator_and_not_cut(tmp_path: Path) -> None:
    files = []
    for number in range(60):
        path = tmp_path / f"{number}.py"
        path.write_bytes(bytes([65 + number % 26]) * (number + 1))
        files.append((path, number + 1))
    text = LocalText(tmp_path, files, 0)
    paths = text.paths("train")
    whole = b"".join(path.read_bytes() + b"\0" for path in paths)
    read = b"".join(
        text.sequence("train", index, 16).tobytes()[:16] for index in range(len(whole) // 16)
    )
    assert whole.startswith(read)
    assert len(read) > len(whole) - 16
    # the stream begins again after the last file
    beyond = text.sequence("train", len(whole) // 16, 16).tobytes()
    assert beyond == (whole + whole)[len(read) :][:17]


def test_a_file_that_changes_while_training_is_a_data_failure(tmp_path: Path) -> None:
    files = []
    for number in range(40):
        path = tmp_path / f"{number}.py"
        path.write_text("x = 1\n")
        files.append((path, 6))
    text = LocalText(tmp_path, files, 0)
    text.paths("train")[0].write_text("x = 22\n")
    with pytest.raises(DataFailure, match="changed"):
        text.sequence("train", 0, 4)


def test_the_markov_chain_can_be_learned() -> None:
    tokens = open_source("synthetic", 1337).sequence("train", 0, 100_000)
    pairs = np.zeros((256, 256))
    np.add.at(pairs, (tokens[:-1], tokens[1:]), 1)
    rows = pairs / np.maximum(pairs.sum(axis=1, keepdims=True), 1)
    logs = np.log(rows, where=rows > 0, out=np.zeros_like(rows))
    entropy = -(pairs / pairs.sum() * logs).sum()
    assert 0.5 < entropy < 0.9


@settings(max_examples=50, deadline=None)
@given(
    world_size=st.integers(1, 4),
    accumulate=st.integers(1, 3),
    part_seqs=st.integers(1, 3),
    batch=st.integers(0, 5),
)
def test_the_ranks_share_each_global_batch_without_gap_or_overlap(
    world_size: int, accumulate: int, part_seqs: int, batch: int
) -> None:
    total = world_size * accumulate * part_seqs
    seen: list[int] = []
    for rank in range(world_size):
        plan = BatchPlan(
            global_seqs=total, accumulate=accumulate, rank=rank, world_size=world_size, seq_len=8
        )
        assert plan.tokens_per_step == total * 8
        for part in range(accumulate):
            seen += plan.indices(batch, part)
    assert sorted(seen) == list(range(batch * total, (batch + 1) * total))
