"""Which host is it? Its machine's id and its name say so together; others may have either, too.

Containers of one compose file are called alike, and so are machines that nobody named; nodes that
were started from one image have one `/etc/machine-id`.
"""

from dataclasses import dataclass

from service.db.schema import RunRow


@dataclass(frozen=True, slots=True)
class Host:
    """A host, as a worker of it says."""

    name: str
    machine: str | None = None
    """Its id; None: nobody told (a worker of before, or what another experiment kept of it)."""

    def is_same(self, other: "Host") -> bool:
        """Say whether two are one host; by name alone where the machine of one is not known."""
        unknown = self.machine is None or other.machine is None
        return self.name == other.name and (unknown or self.machine == other.machine)


def host_of_run(run: RunRow) -> Host | None:
    """Return the host whose worker claimed a run; None where none has."""
    return None if run.host is None else Host(run.host, run.machine)
