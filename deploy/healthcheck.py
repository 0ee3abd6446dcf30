"""The container's HEALTHCHECK: exits with 0 if the server is ready for requests.

Ready rather than live, because `docker compose up --wait`, `depends_on` and Swarm route requests by
it. It uses `http.client`, because `urllib` would use an HTTP proxy of the environment.
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
    sys.exit(f"no answer on port {port}: {error!r}")
if status != http.client.OK:
    sys.exit(f"not ready: {status}")
