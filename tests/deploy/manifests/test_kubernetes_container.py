"""The image's command under the manifest's constraints: environment, user, read-only root, signals.

The tests do not cover the image's own filesystem and Python, seccomp, and the limits of cgroups.
Ports and the writable folder differ from the container's, so that tests can run at the same time.
The code is a copy that the manifest's user can read. Folders that contain the interpreter and that
this user may not enter, such as root's home, are replaced by open folders in the container's mount
namespace.
"""

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from compileall import compile_dir
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from unittest.mock import patch

import httpx
import pytest
import tritonclient.grpc as triton

from models import BUILT_IN_MODEL
from service.http.server import bind
from tests.deploy.container_files import ROOT, dockerfile_stages, environment, packages
from tests.deploy.manifests.rendered import container_environment, needs_kubectl, pod_spec, rendered
from tests.support import PATIENCE_S
from tests.support.servers.control import until
from tests.support.service.client import metric_in

SAMPLE = BUILT_IN_MODEL.parent / "samples" / "3_ink_on_paper.jpg"
CONVOY = "from service.cli import main; main()"

# In a private mount namespace: only the folder $1 can be written to; then the manifest's user
# without capabilities. Nothing is forked, so signals reach Convoy as they would in the container.
CONFINE = """
mount -t tmpfs -o size=64m,mode=1777,noexec,nosuid,nodev tmpfs "$1"
cut -d' ' -f2 /proc/self/mounts | while read -r place; do
    case "$place" in "$1" | /proc | /proc/* | /sys | /sys/* | /dev | /dev/*) continue ;; esac
    mount -o remount,bind,ro "$place" 2>/dev/null || umount -l "$place"
done
user="$2"; group="$3"; shift 3
exec setpriv --reuid "$user" --regid "$group" --clear-groups --no-new-privs \
    --bounding-set=-all --inh-caps=-all -- "$@"
"""


def confinable() -> bool:
    """Return whether this process may create a read-only root for another."""
    if os.geteuid() or not (shutil.which("unshare") and shutil.which("setpriv")):
        return False
    trial = ["unshare", "--mount", "mount", "-o", "remount,bind,ro", "/"]
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0


pytestmark = [
    needs_kubectl,
    pytest.mark.skipif(
        not confinable(), reason="a read-only root needs root, setpriv and mount namespaces"
    ),
]


@dataclass(frozen=True)
class Container:
    """A running container, and its manifest."""

    process: "subprocess.Popen[bytes]"
    spec: dict[str, object]
    url: str
    metrics_url: str
    writable: Path

    def probe(self, name: str) -> int:
        """Return the status that the kubelet would get; 0: no connection."""
        probe = self.spec[f"{name}Probe"]
        assert isinstance(probe, dict)
        try:
            return httpx.get(
                self.url + probe["httpGet"]["path"], timeout=PATIENCE_S, verify=False
            ).status_code
        except httpx.ConnectError:
            return 0

    def facts(self, name: str) -> str:
        """Return a file of the process under /proc."""
        return Path(f"/proc/{self.process.pid}/{name}").read_text()


def enterable(folder: Path) -> bool:
    """Return whether users who do not own the folder may use files in it whose names they know."""
    return bool(folder.stat().st_mode & stat.S_IXOTH)


def closed_around(folder: Path) -> list[Path]:
    """Return the folders around this one that other users may not enter, from the outside in."""
    return [parent for parent in reversed(folder.parents) if not enterable(parent)]


def opened(folders: Iterable[Path], stage: Path) -> str:
    """Return shell commands after which every user may enter these folders; `stage` is an empty
    one."""
    needed: dict[Path, list[Path]] = {}
    for folder in sorted(set(folders)):
        for outermost in closed_around(folder)[:1]:
            needed.setdefault(outermost, []).append(folder.relative_to(outermost))
    lines = [f"stage={shlex.quote(str(stage))}"]
    for closed, inside in needed.items():
        lines.append('mount -t tmpfs -o mode=755 tmpfs "$stage"')
        for each in inside:
            at, place = shlex.quote(str(closed / each)), shlex.quote(str(stage / each))
            lines.append(f"mkdir -p {place} && mount --bind {at} {place}")
        lines.append(f'mount --move "$stage" {shlex.quote(str(closed))}')
    return "\n".join(lines)


