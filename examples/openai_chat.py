"""Ask a running ``octavo serve`` through the ``openai`` package: whole answers.

    pip install openai
    python examples/openai_chat.py "What is the capital of France?"

The address and the key come from OPENAI_BASE_URL and OPENAI_API_KEY, as everywhere.
"""

from __future__ import annotations

import os
import sys

from openai import OpenAI


def main() -> None:
    question = sys.argv[1] if len(sys.argv) > 1 else "What is the capital of France?"
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    model = client.models.list().data[0].id
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=100,
        extra_body={"cache_salt": "examples"},  # only requests with the same salt share cached prefixes
    )
    print(answer.choices[0].message.content)
    usage = answer.usage
    assert usage is not None
    truth = (usage.model_extra or {})["octavo"]
    print(f"[{usage.prompt_tokens} prompt tokens, {truth['cached_tokens']} cached, {truth['num_blocks']} KV blocks;")
    times = {name: f"{truth[name]:.3f} s" for name in ("queue_s", "prefill_s", "decode_s")}
    print(f" waited {times['queue_s']}, prefill {times['prefill_s']}, decode {times['decode_s']}]")


if __name__ == "__main__":
    main()
