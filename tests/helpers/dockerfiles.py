"""Reads Dockerfiles and .dockerignore as far as ours go; what it does not know it refuses."""

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
    """A word in capitals, its flags, and the rest of the line."""

    word: str
    flags: dict[str, str]
    text: str

    @property
    def listed(self) -> list[str] | None:
        """The words of the exec form; None for the shell form."""
        return json.loads(self.text) if self.text.startswith("[") else None

    @property
    def pairs(self) -> dict[str, str]:
        """The names and values of ENV and LABEL."""
        return dict(one.split("=", 1) for one in shlex.split(self.text))


@dataclass
class Stage:
    """A FROM and what follows it, on top of the stages that it builds on."""

    image: str
    name: str
    below: Stage | None = None
    own: list[Instruction] = field(default_factory=list)

    @property
    def instructions(self) -> list[Instruction]:
        """All that made it, first to last."""
        return [*(self.below.instructions if self.below else []), *self.own]

    def last(self, word: str) -> Instruction:
        """The instruction that holds in the end."""
        return [one for one in self.instructions if one.word == word][-1]

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a container finds."""
        made: dict[str, str] = {}
        for one in self.instructions:
            if one.word == "ENV":
                made |= one.pairs
        return made

    @property
    def check(self) -> list[str]:
        """The words of its health check."""
        words = self.last("HEALTHCHECK").text.partition("CMD ")[2]
        found: list[str] = json.loads(words)
        return found


def stages(path: Path) -> dict[str, Stage]:
    """The stages of a Dockerfile by name; the last one is what is built by default."""
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
    """One by one; comments are left out, continued lines are joined."""
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
    """The commands of a RUN, as words."""
    text = re.sub(r"^(--mount=\S+\s+)+", "", run.text)
    for one in re.split(r"\s*&&\s*", text):
        yield shlex.split(one)


def is_ignored(path: PurePosixPath, patterns: Iterable[str]) -> bool:
    """Whether .dockerignore keeps a path out of the build: the last pattern that fits decides."""
    ignored = False
    for pattern in patterns:
        wanted = _regex(pattern.removeprefix("!"))
        if any(re.fullmatch(wanted, str(one)) for one in (path, *path.parents)):
            ignored = not pattern.startswith("!")
    return ignored


def _regex(pattern: str) -> str:
    return re.escape(pattern).replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