def interpreter() -> set[Path]:
    """Return the folders of the running Python, including its packages."""
    return {Path(place).resolve() for place in (sys.prefix, sys.base_prefix)}


@pytest.fixture(scope="module")
def outside() -> Iterator[Path]:
    """Return a folder that every user may enter."""
    place = next(p for p in (Path("/tmp"), Path("/var/tmp")) if p.is_dir() and enterable(p))
    with tempfile.TemporaryDirectory(prefix="convoy-container-", dir=place) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def code(outside: Path) -> Path:
    """Return a copy of Convoy's files in the image, which every user can read."""
    if closed := [str(each) for each in interpreter() if not enterable(each)]:
        pytest.skip(f"other users may not enter {' and '.join(closed)}, which holds this Python")
    folder = outside / "code"
    for name in packages():
        shutil.copytree(ROOT / name, folder / name)
    # As in the image, whose build runs Convoy once: a read-only root takes no bytecode later. It
    # lies beside the copy, wherever this process has its own. What is compiled already is copied.
    compiled = {
        source: Path(cache_from_source(str(ROOT / source.relative_to(folder))))
        for source in folder.rglob("*.py")
    }
    with patch.object(sys, "pycache_prefix", None):
        for source, bytecode in compiled.items():
            if bytecode.exists():
                own = Path(cache_from_source(str(source)))
                own.parent.mkdir(exist_ok=True)
                shutil.copyfile(bytecode, own)
        compile_dir(folder, quiet=1)
    for each in (folder, *folder.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)
    return folder


def free_ports(count: int) -> list[int]:
    """Return ports that are free now."""
    with ExitStack() as stack:
        bound = [stack.enter_context(bind("127.0.0.1", 0)) for _ in range(count)]
        return [listener.getsockname()[1] for listener in bound]


@contextmanager
def container(overlay: str, code: Path, *arguments: str, **environ: str) -> Iterator[Container]:
    """Yield the overlay's container, ready according to its startup probe; it is stopped if it
    still runs."""
    resources = rendered(overlay)
    pod = pod_spec(resources)
    (spec,) = pod["containers"]
    user = {**pod.get("securityContext", {}), **spec["securityContext"]}
    port, metrics = free_ports(2)
    (entrypoint,) = (i.exec_form() for i in dockerfile_stages()[-1] if i.name == "ENTRYPOINT")
    (default,) = (i.exec_form() for i in dockerfile_stages()[-1] if i.name == "CMD")
    assert entrypoint == ["convoy"]
    words = list(arguments) or spec.get("args", default)
    folder = Path(tempfile.mkdtemp(dir=code.parent))
    folder.chmod(0o755)
    image = environment(dockerfile_stages()[-1])
    environ = {
        **image,
        **container_environment(resources),
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "CONVOY_PORT": str(port),
        "CONVOY_METRICS_PORT": str(metrics),
        **environ,
    }
    script = "\n".join(["set -e", opened(interpreter(), folder), CONFINE])
    confine = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
    limits = [str(folder), str(user["runAsUser"]), str(user["runAsGroup"])]
    command = [*confine, *limits, sys.executable, "-c", CONVOY, *words]
    process = subprocess.Popen(command, cwd=code, env=environ, stderr=subprocess.PIPE)
    local = "http://127.0.0.1"
    try:
        yield ready(Container(process, spec, f"{local}:{port}", f"{local}:{metrics}", folder))
    finally:
        process.kill()
        process.communicate()
        folder.rmdir()


def ready(running: Container) -> Container:
    """Wait as long as the startup probe allows."""
    probe = running.spec.get("startupProbe") or running.spec["readinessProbe"]
    assert isinstance(probe, dict)
    deadline = time.monotonic() + probe["periodSeconds"] * probe.get("failureThreshold", 30)
    while running.probe("readiness") != 200:
        assert running.process.poll() is None, running.process.communicate()[1].decode()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return running


