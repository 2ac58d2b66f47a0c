"""Looks at a server's page in a headless Chromium while requests of both classes run.

Arguments: base URL, token. Ends with 77 where there is no browser.
"""

import contextlib
import json
import re
import shutil
import sys
import threading
import time
import urllib.request

base_url, token = sys.argv[1:]
try:
    from playwright.sync_api import sync_playwright
except ImportError:
    print("no playwright (run: cargo xtask setup --clients)")
    sys.exit(77)
names = ["chromium", "chromium-browser", "google-chrome"]
browser_path = next(filter(None, map(shutil.which, names)), None)
if browser_path is None:
    print("no Chromium (run: apt-get install chromium)")
    sys.exit(77)

over = threading.Event()


def keep_asking(priority, pause):
    body = {"prompt": list(range(5, 205)), "max_tokens": 200, "ignore_eos": True, "priority": priority}
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
    while not over.is_set():
        request = urllib.request.Request(f"{base_url}/v1/completions", json.dumps(body).encode(), headers)
        urllib.request.urlopen(request, timeout=60).read()
        over.wait(pause)


# How many points of a lane's picture have a class's colour.
POINTS = """name => {
  const canvas = document.querySelector("#lanes canvas");
  const paint = document.createElement("canvas").getContext("2d");
  paint.fillStyle = getComputedStyle(canvas).getPropertyValue("--" + name);
  paint.fillRect(0, 0, 1, 1);
  const wanted = paint.getImageData(0, 0, 1, 1).data.join();
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let points = 0;
  for (let at = 0; at < data.length; at += 4) points += data.slice(at, at + 4).join() === wanted;
  return points;
}"""


def number(page, selector):
    return float(page.locator(selector).inner_text().replace(",", ""))


def wait_until(page, what, is_so):
    """Asks from outside: the page's policy lets nobody evaluate text inside."""
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end, f"waited for: {what}"
        page.wait_for_timeout(100)


@contextlib.contextmanager
def slow_network(page):
    """Lets a page read 2 KB a second: an answer that takes half a second takes minutes."""
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    conditions = {"offline": False, "latency": 0, "uploadThroughput": -1}
    session.send("Network.emulateNetworkConditions", conditions | {"downloadThroughput": 2048})
    yield
    session.send("Network.emulateNetworkConditions", conditions | {"downloadThroughput": -1})
    session.detach()


def talk(page):
    """Talks to the model: an answer as it comes, one that is stopped, one in the background, and one that is refused."""
    answers = page.locator("#said .assistant")
    bodies = []

    def sent(request):
        if request.url.endswith("/v1/chat/completions"):
            bodies.append(json.loads(request.post_data))

    def say(text, priority):
        page.locator("#talk-class").select_option(priority)
        page.locator("#message").fill(text)
        page.locator("#message").press("Enter")

    def notes():
        return answers.last.locator(".notes").inner_text()

    page.on("request", sent)
    say("Remind me to call Ana at 5 pm.", "reactive")
    wait_until(page, "an answer", lambda: "first token after" in notes() and page.locator("#send").is_visible())
    assert answers.last.locator(".words").inner_text().strip(), "an empty answer"
    assert notes().startswith("reactive · ") and "in the queue" in notes(), notes()
    wait_until(page, "why it waited", lambda: " · waited: " in notes() and " ms" in notes().split("waited: ")[1])
    first = answers.last.locator(".words").inner_text()

    say("<b>And Bo?</b>", "proactive")
    wait_until(page, "a second answer", lambda: answers.count() == 2 and "first token after" in notes())
    assert notes().startswith("proactive · "), notes()
    assert page.locator("#said .user .words").last.inner_text() == "<b>And Bo?</b>"
    roles = [message["role"] for message in bodies[1]["messages"]]
    assert roles == ["user", "assistant", "user"] and bodies[1]["messages"][1]["content"].strip() == first.strip()
    assert [body["priority"] for body in bodies] == ["reactive", "proactive"]
    assert all(body["stream"] and body["model"] == "tiny-agent" for body in bodies)

    # Answers are short here, and over before somebody could stop them; this one goes on, and comes slowly.
    def go_on(route):
        body = json.loads(route.request.post_data) | {"ignore_eos": True}
        route.continue_(post_data=json.dumps(body))

    page.route("**/v1/chat/completions", go_on)
    with slow_network(page):
        say("And on", "reactive")
        wait_until(page, "a long answer", lambda: answers.last.locator(".words").inner_text())
        page.get_by_role("button", name="Stop").click()
        wait_until(page, "the stop", lambda: notes().startswith("reactive · stopped"))
    page.unroute_all(behavior="wait")

    # What a model thinks is folded above its answer. This one does not think.
    def thinking(route):
        deltas = [{"reasoning_content": "<i>Who?</i>"}, {"content": "Ana"}]
        events = [json.dumps({"id": "none", "choices": [{"delta": delta}]}) for delta in deltas]
        route.fulfill(content_type="text/event-stream", body="".join(f"data: {event}\n\n" for event in events))

    thoughts = answers.last.locator(".thoughts")
    assert thoughts.is_hidden()
    page.route("**/v1/chat/completions", thinking)
    say("Who?", "reactive")
    is_free = page.locator("#send").is_visible
    wait_until(page, "a thought", lambda: is_free() and answers.last.locator(".words").inner_text() == "Ana")
    assert thoughts.is_visible() and thoughts.locator("p").is_hidden()
    thoughts.locator("summary").click()
    assert thoughts.locator("p").inner_text() == "<i>Who?</i>"
    page.unroute_all(behavior="wait")

    say("too long " * 2000, "reactive")
    wait_until(page, "a refusal", lambda: "no answer: " in notes())
    page.get_by_role("button", name="Start over").click()
    assert page.locator("#said article").count() == 0
    page.remove_listener("request", sent)


