"""Keeps what a long run has measured, so that another run goes on where it was interrupted."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Journal:
    """Results by name, in a JSON file of their own that belongs to one question."""

    def __init__(self, path: Path, question: str) -> None:
        """Read what a run for the same `question` has left; another's results are dropped."""
        self._path, self._question = path, question
        self._results: dict[str, Any] = {}
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):  # none, or one that is no JSON
            return
        if isinstance(kept, dict) and kept.get("question") == question:
            self._results = kept["results"]

    def result(self, name: str, find: Callable[[], Any]) -> Any:
        """Return the result of that name, found now where no earlier run did."""
        if name not in self._results:
            self._results[name] = find()
            content = {"question": self._question, "results": self._results}
            partial = self._path.with_name(f"{self._path.name}.partial")
            partial.write_text(json.dumps(content), encoding="utf-8")
            os.replace(partial, self._path)
        return self._results[name]

    def remove(self) -> None:
        """Delete the file: the question is answered."""
        self._path.unlink(missing_ok=True)
