"""The neurons' fake engine with a script to follow: the real channel and messages, no model.

It stands in where the default model cannot call tools or think. The load spec's source,
``path:FOLDER``, names a folder with tokenizer files and a script (``script.py`` here), which holds
a model's text: sampling and grammars have no part in it. The ends of a sequence (stop ids,
max_tokens, min_tokens), the thinking budget and logprobs are as in the engine. Where the neuron's
devices are simulated it takes the memory that its script names (``simulated_devices.py``).
"""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Literal

import msgspec
import tokenizers

from inference.channel import Channel
from inference.engine.logits_processors import ThinkingBudget
from inference.protocol import engine as protocol
from inference.protocol.engine import SamplingParams, TokenLogprob
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import LoadFailure, LoadProgress, LoadReport, LoadStage
from tests.inference.neuron.fake_engine import FakeEngine
from tests.inference.reports import engine_stats, load_report
from tests.live.scripted import script as scripts
from tests.live.scripted.simulated_devices import NoRoomError, Taken, take_memory

TOP_LOGPROB = -0.25
"""The log probability of the scripted token; each candidate after it is one less likely."""


class Performance:
    def __init__(
        self,
        submit: protocol.SubmitSequence,
        prompt: str,
        rule: scripts.Rule,
        token_ids: Iterator[int],
    ) -> None:
        self.prompt = prompt
        self._submit = submit
        self._rule = rule
        self._tokens = token_ids
        self.num_output = 0
        """Tokens so far."""
        self._due_s = 0.0

    def is_due(self, now_s: float) -> bool:
        if now_s < self._due_s:
            return False
        self._due_s = now_s + self._rule.token_s
        return True

    def step(self) -> protocol.SequenceStep:
        is_first = self.num_output == 0
        token_ids: list[int] = []
        reason: Literal["stop", "length"] | None = None
        while reason is None and len(token_ids) < self._rule.tokens_per_step:
            token_id = next(self._tokens)
            self.num_output += 1
            if token_id in self._submit.params.stop_token_ids:
                reason = "stop"
                break
            token_ids.append(token_id)
            if self.num_output == self._submit.params.max_tokens:
                reason = "length"
        return protocol.SequenceStep(
            sequence_id=self._submit.sequence_id,
            token_ids=token_ids,
            logprobs=self._logprobs(token_ids),
            num_cached_tokens=0 if is_first else None,
            finish_reason=reason,
            num_output_tokens=self.num_output if reason else 0,
        )

    def _logprobs(self, token_ids: list[int]) -> list[TokenLogprob] | None:
        num_top = self._submit.params.top_logprobs
        if num_top is None:
            return None
        return [
            TokenLogprob(
                token_id,
                TOP_LOGPROB,
                [(max(token_id - rank, 0), TOP_LOGPROB - rank) for rank in range(num_top)],
            )
            for token_id in token_ids
        ]


def _planned(
    token_ids: list[int], rule: scripts.Rule, end_token_id: int, params: SamplingParams
) -> Iterator[int]:
    """Yields tokens without end: where the model's end token does not count, the answer starts
    over. Thoughts over the budget are lost: the model's own end of the block comes in their
    place."""
    once = token_ids if rule.repeats else [*token_ids, end_token_id]
    limit = params.thinking_limit
    budget = ThinkingBudget(limit) if limit is not None else None
    num_given = 0
    for token_id in chain.from_iterable(repeat(once)):
        if limit is not None and budget is not None:
            if budget.forced_token is not None and token_id != limit.end_token_id:
                continue
            budget.advance(token_id)
        if token_id in params.stop_token_ids and num_given < params.min_tokens:
            continue
        num_given += 1
        yield token_id


HELD_LOAD_S = 0.02
A_QUARTER = LoadProgress(stage=LoadStage.WEIGHTS, done=1, total=4, unit="tensors")
NUM_BLOCKS = 1000


