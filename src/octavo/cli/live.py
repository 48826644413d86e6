"""``octavo info --live``: what the KV cache of a running server holds."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from octavo.errors import ConfigError

if TYPE_CHECKING:
    import urllib.error

DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT_S = 30.0


def fetch_memory(url: str) -> dict[str, Any]:
    """The report of ``GET /memory``; sends the key in ``OPENAI_API_KEY`` if there is one.

    Raises:
        ConfigError: nobody answers there, or something that is no Octavo server.
    """
    import urllib.error
    import urllib.request

    url = url.rstrip("/").removesuffix("/v1") + "/memory"
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{url} is no address; give one such as {DEFAULT_URL}")
    key = os.environ.get("OPENAI_API_KEY")
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            report = json.load(response)
        if "num_blocks" not in report:
            raise ValueError("it is no report")
    except urllib.error.HTTPError as error:
        raise ConfigError(f"{url} answers {error.code} {error.reason}: {_message(error)}") from None
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{url}: no Octavo server answers there: {error}") from None
    return dict(report)


def memory_lines(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    num_blocks, requests = report["num_blocks"], report["requests"]
    lines = [
        f"KV cache, {num_blocks:,} blocks of {report['block_size']} tokens, {report['num_evictions']:,} evicted so far",
        *(
            f"  {name:<8} {report[key]:>9,}  {report[key] / num_blocks:6.1%}  {what}"
            for name, key, what in (
                ("held", "num_held", f"by {len(requests)} running requests and by pins"),
                ("cached", "num_cached", "held by nobody, found again if asked for"),
                ("blank", "num_blank", "never used, or forgotten"),
                ("pinned", "num_pinned", "of those held"),
            )
        ),
        "",
        "cached blocks by age, since they were last held",
    ]
    for bound in report["cached_by_age"]:
        age = "older" if bound["up_to_s"] is None else f"up to {bound['up_to_s']:g} s"
        lines.append(f"  {age:<14} {bound['blocks']:>9,}")
    lines += ["", f"{'running requests':<34} {'blocks':>7} {'shared':>7} {'unused slots':>13}"]
    for each in sorted(requests, key=lambda each: -each["num_blocks"]):
        counts = f"{each['num_blocks']:>7,} {each['num_shared_blocks']:>7,} {each['num_wasted_slots']:>13,}"
        lines.append(f"  {each['request_id']:<32} {counts}")
    return lines


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "no reason given"
