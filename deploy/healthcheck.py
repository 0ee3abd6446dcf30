"""Exit 0 where the server in this container is ready for requests: what HEALTHCHECK runs.

Ready rather than live: those who read a container's health (`docker compose up --wait`,
`depends_on`, Swarm's routing) ask whether requests may be sent. The standard library alone, and
`http.client` rather than `urllib`, which would ask the HTTP proxy of the environment.
"""

import http.client
import os
import sys

# A container's health is no part of the service, whose settings never leave service/settings.py.
port = int(os.environ.get("CONVOY_PORT") or 8000)  # noqa: TID251

connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
try:
    connection.request("GET", "/v2/health/ready")
    status = connection.getresponse().status
except (OSError, http.client.HTTPException) as error:
    sys.exit(f"no answer on port {port}: {error!r}")
if status != http.client.OK:
    sys.exit(f"not ready: {status}")