class ScriptedEngine(FakeEngine):
    def __init__(self, channel: Channel, spec: LoadSpec) -> None:
        super().__init__(channel, spec, "rate=1000")
        self._folder = Path(spec.source.removeprefix("path:"))
        script = scripts.read_script(self._folder)
        self._context_tokens = script.context_tokens
        self._vision = script.vision
        self._tokenizer = tokenizers.Tokenizer.from_file(str(self._folder / "tokenizer.json"))
        end_token_id = self._tokenizer.token_to_id(scripts.END_TOKEN)
        assert end_token_id is not None
        self._end_token_id = end_token_id
        self._performances: dict[str, Performance] = {}
        self._taken = Taken()

    def _load(self) -> bool:
        if scripts.read_script(self._folder).holds_load:
            self._send(protocol.LoadProgressed(progress=A_QUARTER))
        while scripts.read_script(self._folder).holds_load:
            time.sleep(HELD_LOAD_S)
        try:
            self._taken = take_memory(self.spec, scripts.read_script(self._folder))
        except NoRoomError as error:
            why = {"message": str(error), "needed_bytes": error.needed_bytes}
            failure = LoadFailure(code="does_not_fit", **why)
            self._send(protocol.LoadFailedMessage(failure=failure))
            return False
        self._send(protocol.Loaded(report=self._report()))
        return True

    def _steps(self) -> list[protocol.SequenceStep | protocol.SequenceFailed]:
        for sequence_id in self._performances.keys() - self.running.keys():
            self._note(self._performances.pop(sequence_id), "cancelled")
        outputs: list[protocol.SequenceStep | protocol.SequenceFailed] = []
        now_s = time.monotonic()
        for sequence_id, (submit, _) in list(self.running.items()):
            performance = self._performances.get(sequence_id) or self._begun(submit)
            if performance is None:
                del self.running[sequence_id]
                failed = {"code": "engine_error", "message": "no rule for the prompt"}
                outputs.append(protocol.SequenceFailed(sequence_id=sequence_id, **failed))
            elif performance.is_due(now_s):
                if performance.num_output == 0:
                    self._note(performance, "first token")
                step = performance.step()
                if step.finish_reason is not None:
                    del self.running[sequence_id], self._performances[sequence_id]
                outputs.append(step)
        self.num_steps += bool(outputs)
        return outputs

    def _begun(self, submit: protocol.SubmitSequence) -> Performance | None:
        prompt = self._tokenizer.decode(submit.token_ids, skip_special_tokens=False)
        received = scripts.Received(
            prompt=prompt,
            num_prompt_tokens=len(submit.token_ids),
            num_images=len(submit.images),
            params=submit.params,
        )
        scripts.append(self._folder, received)
        rule = scripts.read_script(self._folder).rule_for(prompt)
        if rule is None:
            return None
        index = int(submit.sequence_id.rpartition("/")[2])
        answer = rule.choices[index % len(rule.choices)]
        token_ids = self._tokenizer.encode(answer, add_special_tokens=False).ids
        planned = _planned(token_ids, rule, self._end_token_id, submit.params)
        performance = Performance(submit, prompt, rule, planned)
        self._performances[submit.sequence_id] = performance
        return performance

    def _note(self, performance: Performance, what: Literal["first token", "cancelled"]) -> None:
        now_s = time.monotonic()
        moment = scripts.Moment(prompt=performance.prompt, what=what, monotonic_s=now_s)
        scripts.append(self._folder, moment)

    def _stats(self) -> protocol.EngineStats:
        return engine_stats(
            in_flight=len(self.running),
            kv_blocks_used=len(self.running),
            kv_blocks_total=NUM_BLOCKS,
            last_forward_unix_s=time.time() if self.num_steps else None,
        )

    def _report(self) -> LoadReport:
        taken = self._taken
        return load_report(
            architecture="scripted",
            device=taken.device,
            weight_bytes=taken.weight_bytes,
            kv_bytes=taken.kv_bytes,
            actual_bytes=taken.weight_bytes + taken.kv_bytes,
            num_kv_blocks=NUM_BLOCKS,
            kv_block_tokens=16,
            context_tokens=self._context_tokens,
            vocab_size=self._tokenizer.get_vocab_size(with_added_tokens=True),
            tokenizer_dir=str(self._folder),
            eos_token_ids=[self._end_token_id],
            vision=self._vision,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    channel = Channel(socket.socket(fileno=parser.parse_args().fd))
    ScriptedEngine(channel, msgspec.msgpack.decode(channel.receive(), type=LoadSpec)).run()
