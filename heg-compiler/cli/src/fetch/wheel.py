"""Writes a wheel of the Python package index to standard output, from an offset on, for `hegc fetch`.

Arguments: package, version, SHA-256 of the wheel, offset. The index, certificates, proxies and credentials are those
of this machine's pip. The first line is a JSON object: `{"start": N}` if the wheel's bytes from N on follow, else
`{"fail": REASON, "text": TEXT}`. Status 1 after a start says that it broke off, with the reason on standard error.
"""

import json
import logging
import signal
import sys

CHUNK_BYTES = 1 << 17
TEXT_CHARACTERS = 600


class Complaints(logging.Handler):
    """Keeps what pip says to its log only: why a page of the index could not be read."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.lines = []

    def emit(self, record):
        text = record.getMessage()
        if text.startswith("Could not fetch URL"):
            self.lines.append(text.removesuffix(" - skipping"))


def say(**fields):
    sys.stdout.buffer.write(json.dumps(fields).encode() + b"\n")
    sys.stdout.buffer.flush()


def fail(reason, text):
    say(fail=reason, text=" ".join(str(text).split())[:TEXT_CHARACTERS])
    sys.exit(0)


def connect(command):
    """pip's session and its finder of packages."""
    from pip._internal.cli.cmdoptions import make_target_python

    arguments = ["--no-cache-dir", "--no-input", "--only-binary=:all:", "--retries=2"]
    options, _ = command.parse_args(arguments)
    session = command.get_default_session(options)
    target = make_target_python(options)
    return session, command._build_package_finder(options, session, target)


def find(finder, package, version, sha256):
    """The link to the wheel."""
    complaints = Complaints()
    log = logging.getLogger("pip")
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.addHandler(complaints)
    candidates = finder.find_all_candidates(package)
    links = [c.link for c in candidates if str(c.version) == version]
    for link in links:
        if link.hash_name != "sha256" or link.hash == sha256:
            return link
    if links:
        fail("another", f"its {links[0].filename} has the SHA-256 {links[0].hash}")
    # A page that is not there says that the package is not.
    unreachable = [line for line in complaints.lines if " 404 " not in line]
    if unreachable:
        fail("unreachable", unreachable[-1])
    versions = sorted({str(candidate.version) for candidate in candidates})
    fail("missing", f"it has the versions {', '.join(versions)}" if versions else "it does not know the package")


def request(session, link, offset):
    """The response with the bytes from `offset` on, and where it begins."""
    headers = {"Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    response = session.get(link.url_without_fragment, headers=headers, stream=True)
    if response.status_code == 416:
        # Not a part of this file, or not a server that knows ranges: from the beginning.
        return request(session, link, 0) if offset else fail("refused", "HTTP status 416")
    if response.status_code >= 400:
        fail("refused", f"HTTP status {response.status_code} {response.reason or ''} for {link.filename}")
    if response.status_code != 206:
        return response, 0
    span = response.headers.get("Content-Range", "").strip()
    return response, int(span.partition("bytes ")[2].partition("-")[0])


def main(package, version, sha256, offset):
    try:
        from pip._internal.commands import create_command
        from pip._internal.exceptions import PipError
        from pip._vendor.requests import RequestException

        command = create_command("download")
    except Exception as error:
        fail("unsupported", repr(error))
    with command.main_context():
        try:
            session, finder = connect(command)
            link = find(finder, package, version, sha256)
        except (AttributeError, ImportError, TypeError) as error:
            fail("unsupported", repr(error))
        except (OSError, PipError) as error:
            fail("unreachable", error)
        try:
            response, start = request(session, link, int(offset))
        except (OSError, PipError, RequestException, ValueError) as error:
            fail("unreachable", error)
        say(start=start)
        try:
            for chunk in response.iter_content(CHUNK_BYTES):
                sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
        except Exception as error:
            sys.exit(" ".join(str(error).split())[:TEXT_CHARACTERS])


signal.signal(signal.SIGINT, signal.SIG_DFL)
main(*sys.argv[1:])
