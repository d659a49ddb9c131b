"""Generated requests against the server's own OpenAPI document, by the schemathesis command in a process of its own."""

import subprocess
import sys
from pathlib import Path

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,negative_data_rejection"
)


def test_generated_requests_get_documented_answers(server, idle_lab, tmp_path):
    """Acceptance of all that fits the document is not checked: rules between fields cannot be written in it."""
    command = Path(sys.executable).with_name("schemathesis")
    options = ["--checks", CHECKS, "--phases", "fuzzing", "--max-examples", "60", "--generation-deterministic"]
    done = subprocess.run(
        [command, "run", f"{server.url}/openapi.json", *options, "--request-timeout", "60"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert "Tested: 5" in done.stdout, done.stdout[-2000:]
