"""deploy/nginx.conf in front of two servers: the configuration that the how-to hands out, tried with Debian's nginx."""

from __future__ import annotations

import base64
import json
import os
import signal
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect

from tests import sse
from tests.deploy.programs import running, written
from tests.parts import ROOT, program, require
from tests.processes.parts import SHARED_REDIS, contiguous, site, wait_for
from tests.servers import ServerProcess, free_port

CONF = ROOT / "deploy" / "nginx.conf"
pytestmark = pytest.mark.timeout(240)

LONG = "tokens:200 delay_ms:20 size:24"


@dataclass
class Proxied:
    """A site behind nginx."""

    url: str
    port: int
    certificate: Path
    servers: list[ServerProcess]
    folder: Path

    @property
    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificate))

    def client(self) -> httpx.Client:
        headers = {"Authorization": "Token demo-ada"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, verify=self.context)


def certificate(folder: Path) -> tuple[Path, Path]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = [program("openssl") or "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    require("nginx", "openssl", "postgres", "redis")
    folder = tmp_path_factory.mktemp("nginx")
    cert, key = certificate(folder)
    static = folder / "static"
    static.mkdir()
    (static / "page.js").write_text("export const here = true;\n")
    port, plain = free_port(), free_port()
    with site(2, folder, redis=SHARED_REDIS) as servers:
        conf = written(CONF, folder / "agui.conf", {
            "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
            "listen 80": f"listen 127.0.0.1:{plain}",
            "server_name example.org": "server_name 127.0.0.1",
            "/etc/ssl/example.org.pem": str(cert),
            "/etc/ssl/private/example.org.key": str(key),
            "127.0.0.1:8001": f"127.0.0.1:{servers[0].port}",
            "127.0.0.1:8002": f"127.0.0.1:{servers[1].port}",
            "/srv/mysite/static/": f"{static}/",
        })  # fmt: skip
        # What a distribution has around it: here without its paths, which belong to root.
        paths = "".join(
            f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        whole = folder / "nginx.conf"
        whole.write_text(
            f"{'user root;' if os.geteuid() == 0 else ''}\nworker_processes 1;\ndaemon off;\npid {folder}/nginx.pid;\n"
            "error_log stderr;\nevents { worker_connections 1024; }\n"
            f"http {{\ngzip on;\ngzip_types *;\naccess_log off;\n{paths}include {conf};\n}}\n"
        )
        with running("nginx", "-c", str(whole), "-p", str(folder), port=port, folder=folder):
            yield Proxied(f"https://127.0.0.1:{port}", port, cert, servers, folder)


def test_frames_come_while_the_run_goes_on(proxied: Proxied) -> None:
    proxied.servers[0].stored("nothing")  # whoever looks into the database is there before the run begins
    with (
        proxied.client() as http,
        http.stream("POST", "/agui/agents/echo", json=sse.body("live", LONG)) as response,
    ):
        assert response.status_code == 200, response.read()
        frames = sse.frames(response)
        seen = [next(frames) for _ in range(10)]
        # Four seconds of run: a buffer would hold the first frames back until its end.
        assert stored_status(proxied, "live") == "running"
        seen += list(frames)
        headers = response.headers
    assert contiguous(seen)
    assert len(seen) == 204
    # spoken between the site and nginx, not for clients
    assert "x-accel-buffering" not in headers
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["cache-control"] == "no-store"
    assert headers.get("content-encoding", "identity") == "identity"


def stored_status(proxied: Proxied, thread: str) -> str:
    status: str = proxied.servers[0].stored(thread)["runs"][-1]["status"]
    return status


def test_two_servers_are_one_site(proxied: Proxied) -> None:
    """Each request of a run goes to whichever server is next: started, followed, stopped, answered."""
    with proxied.client() as http:
        endless = sse.body("one", "tokens:20000 delay_ms:10 size:8")
        with http.stream("POST", "/agui/agents/echo", json=endless) as posted:
            path = posted.headers["Content-Location"]
            frames = sse.frames(posted)
            next(frames)
            with proxied.client() as other, other.stream("GET", path) as followed:
                watched = sse.frames(followed)
                next(watched)
                assert other.post(path.replace("/events", "/cancel")).json()["cancelling"] is True
                list(watched)
            assert list(frames)[-1][1]["type"] == "RUN_FINISHED"
        assert stored_status(proxied, "one") == "cancelled"
        logs = [server.log for server in proxied.servers]
    assert all("Traceback" not in log for log in logs)


def test_a_websocket_comes_through(proxied: Proxied) -> None:
    with connect(
        f"wss://127.0.0.1:{proxied.port}/agui/ws/echo", ssl=proxied.context, origin=proxied.url,  # type: ignore[arg-type]
        additional_headers={"Authorization": "Token demo-ada"},
    ) as socket:  # fmt: skip
        socket.send(json.dumps(sse.body("socket", "over a socket", protocolVersion="1.1")))
        types, said = [], ""
        while "RUN_FINISHED" not in types:
            event = json.loads(socket.recv(timeout=20))
            types.append(event["type"])
            said += event.get("delta", "")
    assert types[0] == "RUN_STARTED"
    assert said == "You said: over a socket"


def test_http_2(proxied: Proxied) -> None:
    """Many feeds of one browser share a connection."""
    require("curl")
    body = json.dumps(sse.body("two", "over HTTP/2"))
    done = subprocess.run(
        [
            "curl", "-sS", "-N", "--http2", "--cacert", str(proxied.certificate), "-w", "version %{http_version}",
            "-H", "Authorization: Token demo-ada", "-H", "Content-Type: application/json", "-d", body,
            f"{proxied.url}/agui/agents/echo",
        ],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.endswith("version 2")
    assert '"type":"RUN_FINISHED"' in done.stdout


def test_the_servers_connections_are_kept(proxied: Proxied) -> None:
    with proxied.client() as http:
        for _ in range(30):
            assert http.get("/agui/health").json() == {"status": "ok"}
        ports = [server.port for server in proxied.servers]
        # seen from the machine: connections from nginx to the servers that are open while nothing is asked
        assert 1 <= sum(established(port) for port in ports) <= 32


def established(port: int) -> int:
    """Open connections to a port of this machine, counted at the end that was called."""
    wanted = f"{port:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(fields[1].endswith(f":{wanted}") and fields[3] == "01" for fields in map(str.split, lines))


def test_bodies_have_the_sites_limit_and_its_words(proxied: Proxied) -> None:
    with proxied.client() as http:
        fits = sse.body("large", "x" * 5_000_000)
        assert http.post("/agui/agents/echo", json=fits).status_code == 200
        too_large = sse.body("large", "x" * (40 * 1024 * 1024 + 1))
        answer = http.post("/agui/agents/echo", json=too_large)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "body_too_large"


def test_copilotkit(proxied: Proxied) -> None:
    """Its streams come at once, 20 MB files get through, and its own address is not redirected."""
    with proxied.client() as http:
        for url in ("/copilotkit", "/copilotkit/"):
            assert "echo" in http.post(url, json={"method": "info"}).json()["agents"]
        with http.stream("POST", "/copilotkit/agent/echo/run", json=sse.body("kit", LONG)) as response:
            frames = sse.frames(response)
            seen = [next(frames) for _ in range(10)]
            assert stored_status(proxied, "kit") == "running"
            seen += list(frames)
        assert [event["type"] for _, event in seen][-1] == "RUN_FINISHED"
        source = {
            "type": "data",
            "value": base64.b64encode(bytes(20 * 1024 * 1024)).decode(),
            "mimeType": "application/pdf",
        }
        large = sse.body("kit-large", "")
        large["messages"][0]["content"] = [{"type": "document", "source": source}, {"type": "text", "text": "Keep it"}]
        assert http.post("/copilotkit/agent/echo/run", json=large).status_code == 200
        assert "/attachments/" in str(proxied.servers[0].stored("kit-large")["messages"][0])


def test_static_files_and_the_redirect(proxied: Proxied) -> None:
    with proxied.client() as http:
        assert http.get("/static/page.js").text == "export const here = true;\n"
        assert http.get("/").status_code == 200
        assert "agents" in http.get("/agui/").json()


def test_a_draining_server_is_passed_over(proxied: Proxied) -> None:
    """SIGTERM under load: what runs ends in order, what comes goes to the other one; no client sees it."""
    first, second = proxied.servers
    stop = threading.Event()
    answers: list[tuple[int, str]] = []

    def ask(lane: int) -> None:
        with proxied.client() as http:
            number = 0
            while not stop.is_set():
                number += 1
                body = sse.body(f"drain-{lane}-{number}", "tokens:10 delay_ms:20 size:8")
                with http.stream("POST", "/agui/agents/echo", json=body) as response:
                    status = response.status_code
                    last = list(sse.frames(response))[-1][1]["type"] if status == 200 else response.read().decode()
                answers.append((status, last))

    lanes = [threading.Thread(target=ask, args=(lane,), daemon=True) for lane in range(6)]
    for lane in lanes:
        lane.start()
    wait_for(lambda: len(answers) > 20, "runs are answered")
    first.signal(signal.SIGTERM)
    assert first.wait(40) in (0, -signal.SIGTERM)
    seen = len(answers)
    wait_for(lambda: len(answers) > seen + 30, "runs are answered by the other server")
    stop.set()
    for lane in lanes:
        lane.join(30)
    assert set(answers) == {(200, "RUN_FINISHED")}
    assert second.running
