"""The watcher of a host of the service: gonogo's own, and a thread that ships what it sees.

`python -m worker.watcher RUNDIR`, a child of `worker.keeper`. Without a key nothing is shipped, and
the run is watched all the same.
"""

import logging
import sys
from functools import partial
from typing import TYPE_CHECKING

from gonogo.contract.order import Order
from gonogo.rundir import RunDir
from gonogo.supervise.watcher.entry import main
from gonogo.supervise.watcher.shipping import Offline, Shipping
from worker.settings import load_settings
from worker.shipping.thread import ShippingThread

if TYPE_CHECKING:  # its imports take a moment, which is the thread's, not the first tick's
    from worker.shipping.shipper import Shipper


def start_shipping(run_dir: RunDir, order: Order) -> Shipping:
    """Start the thread that ships to the control plane of the environment."""
    settings = load_settings()
    key = settings.api_key
    if key is None:
        return Offline()

    def connect() -> "Shipper":
        from worker.client import ControlPlane
        from worker.engine.reached import load_reached
        from worker.host.claim_book import ClaimBook
        from worker.shipping.shipper import Shipper

        client = ControlPlane(
            settings.url,
            key,
            secret_of=ClaimBook(settings.home).load,
            moved=partial(load_reached, settings.home, run_dir.path),
            renewed=settings.renewed_key,
        )
        return Shipper(run_dir, order.run, order.token, client)

    logging.getLogger("httpx").setLevel(logging.WARNING)  # one line a request says nothing
    thread = ShippingThread(connect)
    thread.start()
    return thread


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], start_shipping))
