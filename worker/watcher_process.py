"""`python -m worker.watcher_process RUNDIR`: the watcher, and a thread that ships what it sees.

A child of `worker.keeper_process`. Without a key nothing is shipped; the run is still watched.
"""

import logging
import sys
from functools import partial
from typing import TYPE_CHECKING

from gonogo.contract.order import Order
from gonogo.rundir import RunDir
from gonogo.supervise.watcher.metrics_file import Shipping
from gonogo.supervise.watcher.watcher import main
from worker.settings import load_settings
from worker.shipping.thread import ShippingThread

if TYPE_CHECKING:
    from worker.shipping.shipper import Shipper


def start_shipping(run_dir: RunDir, order: Order) -> Shipping:
    """Start the thread that ships to the control plane of the environment."""
    settings = load_settings()
    key = settings.api_key
    if key is None:
        return Shipping()

    def connect() -> "Shipper":  # imported in the thread, so that the first tick is not late
        from worker.client import ControlPlane
        from worker.engine.engine import load_control_plane_url
        from worker.host.home import ClaimSecrets
        from worker.shipping.shipper import Shipper

        client = ControlPlane(
            settings.url,
            key,
            secret_of=ClaimSecrets(settings.home).load,
            find_url=partial(load_control_plane_url, settings.home, run_dir.path),
            find_key=settings.renewed_key,
        )
        return Shipper(run_dir, order.run, order.token, client)

    logging.getLogger("httpx").setLevel(logging.WARNING)
    thread = ShippingThread(connect)
    thread.start()
    return thread


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], start_shipping))
