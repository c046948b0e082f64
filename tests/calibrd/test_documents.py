"""Every block of code in the README and the guides runs as pasted, against the real service."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.documents import Block, blocks_of
from helpers.live_service import ROOT, Running

SECONDS = 240
# what a reader is told that the lines print
SAID = {
    "README.md": ("improved\n2,000 rows, 10 classes", "logits must not be NaN (1 row breaks this"),
    "docs/sdk.md": ("no_such_alias 404",),
    "docs/command-line.md": (),
    "docs/batch.md": (),
    "docs/segments.md": ("app    ECE 8.7 % with one temperature, 3.4 % with its own",),
    "docs/training.md": (),
}
RUN = ("python", "bash")
NOT_RUN = {
    "text": "what is printed",
    "yaml": "tests/calibrd/test_command_line_guide.py runs its step",
    "python lightning": "tests/calibrd/test_training_lightning.py runs it",
    "python transformers": "tests/calibrd/test_training_huggingface.py runs it",
}
# how blocks begin that are run by hand, or would start what these tests are part of
BY_HAND = ("import ray\n", "make serve ", "make wheel ")
ELSEWHERE = {"docs/deploying.md": "tests/project/test_docker.py"}


@pytest.mark.parametrize("document", SAID)
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
    for path in (ROOT / "docs").glob("*.md"):
        name = f"docs/{path.name}"
        if name in ELSEWHERE:
            assert name in (ROOT / ELSEWHERE[name]).read_text()
        elif name not in SAID:
            assert not {block.language for block in blocks_of(name)} & {*RUN}


def as_statement(block: Block, document: str) -> str:
    """The block in one line, such that the lines of an error are those of the document."""
    code = "\n" * (block.line - 1) + block.code
    return f"exec(compile({code!r}, {document!r}, 'exec'))"


@pytest.mark.parametrize("document", SAID)
def test_blocks_run_as_pasted(document: str, service: Running, tmp_path: Path) -> None:
    """One after the other in one folder: Python blocks in one interpreter, bash with its path."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
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
    for words in SAID[document]:
        assert words in printed
