"""D8: tokens a second, recomputed, against the floor and the run's own baseline."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gonogo.contract.finding import Severity
from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.observation import HostCpu
from gonogo.contract.outcome import Detector
from gonogo.contract.records import Tick
from gonogo.timeline.lines import Arrival
from gonogo.timeline.rank import RankStream
from gonogo.watch.detectors.slow import Sample, Slow, _typical_s, _window, starved_s
from gonogo.watch.fold import armed
from gonogo.watch.offline_fold import not_observed
from gonogo.watch.view import Beat, Run, View
from tests.watch.streams import EPOCH, Said, Watched, World, order_of, watch


def run_of(watch_settings: dict[str, Any] | None = None, **fields: Any) -> World:
    order = order_of(watch_settings, steps=5000, world_size=1, **fields)
    return World(order, alive_every_s=5).boot()


def test_checkpoint_and_eval_are_no_step_time() -> None:
    world = run_of().steps(19)
    for _ in range(8):
        world.pause("checkpoint", 4.0).pause("eval", 3.0).steps(1)
    assert watch(world).halts == []


def test_half_speed_warns_then_halts_on_time() -> None:
    world = run_of({}).steps(230, step_s=2.0).steps(500, step_s=4.0)
    found = watch(world, interval_s=1.0)
    (warn,) = found.of(Severity.WARN)
    (halt,) = found.halts
    assert (warn.detector, warn.threshold) == ("slow", 1.33)
    assert (halt.detector, halt.threshold) == ("slow", 1.67)
    slowed = 300.0 < halt.at - (warn.at - 300.0) <= 700.0
    assert slowed


def test_the_longest_of_sixteen_steps_is_not_in_the_mean() -> None:
    samples = [Sample(step_s, 1, 0.0, 0.0) for step_s in (*[1.0] * 15, 33.0)]
    assert (_typical_s(samples), _typical_s(samples[1:])) == ((1.0, 1.0), (1.0, 1.0))


def told(world: World, count: int, *, step_s: float, tokens: int) -> World:
    """Steps whose ends report so many tokens."""
    for _ in range(count):
        world.open_step()
        world.compute(step_s=step_s)
        for rank in world.ranks:
            rank.say("progress", loss=5.0 - 0.001 * rank.step)
            rank.enter(None)
            rank.say("step_end", tokens=tokens)
            rank.in_step = False
    return world


@pytest.mark.parametrize("floor", [None, 1900.0])
def test_steps_of_more_tokens_may_take_as_much_longer(floor: float | None) -> None:
    world = told(run_of({"slow": {"floor_tok_s": floor}}), 300, step_s=1.0, tokens=1024)
    told(world, 400, step_s=2.0, tokens=2048)
    told(world, 300, step_s=4.0, tokens=4096)
    assert watch(world, interval_s=2.0).findings == []
    told(world, 200, step_s=9.0, tokens=4096)
    assert watch(world, interval_s=2.0).named(Severity.HALT) == {"slow"}


def in_blocks(blocks: Sequence[tuple[int, float]]) -> World:
    """A program that is only read, and whose lines come in blocks: so many, after so many seconds.

    Its reader says that it lives, and spreads a block over the time since it last did.
    """
    order = order_of({}, world_size=1, steps=100_000)
    world = World(order.model_copy(update={"patterns": ["x"], "command": ["x"]}))
    (rank,) = world.ranks
    rank.section, rank.section_seq = None, 0
    for number, (lines, seconds) in enumerate(blocks):
        end, alive_s = rank.mono + seconds, (0.5, 4.5, 2.0)[number % 3]
        while rank.mono + 5.0 < end - alive_s:
            rank.mono += 5.0
            rank.say("alive")
        began = rank.mono = end - alive_s
        rank.say("alive")
        for line in range(1, lines + 1):
            rank.mono = began + alive_s * line / lines
            rank.step += 1
            rank.say("progress", loss=5.0 - 0.0001 * rank.step)
            rank.lines[-1] = Said(end, rank.lines[-1].raw)
    return world


def test_lines_that_come_in_blocks_are_timed_by_the_block() -> None:
    block = (60, 600.0)
    seen = watch(in_blocks([block] * 20), interval_s=10.0)
    assert (seen.halts, seen.named(Severity.WARN)) == ([], set())
    slower = watch(in_blocks([block] * 12 + [(60, 1_500.0)] * 6), interval_s=10.0)
    assert slower.named(Severity.HALT) == {"slow"}


def restarted(world: World) -> World:
    """Every rank restarts in place."""
    for rank in world.ranks:
        rank.spend(5.0)
        rank.boot, rank.seq, rank.section, rank.section_seq = "again", 0, "boot", 0
        rank.in_step = False
        rank.say("boot", **world.order.identity.model_dump(mode="json", exclude_none=True))
        rank.enter(None)
    return world


@pytest.mark.parametrize(("step_s", "found"), [(1.0, set()), (5.0, {"slow"})])
def test_a_restart_in_place_keeps_the_baseline(step_s: float, found: set[str]) -> None:
    world = restarted(run_of({}).steps(300, step_s=1.0))
    world.steps(20, step_s=20.0).steps(280, step_s=step_s)
    seen = watch(world, interval_s=2.0)
    assert seen.named(Severity.HALT) == found
    assert all((halt.step or 0) > 300 + 20 + 100 for halt in seen.halts)


def test_every_step_below_the_hard_floor_halts_at_the_fifth() -> None:
    settings = {"slow": {"floor_tok_s": 2048.0}}
    world = run_of(settings).steps(30, step_s=0.9).steps(6, step_s=6.1)
    (halt,) = watch(world).halts
    assert (halt.detector, halt.step, halt.rank) == ("slow", 35, None)
    assert halt.value == pytest.approx(2048 / 6.11, rel=0.01)


def test_tokens_are_the_ordered_ones_not_the_reported() -> None:
    settings = {"slow": {"floor_tok_s": 2048.0}}
    world = run_of(settings)
    for _ in range(40):
        world.open_step()
        world.compute(step_s=2.2)
        for rank in world.ranks:
            rank.say("progress", loss=5.0, toks_per_s=1e6)
            rank.enter(None)
            rank.say("step_end", tokens=10**6)
            rank.in_step = False
    assert watch(world).named(Severity.HALT) == {"slow"}


def test_it_is_armed_by_its_baseline() -> None:
    assert not armed(watch(run_of().steps(10)).state)[Detector.SLOW]
    assert armed(watch(run_of().steps(20)).state)[Detector.SLOW]


WARN, HALT = Severity.WARN, Severity.HALT


def host(busy_s: float, waited: Sequence[float] = (0.6, 0.6), **fields: Any) -> dict[str, Any]:
    """What the watcher saw of the processors over `busy_s` seconds."""
    return {
        "over_s": busy_s,
        "cores": 2,
        "pressure": 0.99,
        "waited": {str(rank): share for rank, share in enumerate(waited)},
        "others_cores": 1.4,
        **fields,
    }


def slowed(*looks: dict[str, Any] | None, own_x: float = 6.0, steps: int = 30) -> Watched:
    """A demo whose steps of 0.6 s take `own_x` times as long from step 25 on.

    There is a look every 2 s; of several, one after the other.
    """
    world = run_of().steps(24, step_s=0.6)
    began = world.mono
    world.steps(steps, step_s=0.6 * own_x)
    for n in range(int((world.mono - began) / 2.0)):
        if (seen := looks[n % len(looks)]) is not None:
            world.probes.append((began + 2.0 * n, {"observations": {"host_cpu": seen}}))
    return watch(world)


def test_a_starved_host_is_no_slow_run() -> None:
    seen = slowed(host(2.0, (0.75, 0.71)))
    assert seen.halts == []
    (warn,) = [row for row in seen.of(Severity.WARN) if row.detector == "slow"]
    assert "the host is busy: 1.4 of 2 cores used by others, 7" in warn.text
    texts = map(str, not_observed(seen.state))
    assert any("Slow steps were not judged: the host is busy" in text for text in texts)


@pytest.mark.parametrize(
    "seen",
    [
        None, host(2.0, (0.75, 0.05)), host(2.0, (0.3, 0.3)),
        host(2.0, (0.75, 0.75), others_cores=0.2), host(2.0, (0.75, 0.75), others_cores=None),
        host(2.0, (), pressure=0.2), host(2.0, (), pressure=None),
    ],
    ids=["quiet", "one rank", "little", "by itself", "unknown", "pressure low", "no pressure"],
)  # fmt: skip
def test_a_slow_run_is_halted_where_others_do_not_explain_it(seen: dict[str, Any] | None) -> None:
    (halt,) = slowed(seen).halts
    assert halt.detector == "slow"


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ({"waited": {"0": 0.5, "1": 0.75}, "others_cores": 1.0}, 2.0),
        ({"waited": {"0": 0.5, "1": 0.75}, "others_cores": 0.99}, 0.0),
        ({"waited": {"0": 0.5}}, 0.0),
        ({"pressure": 0.25, "others_cores": 4.0}, 1.0),
        ({"others_cores": 4.0}, 0.0),
    ],
)
def test_the_rank_that_waited_least_says_how_long_all_starved(
    told: dict[str, Any], seconds: float
) -> None:
    assert starved_s(HostCpu(over_s=4.0, cores=4, **told)) == seconds


@pytest.mark.parametrize(
    ("window_steps", "step_s", "first"),
    [
        (64, 30.0, 64), (64, 30.25, 16), (64, 61.0, 16), (64, 8.0, 64), (4, 8.0, 4), (4, 60.0, 4),
        (16, 60.0, 16),
    ],
)  # fmt: skip
def test_a_window_may_be_shorter_where_steps_are_long(
    window_steps: int, step_s: float, first: int
) -> None:
    timed = Timed(window_steps=window_steps, floor_tok_s=4096.0)
    timed.ends([step_s] * 70)
    assert timed.found == [(HALT, first + 1, f"step{first}")]


LEAST_S = 0.25


EXACT: dict[str, Any] = {
    "warmup_steps": 0,
    "baseline_steps": 4,
    "window_steps": 4,
    "hard_floor_over_steps": 0,
    "warn_ratio": 1.5,
    "halt_ratio": 3.0,
    "warn_over_s": LEAST_S,
    "over_s": LEAST_S,
    "floor_over_s": LEAST_S,
}


class Timed:
    """Ends of steps, of exactly so many seconds, as the rule is shown them."""

    def __init__(
        self,
        tokens_per_step: int | None = 2048,
        *,
        is_read: bool = False,
        labelled: bool | None = None,
        **settings: Any,
    ) -> None:
        read: dict[str, Any] = {"patterns": ["x"], "command": ["x"]} if is_read else {}
        order = order_of({"slow": {**EXACT, **settings}}, steps=5000, **read)
        identity = order.identity.model_copy(update={"tokens_per_step": tokens_per_step})
        run = Run(order=order.model_copy(update={"identity": identity}))
        self.view = View(run=run)
        self.rule = Slow(run)
        self.own = self.rule.begin()
        self.found: list[tuple[Severity, int | None, str]] = []
        """What, at which step it was found, and in which episode; each key once."""
        self.texts: list[str] = []
        self._keys: set[str] = set()
        self._mono = 1000.0
        self._labelled = not is_read if labelled is None else labelled
        self.boot(0, "first")

    def boot(self, rank: int, boot: str) -> "Timed":
        """Start a process of a rank, at step 0."""
        stream = RankStream(rank=rank, boot=boot, labelled=self._labelled)
        stream.pace.end(0, self._mono)
        self.view.streams[rank] = stream
        return self

    def ends(self, seconds: Sequence[float], rank: int = 0, told: int = 1) -> "Timed":
        """End steps of these durations; each is reported by `told` lines."""
        stream = self.view.streams[rank]
        for step_s in seconds:
            self._mono += step_s
            step = (stream.pace.last_step or 0) + 1
            stream.pace.end(step, self._mono)
            for _ in range(told):
                self._tell(stream, step)
        return self

    def _tell(self, stream: RankStream, step: int) -> None:
        line = Heartbeat(
            ts=EPOCH, mono=self._mono, pid=1, rank=stream.rank, boot=stream.boot or "", seq=step,
            step=step, msg="step_end",
        )  # fmt: skip
        beat = Beat(line=line, arrival=Arrival.NEW, tick=Tick(n=step, mono=self._mono, ts=EPOCH))
        self.own, findings = self.rule.observe_line(self.own, beat, self.view)
        for finding in findings:
            if finding.key not in self._keys:
                self._keys.add(finding.key)
                episode = finding.key.rpartition("/")[2]
                self.found.append((finding.severity, finding.step, episode))
                self.texts.append(finding.text)


def test_one_rank_is_timed_and_each_of_its_steps_once() -> None:
    timed = Timed(floor_tok_s=4096.0, floor_ratio=0.5)
    timed.ends([0.5]).boot(1, "other").ends([9.0] * 40, rank=1)
    assert timed.found == []
    timed.ends([9.0] * 2, told=3)
    assert timed.found == []
    assert timed.ends([9.0] * 2).found == [(HALT, 5, "step4")]


@pytest.mark.parametrize(("step_s", "halts"), [(3.0, []), (3.25, [9])])
def test_the_last_steps_have_to_pass_the_limit(step_s: float, halts: list[int]) -> None:
    timed = Timed(over_steps=5).ends([1.0] * 4).ends([step_s] * 6)
    assert [step for severity, step, _ in timed.found if severity is HALT] == halts


@pytest.mark.parametrize(
    ("step_s", "found"),
    [(1.5, []), (1.625, [(WARN, 9, "step8")]), (3.0, [(WARN, 7, "step6")])],
    ids=["at the limit of a warning", "beyond it", "at the limit of a halt"],
)
def test_the_relative_limits_have_to_be_passed(
    step_s: float, found: list[tuple[Severity, int, str]]
) -> None:
    timed = Timed().ends([1.0] * 4).ends([step_s] * 5)
    assert timed.found == found


def test_the_text_of_a_floor_names_tokens() -> None:
    timed = Timed(floor_tok_s=4096.0, floor_ratio=0.75).ends([1.0] * 6)
    assert timed.texts[0].startswith("2048 tokens/s over 4 steps for ")
    assert timed.texts[0].endswith(" (limit 3072)")


@pytest.mark.parametrize(("over_s", "step"), [(4.0, 9), (6.0, 10), (6.25, 11)])
def test_a_condition_has_to_hold_for_its_seconds(over_s: float, step: int) -> None:
    timed = Timed(warn_over_s=over_s).ends([1.0] * 4).ends([2.0] * 8)
    assert timed.found == [(WARN, step, "step7")]


def test_steps_of_the_warm_up_are_not_timed() -> None:
    timed = Timed(warmup_steps=2).ends([1.0, 99.0]).ends([1.0] * 4).ends([2.0] * 8)
    assert timed.found == [(WARN, 10, "step9")]


@pytest.mark.parametrize(("tokens", "severity"), [(None, WARN), (2048, HALT)])
def test_a_printed_program_halts_only_if_its_tokens_are_known(
    tokens: int | None, severity: Severity
) -> None:
    timed = Timed(tokens, is_read=True).ends([1.0] * 5).ends([4.0] * 8)
    assert {row[2]: row[0] for row in timed.found if row[1] == timed.found[-1][1]} == {
        timed.found[-1][2]: severity
    }


def test_a_program_with_sections_is_timed_by_its_lines_not_by_what_it_prints() -> None:
    timed = Timed(is_read=True, labelled=True).ends([1.0] * 4).ends([2.0] * 8)
    assert timed.found == Timed().ends([1.0] * 4).ends([2.0] * 8).found


def test_a_condition_is_found_at_a_fast_step_too() -> None:
    timed = Timed(warn_over_s=5.0).ends([1.0] * 4).ends([2.0] * 5).ends([1.0])
    assert timed.found == [(WARN, 10, "step7")]


def test_a_condition_may_begin_at_a_step_below_the_mean_limit() -> None:
    """The first steps have the median 1.0 and the mean 1.2."""
    timed = Timed().ends([1.0, 1.0, 1.0, 1.8]).ends([1.5, 1.9, 1.9, 1.79, 1.79, 1.79])
    assert timed.found == [(WARN, 10, "step9")]


def test_one_step_may_be_the_hard_floor() -> None:
    timed = Timed(hard_floor_over_steps=1, floor_tok_s=4096.0, floor_over_s=1e6)
    assert timed.ends([40.0]).found == [(HALT, 1, "step1")]


@pytest.mark.parametrize(("waited_s", "severity"), [(4.5, HALT), (4.75, WARN)])
def test_a_busy_host_explains_half_of_the_lost_time(waited_s: float, severity: Severity) -> None:
    """Steps of four times the baseline lose three quarters; 4.5 s of 12 s are the half of them."""
    timed = Timed(warn_ratio=2.5, warn_over_s=1e6).ends([1.0] * 4).ends([4.0])
    timed.own = replace(timed.own, waited_s=waited_s)
    found = {row[0] for row in timed.ends([4.0] * 3).found if row[1] == 8}
    assert found == {severity}


def test_near_is_a_halt_and_not_a_warning() -> None:
    timed = Timed().boot(1, "other").ends([1.0] * 8, rank=1)
    del timed.view.streams[0]
    near = timed.rule.measure(timed.own, timed.view, 0.0)
    assert (near.value, near.limit) == (1.0, 3.0)


def test_the_median_of_few_steps_says_that_they_are_long() -> None:
    times_s = [31.0] * 4 + [1.0] * 2
    rows = [Sample(step_s=step_s, steps=1, mono=0.0, waited_s=0.0) for step_s in times_s]
    assert len(_window(rows, 64, few=4)) == 6


def test_a_step_without_a_count_of_tokens_counts_as_usual() -> None:
    timed = Timed(None)
    timed.view.streams[0].tokens = 100
    timed.ends([1.0] * 4)
    timed.view.streams[0].tokens = 0
    assert timed.ends([1.0] * 4).found == []


def test_printed_steps_of_one_moment_are_not_timed() -> None:
    timed = Timed(is_read=True).ends([1.0, 0.0] * 2).ends([1.0] * 8)
    assert timed.found == []


def test_what_keeps_the_host_busy_is_named_after_a_quiet_look_too() -> None:
    quiet = host(2.0, others_cores=0.2)
    seen = slowed(host(2.0, (0.95, 0.95)), host(2.0, (0.95, 0.95)), quiet)
    (warn,) = [row for row in seen.of(Severity.WARN) if row.detector == "slow"]
    assert "the host is busy: 1.4 of 2 cores used by others" in warn.text


def test_a_lost_step_end_still_counts_its_step() -> None:
    world = run_of().steps(19).steps(5, step_s=2.5)
    for rank in world.ranks:
        rank.lines = [
            line
            for line in rank.lines
            if not (b'"step_end"' in line.raw and b'"step": 22,' in line.raw)
        ]
    (halt,) = watch(world).halts
    assert halt.step == 23


@pytest.mark.parametrize(("short_s", "halts"), [(1.625, 0), (1.75, 1)])
def test_a_halt_requires_a_risen_mean_too(short_s: float, halts: int) -> None:
    """Three of five steps take 2.25 times the baseline; the mean is at twice, or above."""
    timed = Timed(window_steps=5, halt_ratio=2.0, over_s=9.0).ends([1.0] * 4)
    timed.ends([2.25, short_s, 2.25, short_s, 2.25] * 6)
    assert len([row for row in timed.found if row[0] is HALT]) == halts


def test_a_baseline_of_long_steps_needs_more_than_one() -> None:
    world = run_of().steps(5, step_s=40.0).steps(1, step_s=80.0).steps(13, step_s=40.0)
    assert watch(world.steps(8, step_s=200.0), interval_s=5.0).named(Severity.HALT) == {"slow"}
