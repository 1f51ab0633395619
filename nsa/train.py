"""`python -m nsa.train`: one rank of a training run, alone or under torchrun.

    python -m nsa.train --order RUN_DIR/order.json
    python -m nsa.train --config FILE --steps N --data NAME --out DIR [--resume PATH]

`--resume` continues the same run, or reports what differs. `--weights-only` starts a new run from
those weights.

With `--order` the run directory is the order's folder, and it waits for `.GO`. A `.HALT` in the run
directory ends it at the next step, with a checkpoint; one from before `--config` is forgotten.
Exit codes: 0 done, 3 halted, 4 bad configuration, 5 data failure, 6 non-finite, 1 anything else
(by hand also where the checkpoint of the last step could not be written).
"""

import argparse
import os
import sys
import traceback
from pathlib import Path

from nsa.assignment import Cadence, Launch, launch_from_file, launch_from_order
from nsa.command_line import Arguments
from nsa.errors import BadConfig, TrainerStop
from nsa.settings import Settings, load_settings
from nsa.stacks import StackDumps


def main(arguments: list[str] | None = None) -> int:
    """Train; returns the exit code."""
    try:
        settings = load_settings()
        launch = parse_launch(sys.argv[1:] if arguments is None else arguments, settings)
        stacks = StackDumps(launch.run_dir, settings.rank)
        from nsa.trainer import Trainer  # torch takes seconds: refuse and dump stacks before it

        Trainer(launch, settings, stacks).run()
    except TrainerStop as stop:
        if not isinstance(stop.__cause__, OSError | None):  # likely a bug
            traceback.print_exception(stop)
        print(f"{type(stop).__name__}: {stop}", file=sys.stderr)
        return stop.code
    except Exception:  # noqa: BLE001 - the process's edge; the `error` line is written by now
        traceback.print_exc()
        return 1
    return 0


def parse_launch(arguments: list[str], settings: Settings) -> Launch:
    """What the command line asks for; BadConfig where that is not one launch."""
    parser = Arguments("nsa.train", __doc__)
    parser.add_argument("--order", type=Path, help="order.json; excludes everything else")
    parser.add_argument("--config", type=Path, help="YAML file, or the name of a bundled one")
    parser.add_argument("--steps", type=int, help="instead of the configuration's")
    parser.add_argument(
        "--data", help="the same: synthetic | local_text | fineweb_edu | parquet:PATH"
    )
    parser.add_argument("--out", type=Path, help="run directory")
    parser.add_argument("--resume", type=Path, help="a checkpoint's folder, or a run's: its newest")
    parser.add_argument(
        "--weights-only",
        action="store_true",
        help="begin at step 1 with the weights of --resume and nothing else of it",
    )
    parser.add_argument("--checkpoint-every", type=_whole_number, help="steps between checkpoints")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    given = parser.parse_args(arguments)
    if given.order is not None:
        if len(arguments) not in (1, 2):
            raise BadConfig("--order stands alone: the order says everything")
        return launch_from_order(given.order, settings)
    if given.config is None or given.out is None:
        raise BadConfig("give --order FILE, or --config FILE and --out DIR")
    return launch_from_file(
        given.config,
        run_dir=given.out,
        settings=settings,
        steps=given.steps,
        data=given.data,
        resume=given.resume,
        weights_only=given.weights_only,
        checkpoint=Cadence(every_steps=given.checkpoint_every),
        device=given.device,
    )


def _whole_number(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, found {text!r}")
    return int(text)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a peer may hang in a collective: its threads must not change our exit code
