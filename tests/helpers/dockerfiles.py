"""Parse Dockerfiles and .dockerignore, as far as this project needs; reject anything else."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

WORDS = re.compile(
    "ADD|ARG|CMD|COPY|ENTRYPOINT|ENV|EXPOSE|FROM|HEALTHCHECK|LABEL|RUN|STOPSIGNAL|USER|WORKDIR"
)


@dataclass(frozen=True)
class Instruction:
    """An instruction, its flags, and the rest of the line."""

    word: str
    flags: dict[str, str]
    text: str

    @property
    def listed(self) -> list[str] | None:
        """Return the words of the exec form; None for the shell form."""
        return json.loads(self.text) if self.text.startswith("[") else None

    @property
    def pairs(self) -> dict[str, str]:
        """Return the names and values of ENV and LABEL."""
        return dict(one.split("=", 1) for one in shlex.split(self.text))


@dataclass
class Stage:
    """A FROM and the instructions after it, on top of the stages that it builds on."""

    image: str
    name: str
    below: Stage | None = None
    own: list[Instruction] = field(default_factory=list)

    @property
    def instructions(self) -> list[Instruction]:
        """Return all its instructions, including those of the stages below, in order."""
        return [*(self.below.instructions if self.below else []), *self.own]

    def last(self, word: str) -> Instruction:
        """Return the last instruction of a kind, which takes effect."""
        return [one for one in self.instructions if one.word == word][-1]

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables in a container."""
        made: dict[str, str] = {}
        for one in self.instructions:
            if one.word == "ENV":
                made |= one.pairs
        return made

    @property
    def check(self) -> list[str]:
        """Return the words of its health check."""
        words = self.last("HEALTHCHECK").text.partition("CMD ")[2]
        found: list[str] = json.loads(words)
        return found


def stages(path: Path) -> dict[str, Stage]:
    """Return the stages of a Dockerfile by name; the last one is built by default."""
    found: dict[str, Stage] = {}
    stage: Stage | None = None
    for one in instructions(path.read_text()):
        if one.word == "FROM":
            parts = one.text.split()
            assert parts[1::2] == ["AS"], f"{path}: a stage without a name: {one.text}"
            stage = found[parts[2]] = Stage(parts[0], parts[2], found.get(parts[0]))
        else:
            assert stage, f"{path}: {one.word} before FROM"
            stage.own.append(one)
    return found


def instructions(text: str) -> Iterator[Instruction]:
    """Yield the instructions; comments are left out, and continued lines are joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if not line.strip():
            continue
        word, _, rest = line.strip().partition(" ")
        assert WORDS.fullmatch(word), f"not an instruction that is known here: {line}"
        flags: dict[str, str] = {}
        while word != "RUN" and (found := re.match(r"--([\w-]+)=(\S+)\s+", rest)):
            flags[found[1]] = found[2]
            rest = rest[found.end() :]
        yield Instruction(word, flags, rest)


def commands(run: Instruction) -> Iterator[list[str]]:
    """Return the commands of a RUN instruction as words."""
    text = re.sub(r"^(--mount=\S+\s+)+", "", run.text)
    for one in re.split(r"\s*&&\s*", text):
        yield shlex.split(one)


def is_ignored(path: PurePosixPath, patterns: Iterable[str]) -> bool:
    """Return whether .dockerignore excludes a path; the last matching pattern decides."""
    ignored = False
    for pattern in patterns:
        wanted = _regex(pattern.removeprefix("!"))
        if any(re.fullmatch(wanted, str(one)) for one in (path, *path.parents)):
            ignored = not pattern.startswith("!")
    return ignored


def _regex(pattern: str) -> str:
    return re.escape(pattern).replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
