"""What a request cost, and where its time went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.engine.generation import Generation
from octavo.outputs import RequestOutput


def usage_of(
    outputs: Sequence[RequestOutput], generations: Sequence[Generation], *, only_prompt: bool = False
) -> dict[str, Any]:
    """OpenAI's ``usage``, and beside it ``octavo``: the truth about the request.

    Of a body with several prompts, counts are sums, and times those of the slowest.
    """
    num_prompt = sum(len(output.prompt_token_ids) for output in outputs)
    num_generated = sum(len(sample.token_ids) for output in outputs for sample in output.outputs)
    num_generated = 0 if only_prompt else num_generated
    num_cached = sum(output.num_cached_tokens for output in outputs)
    metrics = [output.metrics for output in outputs]
    waited_for = next((each.waited_for for each in generations if each.waited_for is not None), None)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_generated,
        "total_tokens": num_prompt + num_generated,
        "prompt_tokens_details": {"cached_tokens": num_cached},
        "octavo": {
            "queue_s": round(max(each.queue_s for each in metrics), 6),
            "prefill_s": round(max(max(each.ttft_s - each.queue_s, 0.0) for each in metrics), 6),
            "decode_s": round(max(each.decode_s for each in metrics), 6),
            "cached_tokens": num_cached,
            "num_preemptions": sum(each.num_preemptions for each in metrics),
            "num_recomputed_tokens": sum(each.num_recomputed_tokens for each in metrics),
            "num_blocks": sum(each.num_blocks for each in metrics),
            "num_engine_restarts": max(each.num_replays for each in generations),
            "waited_for": waited_for,
            "seed": outputs[0].seed,
        },
    }
