"""The engine `slurm`: an attempt is one job with one task a node, and each task is a keeper.

Slurm never requeues our jobs. Before the time limit the batch script, but not srun, gets TERM and
asks the run to leave with a checkpoint (`preempted`). At a preemption or scancel all processes get
TERM, and KILL after KillWait; `--shield` keeps the trainers from dying of TERM.

A job has ended only when its state says so **and** every node of it answers its controller. A node
that is cut off trains on until its link returns; Slurm then ends what it should not run.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from gonogo.contract.errors import Rejected, Unavailable
from gonogo.contract.order import Order
from gonogo.contract.plan import hardware_profiles
from gonogo.contract.workload import SlurmCluster
from gonogo.contract.yaml_text import parse_yaml
from gonogo.files import is_there, read_plain
from gonogo.judge.follow_up.explanation import printable
from gonogo.supervise.process_records import MEET_NAME, MET_NAME
from gonogo.supervise.processes import own_module, own_python
from worker.engine.engine import Ended, Found, Handle, Running, Unknown
from worker.settings import slurm_environ

NAME = "slurm"
_PREFIX = "gonogo-"
TERM_BEFORE_S = 120
"""Slurm may send the signal up to a minute earlier; leaving takes a step and a checkpoint."""
LOOK_LIMIT_S = 600
"""How long the nodes of a job may take to see its order on a cold file system."""
COMMAND_LIMIT_S = 30.0
LOG_NAME = "slurm.log"
SCRIPT_NAME = "slurm.sh"
EPILOG_NAME = "slurm_epilog.sh"
NODE_END_MODULE = "gonogo.supervise.keeper.nodes"
LAST_BYTES, LINE_LIMIT = 4096, 200
_AFTERWARDS = re.compile(
    r"srun: (?:Force Terminated|forcing job termination|Job step aborted|got SIGCONT"
    r"|launch/slurm: \w+: Terminating|error: \S+: tasks? \S+: Terminated)"
    r"|slurmstepd-\S+: error: \*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT \S+ \*\*\*"
)
"""What srun prints about the other nodes, which it ends once one has failed."""
_SUBMITTED = re.compile(r"^\s*(\d+)(?:;\S+)?\s*$", re.MULTILINE)
"""Output of `sbatch --parsable`: the number of the job, and its cluster."""
_NUMBER = re.compile(r"^\s*(\d+)\s*$", re.MULTILINE)
"""A line of squeue: the number of a job."""
_GONE = re.compile(r"[Ii]nvalid job id")
_LATER = re.compile(
    r"Unable to contact|Connection|timed out|temporarily|submit limit|standby"
    r"|Zero Bytes|Protocol authentication|I/O error|try again"
    r"|inactive or drain|not available now|not usable now|down, drained or reserved"
)
"""What sbatch prints when it may take the same job another time."""
_NEVER = re.compile(r"(?:Assoc|QOS)(?:Grp|Max|Min)(?!Submit)\w+")
"""A limit that such a job exceeds at any time."""
_LIVING = frozenset(
    {"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"}
)
_OVER = frozenset(
    {
        "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL",
        "DEADLINE", "OUT_OF_MEMORY",
    }
)  # fmt: skip
"""The states in which a job has ended."""
_STANDING = frozenset({"SUSPENDED", "STOPPED"})
_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
_UNWELL = re.compile(r"DOWN|FAIL|UNKNOWN|NOT_RESPONDING|NO_RESPOND|\*")
_ASLEEP = frozenset({"POWERED_DOWN", "POWERING_DOWN"})

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


def run_command(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run one of Slurm's commands; Unavailable: it is not there, or does not answer in time."""
    try:
        return subprocess.run(
            command,
            env=slurm_environ(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # comments come in any encoding
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{command[0]}: no answer in {COMMAND_LIMIT_S:g} s") from error
    except OSError as error:
        raise Unavailable(f"{command[0]}: {error}") from error


class Slurm:
    """Slurm, through its own commands; nodes share `runs`, and a plan lies over `cluster`."""

    def __init__(
        self,
        runs: Path,
        cluster: SlurmCluster,
        environ: Mapping[str, str],
        run: Run = run_command,
        keeper: str | None = None,
    ) -> None:
        self._runs, self._cluster, self._environ, self._run = runs, cluster, environ, run
        self._keeper = keeper
        self._ended: dict[Handle, Ended] = {}
        """Jobs that had ended; Slurm forgets a job `MinJobAge` after its end."""

    def submit(self, order: Order, token: int) -> Handle:
        """Submit the attempt's job, unless Slurm has it already."""
        name = job_name(order.run, token)
        known = self._ids_of(name)
        if known:
            return self._handle(known[0], order, token)
        run_dir = self._runs / order.run
        script, epilog = run_dir / SCRIPT_NAME, run_dir / EPILOG_NAME
        script.write_text(build_script(order, token, self._environ, run_dir, self._keeper))
        epilog.write_text(build_epilog(token, run_dir))
        epilog.chmod(0o700)
        cluster = lay_over(self._cluster, order)
        options = build_options(order, token, cluster, run_dir)
        done = self._run(["sbatch", "--parsable", *options, str(script)])
        if done.returncode != 0:
            said = done.stderr.strip() or done.stdout.strip()
            if done.returncode < 0:
                raise Unavailable(f"sbatch was ended by signal {-done.returncode}")
            if _LATER.search(said) and not _NEVER.search(said):
                raise Unavailable(f"sbatch: {said}")
            raise Rejected(f"Slurm does not take this order: {said}")
        numbers = _SUBMITTED.findall(done.stdout)
        if not numbers:  # the next call looks for it by name
            said = printable(done.stdout) or "nothing"
            raise Unavailable(f"sbatch printed no job's number: {said}")
        return self._handle(numbers[-1], order, token)

    def find(self, handle: Handle) -> Found:
        """Return what Slurm says of the attempt's job and of its nodes."""
        try:
            return self._find_job(handle)
        except Unavailable as error:
            return Unknown(text=error.detail)
        except OSError as error:
            return Unknown(text=f"{self._runs / handle.run}: {error}")

    def _find_job(self, handle: Handle) -> Found:
        """Return what Slurm reports of one job, or reported before it forgot the job."""
        run_dir = self._runs / handle.run
        began = (run_dir / "keeper.json").exists()  # before Slurm is asked: its answer is newer
        meets = is_there(run_dir / MEET_NAME.format(0)) and not is_there(run_dir / MET_NAME)
        done = self._run(["scontrol", "show", "job", "--oneliner", handle.name])
        if done.returncode != 0 and _GONE.search(done.stderr):
            forgotten = Unknown(text=f"Slurm knows no job {handle.name} any more")
            return self._ended.get(handle, forgotten)
        if done.returncode != 0:
            raise Unavailable(f"scontrol: {done.stderr.strip()}")
        self._ended.pop(handle, None)
        job = parse_fields(done.stdout)
        rows = self._nodes_of(job) if job.get("JobState") in _OVER else []
        found = judge_job(handle, job, rows)
        if isinstance(found, Ended) and began and not rows:
            return Unknown(text=f"{found.proof}, and no node is known that it ran on")
        if isinstance(found, Running) and found.waits:
            text = f"{found.text} (it began before)" if began else found.text
            return replace(found, text=text, again=began)
        found = found if began and not meets else add_output(found, run_dir / LOG_NAME)
        if isinstance(found, Ended):
            self._ended[handle] = found
        return found

    def stop(self, handle: Handle) -> None:
        """Cancel the job by name: after a controller lost its state, numbers are given again."""
        done = self._run(["scancel", f"--name={job_name(handle.run, handle.token)}"])
        if done.returncode != 0 and not _GONE.search(done.stderr):
            raise Unavailable(f"scancel: {done.stderr.strip()}")

    def _nodes_of(self, job: Mapping[str, str]) -> list[dict[str, str]]:
        listed = job.get("NodeList", "")
        if listed in ("", "(null)"):
            return []
        asked = ("scontrol", "--all", "show", "node", "--oneliner", listed)
        return [parse_fields(row) for row in self._ask(*asked).splitlines() if row.strip()]

    def _ids_of(self, name: str) -> list[str]:
        """Return the jobs of a name that Slurm has, or had lately."""
        asked = ("--all", "--noheader", "--states=all", f"--name={name}", "--format=%i")
        return _NUMBER.findall(self._ask("squeue", *asked))

    def _ask(self, *command: str) -> str:
        done = self._run(command)
        if done.returncode != 0:
            raise Unavailable(f"{command[0]}: {done.stderr.strip()}")
        return done.stdout

    def _handle(self, job: str, order: Order, token: int) -> Handle:
        return Handle(engine=NAME, name=job, run=order.run, token=token)


def job_name(run: str, token: int) -> str:
    """Return the name of an attempt's job, by which it is found again."""
    return f"{_PREFIX}{run}.{token}"


def add_output(found: Found, log: Path) -> Found:
    """Return what became of a job whose nodes have not all begun, with its last output."""
    said = load_last_words(log)
    if isinstance(found, Ended) and said is None:
        why = f"it has not opened {log}: is that path there on its nodes, too?"
        return replace(found, proof=f"{found.proof}; {why}")
    if not said or isinstance(found, Unknown):
        return found
    if isinstance(found, Ended):
        return replace(found, proof=f"{found.proof}; it printed: {said}")
    text = f"{found.text}, and has not begun on each node; it printed: {said}"
    return replace(found, text=text, waits=True)


def load_last_words(path: Path) -> str | None:
    """Return the last two lines of a log that say why; None: no log; empty: unreadable."""
    try:
        with read_plain(path) as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - LAST_BYTES))
            lines = stream.read(LAST_BYTES).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return None
    except OSError:
        return ""
    told = [said for line in lines if (said := printable(line))]
    told = [line for line in told if _AFTERWARDS.match(line) is None] or told
    return " · ".join(line[:LINE_LIMIT] for line in told[-2:])


