"""Records the measurements of a long run, so that a later run can continue after an
interruption."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Journal:
    """A JSON file with results by name.

    `question` is a hash of the inputs, because the results are valid only for equal inputs.
    """

    def __init__(self, path: Path, question: str) -> None:
        """Read the results of earlier runs for the same `question`.

        A file for another question, or without results, is deleted.
        """
        self._path, self._question = path, question
        self._results = self._kept()
        if not self._results:
            self.remove()

    def _kept(self) -> dict[str, Any]:
        try:
            kept = json.loads(self._path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):  # no file, or a file that is not JSON
            return {}
        if not isinstance(kept, dict) or kept.get("question") != self._question:
            return {}
        results = kept.get("results")
        return results if isinstance(results, dict) else {}

    def result(self, name: str, find: Callable[[], Any]) -> Any:
        """Return the recorded result called `name`. If there is none, call `find` and record its
        result."""
        if name not in self._results:
            self._results[name] = find()
            content = {"question": self._question, "results": self._results}
            partial = self._path.with_name(f"{self._path.name}.partial")
            partial.write_text(json.dumps(content), encoding="utf-8")
            os.replace(partial, self._path)
        return self._results[name]

    def remove(self) -> None:
        """Delete the file. Call this once the run is complete."""
        self._path.unlink(missing_ok=True)
