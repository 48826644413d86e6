"""Use a running ``octavo serve`` from LangChain, through its OpenAI adapter.

pip install langchain-openai
python examples/langchain_chat.py
"""

from __future__ import annotations

import os

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI


def main() -> None:
    model = ChatOpenAI(
        model=os.environ.get("OCTAVO_MODEL", "default"),
        base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        temperature=0,
        max_tokens=60,
        extra_body={"min_p": 0.05},  # Octavo's extra fields go here
    )
    messages = [SystemMessage("You answer in one sentence."), HumanMessage("What is the capital of France?")]
    print(model.invoke(messages).content)
    for piece in model.stream(messages):
        print(piece.content, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
