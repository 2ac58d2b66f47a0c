"""Runs HEG bundles on this machine, over libheg.

    import heg

    with heg.Engine("model.heg") as engine:
        for piece in engine.ask("What is the capital of Norway?"):
            print(piece, end="", flush=True)

Answers of one engine run beside each other: `priority="proactive"` is background work that gives way to what a person
waits for. An engine and its answers may be used from any thread; one thread iterates over an answer.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, TypedDict, Union

from . import _library
from ._library import EnvironmentFault, HegBug, HegError, IncompatibleError, InputError

if TYPE_CHECKING:
    from typing_extensions import Literal, Unpack

__all__ = [
    "Answer",
    "Ending",
    "Engine",
    "EngineOptions",
    "EnvironmentFault",
    "HegBug",
    "HegError",
    "IncompatibleError",
    "InputError",
    "Message",
    "RequestOptions",
    "ToolCall",
    "__version__",
]

__version__ = _library.version()

Message = Dict[str, Any]
"""A message as in OpenAI's chat interface: at least `role` and, mostly, `content`."""


class EngineOptions(TypedDict, total=False):
    """Options of an engine; `heg.h` says what each does."""

    soc: str
    threads: int
    policy: str
    kv_mib: int
    speculate: Literal["off", "chain", "tree"]
    state_dir: str
    state_mib: int
    lock_weights: bool
    verify: bool


class RequestOptions(TypedDict, total=False):
    """Options of a request; `heg.h` says what each does."""

    tools: List[Dict[str, Any]]
    tool_choice: str
    json_schema: Any
    reasoning_format: Literal["auto", "deepseek", "none"]
    variables: Dict[str, Any]
    max_tokens: int
    stop: List[str]
    ignore_eos: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    priority: Literal["reactive", "proactive"]
    deadline_ms: int
    flow: int
    client: str
    keep: bool
    prediction: str
    speculate: Literal["off", "chain", "tree"]


class ToolCall(TypedDict):
    """A call of a tool; `arguments` is the JSON text of an object."""

    name: str
    arguments: str


class _Ending(TypedDict):
    finish_reason: Literal["stop", "length", "cancelled", "deadline", "shed", "failed"]
    text: str
    token_ids: List[int]
    prompt_tokens: int
    reused_tokens: int
    kept_tokens: int
    baked_tokens: int
    queued_ms: float
    ttft_ms: float
    decode_ms: float


class Ending(_Ending, total=False):
    """What an answer was, once it is over."""

    reasoning_content: str
    tool_calls: List[ToolCall]
    drafted_tokens: int
    accepted_tokens: int


class Answer(Iterator[str]):
    """An answer as it arrives: iterate for its pieces of text. An answer that nobody refers to is cancelled."""

    def __init__(self, handle: _library.Handle) -> None:
        self._handle: Optional[_library.Handle] = handle

    def __next__(self) -> str:
        handle = self._open()
        # Python hears of Ctrl-C between two looks.
        while (piece := handle.next(LOOK_MS)) is None:
            pass
        if piece == "":
            raise StopIteration
        return piece

    def cancel(self) -> None:
        """Asks the answer to end soon; from any thread. Iterating ends then, with what came until now."""
        if self._handle is not None:
            self._handle.cancel()

    def wait(self) -> Ending:
        """Waits for the end, and says what the answer was."""
        for _ in self:
            pass
        ending: Ending = json.loads(self._open().ending())
        return ending

    def text(self) -> str:
        """Waits for the end, and returns the whole text."""
        return self.wait()["text"]

    def close(self) -> None:
        """Cancels the answer, and frees it once no thread iterates over it."""
        self.cancel()
        self._handle = None

    def _open(self) -> _library.Handle:
        if self._handle is None:
            raise ValueError("the answer is closed, expected an open one")
        return self._handle

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Engine:
    """A bundle that is open, with its engine. Kernels are prepared in the background; requests may come at once."""

    def __init__(
        self, path: Union[str, os.PathLike[str]], **options: Unpack[EngineOptions]
    ) -> None:
        self._handle: Optional[_library.Handle] = _library.open_engine(
            os.fspath(path), json.dumps(options)
        )

    def ask(
        self, question: Union[str, List[Message]], **options: Unpack[RequestOptions]
    ) -> Answer:
        """Submits a question, or messages, by the model's chat template."""
        if isinstance(question, str):
            question = [{"role": "user", "content": question}]
        return self._submit({"messages": question, **options})

    def complete(
        self, prompt: Union[str, List[int]], **options: Unpack[RequestOptions]
    ) -> Answer:
        """Submits a text, or token ids, as they are."""
        named = "prompt" if isinstance(prompt, str) else "prompt_ids"
        return self._submit({named: prompt, **options})

    def count(self, question: Union[str, List[Message]]) -> int:
        """Counts the tokens of a prompt by the chat template."""
        if isinstance(question, str):
            question = [{"role": "user", "content": question}]
        return self._open().count(json.dumps({"messages": question}))

    def new_flow(self) -> int:
        """Returns a number for the `flow` of requests that build on each other."""
        return self._open().flow_new()

    def end_flow(self, flow: int) -> None:
        """Ends a flow, and frees its memory."""
        self._open().flow_end(flow)

    def wait_ready(self) -> None:
        """Waits until every kernel is ready."""
        self._open().ready()

    @property
    def model(self) -> Dict[str, Any]:
        """What the model is: `name`, `context_tokens`, …"""
        model: Dict[str, Any] = json.loads(self._open().describe())
        return model

    @property
    def status(self) -> Dict[str, Any]:
        """How the engine is: `health`, tokens since the start, …"""
        status: Dict[str, Any] = json.loads(self._open().status())
        return status

    def close(self) -> None:
        """Frees the engine, once no thread uses it and no answer is under way."""
        self._handle = None

    def _submit(self, request: Dict[str, Any]) -> Answer:
        return Answer(self._open().submit(json.dumps(request)))

    def _open(self) -> _library.Handle:
        if self._handle is None:
            raise ValueError("the engine is closed, expected an open one")
        return self._handle

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


LOOK_MS = 100
"""Longest wait in the library before Python looks for signals. Chosen: a person does not notice it."""
