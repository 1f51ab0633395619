"""What does the watch say of one simulated run? Healthy or sick; pure.

A healthy run must not be halted, from its boot to its normal end. A sick run must be answered by
the right detector, with the right rank and section, after its onset.
"""

import math
import random
from collections import Counter
from dataclasses import replace
from typing import Any

from gonogo.contract.finding import Finding, Near, Severity
from gonogo.contract.heartbeat import Identity
from gonogo.contract.order import Order
from gonogo.contract.watch import Watch, halts_asked
from gonogo.contract.workload import OURS
from gonogo.watch.registry import detector_names
from lab.faults import FAULTS, Fault
from lab.noise import PLAIN, Noise, Script, draw_habits, draw_script
from lab.numbers import LOSSES, Loss
from lab.plan import Part
from lab.scripted import Scripted
from lab.tally import Answer, Halt, Tally
from lab.training import Training
from lab.watcher import Watcher

T0 = 5000.0
SICK_STEPS = 20_000
TOKENS, VOCAB = 2**15, 256
NO_LANGUAGE, REWARDED = frozenset({"gan", "ppo"}), frozenset({"grpo"})
"""Kinds of losses that no language model has, and one that has, but not of its first words."""
FLOOR_SHARE = 0.85
"""Floor of a plan that has one, as a share of the run's natural speed."""
OF_NAME = {row.name: row for row in FAULTS}


def simulate_part(part: Part) -> Tally:
    """Simulate one run; the same part gives the same tally."""
    training, watcher = _watched(part)
    if part.sick:
        return Tally(answers=(_answer(part, OF_NAME[part.sick], training.onset, watcher),))
    return _healthy(part, training, watcher)


def watched(part: Part) -> tuple[list[Finding], dict[str, Near]]:
    """Simulate one run; return what its watcher found, and how near each detector is at the end."""
    watcher = _watched(part)[1]
    return watcher.findings, watcher.near()


def _watched(part: Part) -> tuple[Training, Watcher]:
    """Let one run go until its end, a halt or, of a sick one, its answer."""
    dice = random.Random(part.seed)
    noise = part.noise
    sick = OF_NAME[part.sick] if part.sick else None
    step_s = expected_step_s(noise, part.step_s, part.ranks)
    if sick is not None:
        noise = replace(noise, cut_rate=0.0)
    vocab, other_loss = _loss(noise, dice) if sick is None else (VOCAB, None)
    script = _script(noise, dice, sick, part.step_s)
    outside = sick is None and dice.random() < noise.outside_share
    outside_x = dice.uniform(*noise.outside_x) if outside else 0.0
    if script is not None and script.flows:
        outside_x = 0.0  # it is never in no section
    watch = dict(sick.watch) if sick else {}
    is_ours = script is None and other_loss is None and not outside_x
    if is_ours:
        watch = halts_asked(watch)  # the bundled plans of our own trainer ask for them
    expected_s = step_s + outside_x * part.step_s
    order = _order(part, expected_s, vocab, sick, watch, dice, is_ours=is_ours)
    habits = PLAIN if sick is not None else draw_habits(noise, dice, order.last_step, part.ranks)
    of_run: dict[str, Any] = {
        "noise": noise,
        "dice": dice,
        "step_s": part.step_s,
        "sick": sick,
        "now": T0,
        "outside_x": outside_x,
        "other_loss": other_loss,
        "habits": habits,
    }
    if script is None:
        training = Training(order, **of_run)
    else:
        training = Scripted(order, script=script, **of_run)
    watcher = Watcher(
        order,
        training.ranks,
        noise=noise,
        wall=training.wall,
        dice=dice,
        now=T0,
        lag_s=habits.lag_s,
        lag_from=habits.lag_from,
    )
    training.boot(watcher.probe)
    watcher.look_until(training.known_until)
    while not watcher.halted and training.step < order.last_step:
        training.advance(watcher.probe)
        watcher.look_until(training.known_until)
        if sick is not None and _settled(training, watcher, sick):
            break
    if sick is None and not watcher.halted:
        training.finish(watcher.probe)
        watcher.look_until(training.known_until)
    return training, watcher


def _script(noise: Noise, dice: random.Random, sick: Fault | None, step_s: float) -> Script | None:
    """Return what the run's script calls of our library, if it attached."""
    if sick is not None:
        return sick.script
    return draw_script(dice, step_s) if dice.random() < noise.attached_share else None


def expected_step_s(noise: Noise, step_s: float, ranks: int) -> float:
    """Return the mean time of a step of coupled ranks, pauses and stalls included."""
    dice = random.Random(0)
    draws = 200
    slowest = sum(
        max(dice.lognormvariate(0.0, noise.own_sigma) for _ in range(ranks)) for _ in range(draws)
    )
    mean_s = step_s * slowest / draws * math.exp(noise.sigma**2 / 2)
    pause_s = noise.pause_rate * sum(noise.pause_s) / 2
    stall_s = noise.stall_rate * noise.stall_least_s * noise.stall_tail / (noise.stall_tail - 1.0)
    return mean_s * (1.0 + ranks * (pause_s + stall_s) / 3600.0)