def test_it_serves_confined_logs_json_and_drains_on_sigterm(code: Path) -> None:
    with (
        container("cpu", code, CONVOY_NOTICE_S="0.3") as running,
        ThreadPoolExecutor(8) as pool,
    ):
        status = running.facts("status")
        assert re.findall(r"^[UG]id:(.*)$", status, re.MULTILINE) == ["\t10001" * 4] * 2
        assert set(re.findall(r"^Cap\w+:\t(\w+)$", status, re.MULTILINE)) == {"0" * 16}
        assert "NoNewPrivs:\t1" in status
        mounts = [line.split(" ")[4:6] for line in running.facts("mountinfo").splitlines()]
        writable = [
            place
            for place, options in mounts
            if "rw" in options.split(",") and not place.startswith(("/proc", "/sys", "/dev"))
        ]
        assert writable == [str(running.writable)]

        assert running.probe("liveness") == 200
        image = SAMPLE.read_bytes()

        def classify(client: httpx.Client) -> list[tuple[int, str]]:
            """Send requests until the server refuses them or is gone."""
            answers: list[tuple[int, str]] = []
            while not answers or answers[-1][0] == 200:
                time.sleep(0.01)
                try:
                    answer = client.post(f"{running.url}/v1/classify?top_k=1", content=image)
                except httpx.TransportError:
                    answers.append((0, ""))
                    continue
                said = answer.json()
                label = said["results"][0]["predictions"][0]["label"] if "results" in said else ""
                answers.append((answer.status_code, label))
            return answers

        def metrics() -> str:
            return httpx.get(f"{running.metrics_url}/metrics", timeout=PATIENCE_S).text

        clients = [httpx.Client(timeout=PATIENCE_S, trust_env=False) for _ in range(8)]
        asked = [pool.submit(classify, client) for client in clients]
        answered = 'convoy_requests_total{status="200"}'

        def each_is_answered() -> bool:
            said = metrics()
            return 'status="200"' in said and metric_in(said, answered) > len(clients)

        until(each_is_answered)
        assert "convoy_phase_duration_seconds_sum" in metrics()
        running.process.terminate()
        grace = pod_spec(rendered("cpu"))["terminationGracePeriodSeconds"]
        _, log = running.process.communicate(timeout=grace)
        assert running.process.returncode == 0
        assert all(json.loads(line) for line in log.splitlines())
        answers = [pair for each in asked for pair in each.result()]
        assert {label for status, label in answers if status == 200} == {"3"}
        assert {status for status, _ in answers} <= {200, 503, 0}
        for client in clients:
            client.close()


# tests/service/hosting/test_loading.py gives the name to a folder of versions, too.
@pytest.mark.parametrize(
    "place",
    [
        pytest.param(".", id="the model"),
        pytest.param("1", id="its versions", marks=pytest.mark.slow),
    ],
)
def test_kserve_clients_see_the_model_by_the_name_of_the_inference_service(
    code: Path, place: str
) -> None:
    """Use a folder as storageUri creates it, with {{.Name}} replaced as KServe does."""
    resources = rendered("kserve")
    name = resources["InferenceService"]["metadata"]["name"]
    environ = container_environment(resources)
    assert environ["CONVOY_MODEL_NAME"] == "{{.Name}}"
    with tempfile.TemporaryDirectory(dir=code.parent) as models:
        Path(models).chmod(0o755)
        folder = Path(models, place)
        folder.mkdir(exist_ok=True)
        for suffix in (".onnx", ".toml"):
            shutil.copy(BUILT_IN_MODEL.with_suffix(suffix), folder / f"model{suffix}")
        shutil.copy(BUILT_IN_MODEL.with_name("labels.txt"), folder)
        (spec,) = resources["ServingRuntime"]["spec"]["containers"]
        arguments = [models if word == "/mnt/models" else word for word in spec["args"]]
        assert arguments != spec["args"]
        grpc_port, _ = free_ports(2)
        own = {
            "CONVOY_MODEL_NAME": name,
            "CONVOY_GRPC_PORT": str(grpc_port),
            "CONVOY_NOTICE_S": "0",
        }
        with container("kserve", code, *arguments, **own) as running:
            answer = httpx.get(f"{running.url}/v2/models/{name}", timeout=PATIENCE_S)
            assert (answer.status_code, answer.json()["name"]) == (200, name)
            answer = httpx.get(f"{running.url}/v2/models/{name}/ready", timeout=PATIENCE_S)
            assert answer.status_code == 200
            with closing(triton.InferenceServerClient(f"127.0.0.1:{grpc_port}")) as by_grpc:
                assert by_grpc.is_model_ready(name)
            running.process.terminate()
            assert running.process.wait(PATIENCE_S) == 0
