"""Lets Locust post the files of a folder and check the answers. The folder must contain only
images.

    locust -f deploy/loadtest/locustfile.py --host http://127.0.0.1:8000 --images FOLDER \
        --headless --users 8 --spawn-rate 8 --run-time 30s

With `--rate R` each user sends at most R requests per second. A user waits for each answer before
the next request.
"""

import random
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from locust import FastHttpUser, constant_throughput, events, task
from locust.env import Environment

images: list[bytes] = []


@events.init_command_line_parser.add_listener
def add_options(parser: ArgumentParser) -> None:
    """Add options to Locust's own options."""
    parser.add_argument("--images", default="models/digits/samples", help="folder of images")
    parser.add_argument(
        "--rate",
        type=float,
        default=0,
        help="requests per second of each user, at most; 0: no limit",
    )


@events.test_start.add_listener
def read_images(environment: Environment, **_: Any) -> None:
    """Read all images into memory before the first request."""
    options = environment.parsed_options
    folder = Path(options.images)
    images[:] = [
        file.read_bytes()
        for file in sorted(folder.iterdir())
        if file.is_file() and not file.name.startswith(".")
    ]
    if not images:
        raise SystemExit(f"{folder} has no files; name a folder of images with --images")


class Client(FastHttpUser):
    """A user that classifies random images from the folder."""

    def wait_time(self) -> float:
        """Return how many seconds the user waits before its next request."""
        rate = self.environment.parsed_options.rate
        wait_s: float = constant_throughput(rate)(self) if rate else 0
        return wait_s

    @task
    def classify(self) -> None:
        """Post one image."""
        with self.client.post(
            "/v1/classify",
            data=random.choice(images),  # noqa: S311  not a secret
            headers={"Content-Type": "application/octet-stream"},  # the server recognises images
            catch_response=True,
        ) as response:
            # Locust itself counts other statuses as failures.
            if response.status_code == 200 and "predictions" not in response.text:
                response.failure("the answer has no predictions")
