"""Who is told of alerts? Subscriptions begin, end, and get a new secret.

Not covered: the one that the environment makes (`service.alerts.outbox.subscribe_settings`).
"""

from collections.abc import Collection

from gonogo.contract.ids import Kind, new_id
from service.db.schema import WebhookRow
from service.experiments.lifecycle import Deed
from service.queries.alerts import load_webhook
from service.webhook_secret import new_secret


def subscribe(deed: Deed, url: str, types: Collection[str], secret: str | None) -> WebhookRow:
    """Begin a subscription and return it.

    Args:
        deed: the transaction.
        url: where alerts go.
        types: of which types; none: of every type.
        secret: what they are signed with; one is made when none is given.
    """
    row = WebhookRow(
        id=new_id(Kind.WEBHOOK),
        url=url,
        secret=secret or new_secret(),
        types=sorted(set(types)),
        created_at=deed.now,
    )
    deed.session.add(row)
    return row


def unsubscribe(deed: Deed, webhook: str) -> None:
    """End a subscription.

    Raises:
        NotFound: there is none that goes on.
    """
    load_webhook(deed.session, webhook).disabled_at = deed.now


def rotate_secret(deed: Deed, webhook: str) -> WebhookRow:
    """Give a subscription a new secret and return it; from now on alerts are signed with it.

    Raises:
        NotFound: there is none that goes on.
    """
    row = load_webhook(deed.session, webhook)
    row.secret = new_secret()
    return row
