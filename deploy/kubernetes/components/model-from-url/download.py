"""Downloads $URL to the given path. If the file's SHA-256 is not $SHA256, deletes it and exits with
1."""

import hashlib
import os
import sys
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

# Not part of the service, where only service/settings.py reads the environment.
url, expected = os.environ["URL"], os.environ["SHA256"]  # noqa: TID251
path = Path(sys.argv[1])
partial = path.with_name(path.name + ".part")
digest = hashlib.sha256()
try:
    with urlopen(url, timeout=30) as source, partial.open("wb") as file:  # noqa: S310
        while block := source.read(2**20):
            digest.update(block)
            file.write(block)
except (URLError, OSError) as error:
    partial.unlink(missing_ok=True)
    sys.exit(f"cannot download {url}: {error}")
if digest.hexdigest() != expected.lower():
    partial.unlink()
    sys.exit(f"{url} has the SHA-256 {digest.hexdigest()}, expected {expected}")
partial.rename(path)
