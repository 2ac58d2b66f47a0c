"""Asks an installed `heg` as a program would: `wheel.py BUNDLE`. Prints what it saw."""

import sys
import threading

import heg

QUESTION = "Remind me to call Ana at 5 pm."

with heg.Engine(sys.argv[1], threads=1, kv_mib=64) as engine:
    print(engine.ask(QUESTION, max_tokens=32).text())
    pieces = list(engine.ask(QUESTION, max_tokens=32))
    print(len(pieces) > 1, "".join(pieces))
    print(engine.model["name"], engine.count(QUESTION))

    # Cancelled from another thread, while this one waits.
    answer = engine.complete([1, 2, 3], max_tokens=900, ignore_eos=True, speculate="off")
    next(answer)
    threading.Timer(0.0, answer.cancel).start()
    ending = answer.wait()
    print(ending["finish_reason"], len(ending["token_ids"]) < 900)

    # Two at once, of which one gives way.
    background = engine.ask(QUESTION, max_tokens=32, priority="proactive")
    print(engine.ask(QUESTION, max_tokens=32).text(), "|", background.text())

    for wrong in ({"max_token": 3}, {"temperature": -1.0}):
        try:
            engine.ask(QUESTION, **wrong)
        except heg.InputError as error:
            print(error.code, str(error).split(",")[0])
    print(engine.status["health"])

try:
    engine.ask(QUESTION)
except ValueError as error:
    print(error)
try:
    heg.Engine("no/such/file.heg")
except heg.InputError as error:
    print(error)
