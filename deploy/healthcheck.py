"""Checks the container's health: exits with 0 if the server is ready for requests.

The check is for readiness, not liveness, because `docker compose up --wait`, `depends_on` and Swarm
send requests to healthy containers. It uses `http.client`, because `urllib` would use an HTTP proxy
from the environment.
"""

import http.client
import os
import sys

# Not part of the service, where only service/settings.py reads the environment.
port = int(os.environ.get("CONVOY_PORT") or 8000)  # noqa: TID251

connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
try:
    connection.request("GET", "/v2/health/ready")
    status = connection.getresponse().status
except (OSError, http.client.HTTPException) as error:
    sys.exit(f"the server does not answer on port {port}: {error!r}")
if status != http.client.OK:
    sys.exit(f"the server is not ready: /v2/health/ready answers {status} instead of 200")
