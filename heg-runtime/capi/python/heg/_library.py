"""libheg by ctypes: one function here for each of `heg.h`, with errors as exceptions and texts as `str`."""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any, Callable, Optional

ABI = 1
OK, PENDING, END = 0, -1, -2


class HegError(Exception):
    """Why something did not work; `code` is that of `heg.h`, an exit status of `heg`."""

    code = 0


class InputError(HegError, ValueError):
    """What was asked: a request, options, a path."""


class IncompatibleError(HegError):
    """The bundle is damaged, of another version, or does not fit this machine."""


class EnvironmentFault(HegError):
    """The machine: memory, devices, files."""


class HegBug(HegError):
    """A bug of the library."""


KINDS = {2: InputError, 3: IncompatibleError, 4: EnvironmentFault, 70: HegBug}

_heg = ctypes.CDLL(str(Path(__file__).with_name("libheg.so")))
_PLACE = POINTER(c_void_p)


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(_heg, name)
    function.restype = result
    function.argtypes = arguments
    return function


_version = _function("heg_version", c_char_p)
_abi = _function("heg_abi", c_uint32)
_open = _function("heg_open", c_int32, c_char_p, c_char_p, _PLACE, _PLACE)
_ready = _function("heg_ready", c_int32, c_void_p, _PLACE)
_close = _function("heg_close", None, c_void_p)
_describe = _function("heg_describe", c_int32, c_void_p, _PLACE, _PLACE)
_status = _function("heg_status", c_int32, c_void_p, _PLACE, _PLACE)
_flow_new = _function("heg_flow_new", c_uint64, c_void_p)
_flow_end = _function("heg_flow_end", None, c_void_p, c_uint64)
_count = _function("heg_count", c_int32, c_void_p, c_char_p, POINTER(c_size_t), _PLACE)
_submit = _function("heg_submit", c_int32, c_void_p, c_char_p, _PLACE, _PLACE)
_next = _function(
    "heg_next", c_int32, c_void_p, c_int64, _PLACE, POINTER(c_size_t), _PLACE
)
_cancel = _function("heg_cancel", None, c_void_p)
_ending = _function("heg_ending", c_int32, c_void_p, _PLACE, _PLACE)
_answer_free = _function("heg_answer_free", None, c_void_p)
_error_message = _function("heg_error_message", c_char_p, c_void_p)
_error_free = _function("heg_error_free", None, c_void_p)
_text_free = _function("heg_text_free", None, c_void_p)

if _abi() != ABI:
    raise ImportError(f"libheg has interface {_abi()}, expected {ABI}: install heg again")


def version() -> str:
    """The version of the library."""
    return str(_version().decode())


def _call(function: Any, *arguments: Any) -> int:
    """Calls a function that ends with a place for an error, and raises what comes there."""
    error = c_void_p()
    code = int(function(*arguments, byref(error)))
    if code <= OK:
        return code
    message = _error_message(error).decode(errors="replace")
    _error_free(error)
    raised = KINDS.get(code, HegError)(message)
    raised.code = code
    raise raised


def _text(function: Any, pointer: Any) -> str:
    text = c_void_p()
    _call(function, pointer, byref(text))
    try:
        return ctypes.string_at(text.value or 0).decode()
    finally:
        _text_free(text)


def _c_text(text: str) -> bytes:
    if "\0" in text:
        raise InputError("a text has a zero in it, where it would end in C")
    return text.encode()


class Handle:
    """An engine or an answer. It is freed when nobody refers to it, so never while another thread is in a call."""

    def __init__(self, pointer: c_void_p, free: Callable[[c_void_p], None]) -> None:
        self._pointer = pointer
        self._free = free

    def __del__(self) -> None:
        self._free(self._pointer)

    def ready(self) -> None:
        _call(_ready, self._pointer)

    def describe(self) -> str:
        return _text(_describe, self._pointer)

    def status(self) -> str:
        return _text(_status, self._pointer)

    def flow_new(self) -> int:
        return int(_flow_new(self._pointer))

    def flow_end(self, flow: int) -> None:
        _flow_end(self._pointer, flow)

    def count(self, request: str) -> int:
        tokens = c_size_t()
        _call(_count, self._pointer, _c_text(request), byref(tokens))
        return tokens.value

    def submit(self, request: str) -> Handle:
        answer = c_void_p()
        _call(_submit, self._pointer, _c_text(request), byref(answer))
        return Handle(answer, _answer_free)

    def next(self, patience_ms: int) -> Optional[str]:
        """The next piece; "" at the end, `None` if it has not come in time."""
        piece, length = c_void_p(), c_size_t()
        code = _call(_next, self._pointer, patience_ms, byref(piece), byref(length))
        if code == PENDING:
            return None
        return ctypes.string_at(piece.value or 0, length.value).decode()

    def cancel(self) -> None:
        _cancel(self._pointer)

    def ending(self) -> str:
        return _text(_ending, self._pointer)


def open_engine(path: str, options: str) -> Handle:
    """Opens a bundle."""
    engine = c_void_p()
    _call(_open, _c_text(path), _c_text(options), byref(engine))
    return Handle(engine, _close)
