"""NVIDIA's genai-perf, unchanged and pinned, measures image embeddings of a real server.

genai-perf measures mainly language models. An image classifier can answer only its requests for
NV-CLIP embeddings. genai-perf calls perf_analyzer.
"""

import json
import subprocess
from pathlib import Path

import pytest

from tests.service.api.v2.test_infer_endpoint_by_perf_analyzer import is_installed
from tests.service.api.v2.test_infer_endpoint_by_stock_clients import installed
from tests.support.servers.several_models import SAMPLES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_installed(), reason="no perf_analyzer is installed"),
]

GENAI_PERF = ("genai-perf==0.0.16", "transformers==5.24.0")

# It wants a tokenizer, also where it sends no text, and would download one.
_TOKENIZER = """
import sys, tokenizers, transformers
own = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
transformers.PreTrainedTokenizerFast(tokenizer_object=own).save_pretrained(sys.argv[1])
"""


def test_genai_perf_measures_embeddings(address: str, tmp_path: Path) -> None:
    client = installed("genai-perf", GENAI_PERF)
    tokenizer, images = tmp_path / "tokenizer", tmp_path / "images.jsonl"
    subprocess.run([client.program("python"), "-c", _TOKENIZER, str(tokenizer)], check=True)
    names = [str(file) for file in SAMPLES if file.suffix in (".jpg", ".png")]
    images.write_text("".join(json.dumps({"image": name}) + "\n" for name in names))
    command = [client.program("genai-perf"), "profile", "-m", "digits", "-u", address]
    command += ["--endpoint-type", "nvclip", "--endpoint", "v1/models/digits/embeddings"]
    command += ["--input-file", str(images), "--tokenizer", str(tokenizer)]
    command += ["--request-count", "40", "--concurrency", "4", "--artifact-dir", str(tmp_path)]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    (file,) = tmp_path.rglob("profile_export_genai_perf.json")
    report = json.loads(file.read_text())
    assert report["request_count"]["avg"] == 40, told
    assert report["request_throughput"]["avg"] > 0
