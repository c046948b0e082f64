"""The Docker files are consistent, and everything they name exists. No Docker engine is needed."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from helpers.dockerfiles import Stage, commands, is_ignored, stages
from obstore.store import S3Store
from packaging.requirements import Requirement

from service.cli.arguments import command_parser
from service.settings import MEGABYTE, PREFIX, Settings
from service.storage.database import POOL

ROOT = Path(__file__).parent.parent.parent
FILES = ("Dockerfile", "docker/worker-cuda.Dockerfile")
MAIN, CUDA = (stages(ROOT / name) for name in FILES)
IMAGES = {"api": MAIN["api"], "worker": MAIN["worker"], "worker-cuda": CUDA["worker-cuda"]}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {"api", "worker", "worker-cuda", "migrate"}
EXAMPLE = dict(re.findall(r"^(\w+)=(.*)$", (ROOT / "docker/example.env").read_text(), re.M))
IGNORE = [
    line
    for line in (ROOT / ".dockerignore").read_text().splitlines()
    if line and not line.startswith("#")
]

image = pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES)
every_stage = pytest.mark.parametrize(
    "stage", [*MAIN.values(), *CUDA.values()], ids=lambda stage: stage.name
)
service = pytest.mark.parametrize("name", SERVICES)


def is_pinned(reference: str) -> bool:
    """Return whether an image has a tag that does not change."""
    tag = reference.rpartition("/")[2].partition(":")[2]
    return bool(re.search(r"\d", tag)) and tag != "latest"


def extras(stage: Stage) -> list[str]:
    """Return the extras that the RUN instructions install."""
    found = []
    for one in stage.instructions:
        for words in commands(one) if one.word == "RUN" else ():
            if words[:2] == ["python", "requirements.py"]:
                found += words[2 : words.index(">")]
    return found


def installed(names: list[str]) -> set[str]:
    """Return all distributions that the project's extras install, directly or indirectly."""
    waiting = [("calibrd", frozenset(names))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, wanted = one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        for text in metadata.requires(name) or []:
            needed = Requirement(text)
            if needed.marker is None or any(
                needed.marker.evaluate({"extra": extra}) for extra in wanted or {""}
            ):
                waiting.append((needed.name.lower().replace("_", "-"), frozenset(needed.extras)))
    return {name for name, _ in seen}


@every_stage
def test_bases_are_pinned(stage: Stage) -> None:
    assert stage.below or is_pinned(stage.image)


@every_stage
def test_files_are_copied_from_the_project_and_reach_the_build(stage: Stage) -> None:
    for one in stage.own:
        assert one.word != "ADD"
        if one.word != "COPY" or "from" in one.flags:
            continue
        *sources, _target = one.text.split()
        for source in sources:
            assert (ROOT / source).exists()
            assert not is_ignored(PurePosixPath(source), IGNORE)


@every_stage
def test_pip_takes_pinned_versions_and_leaves_no_cache(stage: Stage) -> None:
    for run in (one for one in stage.own if one.word == "RUN"):
        for words in commands(run):
            assert words[0] not in ("apt", "apt-get", "sudo", "cd", "curl", "wget")
            if words[0] == "pip":
                assert "--no-cache-dir" in words
                assert words[words.index("-c") + 1].rpartition("/")[2] == "constraints.txt"


@every_stage
def test_folders_are_absolute(stage: Stage) -> None:
    for one in stage.own:
        assert one.word != "WORKDIR" or one.text.startswith("/")


@image
def test_images_run_as_a_plain_user_in_exec_form(image: Stage) -> None:
    words = [one.word for one in image.instructions]
    assert image.last("USER").text == "10001:10001"
    assert not {"RUN", "COPY"} & set(words[words.index("USER") :])
    assert image.last("WORKDIR").text == "/app"
    assert image.last("STOPSIGNAL").text == "SIGTERM"
    assert image.last("ENTRYPOINT").listed == ["python", "-m", "service"]
    command_parser().parse_args(image.last("CMD").listed)


@image
def test_health_checks_are_python_that_runs(image: Stage) -> None:
    match image.check:
        case ["python", "-c", code]:
            compile(code, "check", "exec")
            assert "/healthz" in code
        case ["python", "-m", "service", *words]:
            command_parser().parse_args(words)
        case other:
            pytest.fail(f"not a check that the image can run: {other}")


@image
def test_images_have_the_projects_labels(image: Stage) -> None:
    labels = image.last("LABEL").pairs
    project = PROJECT["project"]
    prefix = "org.opencontainers.image"
    assert labels[f"{prefix}.version"] == project["version"]
    assert labels[f"{prefix}.licenses"] == project["license"]
    assert labels[f"{prefix}.description"] == project["description"]


def test_all_packages_of_the_wheel_are_copied() -> None:
    patterns = PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    here = {path.name for pattern in patterns for path in ROOT.glob(pattern) if path.is_dir()}
    here = {name for name in here if (ROOT / name / "__init__.py").exists()}
    for file in (MAIN, CUDA):
        copied = [one.text.split() for one in file["wheel"].own if one.word == "COPY"]
        assert here <= {source for *sources, _ in copied for source in sources}


def test_only_the_worker_with_cuda_has_torch() -> None:
    assert {name: sorted(extras(image)) for name, image in IMAGES.items()} == {
        "api": ["charts", "onnx", "service"],
        "worker": ["charts", "onnx", "service"],
        "worker-cuda": ["charts", "onnx", "service", "train"],
    }
    assert "torch" not in installed(extras(IMAGES["worker"]))
    assert {"torch", "fastapi", "sqlalchemy"} <= installed(extras(IMAGES["worker-cuda"]))


def test_requirements_are_those_of_the_extras() -> None:
    listed = runpy.run_path(str(ROOT / "docker/requirements.py"))["requirements"]
    optional = PROJECT["project"]["optional-dependencies"]
    found = listed(ROOT / "pyproject.toml", ["train", "service"])
    assert found == PROJECT["project"]["dependencies"] + optional["train"] + optional["service"]


@pytest.mark.parametrize(
    "path", [".env", ".git/config", "calibrd-data/calibrd.db", ".venv/bin/python", "tests/x.py"]
)
def test_files_not_needed_in_an_image_stay_out_of_the_build(path: str) -> None:
    assert is_ignored(PurePosixPath(path), IGNORE)


def test_sources_are_part_of_the_build_but_caches_are_not() -> None:
    assert not is_ignored(PurePosixPath("service/storage/migrations/env.py"), IGNORE)
    assert is_ignored(PurePosixPath("service/api/__pycache__/guard.cpython-311.pyc"), IGNORE)


def test_every_setting_named_is_one() -> None:
    texts = [(ROOT / name).read_text() for name in (*FILES, "docker-compose.yml")]
    texts += [path.read_text() for path in (ROOT / "docker").iterdir() if path.is_file()]
    named = set(re.findall(rf"\b{PREFIX}\w+", "\n".join(texts)))
    assert named <= {PREFIX + name.upper() for name in Settings.model_fields}
    for variables in [one.get("environment", {}) for one in SERVICES.values()]:
        given = {name: "http://example" for name in variables if name.startswith("AWS_")}
        S3Store("calibrd", config=given)  # raises for a name it does not know


def test_compose_needs_only_the_variables_of_the_example() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    assert set(re.findall(r"\$\{(\w+)", text)) == set(EXAMPLE)
    required = set(re.findall(r"\$\{(\w+):\?", text))
    assert required == {"POSTGRES_PASSWORD", "S3_ACCESS_KEY", "S3_SECRET_KEY"}
    assert not any(value for name, value in EXAMPLE.items() if re.search("PASSWORD|SECRET", name))
    defaults = dict(re.findall(r"\$\{(\w+):-([^}]*)\}", text))
    assert defaults == {name: EXAMPLE[name] for name in EXAMPLE if name not in required}


def test_settings_in_the_env_file_reach_our_services_and_no_others() -> None:
    for name, one in SERVICES.items():
        wanted = [{"path": ".env", "required": False}] if name in OURS else None
        assert one.get("env_file") == wanted


def test_postgres_accepts_all_possible_connections() -> None:
    processes = int(EXAMPLE["API_REPLICAS"]) + int(EXAMPLE["WORKER_REPLICAS"]) + 1
    needed = processes * (POOL["pool_size"] + POOL["max_overflow"] + 1)
    assert int(EXAMPLE["POSTGRES_CONNECTIONS"]) > needed
    guide = (ROOT / "docs/how-to/postgresql-and-s3.md").read_text()
    assert f"| worker | 3 | {needed // processes} |" in guide


def test_compose_has_the_parts() -> None:
    assert set(SERVICES) >= {"proxy", "api", "worker", "migrate", "postgres", "blobs"}
    assert SERVICES["api"]["deploy"]["replicas"] == "${API_REPLICAS:-2}"
    assert set(COMPOSE["volumes"]) == {"postgres", "blobs"}
    assert COMPOSE["networks"]["inside"] == {"internal": True}


@service
def test_compose_services_are_locked_down(name: str) -> None:
    one = SERVICES[name]
    assert one["read_only"] is True
    assert one["cap_drop"] == ["ALL"]
    assert one.get("cap_add", []) == (["CHOWN"] if name == "bucket" else [])
    assert one["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in one
    if name != "bucket":
        assert not re.match(r"(0|root)\b", one["user"])
    assert ("ports" in one) == (name == "proxy")
    assert one["networks"] == (["inside", "outside"] if name == "proxy" else ["inside"])
    assert "build" in one or is_pinned(one["image"])


@service
def test_compose_services_wait_for_healthy_or_finished_ones(name: str) -> None:
    one = SERVICES[name]
    ends = one["restart"] == "no"
    has_check = "healthcheck" in one or name in IMAGES
    assert ends or has_check
    for needed, how in one.get("depends_on", {}).items():
        done = SERVICES[needed]["restart"] == "no"
        wanted = "service_completed_successfully" if done else "service_healthy"
        assert how == {"condition": wanted}


@pytest.mark.parametrize("name", sorted(OURS))
def test_compose_runs_our_images_as_intended(name: str) -> None:
    one = SERVICES[name]
    target = one["build"].get("target", name)
    file = one["build"].get("dockerfile", "Dockerfile")
    assert target in stages(ROOT / file)
    assert one["image"] == f"calibrd-{target}:{PROJECT['project']['version']}"
    assert one["user"] == IMAGES[target].last("USER").text
    asked = command_parser().parse_args(one["command"])
    meant = command_parser().parse_args(IMAGES[target].last("CMD").listed)
    assert name == "migrate" or asked == meant
    for argument in one["build"].get("args", {}):
        assert any(
            stage_arg.text.startswith(f"{argument}=")
            for stage_arg in IMAGES[target].instructions
            if stage_arg.word == "ARG"
        )


@service
def test_compose_mounts_existing_files(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        source, _, _rest = volume.partition(":")
        is_file = source.startswith("./")
        assert (ROOT / source).is_file() if is_file else source in {"/data", *COMPOSE["volumes"]}


def test_the_proxy_passes_on_to_the_api_and_lets_its_limits_hold() -> None:
    text = (ROOT / "docker/nginx.conf").read_text()
    port = IMAGES["api"].environment["CALIBRD_PORT"]
    assert f"server api:{port} resolve" in text
    inside = [port.rpartition(":")[2] for port in SERVICES["proxy"]["ports"]]
    assert re.findall(r"listen (\d+);", text) == inside
    assert SERVICES["api"]["environment"]["AWS_ENDPOINT_URL"] == "http://blobs:7070"
    assert "server blobs:7070 resolve" in text
    for line in (
        "client_max_body_size 0;",
        "proxy_request_buffering off;",
        "proxy_buffering off;",
        "proxy_next_upstream error timeout;",
    ):
        assert line in text
    predict, part = (int(one) * MEGABYTE for one in re.findall(r"max_body_size (\d+)m;", text))
    assert predict > Settings.model_fields["max_predict_bytes"].default
    assert part == Settings.model_fields["max_part_bytes"].default
    # it only writes to folders that are writable in a read-only container
    assert set(re.findall(r"(?:_temp_path|pid) (/\w+)/", text)) == {"/tmp"}  # noqa: S108


def test_the_proxy_tries_one_more_replica_and_sends_no_post_twice() -> None:
    text = (ROOT / "docker/nginx.conf").read_text()
    assert set(re.findall(r"proxy_next_upstream ([^;]+);", text)) == {"error timeout"}
    assert set(re.findall(r"proxy_next_upstream_tries (\d+);", text)) == {"2"}
    assert text.count("proxy_pass http://api;") == text.count("proxy_next_upstream_tries")


def test_the_proxy_logs_no_signature_of_a_presigned_url() -> None:
    text = (ROOT / "docker/nginx.conf").read_text()
    written = re.search(r"log_format without_query '([^']+)'", text)
    assert written
    assert not {"$request", "$request_uri", "$args"} & set(re.findall(r"\$\w+", written[1]))
    to_the_store = text[text.index("listen 8081;") :]
    assert "access_log /dev/stdout without_query;" in to_the_store
    assert "error_log /dev/stderr crit;" in to_the_store  # below it, errors quote the request


def test_the_guide_names_commands_and_paths_that_exist() -> None:
    guide = (ROOT / "docs/how-to/deploy.md").read_text()
    texts = guide + (ROOT / "docker-compose.yml").read_text()
    commands_of_ours = re.findall(r"compose run --rm (?:-T )?(\w+) ([^`)\n]+)", texts)
    commands_of_ours += re.findall(r"compose exec (\w+)\s+python -m service ([^`)\n]+)", texts)
    assert len(commands_of_ours) >= 4
    for name, words in commands_of_ours:
        assert name in OURS
        command_parser().parse_args(words.split())
    for words in re.findall(r"\(`python -m service ([^`]+)`\)", guide):
        command_parser().parse_args(words.split())
    for path in re.findall(r"docker/[\w.-]+|examples/[\w./-]+", guide):
        assert (ROOT / path).exists()
    for target in re.findall(r"--target (\w+)", guide):
        assert target in MAIN
    assert set(re.findall(rf"{PREFIX}\w+", guide)) <= {
        PREFIX + name.upper() for name in Settings.model_fields
    }


def has_compose() -> bool:
    """Return whether a Docker client with `compose` is installed."""
    if shutil.which("docker") is None:
        return False
    asked = ["docker", "compose", "version"]
    return subprocess.run(asked, capture_output=True, check=False, timeout=60).returncode == 0


@pytest.mark.skipif(not has_compose(), reason="there is no `docker compose` on this machine")
def test_docker_reads_the_compose_file(tmp_path: Path) -> None:
    given = tmp_path / "env"
    given.write_text("".join(f"{name}={value or 'x'}\n" for name, value in EXAMPLE.items()))
    done = subprocess.run(
        ["docker", "compose", "--env-file", str(given), "--profile", "gpu", "config", "--quiet"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