def load_defaults(path: Path) -> SlurmCluster:
    """Return the defaults of a file with the keys of `cluster.slurm`, or raise Rejected."""
    where = f"GONOGO_SLURM_DEFAULTS: {path}"
    try:
        return SlurmCluster.model_validate(parse_yaml(path.read_bytes()) or {})
    except OSError as error:
        raise Rejected(f"{where} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"] if part != "[key]")
        raise Rejected(f"{where}: {f'{name}: ' if name else ''}{first['msg']}") from error
    except Rejected as error:
        raise Rejected(f"{where}: {error}") from error


def lay_over(cluster: SlurmCluster, order: Order) -> SlurmCluster:
    """Return what an order asks of Slurm; a rank gets one GPU unless plan or defaults differ."""
    own = order.cluster.slurm if order.cluster is not None else None
    said = {} if own is None else {name: getattr(own, name) for name in own.model_fields_set}
    extra = {**cluster.extra, **said.get("extra", {})}
    found = cluster.model_copy(update={**said, "extra": extra})
    profile = hardware_profiles().get(order.profile)
    counted = found.gres is not None or found.extra.get("gpus-per-node") is not None
    if counted or profile is None or not profile.has_devices:
        return found
    return found.model_copy(update={"gres": f"gpu:{order.ranks_per_node}"})


