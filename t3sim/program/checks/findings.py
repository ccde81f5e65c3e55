"""What is wrong with programs, and names for it."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Problem:
    """Something wrong with programs: which check says so, and what in words."""

    check: str
    message: str


@dataclass(eq=False)
class Findings:
    """What is wrong, of each check a few things at most."""

    most: int = 5
    problems: list[Problem] = field(default_factory=list)

    def add(self, check: str, message: str) -> None:
        """Note a problem, once, unless there are many of its check."""
        problem = Problem(check, message)
        if len(self.of(check)) < self.most and problem not in self.problems:
            self.problems.append(problem)

    def of(self, check: str) -> list[Problem]:
        """Return the problems that *check* has found."""
        return [problem for problem in self.problems if problem.check == check]
