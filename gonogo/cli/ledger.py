"""`gonogo replay` and `gonogo verify`: check what was recorded, without any service.

`replay` derives one decision again from its evidence. `verify` checks digests, signatures and
chain of all decisions of a home or a folder.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gonogo.cli.client import LAST, pick_id
from gonogo.cli.exits import Exit
from gonogo.cli.output import Json, decided_text, out, print_json, print_lines
from gonogo.cli.settings import load_settings
from gonogo.contract.canonical import wire_value
from gonogo.contract.errors import GonogoError, NotFound
from gonogo.contract.finding import Doubt, DoubtKind
from gonogo.contract.wire import Kind, short_id
from gonogo.judge.words import sentence
from gonogo.ledger.recorded import RecordedDecision, load_decision
from gonogo.ledger.replay import Surroundings, replay_decision
from gonogo.ledger.sign import Trust, trusting
from gonogo.ledger.verify import (
    Verified,
    check_anchors,
    load_shelf,
    verify_file,
    verify_folder,
)
from gonogo.signing import KEY_FILE, PUBLIC_FILE, load_public_key, shown_key
from gonogo.supervise.prune import find_undecided

Keys = Annotated[
    list[Path] | None,
    typer.Option("--key", help="Public key to trust (signing.pub of a home); may be repeated."),
]


def find_decision(name: str, home: Path) -> Path:
    """Return the file of a decision: a path, or an id (or its beginning) in the home or its demos.

    An experiment, a run or `last` stands for its newest decision.
    """
    path = Path(name)
    if path.is_file():
        return path
    places = [home / "decisions", *home.glob("demo/*/decisions")]
    files = [file for place in places for file in place.glob("dec_*.json")]
    about = name == LAST or name.startswith((f"{Kind.EXPERIMENT}_", f"{Kind.RUN}_"))
    found = _newest_about(name, files) if about else pick_id(name, Kind.DECISION, files)
    if found is None:
        where = f"{home}/decisions or below demo/"
        raise NotFound(f"{name}: no such file, and no such decision in {where}")
    return found


def _newest_about(name: str, files: Iterable[Path]) -> Path | None:
    for file in sorted(files, key=lambda file: file.stem, reverse=True):
        if name == LAST:
            return file
        try:
            decision = load_decision(file).decision
        except GonogoError:
            continue
        ids = filter(None, (decision.experiment, decision.run))
        if any(name in (each, short_id(each)) for each in ids):
            return file
    return None


def trusted(keys: Sequence[Path] | None, *homes: Path) -> Trust:
    """Return the named keys, else the key of the first home that has one."""
    if keys:
        return trusting(load_public_key(path) for path in keys)
    for home in homes:
        key = shown_key(home)
        if key is not None:
            return trusting([key])
    return Trust()


def home_of(file: Path) -> Path:
    """Return the home in which a decision is named, wherever a link on the way would lead."""
    return Path(os.path.abspath(file)).parent.parent


def replay(
    decision: Annotated[
        str,
        typer.Argument(
            help="Decision: id, beginning of it, or its file; the newest one of an experiment or"
            " run (its id), or of all (`last`)."
        ),
    ],
    facts_only: Annotated[
        bool, typer.Option("--facts-only", help="From the recorded facts; no run directory.")
    ] = False,
    key: Keys = None,
    as_json: Json = False,
) -> None:
    """Judge again from the recorded evidence; exit 1 names the first difference."""
    path = find_decision(decision, load_settings().home)
    recorded = load_decision(path)
    around = look_around(recorded, Path(os.path.abspath(path)), trusted(key, home_of(path)))
    result = replay_decision(recorded, around, facts_only=facts_only)
    if as_json:
        fields = asdict(result) | {"not_verified": [*map(sentence, result.not_verified)]}
        print_json({"id": recorded.id, **wire_value(fields)})
    elif result.equal:
        verdict = decided_text(recorded.decision)
        out.print(f"{recorded.id}: {verdict} again; {result.text}")
    else:
        print_lines([f"{recorded.id}: {result.text}"])
    if not as_json:
        _print_not_verified(result.not_verified)
    raise typer.Exit(Exit.OK if result.equal else Exit.UNEXPECTED)


def look_around(recorded: RecordedDecision, path: Path, trust: Trust) -> Surroundings:
    """Return what lies around a decision's file: its run and its siblings.

    A home with a key signs: there an unsigned decision is a difference.
    """
    decision = recorded.decision
    runs = path.parent.parent / "runs"
    shelf = load_shelf(path.parent, containing=decision.experiment or recorded.id)
    siblings = [row for row in shelf.of(decision.experiment).values() if row.id != recorded.id]
    home = path.parent.parent
    signs = any(map(os.path.lexists, (home / PUBLIC_FILE, home / KEY_FILE)))
    signs = signs or any(row.signed for row in siblings)
    return Surroundings(
        run_dir=runs / decision.run if decision.run is not None else None,
        siblings=siblings,
        trust=trust if trust or signs else None,
        unreadable=tuple(
            Doubt(kind=DoubtKind.UNREADABLE, name=Path(row.path).name, found=row.text)
            for row in shelf.problems
            if trust or row.decision
        ),
    )


def verify(
    place: Annotated[
        Path | None,
        typer.Argument(help="A home, a folder of decisions or one decision; default: the home."),
    ] = None,
    key: Keys = None,
    anchor: Annotated[
        list[str] | None,
        typer.Option(help="Hash of a decision that stands outside, as in an alert; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check every recorded decision: digests, signatures, chain; exit 1 on any problem."""
    home = load_settings().home
    found = verify_place(place or home, key, home)
    found = check_anchors(found, anchor or [], place or home)
    if as_json:
        print_json(
            {
                "decisions": found.decisions,
                "ok": found.ok,
                "problems": [
                    {"decision": row.decision, "path": row.path, "text": row.text}
                    for row in found.problems
                ],
                "not_verified": [*map(sentence, found.not_verified)],
            }
        )
    else:
        print_lines(f"{row.decision or row.path}: {row.text}" for row in found.problems)
        _print_not_verified(found.not_verified)
        problems = len(found.problems)
        words = "nothing is wrong" if found.ok else f"{problems} problem{'s' * (problems != 1)}"
        out.print(f"{found.decisions} decisions: {words}")
    raise typer.Exit(Exit.OK if found.ok else Exit.UNEXPECTED)


