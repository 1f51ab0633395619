"""D11: does the loss rise and stay up?

The loss, smoothed, is held against its best. Not every rise is a divergence: a noisy loss widens
its own limit, a spike that is already falling back is left alone unless it does so again and again
and gets nowhere, and what the loss did before it was first smooth counts for little: it may not
have tripled since its first steps, nor lie above them where they say that it is the loss of a
language model (near the logarithm of the vocabulary). A mild rise, such as the order of the data
makes, warns, and has to stay for long before it halts. Other data (a curriculum, another language)
lift a loss at once and may be learnt slowly: a rise that comes down all the while warns, and halts
where that stops or turns. A restart is held against the best that the
run had had by that step; another training after one that was done (the next fold, another stage) is
held against nothing of that. Restarts that come again and again end no rise: where the losses
before one and the first ones after it are up, the wait for enough of them goes on.

A warning is for somebody who has something to do: spikes that recover by themselves are told
(info), and warn, once, where they go on or come again and again; of rises that end nothing the
first warns, and another only if it is far higher than those before.

Only a loss that is of the kind that falls can be said to diverge: never negative, and either that
of a language model in its first steps, or quiet, never up and back before, and with much of its
fall won back. The losses of two networks that play against each other, of a policy, or of rewards
swing, jump and change their sign while all is well, a term that is annealed adds to a loss, a queue
of negatives fills up: of those a rise warns, and halts only where it is a blow-up, by factors
beyond all that was some hundred steps before, with the gradient norms rising too.

A learning rate that comes back up after it had fallen (warm restarts, cycles) takes the loss with
it: what counts then is the highest of the steps after that. Where no learning rate is told, a loss
that comes up, but not above where the run began, may be that: it has to go on climbing, or to stay.

A loss that is a sum over what a step carries (micro-batches, tokens) grows with the batch. Where it
has jumped at once as the tokens of a step did, it counts as that of a step of as many as before.
"""

import math
import statistics
from collections.abc import Sequence
from operator import attrgetter

from gonogo.contract import outcome
from gonogo.contract.finding import Finding, Severity, Source
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.loss_kind import Rise
from gonogo.watch.loss_trend import Trend, come_back, jitter_of, sigma_of
from gonogo.watch.state import replace
from gonogo.watch.step import Step
from gonogo.watch.trend import SlopeBound, trend_of
from gonogo.watch.view import View, found

_RATE = attrgetter("lr")
RECENT_STEPS = 25
FEW_STEPS = 3
LAST_STEPS = 5
HOLDS = 0.95
"""A rise holds while it keeps this share of its height from one recent window to the next."""
LASTS_X = 4
"""Times `over_steps` that the blocks have by whose means a rise that swings is judged."""
MILD_X, LONG_BLOCKS = 3.0, 8
"""A rise of at most so many times the limit (that of noise aside) is a mild one: losses swing so by
the order of their data. It warns, and halts where it stays for so many of those blocks."""
WINS_BACK = 0.9
"""A mild rise that comes down below this share of its height within those blocks does not stay: a
harder mix of data is learnt slowly."""
FIRST_X, FIRST_LEAST = 3.0, 1.0
"""A loss that began at this or more may not come to so many times that."""
LN_VOCAB_NEAR = 1.0
EASES_X, EASES_BLOCKS, EASES = 10.0, 16, 6
"""A rise of at most so many times the limit (that of noise aside) eases where the losses fall so
fast that it would be won back within so many of those blocks; so often, each from a rise anew."""
AGAIN_X = 3.0
"""A rise warns again where it is so many times as high as those that did before."""
SPIKES_LAST_SHARE, BURSTS, BURSTS_WITHIN = 4, 3, 1000
"""Spikes warn that go on for this part (one in so many) of the window, or that come back so often
within so many steps."""
CLIMBS_X, UNTOLD_X, UNTOLD_BLOCKS_X = 1.1, 2, 3
"""Without a learning rate: a climb grows so in `RECENT_STEPS`, for so many times `over_steps`; what
stays is judged by so many times longer blocks."""
CLIMBS_SHARE = 0.1
"""A rise climbs on after a restart that grows by this share of its height from there on."""


