"""Lists every fault, and writes the table of faults."""

from tests.service.whole.faults.attacks import ATTACKS
from tests.service.whole.faults.clients import CLIENTS
from tests.service.whole.faults.fault import Fault
from tests.service.whole.faults.insides import INSIDES
from tests.service.whole.faults.messages import MESSAGES
from tests.service.whole.faults.processes import PROCESSES

FAULTS: dict[str, Fault] = {**CLIENTS, **MESSAGES, **ATTACKS, **INSIDES, **PROCESSES}

# Faults of interfaces that the tests' server does not have: the client's view, and the test.
ELSEWHERE: dict[str, tuple[str, str]] = {
    "one address opens all connections of the gRPC port": (
        "silent connections are closed; other clients are answered",
        "grpc/test_port_connections.py::test_one_address_leaves_connections_to_others",
    ),
    "no file descriptors are left, with a gRPC port": (
        "connections wait until descriptors are free; then the limits on connections hold again",
        "grpc/test_port_connections.py::"
        "test_connections_are_counted_again_once_descriptors_are_free",
    ),
    "a gRPC message does not arrive completely": (
        "DEADLINE_EXCEEDED",
        "grpc/test_port.py::test_a_message_that_does_not_arrive_is_given_up",
    ),
    "a stream's client reads no answers": (
        "nothing; the connection is closed, and the server keeps few answers",
        "grpc/test_port.py::test_a_stream_whose_client_reads_nothing_keeps_few_answers_and_ends",
    ),
    "a stream is cancelled": (
        "nothing",
        "grpc/test_port.py::test_a_stream_that_is_cancelled_writes_no_traceback",
    ),
    "one of several streams of a connection is cancelled": (
        "nothing; the other streams are answered",
        "grpc/test_port.py::test_a_stream_that_is_cancelled_leaves_its_connection_to_others",
    ),
    "a client sends more long bodies than can be read": (
        "late answers; Convoy reads the bodies of other clients meanwhile",
        "hosting/test_request.py::test_what_another_client_has_to_read_is_not_read_first",
    ),
    "a client leaves before its long body is read": (
        "nothing; the body is not read",
        "hosting/test_request.py::test_what_a_client_that_left_sent_is_not_read",
    ),
    "a client asks for metrics, lists or regions without a pause": (
        "late answers; other clients are answered",
        "edge/test_call_turns.py::test_while_models_have_requests_a_pause_follows_each_call",
    ),
    "a client sends invalid requests without a pause": (
        "late errors; other clients are answered",
        "http/test_connection.py::"
        "test_while_models_have_requests_what_follows_a_refusal_is_read_in_turn",
    ),
    "a client sends invalid messages in a gRPC stream, or asks for reflection, without a pause": (
        "late errors and answers; other clients are answered",
        "grpc/test_port.py::test_in_a_stream_what_no_model_answers_waits_for_its_turn",
    ),
    "a client closes or resets its connections right after its requests": (
        "nothing; the client's next connections wait. If the client leaves again, they are closed "
        "unread",
        "http/test_acceptor.py::test_who_leaves_owes_a_turn_and_is_not_read_if_it_leaves_again",
    ),
    "a body arrives in chunks of one byte": (
        "a late answer; other clients are answered",
        "http/test_connection.py::"
        "test_while_models_have_requests_many_pieces_wait_for_their_clients_turn",
    ),
    "a client splits long gRPC messages into very short frames": (
        "late answers; other clients are answered",
        "grpc/test_receiving.py::test_what_takes_long_to_copy_delays_the_next_of_the_same_client",
    ),
    "a compressed gRPC message is a bomb": (
        "INVALID_ARGUMENT; other clients are answered",
        "grpc/test_port.py::test_a_compressed_message_is_bounded_by_what_it_inflates_to",
    ),
    "the messages of a stream arrive faster than they are answered": (
        "late answers",
        "grpc/test_port.py::test_a_stream_has_few_bytes_in_flight_and_waits_after_a_refusal",
    ),
    "a model's new version disagrees with the old one": (
        "422 for the client that loads the version; the old version still answers",
        "hosting/test_swaps.py::"
        "test_a_version_that_agrees_too_little_is_refused_and_the_reason_is_everywhere",
    ),
    "SIGTERM while clients keep their connections open": (
        "one more answer for each client that sends a request within a second",
        "whole/test_server_process.py::"
        "test_a_client_that_keeps_its_connection_is_answered_once_more_as_the_server_ends",
    ),
    "SIGTERM while a model is loaded, or another call is in progress": (
        "503",
        "http/test_connection_ends.py::"
        "test_a_call_that_the_server_cancels_as_it_ends_is_answered_503",
    ),
    "a clip would take longer than allowed": (
        "413",
        "images/test_clip.py::test_a_clip_has_a_limit_of_seconds_by_the_estimate_for_all_its_frames",
    ),
    "an animation has too few bytes for its pixels": (
        "400",
        "images/test_clip.py::test_each_frame_needs_the_bytes_that_its_pixels_take_at_least",
    ),
    "a client keeps sending long clips": (
        "503 with Retry-After; images and clips of other clients are decoded",
        "images/test_decode_pool.py::"
        "test_long_ones_keep_neither_large_nor_other_clients_long_ones_from_a_thread",
    ),
    "a client truncates its shared memory file": (
        "400",
        "hosting/test_regions.py::test_a_file_that_is_shortened_later_is_an_error_and_not_the_end",
    ),
    "a web page of another site uses shared memory or loads models": (
        "403",
        "edge/test_rights.py::test_a_page_of_another_site_changes_nothing",
    ),
    "the file of API keys changes while requests are in progress": (
        "the answer; later requests need a key of the new file",
        "edge/test_edge.py::test_a_key_does_not_pay_what_the_key_owes_that_was_on_its_line",
    ),
    "the server is killed while another process decodes an image or tests a model": (
        "no answer; on Linux, the process ends, too",
        "engine/test_process_pool.py::test_no_process_outlives_its_parent_that_is_killed",
    ),
    "more than 64 requests to load or unload models wait, even if their clients have left": (
        "429 with Retry-After for the newest; the other requests are carried out one by one",
        "hosting/test_swaps.py::test_of_too_many_changes_that_wait_the_newest_is_refused",
    ),
    "a folder of models vanishes while the folders are listed": (
        "422 for requests to load that folder's model; other models are loaded",
        "hosting/test_loading.py::"
        "test_a_folder_that_vanishes_while_they_are_listed_is_only_its_own_models_problem",
    ),
    "a decoder crashes or hangs in a process that runs batches": (
        "500; the other images of the batch are decoded elsewhere and answered",
        "engine/test_job_processes.py::"
        "test_a_lost_decoder_is_named_and_the_others_are_decoded_elsewhere",
    ),
    "a process is killed while it runs a batch": (
        "500 for the batch; the server runs the batch that was waiting in the process, and a new"
        " process replaces it",
        "whole/test_job_processes_killed.py::"
        "test_requests_of_killed_processes_are_answered_once_each_and_the_next_are_served",
    ),
    "a client sends a request to the separate port for metrics byte by byte": (
        "nothing; the connection is closed after 2 s; other scrapes are answered",
        "http/test_metrics_port.py::"
        "test_who_sends_byte_by_byte_delays_others_no_longer_than_who_is_silent",
    ),
    "the system allows no more processes or open files": (
        "503 with Retry-After for large images, videos, and requests to load models or to register"
        " shared memory; all other requests are answered",
        "engine/test_process_pool.py::test_a_call_without_a_process_may_be_repeated",
    ),
    "the memory is near its limit": (
        "503 with Retry-After for new images; all other requests are answered",
        "machine/test_memory.py::"
        "test_while_memory_is_short_bodies_are_refused_and_all_else_is_answered",
    ),
    "the disk is full, or read-only": (
        "the answer; Convoy keeps the models in memory instead of on disk",
        "hosting/test_kept.py::test_without_a_place_on_disk_it_is_in_memory_and_the_log_says_so",
    ),
}

_HEAD = """# Faults

`pytest tests/service/whole/test_faults.py` injects these faults into a running server, one by one.
After each fault, the test checks that every accepted request has been answered exactly once, that
the counters add up, that no request remains in the server, and that the server answers new images.
`python -m tests.service.whole.faults` prints this page; a test checks that the page is up to date.

| fault | effect for the client |
| --- | --- |
"""

_ELSEWHERE = """
Other tests in `tests/service` inject these faults:

| fault | effect for the client | test |
| --- | --- | --- |
"""


def table() -> str:
    """Return deploy/FAULTS.md."""
    rows = (f"| {fault.name} | {fault.seen} |\n" for fault in FAULTS.values())
    others = (f"| {name} | {seen} | `{test}` |\n" for name, (seen, test) in ELSEWHERE.items())
    return _HEAD + "".join(rows) + _ELSEWHERE + "".join(others)
