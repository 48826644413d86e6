"""From tokens to what a caller sees: text, stop strings, log probabilities, times."""

from __future__ import annotations

import time
from collections.abc import Iterator

from octavo.outputs import CompletionDelta, CompletionOutput, Logprob, RequestMetrics, RequestOutput
from octavo.request import Request
from octavo.scheduler.output import StepOutput, TokenLogprobs
from octavo.tokenization.detokenizer import IncrementalDetokenizer
from octavo.tokenization.tokenizer import Tokenizer


class Sample:
    """One sample under way."""

    def __init__(self, group: RequestGroup, index: int, request: Request, tokenizer: Tokenizer) -> None:
        params = request.params
        self.group = group
        self.index = index
        self.request = request
        self.logprobs: list[dict[int, Logprob]] | None = None if params.logprobs is None else []
        self.cumulative_logprob = 0.0
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.first_token_s: float | None = None
        self.last_token_s = 0.0
        self.num_tokens = 0
        self.detokenizer = IncrementalDetokenizer(
            tokenizer,
            request.token_ids[: request.num_prompt_tokens],
            skip_special_tokens=params.skip_special_tokens,
            stop=params.stop,
            include_stop_str_in_output=params.include_stop_str_in_output,
            min_tokens=params.min_tokens,
        )

    def output(self) -> CompletionOutput:
        """What the sample has produced so far."""
        return CompletionOutput(
            index=self.index,
            text=self.detokenizer.text,
            token_ids=self.request.output_token_ids[: self.num_tokens],
            logprobs=self.logprobs,
            cumulative_logprob=None if self.logprobs is None else self.cumulative_logprob,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )


class RequestGroup:
    """The samples of one prompt."""

    def __init__(self, request_id: str, prompt: str | None, requests: list[Request], tokenizer: Tokenizer) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.samples = [Sample(self, index, request, tokenizer) for index, request in enumerate(requests)]
        wants_prompt = requests[0].params.prompt_logprobs is not None
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = [None] if wants_prompt else None

    @property
    def is_finished(self) -> bool:
        """Whether every sample has ended."""
        return all(sample.finish_reason is not None for sample in self.samples)

    def output(self) -> RequestOutput:
        """Everything so far."""
        first = self.samples[0].request
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=first.token_ids[: first.num_prompt_tokens].tolist(),
            outputs=[sample.output() for sample in self.samples],
            finished=self.is_finished,
            num_cached_tokens=max(first.num_cached_tokens, 0),
            prompt_logprobs=self.prompt_logprobs,
            seed=first.seed,
            metrics=self._metrics(),
        )

    def _metrics(self) -> RequestMetrics:
        requests = [sample.request for sample in self.samples]
        arrival = requests[0].arrival_s
        scheduled = [request.first_scheduled_s for request in requests if request.first_scheduled_s is not None]
        first_tokens = [sample.first_token_s for sample in self.samples if sample.first_token_s is not None]
        return RequestMetrics(
            arrival_s=arrival,
            queue_s=min(scheduled) - arrival if scheduled else 0.0,
            ttft_s=min(first_tokens) - arrival if first_tokens else 0.0,
            e2e_s=max((sample.last_token_s for sample in self.samples if sample.num_tokens), default=arrival) - arrival,
            num_preemptions=sum(request.num_preemptions for request in requests),
            num_recomputed_tokens=sum(request.num_recomputed_tokens for request in requests),
            num_blocks=max(request.max_blocks for request in requests),
        )