class Divergence(Detector[Trend]):
    """D11 (module docstring)."""

    name = outcome.Detector.DIVERGENCE
    sentence = (
        "The loss, smoothed with `alpha` (a plain mean at first), stays above its best by more than"
        " the largest of `above`, `above_ratio` of the best and `noise_x` sigma of the loss, on"
        " `over_steps` steps running, after the first `after_step`: halt. Steps on which the"
        " median of the last losses is back under that limit, or is falling, do not count, so a"
        " spike that recovers ends nothing; but a loss that swings above the limit, four times"
        " `over_steps` and as many again without a lower mean, halts too. The best is at most the"
        " first losses where they are within 1 of ln(vocab), else three times these where they are"
        " 1 or more. After a restart it is the best by that step, and losses are counted anew;"
        " where the smoothed loss before it and the median of the first five after it are above"
        " the limit, `after_step` and `over_steps` go on over it, but for the first 1 / `alpha`"
        " losses after each (restarts that come faster than that are held against nothing), and"
        " until there are `after_step` again only a rise halts that has climbed since (Theil-Sen"
        " slope, 95 %) by a tenth of its height, or of more than ten times the limit;"
        " of another training after one that was done, nothing of that one counts."
        " A rise of no more than ten times the limit (that of the noise aside), and not above where"
        " the run began, warns where its losses fall (Theil-Sen slope, 95 %; asked again until"
        " there are `window_steps`) by as much as wins it back in 64 times `over_steps`; it is then"
        " held against its lowest since, up to six times, and halts where it has no lower mean, as"
        " above. So does one that was mild and then jumps."
        " A mild rise, of no more than three times the limit, warns, and halts"
        " where it has stayed for 32 times `over_steps` without losing a tenth of its height, or"
        " lies above where the loss of a language model began."
        " Any loss that was never negative halts so where it began near ln(vocab). One that did not"
        " halts where it is quiet, has not swung before, and wins back half of its fall or comes to"
        " three times its best; to 1.25 times where it began, 1 or more, where it never fell; at"
        " once where the run was resumed. One of more noise that fell: at three times its best"
        " and 1.25 times where it began (one that comes back to that warns),"
        " with three times the gradient norm. All others (of much more noise, a policy's, a"
        " value's, a reward's, that of two networks against each other) halt only where they blow"
        " up: ten times the largest before (of what they were 400 steps ago, where they rose more"
        " slowly), with three times the gradient norm; else a rise warns."
        " Where the learning rate comes back"
        " up (by a quarter, after it had fallen; the mean of twelve; not where it warms up after a"
        " restart, to what it was before), losses are counted anew,"
        " against the highest of the first `after_step`; where none is told, a rise to no more than"
        " the first losses has to climb for twice as long, or to stay for three times as long, and"
        " for twice as long as any that came back."
        " `spike_count` of `spike_of` losses above the median of"
        " `window_steps` by more than the larger of `spike_mad_x` sigma and `spike_least` are told,"
        " and warn where they go on for a quarter of `window_steps`, or come for the third time in"
        " 1000 steps: once a run. A rise that ends nothing warns again only if it is three times as"
        " high as those that warned before. Losses that jump at once as the tokens of a step do, by"
        " 1.2 times or more, are sums, and count from then on as of as many tokens as before."
    )
    State = Trend
    """2: a noisy loss that rises with its gradients, as a value's does, only warns. 3: a rise that
    comes down all the while, as on other data, halts where that stops; what a loss came to 400
    steps ago is no blow-up's; where no learning rate is told, a rise may stay for twice as long as
    one that came back; a sum over what a step carries grows with its tokens. 4: what a rise comes
    to with its first step is none of what was before, so a loss that blows up at once halts. 5: a
    rise goes on over restarts that find the loss up, so one between restarts 60 to 250 steps apart
    halts; a learning rate that warms up after a restart, to what it was, is none that comes back
    up."""
    steps = True

    def observe_step(self, own: Trend, step: Step, view: View) -> Seen[Trend]:
        """Observe the loss of a step."""
        loss = step.loss()
        if step.step <= own.last_step:
            another = view.is_another(step.ranks)
            own = own.anew() if another else self._back(own, step.step - 1)
        rates = step.values(_RATE)
        heat, reheats = own.heat.after(next(iter(rates.values()), None))
        kind = own.kind.with_gradient(step.grad_norm())
        own = replace(own, last_step=step.step, heat=heat, kind=kind)
        own = own.reheated() if reheats else own
        if loss is None or not math.isfinite(loss):
            return own, []
        tokens = _tokens_of(step, view)
        own = replace(own, unit=own.unit.after(loss, tokens))
        loss = own.unit.of(loss, tokens)
        own, spikes = self._spiked(own, loss, step, view)
        own = self._smoothed(own, loss).kept()
        own, rises = self._risen(own, loss, step, view)
        return own, spikes + rises

    def _back(self, own: Trend, step: int) -> Trend:
        """Return the trend at a restart: if the loss was up before it, that rise may go on."""
        back = own.back_at(step)
        few = own.noise is None and own.steps < self._enough()
        if few or back.best is None:
            return back
        best = min(back.best, self._most(own))
        own = own if own.noise is not None else self._rises(own)
        return back.still_up(own) if own.smooth > best + self._above(own, best) else back

    def _rises(self, own: Trend) -> Trend:
        """Return the trend with the noise of its losses when they began to rise."""
        noise = sigma_of(own.window[: len(own.window) // 2])
        return replace(own, noise=noise, jitter=jitter_of(own.window))

    def _found_down(self, own: Trend, best: float) -> bool:
        """Whether the first losses since a restart are not up, as those before it were."""
        if not own.waited or own.steps != LAST_STEPS:
            return False
        return statistics.median(own.window) <= best + self._above(own, best)

    def _enough(self) -> float:
        """Return of how many losses a mean is smooth."""
        return min(1.0 / float(self.settings.alpha), float(self.settings.after_step))

    def _waits(self, own: Trend) -> bool:
        """Whether the loss is not held against its best yet."""
        waited = own.steps + own.waited
        return waited <= int(self.settings.after_step) or own.steps < self._enough()

    def _least(self, best: float) -> float:
        """Return the limit above a best, that of the noise aside."""
        return max(float(self.settings.above), float(self.settings.above_ratio) * abs(best))

    def _above(self, own: Trend, best: float) -> float:
        """Return the limit above a best for a rise whose noise is known."""
        return max(self._least(best), float(self.settings.noise_x) * (own.noise or 0.0))

    def _smoothed(self, own: Trend, loss: float) -> Trend:
        """Return the trend with one more loss; the best counts once the mean is of enough."""
        steps = own.steps + 1
        weight = max(self.settings.alpha, 1.0 / steps)
        smooth = own.smooth + weight * (loss - own.smooth)
        best = own.best
        if steps >= self._enough():
            warm = own.warm and steps <= self.settings.after_step
            best = smooth if best is None else max(best, smooth) if warm else min(best, smooth)
        window = (*own.window, loss)[-self.settings.window_steps :]
        first = own.first if len(own.first) == FEW_STEPS else (*own.first, loss)
        armed = own.was_armed or steps > self.settings.after_step
        return replace(
            own,
            steps=steps,
            smooth=smooth,
            best=best,
            window=window,
            first=first,
            began=best if own.began is None else own.began,
            was_armed=armed,
            kind=own.kind.after(loss, smooth, own.smooth),
        )

    def _most(self, own: Trend) -> float:
        """Return what a best can be at most, by the run's first losses."""
        first = statistics.median(own.first)
        if self._speaks(own):
            return first
        return FIRST_X * first if first >= FIRST_LEAST else math.inf

    def _speaks(self, own: Trend) -> bool:
        """Whether the first losses are those of a language model."""
        vocab = self.run.order.identity.vocab
        if not vocab:
            return False
        return abs(statistics.median(own.first) - math.log(vocab)) <= LN_VOCAB_NEAR

    def _may_reheat(self, own: Trend) -> bool:
        """Whether nobody tells the learning rate, and the loss is not above where it began."""
        return not own.heat.told and own.smooth <= statistics.median(own.first)

    def _risen(self, own: Trend, loss: float, step: Step, view: View) -> Seen[Trend]:
        """Count the steps on which the loss stays up."""
        if own.best is None:
            return own, []
        best = min(own.best, self._most(own))
        least = self._least(best)
        down = own.steps >= self._enough() and own.smooth <= best + least
        if down or self._found_down(own, best):
            return (own if own.noise is None else come_back(own)), []
        if self._waits(own):
            return (own if own.eased is None else replace(own, eased=own.smooth)), []
        own = self._rises(own) if own.noise is None else own
        above = self._above(own, best)
        mild = best == own.best and own.smooth - best <= MILD_X * least
        own = replace(own, kind=own.kind.up(mild=mild))
        if own.eased is not None:
            own = replace(own, eased=min(own.eased, own.smooth))
        own, lasts = self._lasted(own, loss - best, above, best, step)
        own = self._held(own, best if own.eased is None else own.eased, above, step)
        over_steps = self.settings.over_steps
        if self._may_reheat(own):
            over_steps *= UNTOLD_X
        if own.ends or (own.over < over_steps and not lasts):
            return own, []
        rise = self._rise(own, best, above, mild=mild, stays=lasts)
        ends, eases = self._ends(own, rise, least, lasts=lasts)
        if eases is None or (own.told and not ends):
            return (own.easing() if eases else own), []
        if own.over < over_steps:
            own = replace(own, over=own.up, since_step=own.up_step, since_ts=own.up_ts)
        higher = own.smooth - best > AGAIN_X * own.risen_by
        severity = Severity.HALT if ends else Severity.WARN if higher else Severity.INFO
        risen_by = own.smooth - best if higher else own.risen_by
        eased = own.smooth if eases else own.eased
        own = replace(own, told=True, ends=ends, risen_by=risen_by, eased=eased)
        finding = self._finding(own, best, above, step, view, severity)
        return (own.easing() if eases else own), [finding]

    def _ends(
        self, own: Trend, rise: Rise, least: float, *, lasts: bool
    ) -> tuple[bool, bool | None]:
        """Return whether a rise ends the run, and whether it would but for being of other data."""
        if own.kind.blows_up(own.smooth):
            return True, False
        resumed = self.run.order.resume_from is not None
        falls = own.kind.falls(rise, speaks=self._speaks(own), resumed=resumed)
        if falls and own.steps <= self.settings.after_step and not self._climbs(own, rise, least):
            return False, None
        if not falls or lasts or rise.worse:
            return falls, False
        eases = self._eases(own, rise.best, least)
        return eases is False, eases

    def _rise(self, own: Trend, best: float, above: float, *, mild: bool, stays: bool) -> Rise:
        """Return how far the loss has come, and from where."""
        first = statistics.median(own.first)
        return Rise(
            first=first,
            began=first if own.began is None else own.began,
            best=best,
            smooth=own.smooth,
            noise=own.noise or 0.0,
            jitter=own.jitter,
            worse=own.smooth > first + above,
            mild=mild,
            long=stays
            and own.up >= LONG_BLOCKS * LASTS_X * self.settings.over_steps
            and own.heights[-1] >= WINS_BACK * max(own.heights),
        )

    def _climbs(self, own: Trend, rise: Rise, least: float) -> bool:
        """Whether a rise goes on climbing since a restart that found it, or is a large one."""
        height = own.smooth - rise.best
        if height > EASES_X * least:
            return True
        if len(own.window) < FEW_STEPS:
            return False
        climb = _slope(own.window)
        return climb.lower > 0.0 and climb.slope * len(own.window) >= CLIMBS_SHARE * height

    def _eases(self, own: Trend, best: float, least: float) -> bool | None:
        """Whether a rise is one of other data; None where that is not known yet.

        Its losses come down, or it was mild until now and has jumped: those before did not climb.
        """
        recent = self._recent()
        held = own.over + recent // 2
        risen = own.window[-(held if own.eased is not None else max(held, own.up)) :]
        height = statistics.median(risen) - best
        if own.eases == EASES or height > EASES_X * least:
            return False
        within = EASES_BLOCKS * LASTS_X * self.settings.over_steps
        fall = _slope([-loss for loss in risen])
        if fall.slope * within >= height:
            if fall.lower > 0.0:
                return True
            if len(risen) < self.settings.window_steps:
                return None
        before = own.window[: -2 * recent]
        if not own.told or own.eased is not None or len(before) < recent:
            return False
        climb = _slope(before)
        return climb.lower <= 0.0 or climb.slope * within < height

    def _lasted(
        self, own: Trend, height: float, above: float, best: float, step: Step
    ) -> tuple[Trend, bool]:
        """Count the steps above the limit in blocks; return whether the last block is no lower."""
        if own.smooth <= best + above:
            return own, False
        if not own.up:
            own = replace(own, up_step=step.step, up_ts=step.tick.ts)
        own = replace(own, up=own.up + 1, height=own.height + height)
        block = LASTS_X * self.settings.over_steps
        if self._may_reheat(own):
            block = max(block * UNTOLD_BLOCKS_X, own.kind.longest)
        if own.up % block:
            return own, False
        lasts = bool(own.heights) and own.height >= HOLDS * own.heights[-1]
        if lasts and own.eased is not None and own.smooth > own.eased + above:
            return replace(own, eased=None, up=0, height=0.0, heights=()), False
        return replace(own, height=0.0, heights=(*own.heights, own.height)[-LONG_BLOCKS:]), lasts

    def _recent(self) -> int:
        """Return how many losses are recent ones."""
        return min(RECENT_STEPS, max(FEW_STEPS, int(self.settings.over_steps) // 2))

    def _held(self, own: Trend, best: float, above: float, step: Step) -> Trend:
        """Count the steps running on which the rise holds."""
        if not self._holds(own, best, above):
            return replace(own, over=0)
        if not own.over:
            own = replace(own, since_step=step.step, since_ts=step.tick.ts)
        return replace(own, over=own.over + 1)

    def _holds(self, own: Trend, best: float, above: float) -> bool:
        """Whether smoothed and recent losses are above the limit, and not on their way back."""
        if own.smooth <= best + above:
            return False
        recent = self._recent()
        if statistics.median(own.window[-LAST_STEPS:]) <= best + above:
            return False
        height = statistics.median(own.window[-recent:]) - best
        before = own.window[-2 * recent : -recent]
        least = CLIMBS_X if self._may_reheat(own) else HOLDS
        return height > above and (
            not before or height >= least * (statistics.median(before) - best)
        )

    def _spiked(self, own: Trend, loss: float, step: Step, view: View) -> Seen[Trend]:
        """Tell of losses far above the usual ones, and warn where they do not recover."""
        if len(own.window) < self.settings.window_steps // 2:
            return own, []
        spike, least = False, self.settings.spike_least
        if loss > min(own.window) + least:  # no median lies lower, and medians are dear
            usual = statistics.median(own.window)
            spike = loss > usual + least and (
                loss > usual + self.settings.spike_mad_x * sigma_of(own.window)
            )
        own = replace(own, spikes=(*own.spikes, spike)[-self.settings.spike_of :])
        if sum(own.spikes) < self.settings.spike_count:
            return (replace(own, spike_steps=0) if own.spike_steps else own), []
        own = replace(own, spike_steps=own.spike_steps + 1)
        begins = own.spike_steps == 1
        if begins:
            recent = (row for row in own.bursts if row > step.step - BURSTS_WITHIN)
            own = replace(own, bursts=(*recent, step.step)[-BURSTS:])
        stays = own.spike_steps >= self.settings.window_steps // SPIKES_LAST_SHARE
        warns = not own.spikes_warned and (stays or len(own.bursts) == BURSTS)
        if not (begins or warns):
            return own, []
        own = replace(own, spikes_warned=own.spikes_warned or warns)
        usual = statistics.median(own.window)
        return own, [
            found(
                view,
                self.name,
                Severity.WARN if warns else Severity.INFO,
                episode=f"spikes/step{step.step}",
                at=step.tick.ts,
                step=step.step,
                value=loss,
                threshold=usual + least,
                source=self.run.source("divergence.spike_least"),
                since=step.tick.ts,
                text=f"{sum(own.spikes)} of the last {len(own.spikes)} losses lie far above their"
                f" median of {usual:.4g}; the last is {loss:.4g}",
            )
        ]

    def _finding(
        self, own: Trend, best: float, above: float, step: Step, view: View, severity: Severity
    ) -> Finding:
        fixed = {
            "divergence.above": self.settings.above,
            "divergence.above_ratio": self.settings.above_ratio * abs(best),
        }
        path = next((path for path, limit in fixed.items() if limit == above), None)
        return found(
            view,
            self.name,
            severity,
            episode=f"rise/step{own.since_step}",
            at=step.tick.ts,
            step=step.step,
            value=own.smooth - best,
            threshold=above,
            source=Source.ADAPTIVE if path is None else self.run.source(path),
            since=own.since_ts,
            text=f"the smoothed loss is {own.smooth:.4g}; its best was {best:.4g}. It has stayed"
            f" more than {above:.3g} above that for {own.over} steps"
            + ("" if own.ends else "; " + self._why_not(own, best)),
        )

    def _why_not(self, own: Trend, best: float) -> str:
        """Return why a rise that holds ends nothing."""
        if own.eased is not None:
            return "it comes down, and halts where that stops"
        least = self._least(best)
        if not own.kind.negative and own.smooth - best <= MILD_X * least:
            return f"it halts beyond {MILD_X * least:.3g}, or where it stays for long"
        return "this loss is not of the kind that only falls"

    def armed(self, own: Trend, view: View) -> bool:
        """Whether enough losses have been told."""
        return not self._waits(own)

    def missing(self, own: Trend, view: View) -> str | None:
        """Return a sentence where steps ended and too few losses were told, or none."""
        if not own.last_step or own.was_armed:
            return None
        if not own.first:
            return "No loss was told: nobody knows whether it diverged."
        return (
            f"Losses were told of {own.steps} steps; more than {self.settings.after_step} are"
            " needed: nobody knows whether the loss diverged."
        )


def _tokens_of(step: Step, view: View) -> int | None:
    """Return the tokens that a step carried, as its first rank's lines tell, or a peer's."""
    first = step.ranks[min(step.ranks)]
    return first.end.tokens or view.tokens_of(first.rank)[0]


def _slope(losses: Sequence[float]) -> SlopeBound:
    return trend_of(list(enumerate(losses)))
