"""Who lets campaigns go on? This pass: one step of each whose runs have all ended."""

from gonogo.contract.errors import Unavailable
from service.campaigns.step import advance, load_running
from service.context import Context
from service.experiments.lifecycle import CONDUCTOR


class Campaigns:
    """Takes the next step of each campaign."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def run_once(self) -> None:
        """Look once at every campaign that goes on.

        Raises:
            Exception: what one of them failed for, once all have been looked at.
        """
        errors = []
        for campaign in self._context.store.read(load_running):
            try:
                self._context.write(CONDUCTOR, advance, campaign)
            except Unavailable:
                raise
            except Exception as error:  # noqa: BLE001 - one campaign never holds up the others
                errors.append(error)
        if errors:
            raise errors[0]
