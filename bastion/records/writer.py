"""Writing a run step by step: into a hidden folder, renamed once it is whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bastion.errors import UserError
from bastion.records.checks import check_step
from bastion.records.compact import compact
from bastion.records.live import hold
from bastion.records.run_json import write_run_json
from bastion.records.schema import RUN_JSON
from bastion.records.streams import StreamWriter
from bastion.records.text_pieces import TextIncrements
from bastion.records.totals import why_finished
from bastion.step import StepRecord
from bastion.token_text import escape_undecodable

TextOf = Callable[[list[int]], list[str]]
Decode = Callable[[Sequence[int]], str]


class RunWriter:
    """Made by `RunStore.create`. One thread appends; then `finish()` or `abandon()` is called once.

    `text_of(ids)` gives the text of each id by itself (for `vocabulary`), `decode(ids)` the text
    of a sequence. Without `decode`, the pieces of text are those of `text_of`; without either, a
    run holds ids alone.
    """

    def __init__(self, hidden: Path, final: Path, info: dict[str, Any],
                 text_of: TextOf | None, decode: Decode | None) -> None:
        self.id: str = info["id"]
        self._hidden, self._final = hidden, final
        self._text_of = text_of
        self._decode = decode
        self._increments = TextIncrements(decode) if decode else None
        self._emitted: list[int] = []
        self._texts: list[str] = []
        self._known: dict[int, str] = {}
        self._count = 0
        self._closed = False
        write_run_json(hidden / RUN_JSON, info)
        self._streams = StreamWriter(hidden)
        self._lock = hold(hidden)
        self._sampling = dict(info["sampling"])
        self._prompt_ids = [int(token) for token in info["prompt_ids"]]

    def append(self, step: StepRecord) -> list[str]:
        """Save one step; on return it survives the death of this process.

        Returns the text each emitted token added to the output ("" while a character is
        incomplete). Raises ValueError for a record that contradicts itself or is out of turn,
        UserError when the disk takes no more.
        """
        if self._closed:
            raise ValueError(f"run {self.id} is closed")
        if step.index != self._count:
            raise ValueError(f"step {step.index} follows step {self._count - 1} of run {self.id}")
        check_step(step)
        new_texts = self._new_texts(step)
        pieces = self._pieces(step.emitted)
        with _saving(self._hidden):
            self._streams.append(step, pieces, new_texts)
        self._count += 1
        self._emitted.extend(int(token) for token in step.emitted)
        self._texts.extend(pieces)
        return pieces

    def finish(self, finish_reason: str | None = None, **info: Any) -> str:
        """Turn the hidden folder into a finished run and return its id.

        Without `finish_reason`, it is "stop", "length" or "context" as the emitted ids and
        `info["sampling"]` (stop_token_ids, max_new_tokens) tell. Further keywords go into
        `run.json`. Should this fail half way (UserError when the disk is full), the steps stay
        readable as a partial run.
        """
        self.close()
        if finish_reason is None:
            finish_reason = why_finished(self._emitted, self._sampling.get("stop_token_ids"),
                                         self._sampling.get("max_new_tokens"))
        with _saving(self._hidden):
            compact(self._hidden, self._final, finish_reason=finish_reason,
                    text=self._whole_text(), info=info)
        return self.id

    def abandon(self) -> None:
        """Stop writing. What was finished stays readable as a partial run; nothing is kept of a
        run without a step."""
        self.close()
        if not self._count:
            shutil.rmtree(self._hidden, ignore_errors=True)

    def close(self) -> None:
        """Stop writing and leave the folder as it is."""
        if not self._closed:
            self._closed = True
            self._streams.close()
            self._lock.close()

    def _whole_text(self) -> str:
        if self._decode is None:
            return "".join(self._texts)
        return escape_undecodable(self._decode(self._emitted)) if self._emitted else ""

    def _pieces(self, emitted: Sequence[int]) -> list[str]:
        if self._increments is not None:
            return self._increments.push(emitted)
        return [self._known.get(int(token), "") for token in emitted]

    def _new_texts(self, step: StepRecord) -> dict[int, str]:
        if self._text_of is None:
            return {}
        ids = {int(token) for token in step.emitted}
        ids.update(map(int, step.token_ids))
        ids.update(token for token in (step.root, step.bonus) if token >= 0)
        if not self._count:
            ids.update(self._prompt_ids)
        if step.trace is not None:
            ids.update(step.trace.marginal_token_ids.ravel().tolist())
            ids.update(step.trace.target_top_ids.ravel().tolist())
            if step.trace.growth is not None:
                ids.update(step.trace.growth.token_ids.tolist())
        fresh = sorted(ids.difference(self._known))
        texts = [escape_undecodable(text) for text in self._text_of(fresh)] if fresh else []
        if len(texts) != len(fresh):
            raise ValueError("text_of did not return one text per id")
        new = dict(zip(fresh, texts))
        self._known.update(new)
        return new


@contextmanager
def _saving(folder: Path) -> Iterator[None]:
    """The system's refusal to write (a full disk, a vanished folder) as one clear sentence."""
    try:
        yield
    except OSError as error:
        raise UserError(f"The run cannot be saved under {folder.parent} ({error.strerror or error}); "
                        "free some space or set BASTION_HOME to a folder you can write.") from None
