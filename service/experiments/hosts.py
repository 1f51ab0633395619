"""Which host is it? Its machine's id says so; its name is for people, and others may have it too.

Containers of one compose file are called alike, and so are machines made of one image.
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
        """Say whether two are one host; by name where the machine of one is not known."""
        if self.machine is None or other.machine is None:
            return self.name == other.name
        return self.machine == other.machine


def host_of_run(run: RunRow) -> Host | None:
    """Return the host whose worker claimed a run; None where none has."""
    return None if run.host is None else Host(run.host, run.machine)
