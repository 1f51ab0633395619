"""Streams by chance: whatever ranks may do, in any order, under every detector and short limits.

Times are multiples of a quarter of a second and limits are short, so that they are reached exactly,
and late lines, pauses, restarts and silences meet. Nothing ends such a run: the watcher looks on
after a halt, and how near every detector is to its limit is recorded again and again. Then the run
directory is judged, and its facts are recorded as well.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gonogo.contract.heartbeat import Identity
from gonogo.contract.plan import CheckpointCadence
from gonogo.contract.watch import CanHalt, Watch
from gonogo.watch.fold import WatchState, near
from gonogo.watch.registry import detector_names
from tests.scenarios import faults
from tests.scenarios.scenario import Outcome, Scenario, outcome_of, outcome_of_watch, rounded
from tests.watch.detectors.devices import sample
from tests.watch.detectors.host import checkpoint, disk, memory
from tests.watch.streams import EPOCH, IDENTITY, T0, Rank, World, order_of, watch, without_sections

SEEDS = 64
LOOKS = 8
"""How often the distances of a run are recorded."""
TICK_S = 0.5
SECTIONS = ("data", "checkpoint", "eval", "log", "rollout", None)
TEMPOS_S = ((0.5,), (1.0,), (1.0, 2.0), (2.0,), (0.5, 4.0), (4.0,))
"""Seconds of steps, by turns."""
PROGRAMS: dict[str, dict[str, Any]] = {
    **faults.PROGRAMS,
    "printed": {"command": ["x"], "patterns": ["x"]},
}
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 6.0, 8.0)
WATCH: dict[str, Any] = {
    "stall": {
        "suspect_s": 2, "halt_s": 6, "halt_x": 4, "min_steps": 4, "early_s": 8, "corroborate_s": 3,
    },
    "alive_lost": {"suspect_s": 4, "halt_s": 8},
    "no_first_heartbeat": {"exec_s": 4, "boot_s": 6, "first_step_s": 8},
    "section_deadline": {
        "data": {"suspect_s": 2, "halt_s": 6}, "checkpoint": {"halt_s": 8}, "eval": {"halt_s": 8},
        "log": {"halt_s": 4}, "out_of_section": {"halt_s": 4},
    },
    "slow": {
        "warmup_steps": 2, "baseline_steps": 6, "window_steps": 10, "warn_over_s": 4, "over_s": 8,
        "floor_over_s": 4, "hard_floor_over_steps": 3, "floor_tok_s": 2048,
    },
    "non_finite": {"fp16_running": 3, "fp16_window_steps": 12, "fp16_skipped": 4},
    "frozen": {"loss_steps": 4, "grad_norm_steps": 8},
    "gradients": {"zero_steps": 2, "window_steps": 16, "spike_x": 2, "clip_steps": 8},
    "divergence": {"after_step": 8, "over_steps": 4, "window_steps": 16},
    "memory_leak": {"min_samples": 8, "window_samples": 16, "halt_eta_s": 99, "limit_mb": 300},
    "memory_limit": {"reserved_mb": 512, "samples": 2},
    "imbalance": {"over_s": 8},
    "loader": {"window_steps": 8, "over_s": 4},
    "straggler": {"window_steps": 4, "windows": 1},
    "hygiene": {"skew_s": 1},
    "disk": {"warn_mb": 2000, "warn_checkpoints": 2},
    "hardware": {"throttled_s": 4},
    "watcher": {"away_s": 2},
    "restart_storm": {"starts": 2, "within_s": 60},
    "implausible_speed": {"over_steps": 4},
    "process_death": {"settle_s": 1},
}  # fmt: skip
WARNS = {
    name: {**WATCH.get(name, {}), "action": "warn"}
    for name, field in Watch.model_fields.items()
    if isinstance(field.default, CanHalt)
}
"""The same where no finding ends a run."""


def scenarios() -> Iterator[Scenario]:
    """Yield the streams."""
    for seed in range(SEEDS):
        yield Scenario(f"chance/{seed}", partial(_watched, seed))


def _watched(seed: int) -> Outcome:
    """Return what a watcher and the judge make of a stream."""
    dice = random.Random(f"chance/{seed}")
    world, distances = Life(dice).world, list[Any]()
    every = max(1, round((world.mono - T0) / TICK_S / LOOKS))
    looks = 0

    def look(state: WatchState, mono: float) -> None:
        nonlocal looks
        looks += 1
        if looks % every == 0:
            rows = near(state, mono).items()
            told = {name: [row.value, row.limit, row.time_left_s] for name, row in rows}
            known = {name: row for name, row in told.items() if row != [None] * 3}
            below = sorted(name for name, row in rows if row.below)
            distances.append({**known, "below": below})

    shuffle = _disorder(dice) if dice.random() < 0.5 else lambda lines: lines
    seen = watch(world, interval_s=TICK_S, shuffle=shuffle, stop_at_halt=False, after=look)
    outcome = {**outcome_of_watch(seen.findings, {}), "distances": rounded(distances)}
    with tempfile.TemporaryDirectory() as folder:
        judged = outcome_of(seen.save(Path(folder) / "run"), now=EPOCH + world.mono - T0 + 5.0)
    return {**outcome, "judged": judged}


def _disorder(dice: random.Random) -> Callable[[list[bytes]], list[bytes]]:
    """Return what doubles, swaps, drops and tears lines, now and then."""

    def shuffle(lines: list[bytes]) -> list[bytes]:
        rows = [line for line in lines if dice.random() > 0.01]
        chance, at = dice.random(), dice.randrange(len(lines))
        if chance < 0.05:
            rows.insert(at, lines[at])
        elif chance < 0.1:
            rows.reverse()
        elif chance < 0.12:
            rows.append(lines[at][: len(lines[at]) // 2])
        return rows

    return shuffle


class Life:
    """Lets ranks do one thing after the other, as the dice say."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        one = dice.choice
        program, ranks = one(list(PROGRAMS)), one((1, 2, 2, 2, 3))
        cadence = one(({}, {"every_steps": 8}, {"every_s": 8.0}, {"every_steps": 4, "every_s": 20}))
        ordered = {
            "dtype": one(("fp32", "fp16", None)), "layers": 2, "vocab": one((None, 256)),
            "tokens_per_step": one((2048, None)), "dim": one((None, 4)),
        }  # fmt: skip
        identity = Identity(**{**IDENTITY.model_dump(), **ordered})
        watch = WATCH if dice.random() < 0.6 else {**WATCH, **WARNS}
        order = order_of(
            watch,
            steps=one((20, 40, 400)),
            world_size=ranks,
            identity=identity,
            detectors=detector_names(),
            checkpoint=CheckpointCadence(**cadence),
            resume_step=one((None, None, None, 4)),
            nodes=1 if ranks % 2 else one((1, 1, 2)),
            train={"optim": {"clip": 1.0}},
            **PROGRAMS[program],
        )
        self.world = World(order, alive_every_s=one((0.5, 1.0, 4.0)))
        self._ends_steps, self._late = dice.random() < 0.7, dice.random() < 0.2
        """Whether ranks write `step_end`, and whether they write numbers a step late."""
        self._silent_steps = dice.random() < 0.15
        """Whether ranks write no `step_start`."""
        self._told = dict[str, Any]()
        self._tempo_s: tuple[float, ...] = TEMPOS_S[0]
        self._tokens = 2048
        self._held_mb, self._slope_mb = 100.0, dice.choice((0.0, 0.0, 1.0, 4.0))
        self._live()
        if program == "printed" or dice.random() < 0.2:
            for rank in self.world.ranks:
                rank.section = None
                rank.lines = [without_sections(said) for said in rank.lines]

    def _live(self) -> None:
        dice, world = self._dice, self.world
        world.boot(boot_s=dice.choice((0.5, 2.0, 5.0)), load_s=dice.choice((0.5, 2.0, 7.0)))
        acts = PLACES if dice.random() < 0.4 else {**PLACES, **NUMBERS}
        for _ in range(dice.choice((10, 20, 30))):
            (name,) = dice.choices(list(acts), weights=list(acts.values()))
            getattr(self, f"_{name}")()
        if dice.random() < 0.3:
            world.meet()
            world.finish()

    def _ranks(self) -> Sequence[Rank]:
        """Return all ranks, or some."""
        ranks = self.world.ranks
        return ranks if self._dice.random() < 0.6 else [self._dice.choice(ranks)]

    def _steps(self) -> None:
        """A few steps, together or apart."""
        for _ in range(self._dice.choice((1, 2, 4, 8))):
            self._step()

    def _step(self) -> None:
        world, one = self.world, self._dice.choice
        for rank in world.ranks:
            rank.step += 1
            rank.in_step = True
            rank.enter("data")
            if not self._silent_steps:
                rank.say("step_start")
            if self._late and rank.step > 1:
                self._progress(rank, rank.step - 1)
            rank.spend(one((0.0, 0.25, 0.25, 1.0)))
        if self._dice.random() < 0.1:
            self._pause()
        world.compute(step_s=[one(self._tempo_s) for _ in world.ranks])
        for rank in world.ranks:
            if not self._late and self._dice.random() < 0.9:
                self._progress(rank, rank.step)
            rank.enter(None)
            if self._ends_steps:
                sections = {"data": 0.25, "forward": 0.25, "wait": one((0.0, 0.25))}
                rank.say("step_end", tokens=self._tokens, step_sections=sections)
            rank.in_step = False

    def _progress(self, rank: Rank, step: int) -> None:
        now, rank.step = rank.step, step
        self._held_mb += self._slope_mb
        said = {"loss": 3.0, "grad_norm": 1.0, "host_rss_mb": self._held_mb, **self._told}
        rank.say("progress", **said, **({} if self._ends_steps else {"tokens": self._tokens}))
        rank.step = now

    def _tempo(self) -> None:
        """Steps take another time from here on, or have other numbers of tokens."""
        self._tempo_s = self._dice.choice(TEMPOS_S)
        self._tokens = self._dice.choice((2048, 2048, 1024, 4096, 0))

    def _again(self) -> None:
        """The training is done, and the same processes begin another one."""
        for rank in self.world.ranks:
            rank.say("done")
            rank.boot, rank.seq, rank.in_step, rank.step = f"{rank.boot}*", 0, False, 0
            rank.say("boot", **self.world.order.identity.model_dump(mode="json", exclude_none=True))
            rank.enter(None)

    def _numbers(self) -> None:
        """Other numbers from here on."""
        one = self._dice.choice
        fields: dict[str, tuple[Any, ...]] = {
            "loss": (2.0, 2.5, 4.0, "NaN", None, 0.0),
            "grad_norm": (0.0, 1.0, 2.0, 4.0, "Infinity"),
            "skipped": (True, False),
            "gpu_mem_reserved": (256.0, 600.0),
            "toks_per_s": (2048.0, 10_000.0),
            "dt_fetch_s": (0.0, 0.25, 1.0),
            "gate_collapse_frac": (0.0, 1.0),
        }
        self._told = {name: one(fields[name]) for name in self._dice.sample(list(fields), 4)}

    def _pause(self) -> None:
        """Some ranks spend time in a section, and may write what it took."""
        section, seconds = self._dice.choice(SECTIONS), self._dice.choice(PAUSES_S)
        pauses = section in ("checkpoint", "eval") and self._dice.random() < 0.6
        msg = section if pauses else None
        for rank in self._ranks():
            before = rank.section
            if self._dice.random() < 0.9:
                rank.enter(section)
            rank.spend(seconds)
            if msg is not None:
                rank.say(msg, dt=self._dice.choice((None, seconds, 0.5)))
            rank.enter(before if rank.in_step else None)

    def _wait(self) -> None:
        """Nothing happens for a while; ranks may fall silent meanwhile."""
        seconds, silent = self._dice.choice(PAUSES_S), self._dice.random() < 0.4
        ranks = self._ranks()
        for rank in ranks:
            rank.stopped = silent
            rank.spend(seconds)
            rank.stopped = False

    def _meet(self) -> None:
        self.world.meet()

    def _suspend(self) -> None:
        self.world.suspend(self._dice.choice((20.0, 100.0)))

    def _restart(self) -> None:
        """Some ranks restart in place at an earlier step."""
        back = self._dice.choice((0, 1, 4, 100))
        for rank in self._ranks():
            rank.boot, rank.seq, rank.in_step = f"{rank.boot}+", 0, False
            rank.step, rank.section = max(0, rank.step - back), "boot"
            identity = self.world.order.identity.model_dump(mode="json", exclude_none=True)
            rank.say("boot", **identity, backend="DDP")
            rank.spend(self._dice.choice((0.5, 2.0)))
            rank.enter(None)

    def _clock(self) -> None:
        """The wall clock of a rank is set."""
        self._dice.choice(self.world.ranks).wall_off_s = self._dice.choice(
            (-3.0, 0.0, 0.5, 1.0, 1.5)
        )

    def _process(self) -> None:
        """The watcher finds a process held or gone, and reads stacks."""
        rank, one = self._dice.choice(self.world.ranks), self._dice.choice
        state = one(("alive", "alive", "stopped", "uninterruptible", "unknown", "dead"))
        told = dict[str, Any]()
        if state == "dead":
            told = {"code": one((0, 1, 143, None)), "signal": one((None, None, 9, 15))}
        if self._dice.random() < 0.2:
            self.world.probes.append((self.world.mono, {"agent": {"state": state, **told}}))
            return
        if state == "dead":
            ago_s = one((None, 0.0, 0.25, 1.0))
            told["exit_at"] = None if ago_s is None else EPOCH + self.world.mono - T0 - ago_s
            told["lost_peer"] = one((False, False, True))
        self.world.probe(rank.rank, state, **told)

    def _node(self) -> None:
        """A node falls silent, is heard again, or is lost."""
        node, nodes = self._dice.choice((0, 1)), self.world.order.nodes
        state = self._dice.choice(("heard", "silent", "silent", "lost", "ended"))
        if node < nodes > 1:
            self.world.probes.append((self.world.mono, {"nodes": [{"node": node, "state": state}]}))

    def _stacks(self) -> None:
        one = self._dice.choice
        rows = [
            {
                "rank": rank.rank, "frame": one(("sem_wait", "gloo::wait")),
                "waiting": one((True, False, None)), "digest": one(("a", "b")),
                "cpu_s": one((1.0, 2.0)),
            }
            for rank in self.world.ranks
        ]  # fmt: skip
        self.world.probes.append((self.world.mono, {"stacks": rows}))

    def _error(self) -> None:
        texts = ("No space left on device", "Errno 30", "Errno 122", "CUDA out of memory", "x")
        text = self._dice.choice(texts)
        self._dice.choice(self.world.ranks).say("error", type="OSError", text=text)

    def _host(self) -> None:
        """The watcher's probes see disk, memory, processors, checkpoints and devices."""
        one, mono, ranks = self._dice.choice, self.world.mono, self.world.ranks
        kinds: dict[str, Any] = {
            "disk": {
                **disk(one((32.0, 500.0, 1_000.0, 2_000.0)), free_files=one((None, 5, 16))),
                "checkpoints_mb": one((None, None, 500.0, 1_000.0, 2_000.0)),
                "refused": one((False, False, True)), "read_only": one((False, False, True)),
                "saving": one((False, False, True)),  # of earlier watchers
            },
            "host_memory": memory(
                one((100.0, 900.0, 960.0)), one((1000.0, 1000.0, None)), {"0": one((450.0, 600.0))}
            ),
            "preflight_peak": {"flops": one((1e9, 4e9, 1e10)), "of": one((None, "cpu", "cuda"))},
            "hosts_memory": [
                memory(one((100.0, 900.0, 960.0)), 1000.0, {str(rank.rank): one((100.0, 600.0))})
                for rank in ranks
            ],
            "host_cpu": {
                "over_s": one((2.0, 4.0)), "cores": 4, "pressure": one((None, 0.5)),
                "waited": one(({}, {"0": 0.5}, {"0": 0.5, "1": 0.75})),
                "others_cores": one((0.5, 1.0, 3.0)),
            },
            "checkpoints": [
                {
                    **checkpoint(max(1, ranks[0].step - one((0, 4))), text=one(("", "", "torn"))),
                    "gone": one((False, False, True)), "reads_bytes": one((0, 0, 0, 1)),
                }
            ],
            "devices": [
                sample(
                    mono, rank.rank, util=one((None, 50.0, 80.0, 100.0, 120.0, -1.0, 0.0)),
                    mem_total_mb=one((1000.0, 1000.0, 0.0)),
                    mem_used_mb=one((0.0, 500.0, 950.0, -1.0)),
                    throttle=one(([], ["hw_slowdown"])), ecc_uncorrected=one((0, 0, 1)),
                    own_mono=one((None, None, 90.0 + mono)), xids=one(([],) * 6 + ([31], [79])),
                )
                for rank in ranks
            ],
        }  # fmt: skip
        told = self._dice.sample(list(kinds), one((1, 2, 5)))
        self.world.probes.append((mono, {"observations": {name: kinds[name] for name in told}}))


PLACES = {
    "steps": 10,
    "tempo": 3,
    "again": 0.2,
    "pause": 5,
    "wait": 3,
    "meet": 2,
    "suspend": 0.3,
    "restart": 0.6,
    "stacks": 1,
    "process": 0.4,
}
"""What may happen → how often: where ranks stand."""
NUMBERS = {"numbers": 4, "clock": 0.3, "error": 0.2, "host": 5, "node": 0.5}
"""And what they report, and what the watcher's probes see."""
