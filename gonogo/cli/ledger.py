"""Which commands check what was recorded, without any service? `replay` and `verify`.

`replay` comes to one decision again from its evidence; `verify` checks the records themselves, of
a whole home or of a folder. Neither believes a decision about itself.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from gonogo.cli.exits import Exit
from gonogo.cli.output import decided_text, out, print_json
from gonogo.cli.reach.naming import LAST, SHOWN, Ambiguous
from gonogo.cli.settings import load_settings
from gonogo.contract.canonical import wire_value
from gonogo.contract.doubt import Doubt, DoubtKind
from gonogo.contract.errors import Corrupt, GonogoError, NotFound, Problem
from gonogo.contract.ids import Kind, is_id
from gonogo.judge.words import sentence
from gonogo.ledger.chain import Wrong
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

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Keys = Annotated[
    list[Path] | None,
    typer.Option("--key", help="Public key to trust (signing.pub of a home); may be repeated."),
]


def find_decision(name: str, home: Path) -> Path:
    """Return the file of a decision: a path, or the beginning of an id in the home or its demos.

    An experiment, a run or `last` stands for its newest decision.

    Raises:
        NotFound: neither.
        Ambiguous: several decisions begin so.
    """
    path = Path(name)
    if path.is_file():
        return path
    places = [home / "decisions", *sorted(home.glob("demo/*/decisions"), reverse=True)]
    if name == LAST or is_id(name, Kind.EXPERIMENT) or is_id(name, Kind.RUN):
        newest = _newest_about(name, places)
        if newest is None:
            raise NotFound(f"{name}: no decision about it in {home}/decisions or below demo/")
        return newest
    begins = "dec_" + name.lower().removeprefix("dec_").upper()
    if re.fullmatch(r"dec_[0-9A-Z]+", begins):
        found = {
            file.stem: file
            for place in reversed(places)
            for file in sorted(place.glob(f"{begins}*.json"))
            if is_id(file.stem, Kind.DECISION)
        }
        if len(found) > 1:
            rows = [Problem(path=stem, message=str(file)) for stem, file in sorted(found.items())]
            text = f"{name!r} may mean {len(found)} decisions; say which by its id:"
            raise Ambiguous(text, problems=tuple(rows[:SHOWN]))
        if found:
            return next(iter(found.values()))
    raise NotFound(f"{name}: no such file, and no such decision in {home}/decisions or below demo/")


def _newest_about(name: str, places: Sequence[Path]) -> Path | None:
    """Return the newest decision about an experiment or a run, or of all; ids begin with time.

    The newest of all is returned whatever it holds; one that cannot be read is about nobody.
    """
    files = [file for place in places for file in place.glob("dec_*.json")]
    for file in sorted(files, key=lambda file: file.stem, reverse=True):
        if name == LAST:
            return file
        try:
            said = load_decision(file).decision
        except GonogoError:
            continue
        if name in (said.experiment, said.run):
            return file
    return None


def trusted(keys: Sequence[Path] | None, *homes: Path) -> Trust:
    """Return the keys that were named, else the first home's that has one.

    Raises:
        NotFound: a named key is not there.
        Rejected: a key cannot be read.
        Corrupt: the two halves of a home's key do not fit.
    """
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


def own_key(demo: Path, home: Path) -> Doubt | None:
    """Return the doubt about a demo below a home whose key is another than the home's.

    Whoever can write below a home can make such a folder with a key of his own.
    """
    place, root = (Path(os.path.abspath(path)) for path in (demo, home))
    if place.parent != root / "demo":
        return None
    mine, its = (_key_id(path) for path in (root, place))
    if its is not None and its == mine:
        return None
    return Doubt(
        kind=DoubtKind.OTHER_KEY,
        name=f"demo/{place.name}",
        expected=mine or "none",
        found=its or "none",
    )


def _key_id(home: Path) -> str | None:
    try:
        key = shown_key(home)
    except GonogoError:
        return None
    return None if key is None else key.key_id


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
    home = load_settings().home
    path = find_decision(decision, home)
    recorded = load_decision(path)
    own = home_of(path)
    around = look_around(recorded, Path(os.path.abspath(path)), trusted(key, own))
    result = replay_decision(recorded, around, facts_only=facts_only)
    foreign = None if key else own_key(own, home)
    if foreign is not None:
        result = replace(result, not_verified=(foreign, *result.not_verified))
    if as_json:
        said = asdict(result) | {"not_verified": [*map(sentence, result.not_verified)]}
        print_json({"id": recorded.id, **wire_value(said)})
    elif result.equal:
        verdict = decided_text(recorded.decision)
        out.print(f"{recorded.id}: {verdict} again; {result.text}")
    else:
        out.print(f"{recorded.id}: {result.text}", highlight=False, markup=False, soft_wrap=True)
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
        for row in found.problems:
            text = f"{row.decision or row.path}: {row.text}"
            out.print(text, highlight=False, markup=False, soft_wrap=True)
        _print_not_verified(found.not_verified)
        problems = len(found.problems)
        said = "nothing is wrong" if found.ok else f"{problems} problem{'s' * (problems != 1)}"
        out.print(f"{found.decisions} decisions: {said}")
    raise typer.Exit(Exit.OK if found.ok else Exit.UNEXPECTED)


def verify_place(place: Path, keys: Sequence[Path] | None, home: Path) -> Verified:
    """Return what is wrong with a home (and the demos in it), a folder, or one decision.

    Args:
        place: what is checked.
        keys: files of the keys to trust; none: the place's own home's, else `home`'s.
        home: GONOGO_HOME.

    Raises:
        NotFound: there is no such place.
        Rejected: a key is none.
        Corrupt: the two halves of a key do not fit.
    """
    if place.is_file() or (place.is_symlink() and not place.is_dir()):
        return verify_file(place, trusted(keys, home_of(place), home))
    if not place.is_dir():
        raise NotFound(f"{place}: no such home, folder or decision")
    homes, hidden = _homes_in(place)
    parts: dict[Path, Verified] = {}
    if homes or hidden:
        parts = {row / "decisions": _verify_home(row, keys, place) for row in homes}
        parts[place] = _verify_beside(place, keys, home)
        found = _together(parts)
        found = replace(found, problems=[*hidden, *found.problems])
    elif not (place / KEY_FILE).exists() and list(place.glob("*.json")):
        return verify_folder(place, trusted(keys, Path(os.path.abspath(place)).parent, home))
    elif not (place / PUBLIC_FILE).exists():
        raise NotFound(f"{place}: no decision is there, and it is no home")
    else:  # a home keeps more than decisions
        found = verify_folder(place, trusted(keys, place, home), among_others=True)
    if (place / PUBLIC_FILE).exists() and _is_bare(place / "decisions", parts):
        empty = Doubt(kind=DoubtKind.NO_DECISION, name=str(place))
        found = replace(found, not_verified=[empty, *found.not_verified])
    return replace(found, not_verified=[*found.not_verified, *_undecided(place)])


def _undecided(home: Path) -> Iterable[Doubt]:
    """Tell of runs of `gonogo run` whose decision is not there; a service's are not its alone."""
    try:
        runs = find_undecided(home)
    except OSError as error:
        name = str(error.filename or home / "runs")
        yield Doubt(kind=DoubtKind.UNREADABLE, name=name, found=error.strerror)
        return
    if runs:
        yield Doubt(kind=DoubtKind.RUN_UNDECIDED, found=[*runs])