def verify_place(place: Path, keys: Sequence[Path] | None, home: Path) -> Verified:
    """Return what is wrong with a home (and the demos in it), a folder, or one decision."""
    if place.is_file():
        return verify_file(place, trusted(keys, home_of(place), home))
    if not place.is_dir():
        raise NotFound(f"{place}: no such home, folder or decision")
    homes = [row for row in (place, *sorted(place.glob("demo/*"))) if (row / "decisions").is_dir()]
    is_home = (place / PUBLIC_FILE).exists() or (place / KEY_FILE).exists()
    if not homes and not is_home:
        if not list(place.glob("*.json")):
            raise NotFound(f"{place}: no decision is there, and it is no home")
        return verify_folder(place, trusted(keys, Path(os.path.abspath(place)).parent, home))
    parts = [verify_folder(row / "decisions", trusted(keys, row)) for row in homes]
    bare = is_home and not any((place / "decisions").glob("dec_*.json"))
    missing = [Doubt(kind=DoubtKind.NO_DECISION, name=str(place))] if bare else []
    runs = [*find_undecided(place)]
    undecided = [Doubt(kind=DoubtKind.RUN_UNDECIDED, found=runs)] if runs else []
    return Verified(
        decisions=sum(row.decisions for row in parts),
        problems=[problem for row in parts for problem in row.problems],
        not_verified=[
            *missing,
            *(doubt for row in parts for doubt in row.not_verified),
            *undecided,
        ],
        hashes=tuple(hash_ for row in parts for hash_ in row.hashes),
    )


def _print_not_verified(doubts: Iterable[Doubt]) -> None:
    print_lines(f"  not verified: {sentence(doubt)}" for doubt in doubts)
