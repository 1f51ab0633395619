"""Signing in: with an API key in a form, or by the one-time link that `gonogo up` prints.

The cookie is SameSite=Lax: no other site can send a form with it, and pages only read.
"""

from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import BaseModel

from gonogo.contract.wire import Instant
from service.http.auth import (
    LINK_S,
    SECURE_COOKIE,
    SESSION_S,
    Admin,
    Service,
    begin_session,
    cookie_name,
    create_link,
    end_session,
    use_link,
)
from service.instants import stamp
from service.pages.guard import PageRoute
from service.pages.render import render

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
