"""Every block of code in the README and the guides runs unchanged against the real service."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from helpers.documents import Block, blocks_of
from helpers.live_service import ROOT, Running, wait_until

SECONDS = 240
# output that the documents promise
EXPECTED_OUTPUT = {
    "docs/how-to/use-the-sdk.md": ("no_such_alias 404",),
    "docs/reference/command-line.md": (),
    "docs/how-to/apply-to-files.md": (),
    "docs/how-to/segments.md": ("app    ECE 8.7 % with one temperature, 3.4 % with its own",),
    "docs/how-to/train.md": (),
    "docs/how-to/back-up.md": ("restored 0 versions, 0 datasets",),
    "docs/how-to/monitor.md": ('{"status":"ok"}', "0 orphans"),
    "docs/how-to/secure.md": ("vision-admin",),
    "docs/reference/data-formats.md": ('"rows":3',),
    "docs/reference/http-api.md": ("succeeded\n[1, 2]\n", '"version":2'),
    "docs/reference/training-runs.md": ("decided\n1 True\n",),
    "docs/index.md": ("improved", "PASS: first.calibrd"),
    "docs/tutorials/first-service.md": ("1 temperature improved\n2 auto improved",),
    "docs/tutorials/ci-gate.md": ("PASS: shoes.calibrd", "FAIL: raw.calibrd", "PASS: ci-shoes@1"),
    "docs/tutorials/training.md": ("epoch 4: ECE",),
    "docs/reference/archive-format.md": ("'bias': (3,)",),
    "docs/concepts/calibration.md": ("mean confidence 96.8%; of 553 rows",),
    "docs/concepts/ece.md": (),
    "docs/concepts/verdicts.md": (
        "no_measurable_change on 1000 rows",
        "improved on 1000 rows",
        "insufficient_data on 80 rows",
    ),
    "docs/concepts/gates.md": (),
    "docs/concepts/margins.md": (),
    "docs/concepts/maps.md": (),
    "docs/concepts/service.md": (),
    "docs/how-to/choose-a-method.md": (),
    "docs/how-to/promote.md": ("insufficient_data\nneeds_force", "alias_has_moved\n2 None"),
    "docs/how-to/apply-in-fastapi.md": (),
    "docs/how-to/apply-with-scikit-learn.md": (
        "(450, 10) True\nimproved",
        "digits-sklearn@1 improved",
    ),
    "docs/how-to/apply-with-onnx.md": ("True\nsha256:",),
    "docs/how-to/apply-with-triton.md": ("the same in JSON: True", "unknown_segments; 1 of 4"),
}
RUN = ("python", "bash")
NOT_RUN = {
    "text": "what is printed",
    "console": "needs Docker, S3, PostgreSQL or another machine",
    "yaml": "configuration; tests/calibrd/test_command_line_guide.py runs the step for CI",
    'python title="train_lightning.py"': "tests/calibrd/test_training_lightning.py runs it",
    'python title="train_transformers.py"': "tests/calibrd/test_training_huggingface.py runs it",
}
# first lines of blocks that are run by hand, or that would run these tests
BY_HAND = ("import ray\n", "make serve ", "make wheel ")


@pytest.mark.parametrize("document", EXPECTED_OUTPUT)
def test_no_block_is_left_out_by_a_slip_in_its_tag(document: str) -> None:
    blocks = blocks_of(document)
    strange = [
        (block.line, block.language)
        for block in blocks
        if block.language not in (*RUN, *NOT_RUN) and not block.code.startswith(BY_HAND)
    ]
    assert strange == []
    fences = re.findall(r"^ *(?:```|~~~)", (ROOT / document).read_text(), re.M)
    assert len(fences) == 2 * len(blocks)


def test_no_document_is_left_out() -> None:
    for path in (ROOT / "docs").rglob("*.md"):
        name = str(path.relative_to(ROOT))
        if name not in EXPECTED_OUTPUT:
            assert not {block.language for block in blocks_of(name)} & {*RUN}


def as_statement(block: Block, document: str) -> str:
    """Return the block as one line, so that errors have the line numbers of the document."""
    code = "\n" * (block.line - 1) + block.code
    return f"exec(compile({code!r}, {document!r}, 'exec'))"


@pytest.mark.parametrize("document", EXPECTED_OUTPUT)
def test_blocks_run_as_pasted(document: str, service: Running, tmp_path: Path) -> None:
    """All blocks run in order in one folder: Python in one interpreter, bash with its path."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    wait_until(lambda: httpx.get(f"{service.url}/readyz").status_code == 200)  # its worker, too
    environment = os.environ | {
        "CALIBRD_URL": service.url,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    blocks = blocks_of(document)
    assert blocks
    printed = ""
    for language in RUN:
        chosen = [block for block in blocks if block.language == language]
        if language == "python":
            command = [sys.executable, "-W", "error", "-"]
            program = "\n".join(as_statement(block, document) for block in chosen)
        else:
            command = ["bash", "-euo", "pipefail"]
            program = "\n".join(block.code for block in chosen)
        done = subprocess.run(
            command,
            input=program,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        printed += done.stdout
    for words in EXPECTED_OUTPUT[document]:
        assert words in printed