def _is_bare(folder: Path, parts: Mapping[Path, Verified]) -> bool:
    """Say whether a home's own folder holds no decision, right or wrong, or is not there."""
    own = parts.get(folder)
    if own is None:
        return not os.path.lexists(folder)
    return not own.decisions and not own.problems


def _homes_in(place: Path) -> tuple[list[Path], list[Wrong]]:
    """Return the home and the demos in it that hold decisions, and what nobody can look into."""
    hidden: list[Wrong] = []
    demos = _names_in(place / "demo", hidden) or []
    rows = (place, *(place / "demo" / name for name in sorted(demos)))
    return [row for row in rows if _names_in(row / "decisions", hidden) is not None], hidden


def _names_in(folder: Path, hidden: list[Wrong]) -> list[str] | None:
    """Return what is in a folder; None, and why, where it cannot be seen. One not there is none."""
    try:
        return os.listdir(folder)
    except OSError as error:
        gone = isinstance(error, FileNotFoundError | NotADirectoryError)
        if not gone or os.path.lexists(folder):
            text = f"it cannot be listed: {error.strerror}"
            hidden.append(Wrong(decision=None, path=str(folder), text=text))
        return None


def _verify_home(home: Path, keys: Sequence[Path] | None, root: Path) -> Verified:
    """Return what is wrong with a home, `root` or a demo in it."""
    try:
        found = verify_folder(home / "decisions", trusted(keys, home))
    except Corrupt as error:
        path = str(home / PUBLIC_FILE)
        text = error.detail.removeprefix(f"{path} ")
        return Verified(decisions=0, problems=[Wrong(decision=None, path=path, text=text)])
    foreign = None if keys else own_key(home, root)
    return found if foreign is None else replace(found, not_verified=[foreign])


def _verify_beside(place: Path, keys: Sequence[Path] | None, home: Path) -> Verified:
    """Return what is wrong with decisions that lie beside `decisions/`, where nobody looks."""
    try:
        trust = trusted(keys, place, Path(os.path.abspath(place)).parent, home)
    except Corrupt:
        trust = Trust()  # told of the home itself
    return verify_folder(place, trust, among_others=True)


def _together(parts: Mapping[Path, Verified]) -> Verified:
    """Return what several folders came to; what stands in two of them is the end of neither."""
    rows = list(parts.values())
    first: dict[str, Path] = {}
    again = [
        Wrong(
            decision=None,
            path=str(folder),
            text=f"the decision with the hash {hash_[:16]}… stands in {first[hash_]}, too",
        )
        for folder, row in parts.items()
        for hash_ in sorted(set(row.hashes))
        if first.setdefault(hash_, folder) != folder
    ]
    return Verified(
        decisions=sum(row.decisions for row in rows),
        problems=[*(problem for row in rows for problem in row.problems), *again],
        not_verified=[doubt for row in rows for doubt in row.not_verified],
        hashes=tuple(hash_ for row in rows for hash_ in row.hashes),
    )


def _print_not_verified(doubts: Iterable[Doubt]) -> None:
    for doubt in doubts:
        out.print(
            f"  not verified: {sentence(doubt)}", highlight=False, markup=False, soft_wrap=True
        )


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(replay)
    app.command()(verify)
