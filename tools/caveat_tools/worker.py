"""A process of its own for reading documents that are large, or whose libraries a hostile file could crash.

`python -m caveat_tools.worker` is the child. It is sent one JSON line for each file, `[path, kind, untitled]`, and
answers with JSON lines: lists of rows, then an object `{"guess": …, "unreadable": …, "is_text": …}`. When its standard
input ends, also because its parent was killed, it dies at once. `Worker` is the parent's side.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any, Final

from caveat_tools.formats import Kind, NoTextError, Reading, Row, UnreadableError

SECONDS_PER_FILE: Final = 60.0
"""How long the reading of one document may take, in seconds of real time."""
_MEMORY_BYTES: Final = 130_000_000  # beyond what the child has mapped when it starts
_ROWS_A_LINE: Final = 50
_TOO_MUCH_MEMORY: Final = "reading it takes too much memory"


class WorkerStoppedError(Exception):
    """The worker was told to stop while it read."""


class GivenUpError(UnreadableError):
    """The reading of a document was given up for a reason that may be gone another time."""


class Worker:
    """Reads documents in a child process, which is started when it is first needed and again after it has died.

    `read` is called on one thread; `stop` on any.
    """

    def __init__(self, seconds_per_file: float = SECONDS_PER_FILE, memory_bytes: int = _MEMORY_BYTES) -> None:
        self._seconds = seconds_per_file
        self._memory = memory_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def read(self, path: Path, kind: Kind, untitled: str) -> Iterator[list[Row] | dict[str, Any]]:
        """Yield the rows of a document in lists, and at last how it ended (see the head of this file).

        Raises GivenUpError where the child dies, hangs or, after what it could read, runs out of memory;
        WorkerStoppedError after `stop`; and OSError where no process can be started.
        """
        process = self._started()
        late = threading.Event()

        def give_up() -> None:
            late.set()
            process.kill()

        limit = threading.Timer(self._seconds, give_up)
        limit.daemon = True
        limit.start()
        ended = False
        try:
            for answer in self._answers(process, [str(path), kind, untitled]):
                ended = isinstance(answer, dict)
                if isinstance(answer, dict) and answer["unreadable"] == _TOO_MUCH_MEMORY:
                    raise GivenUpError(_TOO_MUCH_MEMORY)
                yield answer
        finally:
            limit.cancel()
            if not ended:
                self._discard()
        if self._stopped:
            raise WorkerStoppedError
        if late.is_set():
            raise GivenUpError(f"reading it takes more than {self._seconds:g} s")
        if not ended:
            raise GivenUpError("reading it ended in a crash")

    def stop(self) -> None:
        """Kill the child, and never start one again."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """Kill the child and wait for its end. Closing twice is fine."""
        self.stop()
        self._discard()

    def _answers(self, process: subprocess.Popen[bytes], request: list[str]) -> Iterator[list[Row] | dict[str, Any]]:
        """Yield what the child answers, until it has ended its answer or died."""
        if process.stdin is None or process.stdout is None:
            return
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            return
        for line in process.stdout:
            if not line.endswith(b"\n"):
                return
            answer = json.loads(line)
            if isinstance(answer, dict):
                yield answer
                return
            yield [Row(*fields) for fields in answer]

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._stopped:
                raise WorkerStoppedError
            if self._process is None:
                # -P: a file json.py in the working folder must not take the place of the library
                command = [sys.executable, "-P", "-m", "caveat_tools.worker", str(self._memory)]
                self._process = subprocess.Popen(  # noqa: S603 - our own module, by our own interpreter
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                )
            return self._process

    def _discard(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            with suppress(BrokenPipeError), process:
                pass  # closes the pipes and waits


def _requests() -> queue.SimpleQueue[bytes]:
    """Return the queue of what comes in, filled by a thread that ends the process when nothing more can come."""
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def receive() -> None:
        for line in sys.stdin.buffer:
            requests.put(line)
        os._exit(0)

    threading.Thread(target=receive, daemon=True).start()
    return requests


def _answer(path: str, kind: Kind, untitled: str) -> None:
    """Read one document and write the answer."""
    reading = Reading(Path(path), kind, untitled)
    rows: list[tuple[Any, ...]] = []
    unreadable, is_text = None, True
    try:
        for row in reading:
            rows.append(astuple(row))
            if len(rows) == _ROWS_A_LINE:
                _write(rows)
                rows = []
    except UnreadableError as error:
        unreadable = str(error)
    except NoTextError:
        is_text = False
    except OSError as error:
        unreadable = f"it cannot be opened: {error.strerror}"
    except MemoryError:
        unreadable = _TOO_MUCH_MEMORY
    _write(rows)
    _write({"guess": reading.guess, "unreadable": unreadable, "is_text": is_text})


def _write(answer: Any) -> None:
    sys.stdout.buffer.write(json.dumps(answer, ensure_ascii=False).encode() + b"\n")
    sys.stdout.buffer.flush()


def _bound(memory_bytes: int) -> None:
    """Set the limits of this process, where the system knows them."""
    try:
        import resource  # noqa: PLC0415 - Windows has none
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    except OSError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (mapped + memory_bytes, mapped + memory_bytes))


def main() -> None:
    """Read what is asked for, until there is nothing more to ask."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    requests = _requests()
    _bound(int(sys.argv[1]))
    while True:
        path, kind, untitled = json.loads(requests.get())
        _answer(path, kind, untitled)


if __name__ == "__main__":
    main()