def watch(page):
    errors = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    foreign = []
    page.on("request", lambda request: foreign.append(request.url) if not request.url.startswith(base_url) else None)

    page.goto(base_url)
    for given in ["wrong", token]:
        page.get_by_label("This server asks for its token").fill(given)
        with page.expect_response("**/dashboard.json*"):
            page.get_by_role("button", name="Show").click()
    # Without a token, and with a wrong one.
    assert len(errors) == 2 and all("401" in error for error in errors), errors
    page.wait_for_selector("#lanes canvas")
    assert page.locator("#lanes h3").all_inner_texts() == ["CPU"]
    assert page.title() == "tiny-agent – HEG", page.title()

    for name in ["reactive", "proactive"]:
        cells = page.locator("#queues").get_by_role("row", name=name).get_by_role("cell")
        wait_until(page, f"{name} tokens", lambda: number(page, f"#{name}-rate") > 0)
        wait_until(page, f"live {name} requests", lambda: sum(map(int, cells.all_inner_texts())) > 0)
        wait_until(page, f"{name} slices", lambda: page.evaluate(POINTS, name) > 0)
        share = re.compile(rf"\b{name} [1-9]")
        wait_until(page, f"{name} share", lambda: share.search(page.locator("#lanes header span").inner_text()))
    wait_until(page, "the slowest request", lambda: page.locator("#slowest-causes tr").count() > 0)
    wait_until(page, "KV memory", lambda: number(page, "#kv") > 0)
    assert number(page, "#per-step") >= 1
    wait_until(page, "requests that ended", lambda: number(page, "#finished") > 0)
    talk(page)
    # The browser reports the refusal as well.
    assert len(errors) == 3 and "400" in errors[2], errors
    for width in [1280, 360]:
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"wider than {width}"
    assert len(errors) == 3 and not foreign, (errors, foreign)

    # What a compiler says is shown, as text.
    def failing(route):
        response = route.fetch()
        route.fulfill(response=response, json=response.json() | {"warm_failures": ["<b>refused</b>"]})

    assert page.locator("#warm").is_hidden()
    page.route("**/dashboard.json*", failing)
    wait_until(page, "a failure", lambda: page.locator("#warm").inner_text().endswith("<b>refused</b>"))
    # A request that is being answered is: its handler must not find it answered by somebody else.
    page.unroute_all(behavior="wait")

    # Texts have a table once there are some.
    texts = {"route": "rerank", "requests": 4, "texts": 40, "tokens": 900, "seconds": 2.0, "queued_seconds": 1.0, "waiting": 3}

    def ranking(route):
        response = route.fetch()
        route.fulfill(response=response, json=response.json() | {"texts": [texts, texts | {"requests": 0, "waiting": 0}]})

    assert page.locator("#texts").is_hidden()
    page.route("**/dashboard.json*", ranking)
    cells = page.locator("#texts-routes tr").locator("th, td")
    wait_until(page, "texts", lambda: cells.all_inner_texts() == ["rerank", "3", "4", "40", "900", "500 ms", "25 ms"])
    page.unroute_all(behavior="wait")

    # The token stays with the tab.
    page.reload()
    page.wait_for_selector("#lanes canvas")


with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
    # Without the pause every batch has a reactive request in it, and counts as such.
    loads = [("reactive", 0.5), ("proactive", 0), ("proactive", 0)]
    askers = [threading.Thread(target=keep_asking, args=load) for load in loads]
    for asker in askers:
        asker.start()
    try:
        watch(browser.new_page())
    finally:
        over.set()
        for asker in askers:
            asker.join()
        browser.close()
