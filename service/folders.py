"""Removes the paths of the server's folders from messages for clients."""

import re
from os.path import isdir
from pathlib import Path

_BEGIN = r"(?:^|(?<=[\s'\"(=]))"  # where a path may begin in a sentence


def without_folders(message: str, *folders: Path) -> str:
    """Return the message with shortened paths. A path in one of `folders` is shortened to begin
    with the name of that folder. Any other path is shortened to its last part. If its folder does
    not exist, a path is left unchanged, because the names of a network's nodes, such as
    /conv1/Conv, look like paths."""
    for folder in folders:
        for place in dict.fromkeys((folder, folder.absolute(), folder.resolve())):
            above = str(place).removesuffix(place.name)
            own = f"(?={re.escape(place.name)}(?![\\w-]))"
            message = re.sub(_BEGIN + re.escape(above) + own, "", message) if above else message
    said, last = [], 0
    for found in re.finditer(f"{_BEGIN}/", message):
        begin, end = found.start(), found.end()
        while isdir(message[begin : (further := message.find("/", end) + 1)]):
            end = further
        if end > found.end() and begin >= last:
            said.append(message[last:begin])
            last = end
    return "".join((*said, message[last:]))
