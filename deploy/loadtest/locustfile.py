"""Locust posts images of a folder, and looks at the answers.

    locust -f deploy/loadtest/locustfile.py --host http://127.0.0.1:8000 --images FOLDER \
        --headless --users 8 --spawn-rate 8 --run-time 30s

With `--rate R` every user sends R requests a second, if the server lets it: a user waits for its
answer before it asks again.
"""

import random
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from locust import FastHttpUser, constant_throughput, events, task
from locust.env import Environment

MEDIA_TYPES = {
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
}

images: list[tuple[bytes, str]] = []


@events.init_command_line_parser.add_listener
def add_options(parser: ArgumentParser) -> None:
    """The options beside Locust's own."""
    parser.add_argument("--images", default="models/digits/samples", help="folder of images")
    parser.add_argument(
        "--rate", type=float, default=0, help="most requests a second of each user; 0: no limit"
    )


@events.test_start.add_listener
def read_images(environment: Environment, **_: Any) -> None:
    """Read every image before the first request."""
    options = environment.parsed_options
    folder = Path(options.images)
    images[:] = [
        (file.read_bytes(), MEDIA_TYPES[file.suffix.lower()])
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in MEDIA_TYPES
    ]
    if not images:
        raise SystemExit(f"{folder}: no JPEG, PNG or WebP files are there")


class Client(FastHttpUser):
    """Somebody who wants to know what is in an image."""

    def wait_time(self) -> float:
        """Seconds until the next request."""
        rate = self.environment.parsed_options.rate
        wait_s: float = constant_throughput(rate)(self) if rate else 0
        return wait_s

    @task
    def classify(self) -> None:
        """Post one image."""
        data, media_type = random.choice(images)  # noqa: S311  no secret
        with self.client.post(
            "/v1/classify",
            data=data,
            headers={"Content-Type": media_type},
            catch_response=True,
        ) as response:
            # Locust counts any other status as a failure by itself.
            if response.status_code == 200 and "predictions" not in response.text:
                response.failure("an answer without predictions")
