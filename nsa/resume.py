"""Refuse to resume from the checkpoint of another run.

Model, attention, packing, data, seed and corpus must be equal. `FREE` and all other sections may
change. `--weights-only`, or `resume_from` with step 0, starts a new run from the weights.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from nsa.checkpoint import Snapshot
from nsa.config import AS_IF_ABSENT, TrainConfig, config_mapping
from nsa.errors import BadConfig

SECTIONS = ("model", "attention", "packing", "data", "seed")
AS_ABSENT = {"attention.compression": "mean"}
"""What a key that may be left out says then."""
FREE = frozenset(("model.gradient_checkpointing", "attention.backend"))
_HINT = "--weights-only takes its weights alone"


def check_same_run(place: str, snapshot: Snapshot, config: TrainConfig) -> None:
    """Refuse to resume from another run's checkpoint.

    Raises:
        BadConfig: the first difference, by name.
    """
    if not (snapshot.config and snapshot.corpus):
        raise BadConfig(f"checkpoint {place} does not say what it was trained on; {_HINT}")
    there, here = snapshot.config, config_mapping(config)
    for name, was, now in differences(there, here):
        raise BadConfig(f"checkpoint {place}: {name} was {was!r}, and is {now!r} now; {_HINT}")
    if snapshot.next_sequence != snapshot.step * config.batch.global_seqs:
        raise BadConfig(f"checkpoint {place} was trained with another batch.global_seqs; {_HINT}")
    if snapshot.step > config.steps:
        raise BadConfig(f"checkpoint of step {snapshot.step}, but only {config.steps} ordered")


def check_same_corpus(was: str, now: str, data: str) -> None:
    """Refuse to resume with a changed text.

    Raises:
        BadConfig: its digest is another.
    """
    if was != now:
        raise BadConfig(
            f"the corpus of {data} is not what the checkpoint was trained on: digest "
            f"{was[:12]} then, {now[:12]} now; {_HINT}"
        )


def differences(
    there: Mapping[str, Any], here: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """What two configurations train differently: dotted name, value there, value here."""
    for section in SECTIONS:
        was, now = there.get(section), here.get(section)
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            for key in (*now, *(key for key in was if key not in now)):
                name = f"{section}.{key}"
                absent = AS_ABSENT.get(name)
                before, after = (absent if x.get(key) is None else x[key] for x in (was, now))
                if before != after and name not in FREE:
                    yield name, before, after
        elif was != now:
            yield section, was, now
    if there.get("data") == here.get("data") == "fineweb_edu":
        revisions = [_revision(mapping) for mapping in (there, here)]
        if revisions[0] != revisions[1]:
            yield "loader.revision", *revisions


def _revision(mapping: Mapping[str, Any]) -> Any:
    return (mapping.get("loader") or AS_IF_ABSENT["loader"])["revision"]