def _loss(noise: Noise, dice: random.Random) -> tuple[int | None, Loss | None]:
    """Return the vocabulary of a run, and its loss if the loss is of another kind."""
    if dice.random() >= noise.other_loss_share:
        return VOCAB, None
    name = dice.choice(sorted(LOSSES))
    loss = LOSSES[name](dice)
    if name in NO_LANGUAGE:
        return None, loss
    return (VOCAB if name in REWARDED else round(math.exp(loss(1)["loss"]))), loss


def _order(
    part: Part,
    step_s: float,
    vocab: int | None,
    sick: Fault | None,
    watch: dict[str, Any],
    dice: random.Random,
    *,
    is_ours: bool,
) -> Order:
    """Return what was ordered: half of the runs with a floor, some compiled, some in fp16."""
    if dice.random() < 0.5 and (sick is None or not sick.slows):
        watch["slow"] = {"floor_tok_s": FLOOR_SHARE * TOKENS / step_s}
    compiled = dice.random() < part.noise.compile_share
    fp16 = sick is None and dice.random() < 0.1
    well, even = sick is None, part.ranks % 2 == 0
    nodes = 2 if well and even and dice.random() < part.noise.nodes_share else 1
    return Order(
        experiment="exp_simulated",
        run="run_simulated",
        token=1,
        plan="simulated",
        plan_digest="0" * 64,
        phase="train",
        steps=max(40, round(3600.0 * part.hours / step_s)) if sick is None else SICK_STEPS,
        world_size=part.ranks,
        nodes=nodes,
        profile="simulated",
        entry=OURS if is_ours else "train.py",
        train={"engine": {"compile": compiled}},
        identity=Identity(
            config_digest="c" * 64,
            params=125_000_000,
            dim=768,
            layers=12,
            vocab=vocab,
            dtype="fp16" if fp16 else "bf16",
            tokens_per_step=TOKENS,
            world_size=part.ranks,
        ),
        watch=Watch.model_validate(watch),
        detectors=detector_names(),
    )


def _healthy(part: Part, training: Training, watcher: Watcher) -> Tally:
    hours = (training.known_until - T0) / 3600.0
    halts = [f for f in watcher.findings if f.severity is Severity.HALT][:1]
    warnings = Counter(f.detector for f in watcher.findings if f.severity is Severity.WARN)
    return Tally(
        run_hours=hours,
        steps=training.step,
        lines=watcher.lines,
        warnings=warnings,
        halts=tuple(
            Halt(
                detector=halt.detector,
                seed=part.seed,
                step_s=part.step_s,
                ranks=part.ranks,
                hour=hours,
                text=halt.text,
            )
            for halt in halts
        ),
    )


def _settled(training: Training, watcher: Watcher, sick: Fault) -> bool:
    """Whether the sick run has got its answer, or has waited long enough."""
    if training.onset is None:
        return False
    if training.known_until - training.onset > sick.within_s:
        return True
    return any(_due(finding, sick) for finding in watcher.findings)


def _due(finding: Finding, sick: Fault) -> bool:
    return finding.severity is sick.severity and finding.detector in sick.by


def _answer(part: Part, sick: Fault, onset: float | None, watcher: Watcher) -> Answer:
    """Return what a sick run got: the first finding that halts, or that is due, is the answer."""
    seen = zip(watcher.findings, watcher.found_mono, strict=True)
    reporting = [row for row in seen if row[0].severity is Severity.HALT or _due(row[0], sick)]
    if not reporting:
        return Answer(
            sick=sick.name, by=sick.by[0], latency_s=None, wrong="nothing", seed=part.seed
        )
    found, found_mono = reporting[0]
    latency_s = None if onset is None else found_mono - onset
    wrong = _difference(found, sick)
    if wrong is None and (latency_s is None or latency_s < -1.0):
        wrong = "found before the onset"
    return Answer(
        sick=sick.name,
        by=found.detector if wrong is None else sick.by[0],
        latency_s=None if wrong else latency_s,
        wrong=wrong,
        seed=part.seed,
    )


def _difference(found: Finding, sick: Fault) -> str | None:
    """Return how an answer differs from what is due, or None."""
    named = f"{found.detector} {found.severity} rank {found.rank} in {found.section}: {found.text}"
    if not _due(found, sick):
        return named
    if (sick.rank is not None or sick.tie) and found.rank != sick.rank:
        return named
    if sick.section is not None and found.section not in (sick.section, None):
        return named
    return None
