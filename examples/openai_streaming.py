"""Ask a running ``octavo serve`` several questions at once, and show each answer as it comes.

pip install openai
python examples/openai_streaming.py
"""

from __future__ import annotations

import asyncio
import os

from openai import AsyncOpenAI

QUESTIONS = ("Name three colours.", "Who wrote Hamlet?", "Count to five.")


async def ask(client: AsyncOpenAI, model: str, question: str) -> str:
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=60,
        stream=True,
        stream_options={"include_usage": True},
    )
    text = ""
    async for chunk in stream:
        for choice in chunk.choices:
            piece = choice.delta.content or ""
            text += piece
            print(f"{question[:12]:12} | {piece!r}")
        if chunk.usage is not None:
            print(f"{question[:12]:12} | {chunk.usage.completion_tokens} tokens")
    return text


async def main() -> None:
    async with AsyncOpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    ) as client:
        model = (await client.models.list()).data[0].id
        answers = await asyncio.gather(*(ask(client, model, question) for question in QUESTIONS))
    for question, answer in zip(QUESTIONS, answers, strict=True):
        print(f"\n{question}\n{answer}")


if __name__ == "__main__":
    asyncio.run(main())
