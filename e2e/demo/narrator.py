"""What the demo says while it runs: the line of ``kubectl get rtj`` whenever it changes, and every event once."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.markup import escape

from e2e.jobs import Job


class Narrator:
    """Prints what a person watching the job with kubectl would see. Give ``watch`` to Job.wait as ``each``."""

    def __init__(self, job: Job, console: Console) -> None:
        self._job = job
        self._console = console
        self._began = time.monotonic()
        self._news: tuple[str, str, str] | None = None
        self._told: set[tuple[str, str]] = set()

    def say(self, text: str) -> None:
        """Print one line with the seconds since the start. ``text`` is rich markup: what others wrote must be escaped in it."""
        self._console.print(f"[dim]{time.monotonic() - self._began:6.1f} s[/dim]  {text}", highlight=False)

    def watch(self, _status: dict[str, Any]) -> None:
        """Print what is new."""
        self._show_columns()
        self._show_events()

    def tell(self, reason: str, message: str) -> None:
        """Print one event. Its message may hold anything that a rank said before it died, brackets too."""
        self.say(f"[cyan]{escape(reason)}[/cyan]  {escape(message)}")

    def _show_columns(self) -> None:
        shown = self._job.cluster.driver.kubectl("get", "rtj", self._job.name, "-n", self._job.namespace).splitlines()
        if len(shown) < 2:
            return
        # STEP, CKPT and AGE grow every second; a line is news when anything else changed. An empty column keeps its width.
        places = {heading: shown[0].index(heading) for heading in shown[0].split()}
        ends = [*sorted(places.values())[1:], None]
        columns = {heading: shown[1][start:end].strip() for (heading, start), end in zip(places.items(), ends, strict=True)}
        news = (columns["STATE"], columns["READY"], columns["RESTARTS"])
        if news != self._news:
            if self._news is None:
                self.say(f"[bold]{escape(shown[0])}[/bold]")
            self._news = news
            self.say(escape(shown[1]))

    def _show_events(self) -> None:
        for reason, message in self._job.events():
            if (reason, message) not in self._told:
                self._told.add((reason, message))
                self.tell(reason, message)