def build_options(order: Order, token: int, cluster: SlurmCluster, run_dir: Path) -> list[str]:
    """Return sbatch's options for an order: what it needs, then what the cluster asks for."""
    asked: dict[str, str | None] = {
        "partition": cluster.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "time": cluster.time_limit,
        "gres": cluster.gres,
        "constraint": cluster.constraint,
        **{name: value for name, value in cluster.extra.items()},
    }
    whole = asked.get("exclusive") == "true"
    if whole:
        del asked["exclusive"]
    return [
        f"--job-name={job_name(order.run, token)}",
        f"--nodes={order.nodes}",
        "--ntasks-per-node=1",
        "--no-requeue",
        f"--signal=B:TERM@{TERM_BEFORE_S}",
        f"--output={run_dir / LOG_NAME}",
        "--open-mode=append",
        "--export=NIL",
        *(f"--{name}={value}" for name, value in asked.items() if value is not None),
        *(["--exclusive"] if whole else []),
    ]


def build_epilog(token: int, run_dir: Path) -> str:
    """Return the script that Slurm runs on a node after its task: it reports a killed keeper."""
    words = shlex.join([*own_module(NODE_END_MODULE), str(run_dir), "--token", str(token)])
    return f'#!/bin/sh\nexec {words} --node "$SLURM_NODEID"\n'


