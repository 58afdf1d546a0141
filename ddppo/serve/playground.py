"""The playground: a page at /play on which a person types the actions of an environment of text (playground=true).

Web pages may not use the server, because a page of any site, open in a browser on this machine, could reach it. The
playground's own page may, for sessions at /ws only, under these conditions:

1. Its Origin is the address in Host. A page of another site has another Origin, which the browser sends.
2. Host is an IP address or localhost. A site can have its own name resolve to this machine (DNS rebinding); then
   Origin and Host are equal, but they are that name.
3. If the server has a token, the page sends it. A browser sends no header Authorization with a WebSocket, so the token
   is in Sec-WebSocket-Protocol: "ddppo.play, token.<the token in base64url>".

The page runs only the script and style of playground.html, and no other page can embed it (Content-Security-Policy).
"""

import base64
import binascii
import hashlib
import html
import ipaddress
import json
import re
from functools import cache
from pathlib import Path

from fastapi import Response
from starlette.datastructures import Headers

PATH = "/play"
SUBPROTOCOL = "ddppo.play"  # that the page asks for, and the server confirms
_TOKEN = "token."  # before the token among the subprotocols
BY_ADDRESS = "open the playground by an IP address or localhost, not by a name: http://127.0.0.1:<port>/play"


def is_own_page(headers: Headers) -> bool:
    """Return whether a request comes from the page at /play of this server, by its Origin and Host."""
    scheme, _, of_page = headers.get("origin", "").lower().partition("://")
    host = headers.get("host", "").lower()
    return scheme in ("http", "https") and of_page == host and is_address(host)


def is_address(host: str) -> bool:
    """Return whether a header Host, `name` or `name:port`, is an IP address or localhost."""
    in_brackets = re.fullmatch(r"\[([\da-f:.]+)\](:\d+)?", host)
    name = in_brackets[1] if in_brackets else re.sub(r":\d+$", "", host)
    if ":" in name and not in_brackets:
        return False
    try:
        return name == "localhost" or bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def authorization_of(headers: Headers) -> str:
    """Return the header Authorization that the page would send if a browser could; "" without a token."""
    for word in headers.get("sec-websocket-protocol", "").split(","):
        if (word := word.strip()).startswith(_TOKEN):
            token = word.removeprefix(_TOKEN)
            try:
                decoded = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
            except (binascii.Error, UnicodeDecodeError, ValueError):
                return ""
            return f"Bearer {decoded}"
    return ""


def page(host: str, name: str, *, needs_token: bool) -> Response:
    """Return the answer to GET /play, 403 unless `host` is an address.

    Args:
        host: the header Host of the request.
        name: of the served environment; it is left out if the page has to ask for a token.
        needs_token: whether the page has to ask for a token.
    """
    if not is_address(host.lower()):
        return Response(json.dumps({"error": BY_ADDRESS}), 403, media_type="application/json")
    template, policy = _template()
    filled = template.replace("{{ name }}", "" if needs_token else f": {html.escape(name)}")
    filled = filled.replace("{{ needs_token }}", str(needs_token).lower())
    headers = {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
    }
    return Response(filled, 200, headers, "text/html; charset=utf-8")


@cache
def _template() -> tuple[str, str]:
    """Return the file and its Content-Security-Policy, which names script and style by their hashes."""
    template = Path(__file__).with_name("playground.html").read_text(encoding="utf-8")

    def digest(tag: str) -> str:
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", template, re.DOTALL)
        return "'sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() + "'"

    return template, (
        f"default-src 'none'; script-src {digest('script')}; style-src {digest('style')}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
