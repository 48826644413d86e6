"""The offline interface: a list of prompts in, a list of outputs out."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Any, Unpack

from octavo.config import EngineConfig
from octavo.engine.beam_search import BeamSearch, BeamSequence
from octavo.engine.build import build_engine
from octavo.engine.input_processor import Prompt
from octavo.engine.interrupts import deferred_interrupts
from octavo.engine.llm_engine import RequestTerms
from octavo.engine.prefix_pins import PrefixPins
from octavo.errors import RequestError
from octavo.kvcache.report import MemoryReport
from octavo.outputs import CompletionDelta, Logprob, RequestOutput
from octavo.sampling_params import MAX_LOGPROBS, SamplingParams

Message = Mapping[str, Any]


class LLM:
    """A model, ready to answer.

    >>> llm = LLM("default")
    >>> llm.chat([{"role": "user", "content": "What is the capital of France?"}])[0].outputs[0].text

    Args:
        model: ``default``, a path to a ``.gguf``, a path to a Hugging Face folder, or ``org/name`` on the Hub.
        keywords: the fields of :class:`octavo.config.CacheConfig`, ``SchedulerConfig`` and ``BackendConfig``.
            An unknown keyword is an error.

    Attributes:
        prefixes: pin, evict and list what the prefix cache holds.
    """

    def __init__(self, model: str = "default", **keywords: Any) -> None:
        built = build_engine(EngineConfig.from_keywords(model, **keywords))
        self.engine = built.engine
        self.config = built.config
        self.model_config = built.model_config
        self.max_model_len = built.max_model_len
        self.kv_cache_spec = built.kv_cache_spec
        self.tokenizer = built.engine.tokenizer
        self.prefixes = PrefixPins(built.engine.core.scheduler, built.engine.input_processor)
        self._numbers = count()
        self._streams: dict[str, deque[CompletionDelta | BaseException]] = {}  # what each open one has not read yet

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_progress: bool | None = None,
        **terms: Unpack[RequestTerms],
    ) -> list[RequestOutput]:
        """Complete prompts, all at once, in the order given.

        Args:
            prompts: text or token ids; one or many.
            params: for all, or one for each; the default is ``SamplingParams()``.
            use_progress: show a progress bar; ``None``: for more than one prompt, on a terminal.
            terms: ``priority``, ``cache_salt``, ``tenant``, ``deadline_s``; see :class:`RequestTerms`.

        Raises:
            RequestError: a prompt is wrong or can never fit; then none is run.
            BackendError: a step failed; then all calls and streams of this model that are under way fail with it, and
                the next ones start afresh.
        """
        many = _as_list(prompts)
        each = _params_of_each(params, len(many))
        request_ids = [str(next(self._numbers)) for _ in many]
        outputs: dict[str, RequestOutput | None] = dict.fromkeys(request_ids)
        try:
            self._add(request_ids, many, each, terms)
            with _progress(len(many), use_progress) as progress:
                num_missing = len(many)
                while num_missing:
                    for delta in self._step():
                        if delta.output is not None and delta.request_id in outputs:
                            outputs[delta.request_id] = delta.output
                            num_missing -= 1
                            progress.advance()
        finally:
            self._abort(request_ids)
        return [output for output in outputs.values() if output is not None]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **keywords: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or many. ``keywords`` as in :meth:`generate`."""
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        return self.generate([self.chat_prompt(each) for each in conversations], params, **keywords)  # type: ignore[arg-type]

    def chat_prompt(self, messages: Sequence[Message]) -> str:
        """The prompt that the model's chat template makes of a conversation."""
        return self.tokenizer.render_chat(messages)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        **terms: Unpack[RequestTerms],
    ) -> Iterator[CompletionDelta]:
        """Complete one prompt, delta by delta. The last delta of the last sample carries the whole output.

        Closing the iterator early aborts the request. Several streams may be open at once, also during other calls:
        whoever needs a delta computes a step for all. Raises as :meth:`generate` does, when iteration starts.
        """
        request_id = str(next(self._numbers))
        unread = self._streams[request_id] = deque()
        try:
            self._add([request_id], [prompt], _params_of_each(params, 1), terms)
            while unread or self.engine.is_unfinished(request_id):
                while not unread:
                    self._step()
                delta = unread.popleft()
                if isinstance(delta, BaseException):
                    raise delta
                yield delta
        finally:
            del self._streams[request_id]
            self._abort([request_id])

    def beam_search(
        self, prompt: Prompt, beam_width: int, max_tokens: int, *, length_penalty: float = 1.0
    ) -> list[BeamSequence]:
        """The ``beam_width`` most likely outputs of a prompt, best first.

        Args:
            beam_width: at most 25.
            max_tokens: the prompt's room in the model is the limit all the same.
            length_penalty: above 0 prefers longer outputs, below 0 shorter ones; 1 compares the mean of the tokens.
        """
        if not 1 <= beam_width <= MAX_LOGPROBS // 2:
            raise RequestError(f"beam_width must be between 1 and {MAX_LOGPROBS // 2}, not {beam_width}")
        if max_tokens < 1:
            raise RequestError(f"max_tokens must be at least 1, not {max_tokens}")
        params = SamplingParams(temperature=0, max_tokens=1, logprobs=2 * beam_width, ignore_eos=True)
        prompt_ids = self.engine.input_processor.token_ids(prompt)

        def expand(beams: list[list[int]]) -> list[dict[int, Logprob]]:
            outputs = self.generate([prompt_ids + tokens for tokens in beams], params, use_progress=False)
            return [output.outputs[0].logprobs[0] for output in outputs if output.outputs[0].logprobs]

        max_tokens = max(min(max_tokens, self.max_model_len - len(prompt_ids)), 1)  # one too many is refused below
        search = BeamSearch(beam_width, max_tokens, self.engine.input_processor.eos_token_ids, length_penalty)
        search.run(expand)
        return [
            BeamSequence(tokens, self.tokenizer.decode(tokens), total, score)
            for score, tokens, total in search.finished
        ]

    def memory_report(self) -> MemoryReport:
        """What the KV cache holds: per request, shared, wasted, cached by age."""
        return self.engine.core.memory_report()

    def _step(self) -> list[CompletionDelta]:
        """Compute a step; what it brought to open streams waits there until they look."""
        with deferred_interrupts():
            try:
                deltas = self.engine.step()
            except BaseException as error:
                for unread in self._streams.values():
                    unread.append(error)
                raise
            for delta in deltas:
                if delta.request_id in self._streams:
                    self._streams[delta.request_id].append(delta)
        return deltas

    def _add(
        self,
        request_ids: Sequence[str],
        prompts: Sequence[Prompt],
        params: Sequence[SamplingParams],
        terms: RequestTerms,
    ) -> None:
        """Add prompts up to the first that is refused; the caller aborts all of them in the end."""
        for number, request_id in enumerate(request_ids):
            try:
                with deferred_interrupts():
                    self.engine.add_request(request_id, prompts[number], params[number], **terms)
            except RequestError as error:
                if len(prompts) > 1:
                    raise type(error)(f"prompt {number}: {error}") from error
                raise

    def _abort(self, request_ids: Iterable[str]) -> None:
        with deferred_interrupts():
            for request_id in request_ids:
                self.engine.abort_request(request_id)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    is_list = isinstance(prompts, Sequence) and not isinstance(prompts, str | bytes)
    if is_list and not (len(prompts) > 0 and isinstance(prompts[0], int)):
        return list(prompts)  # type: ignore[arg-type]
    return [prompts]  # type: ignore[list-item]  # text, token ids, or nothing of the kind


def _params_of_each(params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int) -> list[SamplingParams]:
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    if not isinstance(params, Sequence):
        raise RequestError(f"sampling parameters must be SamplingParams, or one each, not {params!r}")
    if len(params) != num_prompts:
        raise RequestError(f"{len(params)} sampling parameters for {num_prompts} prompts; give one for all or one each")
    return list(params)


class _NoProgress:
    def advance(self) -> None:
        """Show nothing."""


def _progress(num_prompts: int, use_progress: bool | None) -> AbstractContextManager[Any]:
    if use_progress is None:
        use_progress = num_prompts > 1 and sys.stderr.isatty()
    if not use_progress:
        return nullcontext(_NoProgress())
    from octavo.engine.progress import PromptProgress

    return PromptProgress(num_prompts)