def build_script(
    order: Order,
    token: int,
    environ: Mapping[str, str],
    run_dir: Path,
    keeper: str | None = None,
) -> str:
    """Return the batch script: one task a node, which becomes the keeper there.

    Several nodes first check that each sees the order. Otherwise the others would wait for minutes
    for a node without this Python or without the home.
    """
    names = sorted(name for name in environ if re.fullmatch(r"[A-Za-z_]\w*", name))
    exports = [f"export {name}={shlex.quote(environ[name])}" for name in names]
    which = ["--keeper", keeper] if keeper is not None else []
    words = [own_python(), "-m", "worker.node", order.run, "--token", str(token), *which]
    once = shlex.join(words)
    leave, look = (shlex.join([*words, word]) for word in ("--leave", "--look"))
    each = "srun --ntasks-per-node=1 --export=ALL"
    looks = [
        f"timeout {LOOK_LIMIT_S} {each} --kill-on-bad-exit=1 {look} &",
        f"finish; [ $code != 124 ] || echo 'a node has not seen its order for {LOOK_LIMIT_S} s'",
        "[ $code = 0 ] || exit $code",
    ]
    epilog = shlex.quote(f"--task-epilog={run_dir / EPILOG_NAME}")
    lines = [
        f"leave() {{ {leave}; }}",
        "trap leave TERM",
        "finish() { while :; do wait $!; code=$?; kill -0 $! 2>/dev/null || break; done; }",
        *(looks if order.nodes > 1 else []),
        f"{each} --kill-on-bad-exit=0 {epilog} {once} &",
        "finish; exit $code",
    ]
    return "\n".join(["#!/bin/bash", *exports, *lines, ""])


def parse_fields(line: str) -> dict[str, str]:
    """Return the fields of one line of `scontrol show --oneliner`; the first of a name counts."""
    parts = re.split(r"\s+(?=[A-Z][A-Za-z:/]*=)", line.strip())
    rows = [part.partition("=") for part in parts if "=" in part]
    return {name: value for name, _, value in reversed(rows)}


def _is_unwell(told: str) -> bool:
    """Say whether a node may be cut off; an idle node that is powered down is not."""
    state, *flags = told.split("+")
    rest = [flag for flag in flags if state != "IDLE" or flag not in _ASLEEP]
    return any(map(_UNWELL.search, (state, *rest)))


def judge_job(handle: Handle, job: Mapping[str, str], nodes: Sequence[Mapping[str, str]]) -> Found:
    """Return what `scontrol show job`, and `show node` of each node that it had, prove."""
    state, reason = job.get("JobState", ""), job.get("Reason", "None")
    if job.get("JobName") != job_name(handle.run, handle.token):
        return Unknown(text=f"job {handle.name} has another name: {job.get('JobName')}")
    if state in _WAITING:
        return Running(text=f"Slurm: {state}, {reason}", waits=True)
    if state in _LIVING:
        where = job.get("NodeList", "?")
        return Running(text=f"Slurm: {state} on {where}", stands=state in _STANDING)
    if state not in _OVER:
        return Unknown(text=f"Slurm calls job {handle.name} {state or 'nothing'}, which is no end")
    states = {row.get("NodeName", "?"): row.get("State", "UNKNOWN") for row in nodes}
    unwell = sorted(name for name, told in states.items() if _is_unwell(told))
    if unwell:
        text = f"Slurm: {state}, but {', '.join(unwell)} does not answer and may train on"
        return Unknown(text=text)
    told = f"{', '.join(sorted(states))} answers" if states else "it had no node"
    why = "" if reason == "None" else f" ({reason})"
    return Ended(proof=f"Slurm: job {handle.name} is {state}{why}, and {told}")
