"""A real Slurm of two nodes on this machine, for tests: a controller here, each node in namespaces.

Every slurmd stands in a network and a host-name namespace of its own, behind a bridge; processes
and files are this machine's. Each node has its own boot id and monotonic clock, so it looks like
another host. Nothing in /etc changes. Needs root, `ip`, and Debian's packages slurmctld, slurmd,
munge, slurm-client; no systemd and no control groups. Found out by trying:

- one munged serves all (its socket is a path); it runs as user munge in a folder that it may enter;
- glibc asks DNS for v4-mapped names, and torch asks for them: an empty resolv.conf, or each
  connection waits 10 s;
- slurmctld writes its state with up to 5 s of delay.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

NODES = (1, 2)
CLOCK_APART_S = 1_000_000
"""How far the nodes' monotonic clocks are apart: each counts from its own start."""
_CONF = """ClusterName={name}
SlurmctldHost={host}({net}.1)
SlurmctldPort={port}
SlurmdPort=6818
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge}/munge.sock
CredType=cred/munge
StateSaveLocation={dir}/state
SlurmctldPidFile={dir}/slurmctld.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdSpoolDir={dir}/spool.%n
SlurmdPidFile={dir}/slurmd.%n.pid
SlurmdLogFile={dir}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0
MpiDefault=none
ReturnToService=2
MinJobAge=300
KillWait=10
SlurmdTimeout={slurmd_timeout}
SlurmctldTimeout=30
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(slots=True)
class Lab:
    """A Slurm that runs."""

    name: str
    net: str
    dir: Path
    munge: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environ(self) -> dict[str, str]:
        """What Slurm's commands need to find this one."""
        return {"SLURM_CONF": str(self.dir / "slurm.conf")}

    def ask(self, *command: str) -> str:
        """Return what one of Slurm's commands says."""
        done = subprocess.run(
            command, env={**os.environ, **self.environ}, capture_output=True, text=True, check=True
        )
        return done.stdout

    def link(self, node: int, state: str) -> None:
        """Cut a node off (`down`), or let it back (`up`)."""
        _sh(f"ip link set {self.name}-{node} {state}")

    def pids(self, node: int) -> set[int]:
        """Return the processes in a node's network namespace."""
        done = subprocess.run(
            ["ip", "netns", "pids", f"{self.name}-node{node}"], capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        return {int(pid) for pid in done.stdout.split()}

    def shorten(self, job: str) -> None:
        """Give a running job so little time that its TERM is due, and a minute at least."""
        minutes = int(
            self.ask("squeue", "--noheader", f"--jobs={job}", "--format=%M").split(":")[-2]
        )
        self.ask("scontrol", "update", f"JobId={job}", f"TimeLimit={minutes + 2}")

    def wait_for_idle(self, limit_s: float = 30.0) -> None:
        """Wait until every node says that it is idle."""
        give_up = time.monotonic() + limit_s
        while True:
            with contextlib.suppress(subprocess.CalledProcessError):
                states = self.ask("sinfo", "-h", "-N", "-o", "%T").split()
                if states == ["idle"] * len(NODES):
                    return
            assert time.monotonic() < give_up, (self.dir / "slurmctld.log").read_text()[-2000:]
            time.sleep(0.2)

    def start_node(self, node: int, *, up_s: float | None = None) -> None:
        """Start a node's slurmd, in namespaces of its own.

        Args:
            node: which.
            up_s: since when the node is up, as its slurmd reports; None: as long as this host.
        """
        inside = (
            f"hostname node{node} && mount --bind {self.dir}/hosts /etc/hosts"
            f" && mount --bind {self.dir}/resolv.conf /etc/resolv.conf"
            f" && mount --bind {self.dir}/boot_id{node} /proc/sys/kernel/random/boot_id"
            f" && exec slurmd -D -f {self.dir}/slurm.conf"
        )
        namespace = f"--net=/run/netns/{self.name}-node{node}"
        later_s = 0.0 if up_s is None else time.clock_gettime(time.CLOCK_BOOTTIME) - up_s
        boot = [f"--boottime={-round(later_s)}"] if later_s > 0.0 else []
        self.processes[f"slurmd{node}"] = subprocess.Popen(
            [
                *("nsenter", namespace),
                *("unshare", "--uts", "--mount", "--time", f"--monotonic={node * CLOCK_APART_S}"),
                *boot,
                *("sh", "-c", inside),
            ],
            env={**os.environ, **self.environ},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def start_controller(self) -> None:
        """Start slurmctld."""
        self.processes["slurmctld"] = subprocess.Popen(
            ["slurmctld", "-D", "-f", str(self.dir / "slurm.conf")],
            env={**os.environ, **self.environ},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def power_off(self, node: int) -> None:
        """End all that runs on a node, which says no more to anybody."""
        self.link(node, "down")
        for pid in self.pids(node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.processes.pop(f"slurmd{node}").wait()

    def power_on(self, node: int) -> None:
        """Start a node whose power was off: it has booted again."""
        self.boot(node)
        self.link(node, "up")
        self.start_node(node, up_s=5.0)

    def boot(self, node: int) -> None:
        """Give a node the boot id of a new start."""
        (self.dir / f"boot_id{node}").write_text(f"{uuid4()}\n")

    def kill(self, name: str) -> None:
        """End one of the lab's own processes as a crash would."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()


def can_run() -> bool:
    """Say whether this machine lets one make namespaces."""
    return os.geteuid() == 0 and all(map(shutil.which, ("ip", "nsenter", "unshare", "munged")))


@contextmanager
def slurm_lab(number: int | None = None, *, slurmd_timeout: int = 30) -> Iterator[Lab]:
    """Yield a Slurm of two idle nodes; whatever happens, nothing of it is left.

    Args:
        number: distinguishes labs that run together, up to 255; None: by this process.
        slurmd_timeout: seconds after which a node that does not answer is DOWN.
    """
    folder = Path(tempfile.mkdtemp(prefix="gonogo-slab-"))
    folder.chmod(0o755)
    number = os.getpid() % 256 if number is None else number
    lab = Lab(
        name=f"slab{number}", net=f"10.77.{number}", dir=folder / "slurm", munge=folder / "munge"
    )
    try:
        _write(lab, slurmd_timeout)
        _start_network(lab)
        _start_munge(lab)
        lab.start_controller()
        for node in NODES:
            lab.start_node(node)
        lab.wait_for_idle()
        yield lab
    finally:
        _stop(lab)
        shutil.rmtree(folder, ignore_errors=True)


def _write(lab: Lab, slurmd_timeout: int) -> None:
    for name in ("state", *(f"spool.node{node}" for node in NODES)):
        (lab.dir / name).mkdir(parents=True)
    host = socket.gethostname()
    rows = [
        f"NodeName=node{node} NodeAddr={lab.net}.{10 + node} CPUs=2 RealMemory=2000 Gres=gpu:2"
        " State=UNKNOWN"
        for node in NODES
    ]
    with socket.socket() as probe:
        probe.bind(("0.0.0.0", 0))
        port = probe.getsockname()[1]
    (lab.dir / "slurm.conf").write_text(
        _CONF.format(
            name=lab.name, host=host, net=lab.net, port=port, munge=lab.munge, dir=lab.dir,
            nodes="\n".join(rows), slurmd_timeout=slurmd_timeout,
        )
    )  # fmt: skip
    gpus = [lab.dir / f"fakegpu{index}" for index in range(2)]
    for gpu in gpus:
        gpu.touch()
    (lab.dir / "gres.conf").write_text(
        f"NodeName=node[1-2] Name=gpu Count=2 File={lab.dir}/fakegpu[0-1]\n"
    )
    hosts = ["127.0.0.1 localhost", f"{lab.net}.1 {host}"]
    hosts += [f"{lab.net}.{10 + node} node{node}" for node in NODES]
    (lab.dir / "hosts").write_text("\n".join(hosts) + "\n")
    (lab.dir / "resolv.conf").write_text("")
    for node in NODES:
        lab.boot(node)


def _start_network(lab: Lab) -> None:
    _sh(f"ip link add {lab.name}br type bridge")
    _sh(f"ip addr add {lab.net}.1/24 dev {lab.name}br")
    _sh(f"ip link set {lab.name}br up")
    for node in NODES:
        space, outer = f"{lab.name}-node{node}", f"{lab.name}-{node}"
        _sh(f"ip netns add {space}")
        _sh(f"ip link add {outer} type veth peer name eth0 netns {space}")
        _sh(f"ip link set {outer} master {lab.name}br up")
        _sh(f"ip -n {space} addr add {lab.net}.{10 + node}/24 dev eth0")
        _sh(f"ip -n {space} link set eth0 up")
        _sh(f"ip -n {space} link set lo up")


def _start_munge(lab: Lab) -> None:
    lab.munge.mkdir(parents=True)
    key = lab.munge / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    for path in (lab.munge, key):
        shutil.chown(path, "munge", "munge")
    files = {"socket": "munge.sock", "key-file": "key", "pid-file": "pid", "seed-file": "seed",
             "log-file": "log"}  # fmt: skip
    lab.processes["munged"] = subprocess.Popen(
        [
            "munged",
            "-F",
            "--force",
            *(f"--{name}={lab.munge / file}" for name, file in files.items()),
        ],
        user="munge",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    give_up = time.monotonic() + 10
    while not (lab.munge / "munge.sock").exists():
        assert time.monotonic() < give_up, "munged does not begin"
        time.sleep(0.05)


def _stop(lab: Lab) -> None:
    order = sorted(lab.processes, key=lambda name: name != "slurmctld")
    for name in order:
        if name != "munged":
            lab.kill(name)
    for node in NODES:
        for pid in lab.pids(node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if "munged" in lab.processes:
        lab.kill("munged")
    for node in NODES:
        _sh(f"ip link del {lab.name}-{node}", check=False)
        _sh(f"ip netns del {lab.name}-node{node}", check=False)
    _sh(f"ip link del {lab.name}br", check=False)


def _sh(command: str, *, check: bool = True) -> None:
    subprocess.run(command.split(), check=check, capture_output=True)
