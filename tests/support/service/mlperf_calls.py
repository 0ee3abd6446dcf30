"""Lets MLPerf's load generator send images of digits over V2, and counts wrong answers.

    PYTHON mlperf_calls.py ADDRESS SCENARIO LOGS IMAGE...

This program runs with a separate Python, which has mlcommons-loadgen, and imports nothing from
Convoy. The name of an image begins with the digit that the image shows.
"""

import http.client
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlperf_loadgen as lg

SECONDS = 2


def _flushed() -> None:
    """Do nothing, because no request is held back."""


def scores_of(address: str, file: Path) -> tuple[float, ...]:
    """Return the scores of one file. If the server refuses the file, return no scores."""
    connection = http.client.HTTPConnection(address, timeout=120)
    headers = {"Inference-Header-Content-Length": "0"}
    connection.request("POST", "/v2/models/digits/infer", file.read_bytes(), headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return struct.unpack("<10f", body[-40:]) if answer.status == 200 else ()


def main() -> None:
    """Run one scenario, and print the number of wrong answers."""
    address, scenario, logs, *names = sys.argv[1:]
    files = [Path(name) for name in names]
    wrong: list[str] = []

    def ask(sample: "lg.QuerySample") -> None:
        file = files[sample.index]
        try:
            scores = scores_of(address, file)
        except (OSError, http.client.HTTPException) as error:  # else the generator waits for ever
            scores = ()
            print(f"{file.name}: {error!r}")
        if not scores or scores.index(max(scores)) != int(file.name[0]):
            wrong.append(file.name)
        lg.QuerySamplesComplete([lg.QuerySampleResponse(sample.id, 0, 0)])

    settings = lg.TestSettings()
    settings.scenario = getattr(lg.TestScenario, scenario)
    settings.mode = lg.TestMode.PerformanceOnly
    settings.min_duration_ms = SECONDS * 1000
    settings.max_duration_ms = SECONDS * 5000
    settings.min_query_count = 1
    settings.server_target_qps = 20
    settings.offline_expected_qps = 20
    output = lg.LogOutputSettings()
    output.outdir = logs
    log = lg.LogSettings()
    log.log_output = output
    with ThreadPoolExecutor(4) as pool:
        system = lg.ConstructSUT(lambda samples: [pool.submit(ask, s) for s in samples], _flushed)
        library = lg.ConstructQSL(len(files), len(files), lambda _: None, lambda _: None)
        lg.StartTestWithLogSettings(system, library, settings, log)
        lg.DestroyQSL(library)
        lg.DestroySUT(system)
    print(f"{len(wrong)} wrong")


main()
