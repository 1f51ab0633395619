"""The pass that judges ended runs: complete ones, a few at a time.

A judge's process makes the facts (`service.judging.judge_process`) from a folder below
`GONOGO_HOME/judging`; a thread waits for it. A judgement that fails is shown in an event and tried
again after a growing pause. After the last pause it holds up no later run of its phase.
"""

import logging
import shutil
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

from service.context import Context
from service.experiments.lifecycle import CONDUCTOR, Deed, lock_run, record_event
from service.judging.ended import assess, conclude, find_unjudged, prepare
from service.judging.judge_process import Assessors

AT_ONCE = 2
PATIENCE_S = 1.0
"""How long a pass waits for the judgements that it started; longer ones continue beside it."""
AGAIN_S = (5.0, 15.0, 60.0, 300.0)
_ROUNDS = 5
_log = logging.getLogger(__name__)


class Judging:
    """Judges what waits for it."""

    def __init__(self, context: Context, assessors: Assessors | None = None) -> None:
        self._context = context
        self._assessors = assessors or Assessors()
        self._folder = context.settings.home / "judging"
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="judging")
        self._open: dict[str, Future[None]] = {}
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self._tidied = False

    def run_once(self) -> None:
        """Start to judge every run whose evidence is complete, and wait a moment for it."""
        if not self._tidied:  # what a service left that was killed may be of a run that is judged
            shutil.rmtree(self._folder, ignore_errors=True)
            self._tidied = True
        failing = {run for run, times in self._failures.items() if times >= len(AGAIN_S)}
        for run in self._context.store.read(partial(find_unjudged, failing=failing)):
            now_mono = self._context.mono()
            if run not in self._open and now_mono >= self._not_before.get(run, now_mono):
                self._open[run] = self._threads.submit(self._judge, run)
        wait(self._open.values(), PATIENCE_S)
        self._collect()

    def settle(self) -> None:
        """Judge until nothing waits."""
        self.run_once()
        while self._open:
            wait(self._open.values())
            self._collect()
            self.run_once()

    def close(self) -> None:
        """Wait for what is under way and end the judge's processes."""
        self._threads.shutdown(cancel_futures=True)
        self._assessors.close()

    def _collect(self) -> None:
        """Forget the judgements that are done; raise what one of them failed for."""
        done = {run: future for run, future in self._open.items() if future.done()}
        errors = []
        for run, future in done.items():
            del self._open[run]
            error = future.exception()
            if error is None:
                self._failures.pop(run, None)
                self._not_before.pop(run, None)
                continue
            number = self._failures[run] = self._failures.get(run, 0) + 1
            pause_s = AGAIN_S[min(number, len(AGAIN_S)) - 1]
            self._not_before[run] = self._context.mono() + pause_s
            text = f"not judged, tried again in {pause_s:g} s: {type(error).__name__}: {error}"
            self._context.write(CONDUCTOR, tell_unjudged, run, text)
            errors.append(error)
        if errors:
            raise errors[0]

    def _judge(self, run: str) -> None:
        store, folder = self._context.store, self._folder / run
        try:
            for _ in range(_ROUNDS):
                shutil.rmtree(folder, ignore_errors=True)
                case = store.read(partial(prepare, run_id=run, folder=folder))
                facts, now = self._assessors.build_facts(folder, case.rules), self._context.now()
                found = store.read(partial(assess, case=case, facts=facts, now=now))
                if self._context.write(CONDUCTOR, conclude, found):
                    _log.info("judged %s", run, extra={"action": "judged"})
                    return
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def tell_unjudged(deed: Deed, run: str, text: str) -> None:
    """Record that a run could not be judged."""
    experiment, row = lock_run(deed, run)
    record_event(deed, experiment, "run.unjudged", run=row, text=text)