class OutputProcessor:
    """Keeps the groups whose samples run, and turns each step into deltas."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._samples: dict[str, Sample] = {}
        self._groups: dict[str, RequestGroup] = {}

    def add(self, request_id: str, prompt: str | None, requests: list[Request]) -> None:
        """A prompt's samples were accepted by the core."""
        group = RequestGroup(request_id, prompt, requests, self._tokenizer)
        self._groups[request_id] = group
        self._samples.update({sample.request.request_id: sample for sample in group.samples})

    def group(self, request_id: str) -> RequestGroup | None:
        """The group of an id that has not ended."""
        return self._groups.get(request_id)

    def ended_groups(self) -> list[str]:
        """Ids of groups that wait for the end of a sample that has ended in the core: a step has failed."""
        ended = [sample for sample in self._samples.values() if sample.request.finish_reason is not None]
        return list(dict.fromkeys(sample.group.request_id for sample in ended))

    def process(self, step: StepOutput) -> Iterator[CompletionDelta]:
        """The deltas of a step.

        A sample whose text met a stop string has a ``finish_reason`` here before the core knows: the caller of this
        must end its request.
        """
        now = time.monotonic()
        for request_id, (first, found) in step.executor_output.prompt_logprobs.items():
            self._take_prompt_logprobs(request_id, first, found)
        logprobs = step.executor_output.logprobs
        for row, (request, token_id) in enumerate(zip(step.requests, step.token_ids, strict=True)):
            sample = self._samples[request.request_id]
            yield self._take_token(sample, token_id, logprobs.get(row), now)

    def end(self, request_id: str) -> CompletionDelta | None:
        """A request was ended from outside: its last delta. ``None`` if it has ended already."""
        sample = self._samples.get(request_id)
        if sample is None:
            return None
        sample.finish_reason = sample.request.finish_reason
        return self._finish(sample, sample.detokenizer.finish(), [], None)

    def _take_token(self, sample: Sample, token_id: int, logprobs: TokenLogprobs | None, now: float) -> CompletionDelta:
        request, detokenizer = sample.request, sample.detokenizer
        sample.num_tokens += 1
        sample.last_token_s = now
        if sample.first_token_s is None:
            sample.first_token_s = now
        new_logprobs = None
        if logprobs is not None and sample.logprobs is not None:
            new_logprobs = [self._candidates(logprobs)]
            sample.logprobs += new_logprobs
            sample.cumulative_logprob += logprobs.logprobs[0]
        ended_by_token = request.finish_reason == "stop"
        text = ""
        if not ended_by_token or request.params.include_stop_str_in_output:
            text = detokenizer.append(token_id)
        if detokenizer.stop_string is not None:
            sample.finish_reason, sample.stop_reason = "stop", detokenizer.stop_string
        elif request.finish_reason is not None:
            sample.finish_reason = request.finish_reason
            if ended_by_token and token_id in request.params.stop_token_ids:
                sample.stop_reason = token_id
        if sample.finish_reason is not None:
            return self._finish(sample, text + detokenizer.finish(), [token_id], new_logprobs)
        return CompletionDelta(sample.group.request_id, sample.index, text, [token_id], new_logprobs)

    def _finish(
        self, sample: Sample, text: str, token_ids: list[int], logprobs: list[dict[int, Logprob]] | None
    ) -> CompletionDelta:
        group = sample.group
        del self._samples[sample.request.request_id]
        if group.is_finished:
            del self._groups[group.request_id]
        output = group.output() if group.is_finished else None
        return CompletionDelta(
            group.request_id, sample.index, text, token_ids, logprobs, sample.finish_reason, sample.stop_reason, output
        )

    def _take_prompt_logprobs(self, request_id: str, first: int, found: list[TokenLogprobs]) -> None:
        """Positions that a preempted request computes again are known already."""
        group = self._samples[request_id].group
        known = group.prompt_logprobs
        if known is not None:
            known += [self._candidates(logprobs) for logprobs in found[max(len(known) - first, 0) :]]

    def _candidates(self, logprobs: TokenLogprobs) -> dict[int, Logprob]:
        """The most likely tokens in order; the chosen one stands where its rank puts it, or last."""
        chosen, *ranked = logprobs.token_ids
        rank_of = {token_id: rank for rank, token_id in enumerate(ranked, start=1)}
        rank_of.setdefault(chosen, logprobs.rank)
        values = dict(zip(logprobs.token_ids, logprobs.logprobs, strict=True))
        pieces = self._tokenizer.pieces
        return {
            token_id: Logprob(values[token_id], rank, pieces[token_id].decode(errors="replace"), pieces[token_id])
            for token_id, rank in rank_of.items()
        }
