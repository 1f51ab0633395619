"""The guard and the headers of every page, and how an error looks.

Without a session a page leads to the sign-in page and back.
"""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute

from gonogo.contract.errors import GonogoError, NotAllowed, Unavailable
from service.context import Context
from service.db.store import NO_ANSWER, NO_ANSWER_TEXT
from service.http.auth import Principal, cookie_name, find_viewer, get_context
from service.http.problems import status_of
from service.pages.render import render

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
        " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class SignInNeeded(NotAllowed):
    """Sign in first."""


class PageRoute(APIRoute):
    """A route whose errors are pages and whose answers have the pages' headers."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler."""
        inner = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                response = await inner(request)
            except SignInNeeded:
                response = _to_sign_in(request)
            except RequestValidationError as error:
                response = _error_page(404, "Not found", str(error.errors()[0]["msg"]))
            except (GonogoError, *NO_ANSWER) as error:
                known = error if isinstance(error, GonogoError) else Unavailable(NO_ANSWER_TEXT)
                response = _error_page(status_of(known), known.title, known.detail)
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return handle


def _to_sign_in(request: Request) -> Response:
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"/sign-in?next={quote(here, safe='')}", 303)


def _error_page(status: int, title: str, detail: str) -> Response:
    return HTMLResponse(render("error.html", title=title, detail=detail, status=status), status)


def check_viewer(request: Request, context: Annotated[Context, Depends(get_context)]) -> Principal:
    """Return who looks."""
    token = request.cookies.get(cookie_name(context.url))
    found = token and context.store.read(lambda session: find_viewer(session, token, context.now()))
    if not found:
        raise SignInNeeded
    return found


Visitor = Annotated[Principal, Depends(check_viewer)]
