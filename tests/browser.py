"""A headless Chromium for tests: load a page, see every request and every console error, run a script."""

from __future__ import annotations

import asyncio
import base64
import functools
import http.server
import json
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tornado.websocket import WebSocketClientConnection, websocket_connect

PROGRAM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--remote-debugging-port=0", "--disable-dev-shm-usage",
)  # fmt: skip


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which a folder is served while the block runs."""
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder))
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class Visit:
    """What happened while one page was open."""

    requests: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)


class Browser:
    """One running Chromium; every visit gets a context of its own, so that no setting is carried over."""

    def __init__(self, address: str) -> None:
        self._address = address

    def visit(
        self,
        url: str,
        *scripts: str,
        width: int = 1400,
        dark: bool = False,
        picture: Path | None = None,
        height: int = 1000,
        settle: float = 0.4,
    ) -> Visit:
        """Open the page, run the scripts (each may return a promise) one after another, and close it."""
        return asyncio.run(self._visit(url, scripts, width, height, dark, picture, settle))

    async def _visit(
        self,
        url: str,
        scripts: tuple[str, ...],
        width: int,
        height: int,
        dark: bool,
        picture: Path | None,
        settle: float,
    ) -> Visit:
        connection = await websocket_connect(self._address, max_message_size=1 << 28)
        session = _Session(connection)
        try:
            context = (await session.call("Target.createBrowserContext"))["browserContextId"]
            target = (await session.call("Target.createTarget", url="about:blank", browserContextId=context))[
                "targetId"
            ]
            session.name = (await session.call("Target.attachToTarget", targetId=target, flatten=True))[
                "sessionId"
            ]
            for domain in ("Page", "Network", "Runtime", "Log"):
                await session.call(f"{domain}.enable")
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            await session.call("Emulation.setEmulatedMedia", features=[scheme])
            await session.call(
                "Emulation.setDeviceMetricsOverride",
                width=width,
                height=height,
                deviceScaleFactor=1,
                mobile=width < 600,
            )
            await session.call("Page.navigate", url=url)
            await session.until("Page.loadEventFired")
            await session.pause(settle)
            for script in scripts:
                reply = await session.call(
                    "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
                )
                if "exceptionDetails" in reply:
                    raise AssertionError(f"{script}\n{json.dumps(reply['exceptionDetails'])[:600]}")
                session.visit.values.append(reply["result"].get("value"))
            if picture is not None:
                shot = await session.call("Page.captureScreenshot", format="png", captureBeyondViewport=False)
                picture.write_bytes(base64.b64decode(shot["data"]))
            session.name = None
            await session.call("Target.disposeBrowserContext", browserContextId=context)
            return session.visit
        finally:
            connection.close()


class _Session:
    """Calls and events of the DevTools protocol over one connection."""

    def __init__(self, connection: WebSocketClientConnection) -> None:
        self._connection = connection
        self._count = 0
        self.name: str | None = None
        self.visit = Visit()
        self._seen: set[str] = set()

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self.name:
            message["sessionId"] = self.name
        await self._connection.write_message(json.dumps(message))
        while True:
            reply = await self._next(30)
            if reply.get("id") == self._count:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']['message']}")
                return reply["result"]

    async def until(self, event: str) -> None:
        while event not in self._seen:
            await self._next(30)

    async def pause(self, seconds: float) -> None:
        """Take in events for a while."""
        end = time.monotonic() + seconds
        while (rest := end - time.monotonic()) > 0:
            try:
                await self._next(rest)
            except TimeoutError:
                return

    async def _next(self, seconds: float) -> dict[str, Any]:
        raw = await asyncio.wait_for(asyncio.ensure_future(self._connection.read_message()), seconds)
        if raw is None:
            raise RuntimeError("the browser closed the connection")
        message: dict[str, Any] = json.loads(raw)
        method, params = message.get("method", ""), message.get("params", {})
        self._seen.add(method)
        if method == "Network.requestWillBeSent":
            self.visit.requests.append(params["request"]["url"])
        elif method == "Network.loadingFailed" and not params.get("canceled"):
            self.visit.failures.append(params.get("errorText", ""))
        elif method == "Network.responseReceived" and params["response"]["status"] >= 400:
            self.visit.failures.append(f"{params['response']['status']} {params['response']['url']}")
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.visit.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.visit.errors.append(
                " ".join(str(arg.get("value", arg.get("description"))) for arg in params["args"])
            )
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.visit.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        return message


@contextmanager
def chromium() -> Iterator[Browser]:
    """A Chromium that runs while the block runs; its profile is thrown away."""
    assert PROGRAM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [PROGRAM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            port_file = Path(profile) / "DevToolsActivePort"
            deadline = time.monotonic() + 30
            while not port_file.is_file() or len(port_file.read_text().split()) < 2:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{PROGRAM}: did not start within 30 s")
                time.sleep(0.05)
            port, path = port_file.read_text().split()
            yield Browser(f"ws://127.0.0.1:{port}{path}")
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
