"""Signing in: with an API key in a form, or by the one-time link that `gonogo up` prints.

The cookie is SameSite=Lax: no other site can send a form with it, and pages only read. Without a
session a page leads to the sign-in page and back.
"""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel

from gonogo.contract.errors import GonogoError, NotAllowed, Unavailable
from gonogo.contract.wire import Instant
from service.context import Context
from service.db.store import NO_ANSWER, NO_ANSWER_TEXT
from service.http.answers import status_of
from service.http.auth import (
    LINK_S,
    SECURE_COOKIE,
    SESSION_S,
    Admin,
    Principal,
    Service,
    begin_session,
    cookie_name,
    create_link,
    end_session,
    find_viewer,
    get_context,
    use_link,
)
from service.pages.render import render
from service.text import stamp

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


router = APIRouter(route_class=PageRoute, include_in_schema=False)
api = APIRouter(tags=["overview"])


class SignInLink(BaseModel):
    """A link that signs one browser in, once."""

    url: str
    expires_at: Instant


@api.post("/sign-in-links", operation_id="create_sign_in_link", status_code=201)
def create_sign_in_link(context: Service, caller: Admin) -> SignInLink:
    """Return a one-time link that signs a browser in with the rights of this key."""
    now = context.now()
    token = context.store.write(lambda session: create_link(session, caller.key_id, now))
    return SignInLink(url=f"{context.url}/sign-in?token={token}", expires_at=stamp(now + LINK_S))


def local_path(path: str) -> str:
    """Return where to go after signing in: a path of this site, or the first page."""
    inside = path.startswith("/") and not path.startswith(("//", "/\\"))
    return path if inside and path.isprintable() else "/"


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a small form."""
    fields = parse_qs((await request.body()).decode("utf-8", "replace"))
    return {name: values[0] for name, values in fields.items()}


Form = Annotated[dict[str, str], Depends(read_form)]
Next = Annotated[str, Query(max_length=2_000)]


@router.get("/sign-in")
def show_sign_in(
    context: Service, token: Annotated[str | None, Query(max_length=200)] = None, next: Next = "/"
) -> Response:
    """Show the form, or use up a one-time link; either leads to the page `next`."""
    if token is None:
        return HTMLResponse(render("sign_in.html", next=local_path(next), problem=None))
    made = context.store.write(lambda session: use_link(session, token, context.now()))
    if made is None:
        problem = "This link was used before or has expired. Use a key, or ask for a new link."
        return HTMLResponse(render("sign_in.html", next="/", problem=problem), 403)
    return _welcome(made, local_path(next), context.url)


@router.post("/sign-in")
def sign_in(context: Service, form: Form) -> Response:
    """Begin a session with the rights of a key."""
    key, to = form.get("key", "").strip(), local_path(form.get("next", "/"))
    now = context.now()
    token = context.store.write(lambda session: begin_session(session, key, now)) if key else None
    if token is None:
        problem = "That is not a key that may look at pages."
        return HTMLResponse(render("sign_in.html", next=to, problem=problem), 403)
    return _welcome(token, to, context.url)


@router.post("/sign-out")
def sign_out(request: Request, context: Service) -> Response:
    """End the session."""
    name = cookie_name(context.url)
    token = request.cookies.get(name)
    if token is not None:
        context.store.write(lambda session: end_session(session, token))
    response = RedirectResponse("/sign-in", 303)
    response.delete_cookie(name, secure=name == SECURE_COOKIE)
    return response


def _welcome(token: str, to: str, url: str) -> Response:
    response, name = RedirectResponse(to, 303), cookie_name(url)
    response.set_cookie(
        name,
        token,
        max_age=int(SESSION_S),
        httponly=True,
        samesite="lax",
        secure=name == SECURE_COOKIE,
    )
    return response
